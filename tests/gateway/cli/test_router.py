"""`sluice router train | score | report`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from sluice.gateway.cli import main
from tests.router.training import outcomes


def sluice(*arguments: str | Path, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, ["router", *map(str, arguments)], input=stdin)


@pytest.fixture(name="model", scope="module")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("router")
    (folder / "train.jsonl").write_bytes(outcomes.lines(500))
    result = sluice("train", "--data", folder / "train.jsonl", "--out", folder / "model")
    assert result.exit_code == 0, result.output
    assert "APGR" in result.output
    assert "labels     500" in result.output
    return folder / "model"


def test_the_rule_scores_without_a_model() -> None:
    prompts = (
        b'{"prompt":"Who sang it?"}\n\n{"prompt":"Prove that 3x^2 = 12 has two real roots."}\n'
    )
    result = sluice("score", stdin=prompts)
    assert result.exit_code == 0
    easy, hard = map(float, result.output.split())
    assert 0 < easy < hard < 1


def test_a_model_scores_prompts_and_whole_requests(model: Path) -> None:
    asked = "What do you know of the wiring of the old mill?"
    request = {"messages": [{"role": "user", "content": asked}], "max_tokens": 5}
    lines = msgspec.json.encode({"prompt": asked}) + b"\n" + msgspec.json.encode(request)
    result = sluice("score", "--model", model, "--explain", stdin=lines)
    first, second = map(msgspec.json.decode, result.output.splitlines())
    assert first["score"] > 0.5
    assert any(reason.startswith("wording=+") for reason in first["reasons"])
    assert first == second


def test_a_report_compares_on_new_prompts(model: Path, tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_bytes(outcomes.lines(600, seed=9))
    result = sluice("report", "--model", model, "--data", tmp_path / "new.jsonl")
    assert result.exit_code == 0
    assert "less rule" in result.output
    assert result.output.strip().endswith("better")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 1"),
        (b'{"prompt":3}', "line 1"),
        (b'{"text":"x"}', "`prompt` is required"),
    ],
)
def test_a_line_that_can_t_be_scored_is_named(line: bytes, said: str) -> None:
    result = sluice("score", stdin=line)
    assert result.exit_code == 1
    assert said in result.output


def test_what_can_t_be_used_is_said(tmp_path: Path) -> None:
    few, broken = tmp_path / "few.jsonl", tmp_path / "model"
    few.write_bytes(outcomes.lines(20))
    broken.write_bytes(b"no model")
    trained = sluice("train", "--data", few, "--out", tmp_path / "out")
    assert trained.exit_code == 1
    assert "20 labelled requests" in trained.output
    assert not (tmp_path / "out").exists()
    scored = sluice("score", "--model", broken)
    assert scored.exit_code == 1
    assert "no router model" in scored.output
