"""`sluice simulate`, as it is typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluice.gateway.cli import main

SAMPLE = Path(__file__).parent / "samples" / "chat.jsonl"
ISSUE_OPTIONS = (
    "--replicas 4 --blocks-per-replica 120 --block-size 512 --prefill-rate 8000 "
    "--policy prefix_load --gateways 2 --seed 3"
)


def simulated(options: str, trace: Path = SAMPLE) -> Result:
    return CliRunner().invoke(main, ["simulate", "--trace", str(trace), *options.split()])


def figures(options: str) -> Any:
    result = simulated(f"{options} --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_one_json_object() -> None:
    result = figures(ISSUE_OPTIONS)
    assert result["requests"] == 240
    for key in (
        "ttft_mean_s",
        "ttft_p50_s",
        "ttft_p90_s",
        "ttft_p99_s",
        "itl_mean_s",
        "hit_rate",
        "prefill_imbalance",
        "goodput",
        "fairness_jain",
        "gpu_hours",
        "cost_per_million_tokens",
    ):
        assert result[key] > 0, key
    assert result == figures(ISSUE_OPTIONS)


def test_text_for_people() -> None:
    result = simulated(f"{ISSUE_OPTIONS} --team a=3:2 --team b --batch-share 0.2")
    assert result.exit_code == 0, result.output
    assert "TTFT s" in result.output
    assert "team" in result.output


@pytest.mark.parametrize("engine", ["queue", "vllm"])
def test_an_overload_is_refused(engine: str) -> None:
    result = figures(f"--replicas 2 --speed-up 20 --ttft-slo 1 --engine {engine}")
    assert result["sheds"] > 0
    assert result["ttft_p99_s"] < 3


def test_figures_for_teams_have_to_be_figures() -> None:
    for value in ("a=x", "=1", "a=0", "a=1:nan"):
        result = simulated(f"--team {value}")
        assert result.exit_code == 2
        assert "--team" in result.output


def test_a_bad_trace_is_explained(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    result = simulated("", bad)
    assert result.exit_code == 1
    assert "bad.jsonl: line 1" in result.output


def test_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    result = simulated(f"--plots {tmp_path / 'plots'}")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        "ttft_distribution.png",
        "ttft_over_time.png",
        "prefill_by_replica.png",
    }


def test_without_the_extra_it_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = simulated(f"--plots {tmp_path}")
    assert result.exit_code == 1
    assert "sluice-gateway[plots]" in result.output
