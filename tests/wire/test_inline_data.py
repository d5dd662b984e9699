"""Pictures and files within a prompt: not read, and counted as what they cost."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.wire.inline_data import IMAGE_TOKENS, Legible, without_data
from sluice.wire.messages_request import read_messages_request
from sluice.wire.request import read_request
from sluice.wire.responses_request import read_responses_request, to_chat


def data(size: int, seed: int = 0) -> str:
    """Base64 of so many bytes."""
    return base64.b64encode(random.Random(seed).randbytes(size)).decode()


def parts_with(size: int) -> list[dict[str, Any]]:
    """A part of each kind that holds data."""
    image, sound = data(size), data(size, 1)
    url = f"data:image/png;base64,{image}"
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "file", "file": {"file_data": f"data:text/csv;base64,{sound}"}},
        {"type": "tool_result", "content": [{"type": "image_url", "image_url": {"url": url}}]},
    ]


def pdf(size: int) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "application/pdf", "data": data(size)}
    return {"type": "document", "source": source}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("escape", [False, True])
@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_data_counts_as_what_it_costs(
    place: int, size: int, indent: int | None, escape: bool
) -> None:
    part = parts_with(size)[place]
    written = json.dumps(
        [{"role": "user", "content": [part, {"type": "text"}, part]}], indent=indent
    )
    if escape:  # as some encoders do
        written = written.replace("/", "\\/")
    found = without_data(written.encode())
    assert len(found.text) < 2_000
    assert found.characters == len(found.text) + 2 * 4 * IMAGE_TOKENS
    assert found.images == (place not in (3, 4))
    json.loads(found.text)
    assert written.startswith(found.text[:80].decode())
    assert written.endswith(found.text[-60:].decode())


def test_a_document_costs_by_its_length() -> None:
    text = json.dumps([pdf(900_000)]).encode()
    assert without_data(text).characters == pytest.approx(4 * 1_200_000 / 45, rel=0.01)
    assert not without_data(text).images


@pytest.mark.parametrize("last", ["data", "media_type"])
def test_what_stands_beside_data_tells_its_type_and_not_that_of_its_neighbours(last: str) -> None:
    """Whichever member of its source comes last."""
    image, document = parts_with(20_000)[2], pdf(20_000)
    for part in (image, document):
        part["source"][last] = part["source"].pop(last)
    one, other, both = (
        without_data(json.dumps(parts).encode())
        for parts in ([image], [document], [document, image, document])
    )
    assert (one.images, other.images, both.images) == (True, False, True)
    documents = pdf(2_000_000)
    documents["source"][last] = documents["source"].pop(last)
    text = json.dumps([image, documents, image]).encode()
    assert without_data(text).characters == pytest.approx(4 * 2_666_668 / 45, rel=0.1)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": data(100_000)},
        {"type": "text", "text": f"data:image/png;base64,{data(100_000)}"},
        {"type": "text", "text": json.dumps(parts_with(100_000))},
        {"type": "document", "source": {"type": "text", "data": "a, b\n" * 20_000}},
        {"type": "image_url", "image_url": {"url": f"https://a.example/{'a b' * 20_000}"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data(10_000)}"}},
    ],
)
def test_what_is_text_or_short_stays(part: dict[str, Any]) -> None:
    text = json.dumps([{"role": "user", "content": [part]}]).encode()
    assert without_data(text) == Legible(text, len(text))


@given(
    st.lists(
        st.one_of(
            st.text(max_size=40).map(lambda text: {"type": "text", "text": text * 500}),
            st.sampled_from(parts_with(13_000)),
        ),
        max_size=12,
    )
)
def test_all_but_the_data_stays(parts: list[dict[str, Any]]) -> None:
    text = json.dumps(parts).encode()
    left = json.loads(without_data(text).text)
    assert [part.get("text") for part in left] == [part.get("text") for part in parts]
    assert [part["type"] for part in left] == [part["type"] for part in parts]
    held = sum(part["type"] != "text" for part in parts)
    assert without_data(text).characters == len(without_data(text).text) + held * 4 * IMAGE_TOKENS


def test_the_requests_of_every_format_count_so() -> None:
    chat, response, message, *_ = parts_with(300_000)
    asked = {"model": "m", "max_tokens": 5}
    for request in (
        read_request(body(asked, messages=[said(chat)]), "messages"),
        read_messages_request(body(asked, messages=[said(message)])),
        read_responses_request(body({"model": "m"}, input=[said(response)])),
        to_chat(read_responses_request(body({"model": "m"}, input=[said(response)]))).request,
    ):
        assert 4 * IMAGE_TOKENS < request.prompt_characters < 4 * IMAGE_TOKENS + 500
        prompt = request.readable.get("messages") or request.readable["input"]
        assert len(bytes(prompt)) < 500
        assert request.images


def test_members_go_upstream_as_they_came() -> None:
    sent = body({"model": "m"}, messages=[said(parts_with(300_000)[0])])
    request = read_request(sent, "messages")
    assert len(bytes(request.readable["messages"])) < 500
    assert bytes(request.members["messages"]) in sent
    plain = read_request(body({"model": "m"}, messages=[said({"type": "text"})]), "messages")
    assert plain.readable is plain.members


def said(part: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [part]}


def body(members: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({**members, **more}).encode()
