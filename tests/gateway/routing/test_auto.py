"""`model: auto` over HTTP: who answers, and what the answer says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.gateway.routing.conftest import Site, tiers
from tests.harness.administration import unique
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY
from tests.harness.polling import eventually


@pytest.mark.parametrize(("word", "model"), [("economy", "small"), ("quality", "large")])
def test_the_answer_says_which_model_it_is_from_and_why(site: Site, word: str, model: str) -> None:
    answer = site.chat(f"auto:{word}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-model-used"] == model
    assert answer.headers["x-route-reason"].startswith(f"{word}; by={word}; score=0.")
    body = answer.json()
    assert (body["model_used"], body["model"]) == (model, f"auto:{word}")


def test_the_score_decides_without_a_word(site: Site) -> None:
    reason = site.chat("auto").headers["x-route-reason"]
    assert "; by=score; score=0." in reason


@pytest.mark.parametrize("size", [100, 900_000])
def test_an_image_goes_to_a_model_that_sees_it_and_leaves_room(site: Site, size: int) -> None:
    """In every format, also once the conversation has gone on; its base64 is no long text."""
    image = "A" * size
    url = f"data:image/png;base64,{image}"
    said: Any = {"role": "assistant", "content": "A cat."}
    more: Any = {"role": "user", "content": "And which of its feet is on the chair beside it?"}
    with OpenAI(base_url=f"{site.one.url}/v1", api_key=TEAM_KEY, max_retries=0) as openai:
        parts: Any = [{"type": "image_url", "image_url": {"url": url}}]
        seen: Any = [{"role": "user", "content": parts}]
        for messages in (seen, [*seen, said, more]):
            chat = openai.chat.completions.create(model="seeing", messages=messages, max_tokens=5)
            assert chat.model_extra == {"model_used": "sighted"}
        parts = [{"type": "input_image", "image_url": url, "detail": "auto"}]
        seen = [{"role": "user", "content": parts}]
        for items in (seen, [*seen, said, more]):
            made = openai.responses.with_raw_response.create(
                model="seeing", input=items, max_output_tokens=5
            )
            assert made.headers["x-model-used"] == "sighted"
    with Anthropic(base_url=site.one.url, api_key=TEAM_KEY, max_retries=0) as anthropic:
        source = {"type": "base64", "media_type": "image/png", "data": image}
        seen = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        for messages in (seen, [*seen, said, more]):
            message = anthropic.messages.with_raw_response.create(
                model="seeing", messages=messages, max_tokens=5
            )
            assert message.headers["x-model-used"] == "sighted"
    assert site.used("seeing", "hello") == "small"


def image(form: str, size: int) -> dict[str, Any]:
    """A part with an image of so many characters of base64."""
    data = "A" * size
    url = f"data:image/png;base64,{data}"
    if form == "chat":
        return {"type": "image_url", "image_url": {"url": url}}
    if form == "messages":
        source = {"type": "base64", "data": data, "media_type": "image/png"}
        return {"type": "image", "source": source}
    return {"type": "input_image", "image_url": url, "detail": "auto"}


@pytest.mark.parametrize("form", ["chat", "messages", "input"])
def test_an_image_in_the_middle_of_a_long_conversation_is_seen(site: Site, form: str) -> None:
    pages: Any = [{"role": "user", "content": "page" * 900}, {"role": "assistant", "content": "k"}]
    seen: Any = [{"role": "user", "content": [image(form, 400_000)]}]
    talk = Talk(site, "seeing:economy", form, stream=False)
    assert talk.goes_on([*pages * 20, *seen, *pages[1:], *pages * 5, *pages[:1]]) == "sighted"
    text = {"role": "user", "content": "A" * 20_000}
    assert Talk(site, "seeing:economy", form, stream=False).goes_on([*pages, text]) == "small"


@pytest.mark.parametrize("size", [100, 900_000])
def test_an_image_in_a_stored_conversation_is_seen(site: Site, size: int) -> None:
    alias = unique("seeing")
    site.put(alias, {"auto": {**tiers(0.3, strong="sighted"), "sticky": False}})
    talk = Talk(site, alias, "stored", stream=False)
    assert talk.says("hello") == "small"
    assert talk.says([{"role": "user", "content": [image("stored", size)]}]) == "sighted"
    response = talk.response
    assert talk.says("And what is on the chair?") == "sighted"
    listed = site.one.request("GET", f"/v1/responses/{response}/input_items", key=TEAM_KEY)
    seen = next(item["id"] for item in listed.json()["data"] if "input_image" in str(item))
    refers: Any = [{"type": "item_reference", "id": seen}, {"role": "user", "content": "Tell me."}]
    assert Talk(site, alias, "input", stream=False).goes_on(refers) == "sighted"


def test_an_answer_of_a_model_by_name_is_as_it_was(site: Site) -> None:
    answer = site.chat("small")
    assert "model_used" not in answer.json()
    assert "x-route-reason" not in answer.headers


def test_a_stream_says_it_in_its_first_event(site: Site) -> None:
    answer = site.chat("auto:quality", stream=True)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line[6:7] == "{"]
    assert [event.get("model_used") for event in events] == ["large"] + [None] * (len(events) - 1)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.headers["x-route-reason"].startswith("quality; ")


def test_the_sdks_read_it(site: Site) -> None:
    url = site.one.url
    with OpenAI(base_url=f"{url}/v1", api_key=TEAM_KEY, max_retries=0) as openai:
        messages: Any = [{"role": "user", "content": "hello"}]
        whole = openai.chat.completions.create(model="auto", messages=messages, max_tokens=5)
        assert whole.model_extra == {"model_used": "small"}
        response = openai.responses.create(
            model="auto:quality", input="hello", max_output_tokens=5, stream=True
        )
        assert [event.type for event in response][-1] == "response.incomplete"
        assert {"auto", "shaky"} <= {each.id for each in openai.models.list()}
        assert openai.models.retrieve("auto:quality").id == "auto:quality"
    with Anthropic(base_url=url, api_key=TEAM_KEY, max_retries=0) as anthropic:
        message = anthropic.messages.create(model="auto", messages=messages, max_tokens=5)
        assert (message.model_extra or {})["model_used"] == "small"
        stream = anthropic.messages.create(
            model="auto", messages=messages, max_tokens=5, stream=True
        )
        assert [event.type for event in stream][-1] == "message_stop"
        assert anthropic.messages.count_tokens(model="auto", messages=messages).input_tokens > 0


def test_a_conversation_stays_with_its_model(site: Site) -> None:
    session = {"x-session-id": unique("s")}
    alias = unique("auto")
    site.put(alias, {"auto": {"tiers": [*tiers()["tiers"][:1], LIKELY]}})
    assert site.used(alias, HARD, headers=session) == "large"
    assert site.used(alias, "thanks", headers=session) == "large"
    assert site.used(alias, "thanks", headers={"x-session-id": unique("s")}) == "small"


class Talk:
    """A conversation with an alias, in one of the forms in which clients go on."""

    def __init__(self, site: Site, alias: str, form: str, stream: bool) -> None:
        self._site, self._form = site, form
        self._body: dict[str, Any] = {"model": alias, "stream": stream}
        self._said: list[Any] = []
        self.response = ""

    def says(self, text: Any) -> str:
        """Say something more, a text or items; gives the model that answers."""
        said = {"role": "user", "content": text}
        self._said += [{"role": "assistant", "content": "I see."}, said] if self._said else [said]
        return self._ask(text)

    def goes_on(self, messages: list[Any]) -> str:
        """The same with messages of which the last is the user's."""
        self._said += messages
        return self._ask("")

    def _ask(self, text: Any) -> str:
        path, body = "/v1/responses", {**self._body, "input": self._said, "max_output_tokens": 5}
        if self._form == "stored":
            body["input"] = text
        elif self._form in ("chat", "messages"):
            path = "/v1/messages" if self._form == "messages" else "/v1/chat/completions"
            body = {**self._body, "messages": self._said, "max_tokens": 5}
        answer = self._site.one.request("POST", path, body, TEAM_KEY)
        assert answer.status_code == 200, answer.text
        self.response = answer.text.partition('"id":"')[2].partition('"')[0]
        if self._form == "stored":
            self._body["previous_response_id"] = self.response
        return answer.headers["x-model-used"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", ["chat", "messages", "input", "stored"])
def test_a_conversation_without_a_session_stays_with_its_model(
    site: Site, form: str, stream: bool
) -> None:
    alias = unique("auto")
    site.put(alias, {"auto": {"tiers": [*tiers()["tiers"][:1], LIKELY]}})
    talk = Talk(site, alias, form, stream)
    assert [talk.says(text) for text in (HARD, "thanks", "bye")] == ["large"] * 3
    assert Talk(site, alias, form, stream).says("thanks") == "small"


def test_a_stored_conversation_needs_a_model_with_room_for_it(site: Site) -> None:
    alias = unique("auto")
    site.put(alias, {"auto": {**tiers(weak="brief"), "sticky": False}})
    talk = Talk(site, alias, "stored", stream=False)
    assert talk.says("hello") == "brief"
    assert talk.says("thanks") == "brief"
    assert talk.says("hello " * 200) == "large"
    assert talk.says("thanks") == "large"


def test_needs_that_no_model_meets_are_named(site: Site) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    answer = site.chat("auto", tools=tools)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("tools", "unsupported_model")


def test_an_alias_that_is_none_is_no_model(site: Site) -> None:
    for name in ("auto:best", "nobody", "nobody:quality"):
        assert site.chat(name).status_code == 404


def test_keys_reach_only_what_they_may(site: Site) -> None:
    team = site.admin.team(default_max_tokens=5)
    keys = {
        models: site.admin.new_key(team, allowed_models=list(models))["key"]
        for models in (("auto", "small"), ("small",))
    }
    both, alone = keys["auto", "small"], keys["small",]
    eventually(lambda: site.chat("small", key=both).status_code == 200, 5)
    assert site.used("auto:quality", key=both) == "small"
    eventually(lambda: site.chat("small", key=alone).status_code == 200, 5)
    refused = site.chat("auto", key=alone)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
    listed = site.one.api("GET", "/v1/models", key=both)["data"]
    assert [each["id"] for each in listed] == ["small", "auto"]


def test_tokens_are_counted_by_a_model_that_the_key_may_use(site: Site) -> None:
    key = site.admin.new_key(site.admin.team(), allowed_models=["auto", "none"])["key"]
    body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}

    def count(key: str) -> int:
        return site.one.request("POST", "/v1/messages/count_tokens", body, key).status_code

    assert eventually(lambda: count(key) if count(key) != 401 else None, 5) == 404
    assert count(TEAM_KEY) == 200


def test_with_every_strong_deployment_resting_it_answers_and_says_so(site: Site) -> None:
    failed = site.chat("shaky:quality")
    assert failed.headers["x-model-used"] == "small"
    assert failed.headers["x-route-reason"].endswith("; instead=economy; after=failure")

    def resting() -> Any:
        answer = site.chat("shaky:quality")
        return answer if "after=rest" in answer.headers["x-route-reason"] else None

    answer = eventually(resting)
    assert answer.status_code == 200
    assert answer.json()["model_used"] == answer.headers["x-model-used"] == "small"
    assert answer.headers["x-attempts"] == "sim-a/sim=ok"  # nothing that rests was called
    assert answer.headers["x-route-reason"].startswith("quality; by=quality; ")
    stream = site.chat("shaky:quality", stream=True)
    assert '"model_used":"small"' in stream.text
    refused = site.chat("fragile")
    assert refused.status_code == 503


def test_the_record_says_why_and_the_report_what_was_saved(site: Site) -> None:
    _, key = site.new_team()
    answers = [site.chat(f"auto:{word}", key=key) for word in ("economy", "economy", "quality")]

    def report() -> Any:
        found = site.one.api("GET", "/v1/usage", key=key)
        return found if sum(part["requests"] for part in found["routing"]) == 3 else None

    found = eventually(report)
    by_model = {part["model_used"]: part for part in found["routing"]}
    cheap = by_model["small"]
    assert (cheap["alias"], cheap["tier"], cheap["requests"]) == ("auto", "economy", 2)
    assert cheap["strong_cost_nano_usd"] == 10 * cheap["cost_nano_usd"]
    assert by_model["large"]["saved_nano_usd"] == 0
    assert found["saved_nano_usd"] == cheap["saved_nano_usd"] == 9 * cheap["cost_nano_usd"] > 0
    path = f"/v1/usage/records?request_id={answers[0].headers['x-request-id']}"
    [record] = site.one.api("GET", path, key=ADMIN_KEY)["data"]
    assert (record["model"], record["model_used"]) == ("auto:economy", "small")
    decision = record["decision"]
    assert (decision["alias"], decision["mode"], decision["tier"]) == ("auto", "economy", "economy")
    assert decision["strong_model"] == "large"
    assert "features" not in decision


LIKELY = {"name": "quality", "models": {"large": 1}, "from_score": 0.5}
HARD = "Prove that the integral of x^2 diverges, step by step, and derive the bound.\n" * 20
