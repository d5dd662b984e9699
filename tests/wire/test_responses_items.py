"""Ids that say where an item belongs, and reasoning that says where it comes from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.wire.responses_items import item_id, response_of, seal, unseal
from tests.wire.pieces import json_values


@pytest.mark.parametrize("kind", ["message", "function_call", "reasoning", "web_search_call"])
@pytest.mark.parametrize("given_by_client", [True, False])
def test_an_id_tells_its_response(kind: str, given_by_client: bool) -> None:
    own = item_id(kind, "resp_0199c0ffee", 12, given=given_by_client)
    assert response_of(own) == "resp_0199c0ffee"


def test_ids_of_input_and_output_differ() -> None:
    assert item_id("message", "resp_1", 0) != item_id("message", "resp_1", 0, given=True)


@pytest.mark.parametrize("foreign", ["", "msg_1", "rs", "msg_6890a1__0x"])
def test_a_foreign_id_has_no_response(foreign: str) -> None:
    assert response_of(foreign) is None


@given(text=st.text(), blocks=st.lists(json_values, max_size=3))
def test_sealed_reasoning_comes_back_whole(text: str, blocks: list[Any]) -> None:
    assert unseal(seal(text, blocks)) == (text, blocks)


@pytest.mark.parametrize(
    "foreign",
    [None, 7, "", "gAAAAABo", "sluice1.", "sluice1.%%", "sluice1.W10=", "sluice1.eyJ0ZXh0IjoxfQ=="],
)
def test_what_we_did_not_seal_is_not_ours(foreign: Any) -> None:
    assert unseal(foreign) is None
