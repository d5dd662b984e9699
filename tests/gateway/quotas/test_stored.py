"""What a Responses request continues or refers to counts against limits like its own input."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.gateway.quotas.conftest import Pair
from tests.harness.gateway import ADMIN_KEY
from tests.harness.limited import LimitedKey
from tests.harness.polling import eventually
from tests.harness.upstream import Call

PAGES = "word " * 4_000
#: The same by address, which the body of no request holds.
PICTURES = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Look."},
            *[{"type": "input_image", "image_url": "https://example.com/a.png"}] * 2,
        ],
    }
]
#: What may cost more than this: by its 20,000 bytes, and by what pictures may be.
DEAR: dict[str, Any] = {"text": PAGES, "pictures": PICTURES}
BUDGET = [{"limit_usd": "0.01", "period": "day"}]


def asked(limited: Pair, key: LimitedKey, given: Any, **more: Any) -> Any:
    body = {"model": "good", "input": given, "max_output_tokens": 5, **more}
    return limited.post("/v1/responses", body, key.secret)


@pytest.mark.parametrize("name", DEAR)
@pytest.mark.parametrize("way", ["previous_response_id", "item_reference"])
def test_what_is_stored_is_admitted_like_what_is_sent(limited: Pair, name: str, way: str) -> None:
    given, team = DEAR[name], limited.tenants.team()
    free, tight = limited.tenants.key(team), limited.tenants.key(team, budgets=BUDGET)
    made = asked(limited, free, given)
    assert made.status_code == 200, made.text
    assert asked(limited, tight, "Go on.").status_code == 200
    assert asked(limited, tight, given).status_code == 429
    stored = made.json()["id"]
    if way == "previous_response_id":
        refused = asked(limited, tight, "Go on.", previous_response_id=stored)
    else:
        url = f"/v1/responses/{stored}/input_items"
        (item,) = limited.one.request("GET", url, key=free.secret).json()["data"]
        reference = {"type": "item_reference", "id": item["id"]}
        refused = asked(limited, tight, [reference, {"role": "user", "content": "Go on."}])
        twice = asked(limited, free, [reference, reference])
        assert twice.status_code == 400
        error = twice.json()["error"]
        assert (error["param"], error["code"]) == ("input", "duplicate_item")
    assert refused.status_code == 429, refused.text


def breaks_off(call: Call) -> None:
    """An answer that ends after its first word, without usage."""
    call.start_stream()
    delta = {"index": 0, "delta": {"role": "assistant", "content": "Once"}, "finish_reason": None}
    call.event({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [delta]})
    call.close()


def test_an_answer_that_breaks_off_is_charged_with_what_it_continued(limited: Pair) -> None:
    key, marker = limited.tenants.key(), f"m{uuid4().hex}"
    made = asked(limited, key, PAGES)
    limited.upstream.on(marker, breaks_off)
    asked(limited, key, marker, previous_response_id=made.json()["id"], stream=True)
    path = f"/v1/usage/records?team_id={key.team}&limit=10"

    def rows() -> Any:
        return limited.one.api("GET", path, key=ADMIN_KEY)["data"]

    eventually(lambda: len(rows()) == 2)
    (row,) = [row for row in rows() if row["estimated"]]
    assert len(PAGES) / 4 < row["input_tokens"] < len(PAGES) / 2


def test_a_default_bound_leaves_room_for_what_is_stored(limited: Pair) -> None:
    key, marker = limited.tenants.key(default_max_tokens=95_000), f"m{uuid4().hex}"
    made = asked(limited, key, PAGES)
    more = {"previous_response_id": made.json()["id"], "max_output_tokens": None}
    assert asked(limited, key, marker, **more).status_code == 200
    assert limited.upstream.call_with(marker).json["max_tokens"] < 91_000
