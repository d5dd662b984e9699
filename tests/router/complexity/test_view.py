"""What is read of requests of every format, short and huge."""

from __future__ import annotations

import json
from typing import Any, Protocol

import msgspec
import pytest

from sluice.router.complexity.scorer import Scorer
from sluice.router.complexity.view import HEAD, TAIL, RequestView, cut
from sluice.wire.objects import RawObject, decode_object


class Read(Protocol):
    def __call__(self, members: RawObject) -> RequestView: ...


class Chat(Protocol):
    def __call__(self, *turns: tuple[str, Any], **more: Any) -> RequestView: ...


@pytest.fixture(name="read_view")
def make_read_view(compiled: bool) -> Read:
    scorer = Scorer(compiled=compiled)
    return lambda members: scorer.read(members)[0]


@pytest.fixture(name="chat")
def make_chat(read_view: Read) -> Chat:
    def chat(*turns: tuple[str, Any], **more: Any) -> RequestView:
        messages = [{"role": role, "content": content} for role, content in turns]
        return read_view(members(messages=messages, **more))

    return chat


def members(**values: Any) -> RawObject:
    return decode_object(msgspec.json.encode(values))


def test_the_last_user_message_is_read(chat: Chat) -> None:
    seen = chat(
        ("system", "You are terse."),
        ("user", "Tell me all about the history of rivers in Asia."),
        ("assistant", "No."),
        ("user", "Then derive the quadratic formula step by step."),
    )
    assert seen.text == "Then derive the quadratic formula step by step."
    assert (seen.system, seen.turns) == ("You are terse.", 2)


@pytest.mark.parametrize("turns", [1, 60])
@pytest.mark.parametrize("content", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_the_system_message_is_the_first_of_all(
    chat: Chat, read_view: Read, content: Any, turns: int
) -> None:
    """Also of a conversation of which only the ends are read."""
    said = [("user", "Tell me more. " * 100), ("assistant", "word " * 200)] * turns
    assert chat(("system", content), *said).system == "Be brief."
    assert chat(("developer", content), *said).system == "Be brief."
    assert chat(("user", "Hello."), ("system", content), *said).system == ""
    messages: list[Any] = [{"role": role, "content": text} for role, text in said]
    first: list[Any] = [{"content": "Hello."}, {"role": "system", "content": content}]
    assert read_view(members(messages=[*first, *messages])).system == ""


def test_a_short_message_is_read_with_the_one_before_it(chat: Chat) -> None:
    seen = chat(("user", "Derive the quadratic formula."), ("assistant", "x"), ("user", "go on"))
    assert seen.text == "Derive the quadratic formula.\ngo on"


def test_results_of_tools_are_passed_over(chat: Chat) -> None:
    result = [{"type": "tool_result", "tool_use_id": "1", "content": "42"}]
    seen = chat(("user", "Look up what the sixth harmonic number is."), ("user", result))
    assert seen.text == "Look up what the sixth harmonic number is."


def test_parts_are_read_and_images_are_seen(chat: Chat) -> None:
    parts = [
        {"type": "text", "text": "What is on this picture of a triangle with three sides?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    seen = chat(("user", parts))
    assert seen.images
    assert seen.text == "What is on this picture of a triangle with three sides?"


@pytest.mark.parametrize(
    ("texts", "read"),
    [("abc", "abc"), ("abcd", "abcd"), ("abcde", "acde"), ("a" + "b" * 900 + "cde", "acde")],
)
def test_of_many_parts_the_first_and_the_last_three_are_read(
    chat: Chat, texts: str, read: str
) -> None:
    parts = [{"type": "text", "text": text * 10} for text in texts]
    nothing = [{"type": "text", "text": ""}, {"type": "tool_result", "content": "x"}]
    seen = chat(("user", [*nothing, *parts, *nothing]))
    assert seen.text == "\n".join(text * 10 for text in read)


@pytest.mark.parametrize(
    ("body", "system"),
    [
        ({"messages": [{"role": "user", "content": "Hi " * 20}], "system": "S"}, "S"),
        ({"messages": [{"role": "user", "content": "Hi " * 20}], "system": [{"text": "S"}]}, "S"),
        ({"input": "Hi " * 20, "instructions": "S"}, "S"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi " * 20}]}]},
            "",
        ),
        ({"prompt": "Hi " * 20}, ""),
    ],
)
def test_every_format_is_read(read_view: Read, body: dict[str, Any], system: str) -> None:
    seen = read_view(members(**body))
    assert seen.text == "Hi " * 20
    assert seen.system == system


def test_tools_and_schemas_are_seen(chat: Chat, read_view: Read) -> None:
    plain = chat(("user", "hi"), tools=[])
    assert not plain.tools
    assert not plain.schema
    asked = chat(
        ("user", "hi"), tools=[{"type": "function"}], response_format={"type": "json_object"}
    )
    assert asked.tools
    assert asked.schema
    responses = members(input="hi", text={"format": {"type": "json_schema"}})
    assert read_view(responses).schema


def test_long_texts_lose_their_middle(chat: Chat) -> None:
    text = "a" * HEAD + "b" * 30_000 + "c" * TAIL
    assert chat(("user", text)).text == cut(text) == "a" * HEAD + "\n" + "c" * TAIL


@pytest.mark.parametrize("size", [30_000, 3_000_000])
@pytest.mark.parametrize("letter", ["é", "\\", '"', "\n", "😀", "\u0001"])
def test_a_cut_through_an_escape_or_a_character_does_no_harm(
    chat: Chat, size: int, letter: str
) -> None:
    for shift in range(7):
        seen = chat(("user", "x" * shift + letter * (size // 4) + " and so it ends"))
        assert seen.text.endswith(f"{letter} and so it ends")


@pytest.mark.parametrize("size", [30_000, 100_000])
@pytest.mark.parametrize("end", ['"no"', "[1, 2]}", '{"a": "b"}', "\\", '\\"', "]\n", "é"])
def test_a_long_text_ends_as_it_does(chat: Chat, size: int, end: str) -> None:
    assert chat(("user", "x" * size + end)).text.endswith("x" + end)


def test_the_end_of_a_huge_conversation_is_read(chat: Chat) -> None:
    turns = [("user", "word " * 20_000), ("assistant", "yes"), ("user", 'why "not"?\nProve it.')]
    text = chat(*turns).text
    assert text.endswith('why "not"?\nProve it.')


@pytest.mark.parametrize("spaced", [False, True])
def test_the_last_question_of_a_huge_conversation_is_found(read_view: Read, spaced: bool) -> None:
    asked = 'Is {"role":"user","content":"x"} a message? Prove that it is none.'
    turns = [
        {"role": "user", "content": "word " * 20_000},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": asked},
        {"role": "tool", "content": 'the result is {"role":"user"}'},
    ]
    raw = json.dumps(turns).encode() if spaced else msgspec.json.encode(turns)
    assert read_view({"messages": msgspec.Raw(raw)}).text == asked


ASKED = "Find out why the nightly build of the parser fails, and mend it."


def agent(form: str, results: int, size: int) -> dict[str, Any]:
    """A request of an agent that was asked once, and has had results of so many calls since."""
    result = "def f(x): return x == 1\n" * (size // 24)
    turns: list[dict[str, Any]] = [{"role": "user", "content": ASKED}]
    for number in range(results):
        id, arguments = f"call_{number}", '{"path": "a"}'
        if form == "chat":
            function = {"name": "read", "arguments": arguments}
            calls = [{"id": id, "type": "function", "function": function}]
            turns.append({"role": "assistant", "content": None, "tool_calls": calls})
            turns.append({"role": "tool", "tool_call_id": id, "content": result})
        elif form == "messages":
            call = {"type": "tool_use", "id": id, "name": "read", "input": {"path": "a"}}
            told = {"type": "tool_result", "tool_use_id": id, "content": result}
            turns.append({"role": "assistant", "content": [call]})
            turns.append({"role": "user", "content": [told]})
        else:
            called = {"type": "function_call", "call_id": id, "name": "read"}
            turns.append({**called, "arguments": arguments})
            turns.append({"type": "function_call_output", "call_id": id, "output": result})
    return {"input" if form == "responses" else "messages": turns}


@pytest.mark.parametrize("form", ["chat", "messages", "responses"])
@pytest.mark.parametrize(
    ("results", "size"), [(1, 100), (7, 100), (8, 100), (60, 100), (1, 20_000), (60, 2_000)]
)
def test_behind_results_of_tools_what_the_user_asked_is_read(
    read_view: Read, form: str, results: int, size: int
) -> None:
    """So that an agent's requests are scored alike, and its conversation gets no harder."""
    assert read_view(members(**agent(form, results, size))).text == ASKED


@pytest.mark.parametrize("form", ["chat", "messages", "responses"])
def test_the_last_question_behind_a_long_result_is_read(read_view: Read, form: str) -> None:
    body = agent(form, 3, 20_000)
    next(iter(body.values())).append({"role": "user", "content": "Now prove that it is mended."})
    assert read_view(members(**body)).text == "Now prove that it is mended."


def test_of_a_huge_message_in_parts_the_last_texts_are_read(chat: Chat) -> None:
    parts = [{"type": "text", "text": f"paragraph {number} " * 20} for number in range(1_000)]
    question = {"type": "text", "text": 'Which of these is "wrong"?'}
    read = chat(("user", [*parts, question])).text
    assert read == cut("\n".join(part["text"] for part in [*parts[-2:], question]))


@pytest.mark.parametrize(
    "image",
    [
        {"type": "image_url", "image_url": {"url": "https://images.example/a.png"}},
        {"type": "input_image", "image_url": "https://images.example/a.png"},
        {"type": "image", "source": {"type": "url", "url": "https://images.example/a.png"}},
    ],
)
@pytest.mark.parametrize("size", [100, 100_000])
def test_an_image_is_seen_wherever_it_is(
    chat: Chat, read_view: Read, image: dict[str, Any], size: int
) -> None:
    """The model gets all of the conversation."""
    text, more = {"type": "text", "text": "So?"}, ("user", "And why? " * (size // 9))
    for part in (image, {"type": "tool_result", "content": [image]}):
        for content in ([part, text], [text, part]):
            assert chat(("user", content)).images
            assert chat(("user", content), ("assistant", "It is blue."), more).images
            assert chat(("tool", content), more).images
            assert chat(more, ("user", content)).images
            asked = [{"role": "user", "content": content}]
            assert read_view(members(input=asked)).images
            spaced = json.dumps(asked, indent=2).encode()
            assert read_view({"messages": msgspec.Raw(spaced)}).images


@pytest.mark.parametrize(
    "content",
    [
        'What is {"type":"image","source":{}} good for?',
        [{"type": "text", "text": '"type": "image_url"'}],
        [{"type": "tool_use", "input": {"image": "nginx", "kind": "image"}}],
        [{"type": "imagery"}],
    ],
)
def test_what_only_speaks_of_an_image_is_none(chat: Chat, content: Any) -> None:
    assert not chat(("user", content)).images


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{"messages":5}',
        b'{"messages":[3]}',
        b'{"messages":[]}',
        b'{"messages":null}',
        b'{"messages":[{"role":"user","content":[7]}],"response_format":4,"tools":null}',
        b'{"input":{},"text":[]}',
        b'{"prompt":[1,2]}',
        b'{"messages":[{"role":"user","content":null}]}',
        b'{"messages":[{"role":"user","content":123456}]}',
        b'{"messages":[{"role":"user","content":[{"type":"text","text":true}]}]}',
        b'{"messages":[{"role":"user"}]}',
    ],
)
def test_what_can_t_be_read_is_not_seen(read_view: Read, raw: bytes) -> None:
    seen = read_view(decode_object(raw))
    assert (seen.text, seen.turns, seen.schema) == ("", 1, False)


def test_a_prompt_is_seen_as_the_request_that_holds_it(chat: Chat) -> None:
    prompt = "Prove that 17 is prime, and say how you know it."
    seen = chat(("user", prompt))
    assert msgspec.structs.replace(seen, opening=b"") == RequestView.of_prompt(prompt)


def test_a_conversation_begins_with_the_users_first_message(chat: Chat, read_view: Read) -> None:
    first = ("system", "be brief"), ("user", "hello")
    begun = chat(*first)
    assert begun.opening == (
        b'[{"role":"system","content":"be brief"},{"role":"user","content":"hello"}'
    )
    assert chat(*first, ("assistant", "hi"), ("user", "so?")).opening == begun.opening
    assert read_view(members(input=[{"role": "user", "content": "hello"}])).opening == (
        b'[{"role":"user","content":"hello"}'
    )
    assert read_view(members(prompt="hello")).opening == b'"hello"'
    assert len(chat(("user", "x" * 100_000)).opening) < 5_000


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("size", [10, 1_000])
def test_a_mark_for_the_cache_that_moves_on_is_not_how_a_conversation_began(
    read_view: Read, size: int, spaced: bool
) -> None:
    def opening(mark: dict[str, Any]) -> bytes:
        part = {"type": "text", "text": 'say "cache_control"' * size, **mark}
        messages = [{"role": "user", "content": [part]}]
        raw = json.dumps(messages).encode() if spaced else msgspec.json.encode(messages)
        return read_view({"messages": msgspec.Raw(raw)}).opening

    plain = opening({})
    assert opening({"cache_control": {"type": "ephemeral"}}) == plain
    assert opening({"cache_control": {"type": "ephemeral", "ttl": "1h"}}) == plain
    assert opening({"citations": {"enabled": True}}) != plain


@pytest.mark.parametrize("size", [10, 20_000, 60_000, 300_000])
@pytest.mark.parametrize("name", ["messages", "input"])
def test_a_conversation_goes_on_with_whatever_follows_its_beginning(
    read_view: Read, name: str, size: int
) -> None:
    begun: list[Any] = [{"role": "user", "content": "word " * (size // 5)}]
    called = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "x" * 10_000}
    seen = [
        read_view(members(**{name: messages}))
        for messages in (begun, [*begun, called], [*begun, called, result])
    ]
    assert [each.continued for each in seen] == [False, True, True]
    assert len({each.opening for each in seen}) == 1


def test_what_follows_a_huge_system_message_is_not_told_apart(chat: Chat) -> None:
    said = ("user", "hello"), ("assistant", "hi"), ("user", "so?")
    assert chat(("system", "x" * 60_000), *said).continued
    assert not chat(("system", "x" * 70_000), *said).continued


@pytest.mark.parametrize("name", ["messages", "input"])
def test_of_a_huge_prompt_only_the_ends_are_looked_at(read_view: Read, name: str) -> None:
    """So that it can't take longer the longer the prompt is, whatever is in it."""
    head = b'[{"role":"user","content":"' + b"Look at this: " * 5_000
    tail = b" and then? " * 1_200 + b'"},{"role":"user","content":"Prove it."}]'
    views = [
        read_view({name: msgspec.Raw(head + middle * (1_000_000 // len(middle)) + tail)})
        for middle in (b"word", b'\\"', b'"}]{', b"\\", b"\xff\x00")
    ]
    assert len(views[0].text) < HEAD + TAIL + 2
    assert views == [views[0]] * len(views)


@pytest.mark.parametrize("name", ["system", "instructions"])
def test_the_beginning_of_a_huge_list_of_system_texts_is_read(read_view: Read, name: str) -> None:
    parts = [{"type": "text", "text": 'Be "brief".'}, {"type": "text", "text": "x" * 100_000}]
    seen = read_view(members(messages=[{"role": "user", "content": "hi"}], **{name: parts}))
    assert seen.system == 'Be "brief".'
