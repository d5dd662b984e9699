"""Which moves a change of stage means."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.gateway.registry.stages import Move, Promotion, promote, retire
from sluice.gateway.tenancy.refusals import Conflict
from tests.gateway.registry.samples import registered

OLD = registered(1, version="1", pool="blue", stage="prod")
NEW = registered(2, version="2", pool="green")
CANARY = registered(2, version="2", pool="green", stage="canary", share=5.0)


def test_the_first_version_goes_into_prod() -> None:
    assert promote(NEW, Promotion(), []) == [Move(NEW, "prod")]


def test_who_is_in_prod_leaves_it_first() -> None:
    assert promote(NEW, Promotion(), [OLD]) == [Move(OLD, None), Move(NEW, "prod")]


def test_a_canary_becomes_prod() -> None:
    assert promote(CANARY, Promotion(), [OLD, CANARY]) == [Move(OLD, None), Move(CANARY, "prod")]


def test_a_canary_has_a_share_which_may_change() -> None:
    ten = Promotion(stage="canary", share=10.0)
    assert promote(NEW, ten, [OLD]) == [Move(NEW, "canary", 10.0)]
    assert promote(CANARY, ten, [OLD, CANARY]) == [Move(CANARY, "canary", 10.0)]


def test_what_is_so_already_moves_nothing() -> None:
    assert promote(OLD, Promotion(), [OLD]) == []
    assert promote(CANARY, Promotion(stage="canary", share=5.0), [OLD, CANARY]) == []


def test_a_shadow_is_tried_beside_a_canary() -> None:
    third = registered(3, version="3", pool="red")
    moves = promote(third, Promotion(stage="shadow", share=1.0), [OLD, CANARY])
    assert moves == [Move(third, "shadow", 1.0)]


def test_another_canary_takes_the_place_of_the_first() -> None:
    third = registered(3, version="3", pool="red")
    moves = promote(third, Promotion(stage="canary", share=1.0), [OLD, CANARY])
    assert moves == [Move(CANARY, None), Move(third, "canary", 1.0)]


def test_the_next_version_may_take_over_the_pool_of_the_one_that_it_replaces() -> None:
    same_pool = registered(2, version="2", pool="blue")
    assert promote(same_pool, Promotion(), [OLD])[-1] == Move(same_pool, "prod")


@pytest.mark.parametrize(
    ("version", "to", "param"),
    [
        (NEW, Promotion(stage="shadow"), "share"),
        (OLD, Promotion(stage="shadow", share=5.0), "stage"),
        (NEW, Promotion(stage="canary"), "share"),
        (NEW, Promotion(stage="prod", share=5.0), "share"),
        (OLD, Promotion(stage="canary", share=5.0), "stage"),
        (registered(3, version="3", pool="blue"), Promotion(stage="canary", share=1.0), "pool"),
        (registered(3, name="other", pool="blue"), Promotion(), "pool"),
    ],
)
def test_what_cannot_be_is_refused(version: Any, to: Promotion, param: str) -> None:
    with pytest.raises(Conflict) as caught:
        promote(version, to, [OLD])
    assert caught.value.param == param


def test_a_version_leaves_its_stage() -> None:
    assert retire(OLD, [OLD]) == [Move(OLD, None)]
    assert retire(CANARY, [OLD, CANARY]) == [Move(CANARY, None)]
    assert retire(NEW, [OLD]) == []


def test_prod_stays_while_a_canary_is_tried_beside_it() -> None:
    with pytest.raises(Conflict):
        retire(OLD, [OLD, CANARY])
