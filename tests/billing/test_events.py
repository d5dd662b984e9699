"""Groups of usage events as a line of JSON."""

from __future__ import annotations

import msgspec
import pytest

from sluice.billing.events import decode_events, encode_events
from tests.billing.samples import usage_event


def test_a_group_is_one_line_and_comes_back() -> None:
    events = [usage_event(model="a\nb\x00é"), usage_event(ttft_us=3, estimated=True)]
    line = encode_events(events)
    assert b"\n" not in line
    assert decode_events(line) == events


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b"[{}]", b'[{"request_id":1}]', b"\xff"])
def test_anything_else_is_a_decode_error(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_events(text)
