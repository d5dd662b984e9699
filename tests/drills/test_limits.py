"""Limits under attack: several gateways, more demand than every limit allows, clients that behave
badly, gateways that die, clocks that step, connections to Redis that break. The judge is upstream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.drills.conftest import StartFleet
from tests.drills.demand import Demand, Habit
from tests.drills.fleet import FAKETIME, Fleet, nano_usd
from tests.drills.judge import Seen, mean_in_progress, most_at_once, most_in_a_minute
from tests.harness.limited import LimitedKey
from tests.harness.polling import eventually

pytestmark = pytest.mark.slow

SECONDS = 66
#: By then the first minute is full, and nothing of it has gone by.
FULL_AT = 57
#: From then on nothing is killed and nothing is missing any more, seconds after the beginning.
STEADY_FROM, STEADY_UNTIL = 36, 64

REQUESTS, TOKENS, SLOTS, BUDGET_USD = 120, 20_000, 12, "0.1"
BUDGET = 100_000_000
#: Of everything together: far away, and counted all the same.
ORGANISATION: dict[str, Any] = {
    "requests_per_minute": 20_000,
    "tokens_per_minute": 2_000_000,
    "max_concurrent": 80,
    "budgets": [{"period": "month", "limit_usd": "50"}],
}
PATIENT = 20
#: Gateways that one caller keeps so busy that they take capacity ahead for it.
HOT = (1, 3)
KILLS = 3


class Hostile:
    """The callers of the drill, each of whom another limit binds.

    Team A: concurrency. Team B: tokens. Team C: a budget. Key d1: requests. All of them are of one
    organisation. Keys p and q: for the patient, by requests and by tokens.
    """

    def __init__(self, fleet: Fleet) -> None:
        limited = fleet.limited
        self.organisation = limited.organisation(**ORGANISATION)
        team_a = limited.team(self.organisation, max_concurrent=SLOTS)
        team_b = limited.team(self.organisation, tokens_per_minute=TOKENS)
        daily = [{"period": "day", "limit_usd": BUDGET_USD}]
        self.team_c = limited.team(self.organisation, budgets=daily)
        self.keys: dict[str, LimitedKey] = {
            "a1": limited.key(team_a),
            "b1": limited.key(team_b),
            "d1": limited.key(limited.team(self.organisation), requests_per_minute=REQUESTS),
            "c1": limited.key(self.team_c),
            "p": limited.key(requests_per_minute=PATIENT + 5),
            "q": limited.key(tokens_per_minute=(PATIENT + 5) * 150),
        }

    def demand(self, fleet: Fleet) -> Demand:
        """More than every limit allows."""
        secrets = {who: key.secret for who, key in self.keys.items()}
        habits = [
            Habit("a1", secrets["a1"], SLOTS + 8, (5.0, 10.0), (10, 50), (0.0, 0.04), moods=2),
            Habit("b1", secrets["b1"], 6, (0.1, 0.6), (20, 100), (0.0, 0.2)),
            Habit("d1", secrets["d1"], 6, (0.1, 0.3), (10, 50), (0.0, 0.2), moods=0),
            Habit(
                "c1",
                secrets["c1"],
                8,
                (0.0, 0.03),
                (20, 40),
                (0.0, 0.5),
                room=(1.0, 1.2),
                gateways=HOT,
            ),
        ]
        demand = Demand([gateway.url for gateway in fleet.gateways], habits, seed=4)
        for who in ("p", "q"):
            demand.with_patience(Habit(who, secrets[who], PATIENT, (0.0, 0.0), (50, 50)))
        return demand


def attack(fleet: Fleet, demand: Demand) -> None:
    """What goes wrong meanwhile; the last gateway's clock steps to and fro."""
    blows: dict[int, Callable[[], None]] = {
        2: fleet.gateways[1].kill,
        3: lambda: fleet.restart(1),
        4: lambda: fleet.clock.set("+5h"),
        9: fleet.cut_redis,
        11: lambda: fleet.clock.set("-30h"),
        12: fleet.gateways[0].kill,
        13: lambda: fleet.restart(0),
        16: fleet.gateways[2].stop,
        20: lambda: fleet.restart(2),
        22: fleet.gateways[0].kill,
        23: lambda: fleet.restart(0),
        24: fleet.cut_redis,
        26: lambda: fleet.clock.set("+26h"),
        40: lambda: fleet.clock.set("-7h"),
        50: lambda: fleet.clock.set("+3h"),
    }
    for seconds, blow in blows.items():
        demand.sleep_until(seconds)
        blow()


@pytest.mark.parametrize("mode", ["leased", pytest.param("exact", marks=pytest.mark.long)])
def test_no_limit_is_exceeded_and_none_is_wasted(start_fleet: StartFleet, mode: str) -> None:
    fleet = start_fleet(mode=mode)
    hostile = Hostile(fleet)
    with hostile.demand(fleet) as demand:
        attack(fleet, demand)
        demand.sleep_until(FULL_AT)
        let_in = Rates(
            fleet.in_the_minute("key", hostile.keys["d1"].id)[0],
            fleet.in_the_minute("team", hostile.keys["b1"].team)[1],
        )
        demand.sleep_until(SECONDS)
    print(f"\n{mode}; clocks steered: {FAKETIME.exists()}; {dict(demand.outcomes)}")
    fleet.settle()
    seen, charged = fleet.seen(), charges(fleet)
    all_of(
        lambda: check_slots(seen, demand),
        lambda: check_rates(seen, demand, charged, let_in),
        lambda: check_budget(fleet, hostile, seen),
        lambda: check_books(fleet, seen, charged),
        lambda: check_patience(demand),
        lambda: eventually(lambda: not fleet.held(), 15, 0.2),
    )


def all_of(*checks: Callable[[], object]) -> None:
    """Make every check, and fail for all that fail."""
    failures = []
    for check in checks:
        try:
            check()
        except AssertionError as failure:
            failures.append(failure)
    if failures:
        raise ExceptionGroup("limits", failures)


def of(seen: list[Seen], *names: str) -> list[Seen]:
    """The calls of some keys."""
    return [call for call in seen if call.who in names]


def check_slots(seen: list[Seen], demand: Demand) -> None:
    """Never more than allowed, and hardly less: a slot that becomes free is idle while the old
    answer travels to its client and the next request to the judge, each of which takes what a
    refusal takes, and that depends on the machine."""
    team = of(seen, "a1")
    most, everybody = most_at_once(team), most_at_once(of(seen, "a1", "b1", "c1", "d1"))
    since, until = demand.began + STEADY_FROM, demand.began + STEADY_UNTIL
    mean = mean_in_progress(team, since, until)
    turns = sum(since <= call.began < until for call in team)
    travelling = turns * 2 * demand.refusal_seconds(since, until) / (until - since)
    print(
        f"slots: at most {most} of {SLOTS}, {mean / SLOTS:.1%} used, {travelling / SLOTS:.1%} on"
        f" the way in {turns} turns; of all at most {everybody}"
    )
    assert most <= SLOTS
    assert everybody <= ORGANISATION["max_concurrent"]
    assert mean + travelling >= 0.98 * SLOTS


@dataclass(frozen=True, slots=True)
class Charge:
    """A row of the ledger."""

    prompt: int
    completion: int
    estimated: bool
    nano_usd: int

    @property
    def tokens(self) -> int:
        return self.prompt + self.completion


def charges(fleet: Fleet) -> dict[str, Charge]:
    """The ledger, by request."""
    rows = fleet.query(
        "SELECT request_id::text, input_tokens, output_tokens, estimated, cost_nano_usd"
        " FROM usage_records"
    )
    return {row[0]: Charge(*row[1:]) for row in rows}


@dataclass(frozen=True, slots=True)
class Rates:
    """What was let in within a minute."""

    requests: int
    tokens: int


def check_rates(
    seen: list[Seen], demand: Demand, charged: dict[str, Charge], let_in: Rates
) -> None:
    """What was let in, as Redis counts it, is what is allowed; of that some never comes to the
    judge: clients leave on the way, and gateways are killed with it. Tokens are bounded by what
    the judge generated. What was cut is charged as estimated, and what a gateway was killed with
    stays reserved until its minute is over."""
    requests = most_in_a_minute((call.began, 1) for call in of(seen, "d1"))
    team = of(seen, "b1")
    real = most_in_a_minute((call.began, call.prompt + call.completion) for call in team)
    tokens = most_in_a_minute(
        (call.began, row.tokens if (row := charged.get(call.request_id)) else call.reserved)
        for call in team
    )
    latency = demand.refusal_seconds(demand.began, demand.began + SECONDS)
    print(
        f"in 60 s: {requests} of {REQUESTS} requests, {let_in.requests} let in;"
        f" tokens {real / TOKENS:.1%} at the judge, {tokens / TOKENS:.1%} as charged,"
        f" {let_in.tokens / TOKENS:.1%} let in; a refusal takes {latency * 1e3:.1f} ms"
    )
    assert 0.93 * REQUESTS <= requests <= REQUESTS
    assert 0.98 * REQUESTS <= let_in.requests <= REQUESTS
    assert real <= TOKENS
    assert let_in.tokens >= 0.98 * TOKENS
    assert tokens >= 0.93 * TOKENS


def check_budget(fleet: Fleet, hostile: Hostile, seen: list[Seen]) -> None:
    spent = sum(map(nano_usd, of(seen, "c1")))
    ledger = fleet.ledger("team_id", hostile.team_c)
    counted = fleet.counted(hostile.team_c)
    print(
        f"budget: {spent / BUDGET:.2%} at the judge, {ledger / BUDGET:.2%} in the ledger,"
        f" {counted / BUDGET:.2%} counted"
    )
    assert spent <= BUDGET
    assert counted <= BUDGET
    assert counted >= 0.98 * BUDGET
    assert counted == ledger


def check_books(fleet: Fleet, seen: list[Seen], charged: dict[str, Charge]) -> None:
    """Every generation that ended is charged as the judge saw it, but for those that a gateway
    was killed with."""
    finished = [call for call in seen if call.end == "finished"]
    lost = [call for call in finished if call.request_id not in charged]
    wrong = [
        (call, row)
        for call in finished
        if (row := charged.get(call.request_id)) is not None
        and not row.estimated
        and (row.prompt, row.completion) != (call.prompt, call.completion)
    ]
    cut = [call for call in seen if call.end == "cut" and call.request_id in charged]
    real, asked = (
        sum(map(nano_usd, cut)),
        sum(charged[call.request_id].nano_usd for call in cut),
    )
    print(
        f"books: {len(seen)} calls, {len(finished)} finished, {len(charged)} rows, {len(lost)}"
        f" lost with a gateway; {len(cut)} cut, charged {asked / max(1, real):.1f} times"
    )
    assert len(lost) <= KILLS * SLOTS
    assert not wrong
    assert not fleet.query("SELECT event, reason FROM usage_rejected")
    stray = (
        "SELECT time FROM usage_records WHERE time NOT BETWEEN now() - interval '1 hour' AND now()"
    )
    assert not fleet.query(stray), "a clock that steps moves no charge into another period"


def check_patience(demand: Demand) -> None:
    for who in ("p", "q"):
        told = [each for each in demand.told if each.who == who]
        waits = sorted(each.seconds for each in told)
        let_in = sum(each.status == 200 for each in told)
        print(f"patience of {who}: {let_in} of {len(told)} let in, told {waits[0]}-{waits[-1]} s")
        assert len(told) >= PATIENT // 2, "hardly anybody was refused"
        assert let_in == len(told)
