"""The results for people (Markdown) and for programs (JSON)."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.measure import LATENCY, REQUESTS, STREAMS, Kind, Results
from bench.sluice import COMPARISONS

_MEBIBYTE = 1024 * 1024
_CEILING = "straight at the mock"
_OURS = "Sluice"
_ABSENT = "-"
#: Fewer have no middle half.
_LEAST_PAIRS = 4


@dataclass(frozen=True)
class Setting:
    """How and where a run was made."""

    date: datetime
    machine: dict[str, str]
    wrk: str
    rounds: int
    seconds: int
    streams: int


@dataclass(frozen=True)
class Summary:
    """A row: medians over the rounds. None where it wasn't measured, or failed."""

    label: str
    version: str
    state: str
    requests_a_second: float | None
    streams_a_second: float | None
    p50_us: float | None
    added_p50_us: float | None
    idle_mib: float | None
    kib_a_stream: float | None
    ttfb_p50_ms: float | None
    ttfb_p99_ms: float | None


def summarise(results: Results) -> list[Summary]:
    """One row a lane, in the order of measurement."""
    return [_summary(results, label) for label in results.notes]


def write(directory: Path, setting: Setting, results: Results) -> None:
    """Write results.json and results.md."""
    rows = summarise(results)
    document = {
        "date_utc": setting.date.isoformat(timespec="seconds"),
        "machine": setting.machine,
        "wrk": setting.wrk,
        "rounds": setting.rounds,
        "seconds_a_load": setting.seconds,
        "held_streams": setting.streams,
        "busy_with_other_things_before_each_turn": results.busy_before,
        "failures": results.failures,
        "summary": [asdict(row) for row in rows],
        "ratios": ratios(rows),
        "loads": [asdict(run) | {"rate": round(run.load.rate, 1)} for run in results.loads],
        "held": [asdict(run) for run in results.held],
        "idle_bytes": results.idle_bytes,
    }
    (directory / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    (directory / "results.md").write_text(markdown(setting, results, rows))


def ratios(rows: list[Summary]) -> dict[str, dict[str, dict[str, float]]]:
    """Ours over theirs, by our row, their row and figure. Above 1 is faster for the rates only."""
    peers = [row for row in rows if not row.label.startswith(_OURS) and row.label != _CEILING]
    return {
        ours.label: {peer.label: _ratio(ours, peer) for peer in peers}
        for ours in rows
        if ours.label.startswith(_OURS)
    }


def markdown(setting: Setting, results: Results, rows: list[Summary]) -> str:
    """The page a person reads."""
    parts = [_head(setting, results), _main_table(setting, rows)]
    if any(ratios(rows).values()):
        parts.append(_ratio_table(rows))
    measured = {run.label for run in results.loads}
    parts.extend(_comparison(results, baseline) for baseline in COMPARISONS if baseline in measured)
    if any(run.usage for run in results.loads):
        parts.append(_usage_table(results))
    parts.append(_versions(rows))
    if results.failures:
        failed = "\n".join(f"- {' '.join(failure.split())}" for failure in results.failures)
        parts.append(f"## Failures\n\n{failed}")
    return "\n\n".join(parts) + "\n"


def _summary(results: Results, label: str) -> Summary:
    note = results.notes[label]
    held = next((run for run in results.held if run.label == label and not run.error), None)
    idle = results.idle_bytes.get(label)
    return Summary(
        label=label,
        version=note.version,
        state=note.state,
        requests_a_second=_median(_rates(results, label, REQUESTS)),
        streams_a_second=_median(_rates(results, label, STREAMS)),
        p50_us=_median(_p50s(results, label).values()),
        added_p50_us=_added_p50(results, label),
        idle_mib=None if idle is None else statistics.median(idle) / _MEBIBYTE,
        kib_a_stream=None if held is None else held.kilobytes_a_stream,
        ttfb_p50_ms=None if held is None else held.held.ttfb_p50_ms,
        ttfb_p99_ms=None if held is None else held.held.ttfb_p99_ms,
    )


def _rates(results: Results, label: str, kind: Kind) -> list[float]:
    """None at all if one failed: a median over the good rounds would hide it."""
    runs = [run for run in results.loads if run.label == label and run.kind == kind.name]
    return [] if any(run.error for run in runs) else [run.load.rate for run in runs]


def _p50s(results: Results, label: str) -> dict[int, float]:
    runs = [run for run in results.loads if run.label == label and run.kind == LATENCY.name]
    return {} if any(run.error for run in runs) else {run.round: run.load.p50_us for run in runs}


def _added_p50(results: Results, label: str) -> float | None:
    """What the gateway adds to the same round's latency straight at the mock."""
    straight = _p50s(results, _CEILING)
    through = _p50s(results, label)
    if label == _CEILING:
        return None
    return _median(through[number] - straight[number] for number in through.keys() & straight)


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def _ratio(ours: Summary, theirs: Summary) -> dict[str, float]:
    names = ("requests_a_second", "streams_a_second", "added_p50_us", "idle_mib", "kib_a_stream")
    found: dict[str, float] = {}
    for name in names:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine is not None and other:
            found[name] = round(mine / other, 3)
    return found


def _head(setting: Setting, results: Results) -> str:
    machine = setting.machine
    busy = max(results.busy_before, default=0.0)
    return (
        "# Sluice beside other gateways\n\n"
        f"{setting.date:%Y-%m-%d %H:%M} UTC on {machine['cpu']}, {machine['cores']} cores,"
        f" Linux {machine['kernel']}, Python {machine['python']}, wrk {setting.wrk}."
        f" Each gateway has core 0 and one worker; mock and load share core 1."
        f" Medians of {setting.rounds} interleaved rounds, {setting.seconds} s a load."
        " Every answer was checked to be a whole 200; one that is not makes the run fail."
        f" Before a turn the machine was up to {busy:.0%} busy with other things."
    )


def _main_table(setting: Setting, rows: list[Summary]) -> str:
    head = [
        "",
        "requests/s, 64 connections",
        "streams/s of 52 events, 32 connections",
        "p50, 1 connection, ms",
        "added p50, ms",
        "idle memory, MiB",
        f"KiB a stream, {setting.streams:,} held",
        "time to their first word, p50 / p99, ms",
        "state it keeps",
    ]
    return _table(head, [_main_cells(row) for row in rows])


def _main_cells(row: Summary) -> list[str]:
    ttfb = _ABSENT
    if row.ttfb_p50_ms is not None and row.ttfb_p99_ms is not None:
        ttfb = f"{row.ttfb_p50_ms:,.0f} / {row.ttfb_p99_ms:,.0f}"
    return [
        row.label,
        _number(row.requests_a_second, 0),
        _number(row.streams_a_second, 0),
        _number(row.p50_us, 2, 1000),
        _number(row.added_p50_us, 2, 1000),
        _number(row.idle_mib, 0),
        _number(row.kib_a_stream, 0),
        ttfb,
        row.state,
    ]


def _ratio_table(rows: list[Summary]) -> str:
    head = ["ours over theirs", "beside", "requests/s", "streams/s", "added p50", "idle memory"]
    head.append("memory a stream")
    names = ("requests_a_second", "streams_a_second", "added_p50_us", "idle_mib", "kib_a_stream")
    body = [
        [ours, peer, *(_number(figures.get(name), 2) for name in names)]
        for ours, beside in ratios(rows).items()
        for peer, figures in beside.items()
    ]
    return "## Ratios\n\n" + _table(head, body)


def _comparison(results: Results, baseline: str) -> str:
    """What a part of the gateway costs: each turn's rate with it over the same turn's without."""
    compared = COMPARISONS[baseline]
    body = []
    for label in compared.labels:
        cells = [label]
        for kind in (REQUESTS, STREAMS):
            without, loaded = (_by_turn(results, each, kind) for each in (baseline, label))
            costs = sorted(1 - loaded[n] / without[n] for n in without.keys() & loaded.keys())
            if len(costs) < _LEAST_PAIRS:
                cells += [", ".join(f"{cost:.1%}" for cost in costs) or _ABSENT, _ABSENT]
                continue
            low, middle, high = statistics.quantiles(costs)
            cells += [f"{middle:.1%}", f"{low:.1%} to {high:.1%} ({len(costs)} pairs)"]
        body.append(cells)
    head = ["", "cost in requests/s", "middle half", "cost in streams/s", "middle half"]
    return f"## {compared.title}\n\n{compared.text}\n\n{_table(head, body)}"


def _by_turn(results: Results, label: str, kind: Kind) -> dict[tuple[int, int], float]:
    runs = [run for run in results.loads if run.label == label and run.kind == kind.name]
    return {(run.round, run.turn): run.load.rate for run in runs if not run.error}


def _usage_table(results: Results) -> str:
    checked: list[tuple[str, str, Any]] = [
        *((run.label, run.kind, run.usage) for run in results.loads),
        *((run.label, "held streams", run.usage) for run in results.held),
    ]
    body = [
        [
            label,
            kind,
            f"{usage.finished:,}",
            f"{usage.recorded - usage.finished:+,}",
            f"0 to {usage.in_flight_at_most}",
            "yes" if usage.exact else "NO",
            f"{usage.seconds_to_arrive:.1f}",
        ]
        for label, kind, usage in checked
        if usage is not None
    ]
    head = ["", "load", "answers finished", "more usage rows", "in flight at the end"]
    head += ["agrees", "seconds to arrive and be sure"]
    return "## Durable usage rows beside finished answers\n\n" + _table(head, body)


def _versions(rows: list[Summary]) -> str:
    named = [f"{row.label} {row.version}" for row in rows if row.label != _CEILING]
    return f"Versions: {'; '.join(named)}."


def _table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["-"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _number(value: float | None, digits: int, divisor: int = 1) -> str:
    return _ABSENT if value is None else f"{value / divisor:,.{digits}f}"
