"""Credentials that rotate in a file, while the gateway runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.gateway.config_file import load_config
from sluice.gateway.startup_errors import ConfigError
from tests.harness.asking import body
from tests.harness.fixtures import model
from tests.harness.gateway import Gateway
from tests.harness.polling import eventually
from tests.harness.upstream import Upstream


@pytest.fixture
def rotating(
    new_database: Callable[[str], str],
    new_redis: Callable[[], str],
    upstream: Upstream,
    tmp_path: Path,
) -> Iterator[tuple[Gateway, Path]]:
    """A gateway whose provider's keys are in a file."""
    keys = tmp_path / "keys"
    keys.write_text("first-key\n\n")
    provider = {"kind": "openai", "base_url": upstream.url, "api_keys_file": str(keys)}
    config = {
        "providers": {"rotating": provider},
        "models": [model("rotating", {"provider": "rotating", "model": "m"})],
    }
    gateway = Gateway(config, new_database("rotating"), new_redis(), tmp_path)
    gateway.start()
    yield gateway, keys
    gateway.stop()


def test_a_rotated_key_is_used_without_a_restart(
    rotating: tuple[Gateway, Path], upstream: Upstream
) -> None:
    gateway, keys = rotating

    def used() -> str:
        gateway.api("POST", "/v1/chat/completions", body("chat", "rotating", "rotation"))
        return upstream.calls_with("rotation")[-1].headers["authorization"]

    assert used() == "Bearer first-key"
    keys.write_text("")  # a moment of a careless writer
    keys.write_text("second-key\n")
    eventually(lambda: used() == "Bearer second-key", 15)
    assert "second-key" not in gateway.log_text()


@pytest.mark.parametrize("text", [None, "", "  \n", "key with spaces\x07\n"])
def test_a_key_file_without_a_usable_key_is_a_fault(tmp_path: Path, text: str | None) -> None:
    keys = tmp_path / "keys"
    if text is not None:
        keys.write_text(text)
    file = tmp_path / "config.yaml"
    file.write_text(
        "providers:\n"
        f"  p: {{kind: openai, api_keys_file: {keys}}}\n"
        "models:\n"
        "  - {name: m, context_length: 9, capabilities: [chat],"
        " deployments: [{provider: p, model: m}]}\n"
    )
    with pytest.raises(ConfigError, match=r"config.yaml:2: providers.p.api_keys_file"):
        load_config(file, {})
