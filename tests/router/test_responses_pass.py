"""What goes to an upstream that has Responses itself: the conversation is kept here, not there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.backends.base import Endpoint
from sluice.backends.openai import OPENAI_DIALECT
from sluice.router.catalog import Deployment, Model
from sluice.router.translation import Call, Conversation, translate
from sluice.wire.errors import InvalidRequest
from sluice.wire.responses_request import read_responses_request

DEPLOYMENT = Deployment("openai", "gpt")
MODEL = Model("gpt", 100_000, frozenset({"chat"}), frozenset({"interactive"}), (DEPLOYMENT,))
ITEM = {"type": "message", "role": "user", "content": "x", "id": "msg_1_i0"}
REFERENCE = {"type": "item_reference", "id": "msg_1_i0"}


def sent(conversation: Conversation, *given: Any, **more: Any) -> dict[str, Any]:
    """The body that goes upstream."""
    body = {"model": "gpt", "input": list(given), "max_output_tokens": 5, **more}
    request = read_responses_request(json.dumps(body).encode())
    call = Call(Endpoint.RESPONSES, request, "id", conversation=conversation)
    found: dict[str, Any] = json.loads(translate(call, MODEL, DEPLOYMENT, OPENAI_DIALECT).body)
    return found


@pytest.mark.parametrize("continues", [False, True])
def test_references_go_as_what_they_stand_for(continues: bool) -> None:
    """The upstream does not know our ids."""
    history = [{**ITEM, "id": "msg_0_i0"}] if continues else []
    more = {"previous_response_id": "resp_0"} if continues else {}
    conversation = Conversation("resp_2", history, {"msg_1_i0": ITEM})
    body = sent(conversation, REFERENCE, {"role": "user", "content": "Go on."}, **more)
    *before, after = body["input"]
    assert before == [*history, ITEM]
    assert after["content"] == [{"type": "input_text", "text": "Go on."}]
    assert "previous_response_id" not in body


def test_a_reference_to_nothing_among_others_is_refused() -> None:
    conversation = Conversation("resp_2", (), {"msg_1_i0": ITEM})
    with pytest.raises(InvalidRequest) as refused:
        sent(conversation, REFERENCE, {"type": "item_reference", "id": "msg_2_i0"})
    assert (refused.value.param, refused.value.code) == ("input", "item_not_found")


def test_what_refers_to_nothing_goes_as_it_came() -> None:
    given = {"role": "user", "content": "Hello."}
    assert sent(Conversation("resp_2"), given)["input"] == [given]
