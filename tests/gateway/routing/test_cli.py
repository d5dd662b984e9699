"""`sluice routing`, against a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from sluice.gateway.cli import main
from tests.gateway.routing.conftest import Site, tiers
from tests.harness.administration import unique
from tests.harness.gateway import ADMIN_KEY


def run(site: Site, *arguments: str, fails: bool = False) -> Any:
    """What a command prints."""
    env = {"SLUICE_URL": site.one.url, "SLUICE_ADMIN_KEY": ADMIN_KEY}
    done = CliRunner(env=env).invoke(main, ["routing", *arguments])
    assert bool(done.exit_code) == fails, done.output
    return done.output if fails else json.loads(done.output)


def test_a_document_is_shown_set_previewed_and_rolled_back(site: Site, tmp_path: Path) -> None:
    alias = unique("auto")
    file = tmp_path / "auto.yaml"
    file.write_text(yaml.safe_dump({"auto": tiers(0.5)}))
    assert run(site, "preview", alias, str(file))["requests"] == 0
    assert "no routing document" in run(site, "show", alias, fails=True)
    assert run(site, "set", alias, str(file))["version"] == 1
    assert run(site, "rollback", alias, "--version", "0")["document"] is None
    assert len(run(site, "show", alias, "--versions")["data"]) == 2
    assert alias in {each["alias"] for each in run(site, "show")["data"]}


def test_weights_need_no_file(site: Site) -> None:
    team = site.admin.team()["name"]
    both = ("--weight", "sim-a/sim=70", "--weight", "sim-b/sim=30", "--team", team)
    made = run(site, "set", "split", *both)
    assert made["document"]["weights"] == {"sim-a/sim": 70, "sim-b/sim": 30}
    assert "give FILE" in run(site, "set", "split", fails=True)
    assert "is not DEPLOYMENT=WEIGHT" in run(site, "set", "split", "--weight", "x", fails=True)
