"""The order of attempts, which is values in and values out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.router.breakers import Rest
from sluice.router.catalog import Deployment, Model
from sluice.router.plan import (
    ATTEMPT_BUDGET,
    AllResting,
    Fallbacks,
    GiveUp,
    Plan,
    Route,
    Step,
    expand,
)
from sluice.router.retries import MAX_WAIT_SECONDS, Failure
from sluice.wire.errors import ErrorDetail


def model(name: str, *weights: int) -> Model:
    deployments = tuple(
        Deployment(name, f"d{number}", weight) for number, weight in enumerate(weights or (1,))
    )
    return Model(name, 100, frozenset({"chat"}), frozenset({"interactive"}), deployments)


A, B, C = model("a"), model("b"), model("c")
PAIR = model("pair", 1, 1)

BROKEN = Failure(ErrorDetail("m"), 503)
LACKING = Failure(ErrorDetail("m"), 404)
LATE = Failure(ErrorDetail("m", code="upstream_timeout"))
WRONG = Failure(ErrorDetail("m"), 400)
LIMITED = Failure(ErrorDetail("m"), 429, 7.0)
OVERFLOW = Failure(ErrorDetail("m", code="context_length_exceeded"), 400)
POLICY = Failure(ErrorDetail("m", code="content_filter"), 400)
CUT = Failure(ErrorDetail("m", code="upstream_connection_lost"), where="stream")


class Resting:
    """Who rests; all others take calls."""

    def __init__(self, **rests: Rest) -> None:
        self.rests = {name.replace("_", "/"): rest for name, rest in rests.items()}

    def __call__(self, deployment: Deployment) -> Rest | None:
        return self.rests.get(deployment.name)


def plan(
    route: Route,
    rests: Resting | None = None,
    *,
    budget: int = ATTEMPT_BUDGET,
    disable_fallbacks: bool = False,
    seed: int = 1,
) -> Plan:
    draw = random.Random(seed).random
    return Plan(route, rests or Resting(), draw, budget, disable_fallbacks)


def names(plan: Plan, *failures: Failure) -> list[str]:
    """The deployments that are called, and how it ends."""
    found: list[str] = []
    for failure in (None, *failures):
        step = plan.next(failure)
        if not isinstance(step, Step):
            return [*found, type(step).__name__]
        found.append(step.deployment.name)
    return found


def test_the_only_deployment_gets_a_second_chance_before_the_fallback() -> None:
    found = names(plan(Route(A, (B,))), BROKEN, BROKEN, BROKEN)
    assert found == ["a/d0", "a/d0", "b/d0", "GiveUp"]


def test_another_deployment_comes_before_waiting() -> None:
    found = names(plan(Route(PAIR, (B,))), BROKEN, BROKEN)
    assert set(found[:2]) == {"pair/d0", "pair/d1"}
    assert found[2] == "b/d0"


def test_without_fallbacks_the_budget_is_spent_on_what_may_recover() -> None:
    found = names(plan(Route(A)), BROKEN, BROKEN, BROKEN)
    assert found == ["a/d0"] * 3 + ["GiveUp"]


def test_only_what_is_asked_again_is_waited_for() -> None:
    steps = plan(Route(PAIR))
    first, second, third = steps.next(), steps.next(BROKEN), steps.next(LACKING)
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert isinstance(third, Step)
    assert (first.wait, second.wait) == (0, 0)
    assert third.deployment is first.deployment
    assert 0 < third.wait <= 0.25
    assert [step.number for step in (first, second, third)] == [1, 2, 3]


@pytest.mark.parametrize("failure", [LACKING, LATE])
def test_who_can_not_do_better_is_not_asked_again(failure: Failure) -> None:
    assert names(plan(Route(A)), failure) == ["a/d0", "GiveUp"]
    assert names(plan(Route(A, (B,))), failure) == ["a/d0", "b/d0"]


def test_the_callers_fault_ends_it() -> None:
    assert names(plan(Route(PAIR, (B,), (B,), (B,))), WRONG) == [
        names(plan(Route(PAIR)))[0],
        "GiveUp",
    ]


def test_after_content_nothing_is_tried() -> None:
    assert names(plan(Route(A, (B,))), CUT) == ["a/d0", "GiveUp"]


def test_a_fallback_changes_the_model_used() -> None:
    steps = plan(Route(A, (B,)))
    assert isinstance(steps.next(), Step)
    step = steps.next(LACKING)
    assert isinstance(step, Step)
    assert step.model is B


def test_case_36_without_fallbacks_the_first_failure_stands() -> None:
    route = Route(PAIR, (B,), (B,), (B,))
    for failure in (BROKEN, LACKING, OVERFLOW, POLICY, LIMITED):
        found = names(plan(route, disable_fallbacks=True), failure)
        assert found[1:] == ["GiveUp"]


def test_case_36_without_fallbacks_a_resting_model_is_not_replaced() -> None:
    resting = Resting(a_d0=Rest(5, True))
    assert plan(Route(A, (B,)), resting, disable_fallbacks=True).next() == AllResting(5, True)


def test_an_overflow_goes_to_its_own_chain_only() -> None:
    route = Route(PAIR, (B,), context_overflow=(C,))
    assert names(plan(route), OVERFLOW)[1:] == ["c/d0"]
    assert names(plan(route), OVERFLOW, LACKING)[1:] == ["c/d0", "GiveUp"]


def test_a_policy_goes_to_its_own_chain_only() -> None:
    route = Route(A, (B,), content_policy=(C,))
    assert names(plan(route), POLICY) == ["a/d0", "c/d0"]
    assert names(plan(route), OVERFLOW) == ["a/d0", "GiveUp"]


def test_an_overflow_of_the_larger_model_goes_on_along_the_chain() -> None:
    route = Route(A, context_overflow=(B, C), content_policy=(A, B, C))
    assert names(plan(route), OVERFLOW, OVERFLOW) == ["a/d0", "b/d0", "c/d0"]
    assert names(plan(route), OVERFLOW, POLICY) == ["a/d0", "b/d0", "c/d0"]


def test_who_rests_is_passed_over() -> None:
    resting = Resting(pair_d0=Rest(5, False))
    assert names(plan(Route(PAIR), resting)) == ["pair/d1"]
    assert names(plan(Route(A, (B,)), Resting(a_d0=Rest(5, False)))) == ["b/d0"]


@pytest.mark.parametrize(("other", "limited"), [(True, True), (False, False)])
def test_where_everything_rests_the_soonest_recovery_is_told(other: bool, limited: bool) -> None:
    resting = Resting(a_d0=Rest(9, True), b_d0=Rest(4, other))
    assert plan(Route(A, (B,)), resting).next() == AllResting(4, limited)


def test_what_weighs_nothing_takes_nothing() -> None:
    assert plan(Route(model("x", 0, 0))).next() == GiveUp()
    assert names(plan(Route(model("x", 0, 1)))) == ["x/d1"]


def test_a_short_cooldown_is_waited_for() -> None:
    resting = Resting()
    steps = plan(Route(A), resting)
    steps.next()
    resting.rests["a/d0"] = Rest(2, True)
    step = steps.next(LIMITED)
    assert isinstance(step, Step)
    assert 2 <= step.wait <= 2.25


def test_a_long_cooldown_is_not_and_is_told() -> None:
    resting = Resting()
    steps = plan(Route(A), resting)
    steps.next()
    resting.rests["a/d0"] = Rest(60, True)
    assert steps.next(LIMITED) == GiveUp(AllResting(60, True))


def test_a_fallback_that_is_awake_is_not_kept_waiting() -> None:
    resting = Resting()
    steps = plan(Route(A, (B,)), resting)
    steps.next()
    resting.rests["a/d0"] = Rest(5, True)
    step = steps.next(LIMITED)
    assert isinstance(step, Step)
    assert (step.model, step.wait) == (B, 0)


def test_another_credential_of_the_same_deployment_is_asked_soon() -> None:
    steps = plan(Route(A))  # that nobody rests says that a credential is free
    steps.next()
    step = steps.next(Failure(ErrorDetail("m"), 429, 3600.0))
    assert isinstance(step, Step)
    assert step.wait <= 0.25


def test_a_wait_beyond_the_deadline_is_none() -> None:
    resting = Resting()
    steps = plan(Route(A), resting)
    steps.next()
    resting.rests["a/d0"] = Rest(2, True)
    assert isinstance(steps.next(LIMITED, remaining=1.5), GiveUp)


@pytest.mark.parametrize("remaining", [0.0, -1.0])
def test_after_the_deadline_nothing_is_tried(remaining: float) -> None:
    assert plan(Route(PAIR)).next(remaining=remaining) == GiveUp()


def test_a_step_that_was_not_taken_costs_nothing() -> None:
    steps = plan(Route(PAIR, (B,)))
    first, second = steps.next(), steps.next()
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert first.deployment is not second.deployment
    assert (second.number, steps.calls) == (1, 1)


def test_steps_that_are_never_taken_come_to_an_end() -> None:
    steps = plan(Route(PAIR, (B,)))
    found = [type(steps.next()) for _ in range(4)]
    assert found == [Step, Step, Step, GiveUp]
    assert steps.calls == 0


def test_a_retry_that_was_not_taken_is_not_offered_again() -> None:
    steps = plan(Route(A))
    steps.next()
    assert isinstance(steps.next(BROKEN), Step)
    assert steps.next() == GiveUp()
    assert steps.calls == 1


def test_a_step_that_was_not_taken_leaves_the_model_its_second_chance() -> None:
    steps = plan(Route(PAIR, (B,)))
    steps.next()
    taken, again = steps.next(), steps.next(BROKEN)
    assert isinstance(taken, Step)
    assert isinstance(again, Step)
    assert again.deployment is taken.deployment


def test_who_is_free_first_is_asked_again() -> None:
    for seed in range(10):
        resting = Resting()
        steps = plan(Route(PAIR), resting, seed=seed)
        steps.next()
        steps.next(BROKEN)
        resting.rests["pair/d0"] = Rest(2, False)
        step = steps.next(BROKEN)
        assert isinstance(step, Step)
        assert step.deployment.model == "d1"


def test_what_could_be_asked_is_no_rest_of_all() -> None:
    resting = Resting()
    steps = plan(Route(A, (B,)), resting, budget=1)
    steps.next()
    resting.rests["a/d0"] = Rest(60, True)
    assert steps.next(LIMITED) == GiveUp()


def test_after_an_overflow_the_earlier_deployments_are_out() -> None:
    route = Route(PAIR, (B,), context_overflow=(C,))
    found = names(plan(route, budget=5), BROKEN, OVERFLOW, LACKING)
    assert found[2:] == ["c/d0", "GiveUp"]
    steps = plan(route, Resting(c_d0=Rest(4, True)))
    steps.next()
    assert steps.next(OVERFLOW) == GiveUp(AllResting(4, True))


def test_traffic_is_shared_by_weight_among_those_awake() -> None:
    route = Route(model("x", 70, 20, 10))
    draw = random.Random(5).random
    every = Counter(str(Plan(route, Resting(), draw).next()) for _ in range(10_000))
    assert sorted(count / 10_000 for count in every.values()) == pytest.approx(
        [0.1, 0.2, 0.7], abs=0.02
    )
    resting = Resting(x_d0=Rest(1, False))
    rest = Counter(str(Plan(route, resting, draw).next()) for _ in range(10_000))
    assert sorted(count / 10_000 for count in rest.values()) == pytest.approx(
        [1 / 3, 2 / 3], abs=0.02
    )


MODELS = {name: model(name) for name in "abcdefgh"}


def anything(_: Model) -> bool:
    return True


def test_a_models_own_fallbacks_come_before_theirs() -> None:
    links = {"a": Fallbacks(("b", "c")), "b": Fallbacks(("d",)), "c": Fallbacks(("b", "a"))}
    route = expand(A, MODELS.get, links, anything)
    assert [each.name for each in route.general] == ["b", "c", "d"]


def test_chains_are_bounded_and_kept_apart() -> None:
    links = {
        name: Fallbacks((after,), context_overflow=("h",))
        for name, after in zip("abcdefg", "bcdefgh", strict=True)
    }
    route = expand(A, MODELS.get, links, anything)
    assert [each.name for each in route.general] == ["b", "c", "d"]
    assert [each.name for each in route.chain("context_overflow")] == ["h"]
    assert route.chain("content_policy") == ()


def test_models_that_do_not_serve_the_request_are_left_out() -> None:
    links = {"a": Fallbacks(("b", "gone")), "b": Fallbacks(("c",))}
    route = expand(A, MODELS.get, links, lambda each: each.name != "b")
    assert [each.name for each in route.general] == ["c"]


@given(
    links=st.dictionaries(
        st.sampled_from("abcdefgh"),
        st.lists(st.sampled_from("abcdefgh"), max_size=4).map(tuple),
    )
)
def test_no_chain_holds_a_cycle(links: dict[str, tuple[str, ...]]) -> None:
    table = {name: Fallbacks(to) for name, to in links.items()}
    found = [each.name for each in expand(A, MODELS.get, table, anything).general]
    assert len(found) == len(set(found))
    assert "a" not in found


rests = st.none() | st.builds(Rest, st.floats(min_value=0.01, max_value=400), st.booleans())
models = st.sampled_from([model(name, *range(count)) for name in "xyz" for count in (1, 2, 3, 4)])
chains = st.lists(models, max_size=4, unique_by=lambda each: each.name).map(tuple)
failures = st.sampled_from(
    [BROKEN, LACKING, LATE, WRONG, LIMITED, OVERFLOW, POLICY, CUT, None, None]
)


@given(
    route=st.builds(Route, st.just(PAIR), chains, chains, chains),
    budget=st.integers(min_value=1, max_value=5),
    alone=st.booleans(),
    seed=st.integers(),
    data=st.data(),
)
def test_case_84_the_budget_is_never_exceeded_and_every_plan_ends(
    route: Route, budget: int, alone: bool, seed: int, data: st.DataObject
) -> None:
    answers: Iterator[Rest | None] = iter(lambda: data.draw(rests), object())
    steps = Plan(route, lambda _: next(answers), random.Random(seed).random, budget, alone)
    limit, calls, failure = 1 if alone else budget, 0, None
    reachable = {route.model.name} | {
        each.name
        for chain in (route.general, route.context_overflow, route.content_policy)
        for each in chain
    }
    for _ in range(60):
        remaining = data.draw(st.none() | st.floats(min_value=-1, max_value=30))
        step = steps.next(failure, remaining)
        if not isinstance(step, Step):
            break
        assert step.deployment in step.model.deployments
        assert step.deployment.weight > 0
        assert step.model.name in reachable
        assert not alone or step.model is route.model
        assert 0 <= step.wait <= MAX_WAIT_SECONDS
        assert remaining is None or step.wait < remaining
        assert step.number == calls + 1
        failure = data.draw(failures)
        calls += failure is not None
        assert calls <= limit
    else:
        pytest.fail("the plan does not end")
    assert steps.calls == calls
    assert not (isinstance(step, AllResting) and calls)
