"""Traces as values."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from sluice.router.fleet.trace import TeamShare, TraceError, TraceRequest, assign, read_trace

SAMPLE = Path(__file__).parent / "samples" / "chat.jsonl"


def line(**members: object) -> str:
    whole = {"timestamp": 500, "input_length": 700, "output_length": 9, "hash_ids": [1, 2]}
    return json.dumps({**whole, **members}) + "\n"


def written(directory: Path, *lines: str) -> Path:
    path = directory / "trace.jsonl"
    path.write_text("".join(lines))
    return path


def test_a_line_is_a_request(tmp_path: Path) -> None:
    path = written(tmp_path, line(), "\n", line(timestamp=0, team="a", tier="batch"))
    assert read_trace(path) == [
        TraceRequest(0.0, 700, 9, (1, 2), "a", "batch"),
        TraceRequest(0.5, 700, 9, (1, 2)),
    ]


def test_arrivals_can_be_sped_up_and_cut(tmp_path: Path) -> None:
    path = written(tmp_path, line(), line(timestamp=1_000))
    assert [each.time for each in read_trace(path, speed_up=2.0)] == [0.25, 0.5]
    assert len(read_trace(path, limit=1)) == 1


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "line 2"),
        ('{"timestamp": 1}', "line 2.*input_length"),
        (line(input_length=0), "line 2.*negative"),
        (line(tier="gold"), "line 2.*tier"),
        (line(hash_ids=["x"]), "line 2.*hash_ids"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(TraceError, match=cause):
        read_trace(written(tmp_path, line(), text))


def test_an_empty_trace_is_none(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request"):
        read_trace(written(tmp_path, ""))


def test_teams_and_tiers_are_drawn_by_seed() -> None:
    trace = read_trace(SAMPLE)
    teams = (TeamShare("a", 3.0), TeamShare("b"))
    drawn = assign(trace, teams, 0.25, seed=1)
    assert drawn == assign(trace, teams, 0.25, seed=1) != assign(trace, teams, 0.25, seed=2)
    counts = Counter(each.team for each in drawn)
    assert counts["a"] > 2 * counts["b"] > 0
    assert 40 <= sum(each.tier == "batch" for each in drawn) <= 80


def test_a_trace_may_know_its_teams() -> None:
    known = TraceRequest(0.0, 1, 1, (), "known", "batch")
    assert assign([known], (TeamShare("other"),), 0.0, seed=1) == [known]
    assert assign([TraceRequest(0.0, 1, 1, ())], (), 0.0, seed=1)[0].team == "default"
