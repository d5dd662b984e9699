"""What is compiled gives what the Python that it was made after gives, to the last bit."""

from __future__ import annotations

import json
import random
from array import array
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.router.complexity import signals, view
from sluice.router.complexity.features import BUCKETS, extract
from sluice.router.complexity.rule import rule
from sluice.router.complexity.scorer import COMPILED, Scorer
from sluice.router.complexity.view import RequestView
from sluice.wire.objects import MalformedJSON, RawObject, decode_object


def trained() -> Scorer:
    """By words, with a weight for each; compiled."""
    draw = random.Random(3)
    table = array("f", (draw.uniform(-1, 1) for _ in range(BUCKETS)))
    return Scorer(replace(rule(), table=table, usual_wording=0.02, bias=0.1, scale=0.7))


SCORERS = [Scorer(), trained()]
PLAIN = [Scorer(scorer._model, compiled=False) for scorer in SCORERS]

#: Words that count, signs that count, and whatever else there may be.
WORDS = st.sampled_from(
    [word.decode() for word in signals._COUNTS]
    + [
        "x^2",
        "```",
        "\n",
        "\n\n",
        "():",
        "==",
        "====",
        "\nA. ",
        "\n(b) \n",
        "\n\tc: ",
        "\na) ",
        "√∫",
    ]
    + ["12", "١٢", "İ", "ẞ", "ﬁ", "Σς", "漢字", "😀", "\ud83d", "\x00", "\x1c", "\x85", "é" * 9]
)
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=st.characters(codec=None), max_size=900),
    st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=320).map(" ".join),
    st.lists(WORDS, max_size=40).map("".join),
    st.text(alphabet='"\\#]a', max_size=400),  # much of which is escaped, or looks like it
)


def same(seen: RequestView) -> None:
    for compiled, plain in zip(SCORERS, PLAIN, strict=True):
        assert compiled.score(seen) == plain.score(seen)


def read_alike(members: RawObject) -> None:
    for compiled, plain in zip(SCORERS, PLAIN, strict=True):
        assert compiled.read(members) == plain.read(members)


def test_it_is_what_scores_here() -> None:
    assert COMPILED
    assert SCORERS[0].native is not None
    assert PLAIN[0].native is None


@given(
    st.builds(
        RequestView,
        TEXTS,
        st.integers(0, 3_000_000),
        TEXTS,
        st.integers(1, 64),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    )
)
@example(RequestView("a b " * 5_000))
@example(RequestView("A1" * 5_000 + "é", 2_048, "\ud800"))
@example(RequestView("\nA. x\nB. y\nC. z\nD. "))
def test_any_view_is_scored_alike(seen: RequestView) -> None:
    same(seen)
    assert SCORERS[0].score(seen).features == extract(seen)


def test_every_word_and_byte_counts_alike() -> None:
    for word in signals._COUNTS:
        same(RequestView(word.decode()))
        same(RequestView(f"{word.decode()}s or {word.decode()[:-1]}"))
    for byte in range(256):
        same(RequestView(f"a{chr(byte)}b{chr(byte)}"))


MARKS: st.SearchStrategy[Any] = st.sampled_from(
    [{"type": "ephemeral"}, {}, None, {"a": {}}, "cache_control"]
)
PARTS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS, "cache_control": MARKS}),
    st.fixed_dictionaries({"type": st.sampled_from(["text", "input_text"]), "text": TEXTS}),
    st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}),
    st.sampled_from(["image", "input_image", "image_", "input_", "imag", 'image"']).map(
        lambda kind: {"type": kind}
    ),
    st.fixed_dictionaries({"type": st.just("tool_result"), "content": TEXTS}),
    st.sampled_from([3, None, {}, {"text": 4}, {"type": "text", "text": None}]),
)
CONTENTS = st.one_of(
    TEXTS,
    TEXTS.map(lambda text: text * 40),
    st.lists(PARTS, max_size=6),
    st.sampled_from([None, 3, 1.5e9, True, {}, {"a": ['}"\\', {"b": []}]}]),
)
ROLES = st.sampled_from(["user"] * 6 + ["system", "developer", "assistant", "tool", "usér", "", 7])
MESSAGES: st.SearchStrategy[list[Any]] = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": ROLES, "content": CONTENTS}),
        st.fixed_dictionaries(
            {"role": ROLES},
            optional={
                "content": CONTENTS,
                "name": TEXTS,
                "tool_calls": st.just([{"function": {"arguments": '{"a": "\\"]"}'}}]),
                "role\n": TEXTS,
            },
        ),
        st.sampled_from([None, [], {}, "user"]),
    ),
    max_size=14,
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.one_of(
            MESSAGES, MESSAGES, MESSAGES, st.sampled_from(["", "a", None, 4, {}])
        ),
        "input": st.one_of(TEXTS, MESSAGES),
        "prompt": st.one_of(TEXTS, st.lists(TEXTS, max_size=2)),
        "system": st.one_of(TEXTS, st.lists(PARTS, max_size=2)),
        "instructions": TEXTS,
        "tools": st.sampled_from([[], None, [{"type": "function"}]]),
        "response_format": st.sampled_from([{"type": "json_object"}, {"type": "text"}, 4]),
        "text": st.sampled_from([{"format": {"type": "json_schema"}}, {}, 4]),
    },
)


def written(body: Any, escaped: bool, spaced: bool) -> bytes:
    separators = (" ,\n ", "\t: ") if spaced else (",", ":")
    text = json.dumps(body, ensure_ascii=escaped, separators=separators)
    return text.encode("utf-8", "replace")


@given(BODIES, st.booleans(), st.booleans())
def test_any_request_is_read_and_scored_alike(
    body: dict[str, Any], escaped: bool, spaced: bool
) -> None:
    read_alike(decode_object(written(body, escaped, spaced)))


@given(
    st.sampled_from(["messages", "input"]),
    st.sampled_from(["system", "user"]),
    st.sampled_from([48_000, view._BEGINNING]),
    st.integers(-400, 20),
    MESSAGES,
    st.booleans(),
    st.booleans(),
)
def test_any_long_prompt_is_read_alike_wherever_it_is_cut(
    name: str, role: str, limit: int, over: int, messages: list[Any], escaped: bool, spaced: bool
) -> None:
    before = written([{"role": role, "content": ""}], escaped, spaced)
    first = {"role": role, "content": "x" * (limit + over - len(before))}
    read_alike(decode_object(written({name: [first, *messages]}, escaped, spaced)))


FILLINGS: st.SearchStrategy[list[Any]] = st.sampled_from(
    [
        [{"role": "assistant", "content": "the river is wide "}],
        [{"role": "user", "content": 'as "quoted" and \\ more\n'}],
        [{"role": "user", "content": [{"type": "text", "text": "hello worlds"}]}],
        [{"role": "user", "content": [{"type": "tool_result", "content": '{"text": "x"} '}]}],
        [{"type": "function_call_output", "output": [{"type": "output_text", "text": "it"}]}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "so"}]}],
        [{"role": "tool", "content": '"role": "user", {"role":"user"} '}],
        [{"a": {"role": "user", "content": "of another"}}],
    ]
)


def filled(messages: list[Any], size: int) -> list[Any]:
    """The messages, the last text or list in the last of which goes on for so many bytes."""
    last = dict(messages[-1])
    name = next(reversed(last))
    times = size // len(json.dumps(last)) + 1
    if isinstance(last[name], dict):
        return messages * times
    return [*messages[:-1], last | {name: last[name] * times}]


@given(
    MESSAGES,
    FILLINGS,
    st.sampled_from([11_000, 13_000, 23_000, 25_000, 47_000, 64_000]),
    MESSAGES,
    FILLINGS,
    st.sampled_from([1, 10_000, 13_000, 25_000, 48_000]),
    MESSAGES,
    st.booleans(),
    st.booleans(),
)
def test_any_ends_of_a_long_prompt_are_read_alike(
    first: list[Any],
    filling: list[Any],
    size: int,
    then: list[Any],
    more: list[Any],
    further: int,
    last: list[Any],
    escaped: bool,
    spaced: bool,
) -> None:
    prompt = [*first, *filled(filling, size), *then, *filled(more, further), *last]
    read_alike(decode_object(written({"messages": prompt}, escaped, spaced)))


@given(MESSAGES, st.booleans(), st.randoms(use_true_random=False))
def test_damaged_messages_are_read_alike(
    messages: list[Any], escaped: bool, draw: random.Random
) -> None:
    body = bytearray(written({"messages": messages}, escaped, spaced=False))
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(body))
        if draw.random() < 0.5:
            body[at] = draw.choice(b'"\\{}[],:u0aA \n\x00\xff')
        else:
            del body[at]
    try:
        members = decode_object(bytes(body))
    except MalformedJSON:
        return  # which nothing is to read
    read_alike(members)


@given(st.binary(max_size=80), TEXTS)
def test_raw_members_that_are_no_json_do_no_harm(end: bytes, text: str) -> None:
    """None of these come, since bodies are checked."""
    whole = written([{"role": "user", "content": text}], escaped=True, spaced=False)
    long = whole[:-1] + b" " * view._LONG
    for raw in (
        end,
        whole[:-1] + end,
        whole[: len(whole) // 2] + end,
        b'[{"role":"user"' + end,
        long + end,
        long,
        long[: view._LONG + 1],
        whole[:-2] + b"\\n" * 20_000 + end,
        b'[{"role":"user","content":"\\n' + b"\x80" * 30_000 + end,
        b'[{"role":"user","content":[{"type":"text","text":"a"}' + end,
        b'[{"role":"user","content":[{"type":"text","text":"a"},  ',
        b'[{"role":"user","content":"\\n' + b"\x80" * 30_000 + b'"}]',
    ):
        SCORERS[0].read({"messages": msgspec.Raw(raw)})
