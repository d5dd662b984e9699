"""`model_used` in answers: put into the bytes, whatever they look like."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.model_used import in_answer, in_events

MEMBERS = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name != "model_used"),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=4,
    ),
    max_size=3,
)


@given(members=MEMBERS, indent=st.sampled_from((-1, 0, 2)), after=st.sampled_from(("", "\n", " ")))
def test_it_is_the_last_member_of_any_answer(
    members: dict[str, Any], indent: int, after: str
) -> None:
    body = msgspec.json.format(msgspec.json.encode(members), indent=indent) + after.encode()
    told = in_answer(body, 'a "model"')
    assert list(msgspec.json.decode(told).items()) == [
        *members.items(),
        ("model_used", 'a "model"'),
    ]
    assert in_answer(body, None) == body


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[1, 2]", b"null"])
def test_what_is_no_object_stays_as_it_is(body: bytes) -> None:
    assert in_answer(body, "m") == body


@given(members=MEMBERS)
def test_it_is_the_first_member_of_a_stream(members: dict[str, Any]) -> None:
    head = b"event: x\ndata: %b\n\n" % msgspec.json.encode(members)
    told = in_events(head, "m")
    data = told.removeprefix(b"event: x\ndata: ")
    assert list(msgspec.json.decode(data).items()) == [("model_used", "m"), *members.items()]
    assert in_events(head, None) == head
