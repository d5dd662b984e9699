"""From request bodies to prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.router.pool.placement import Prompt
from sluice.router.pool.prompt_text import PromptReader

SYSTEM = {"role": "system", "content": "You are helpful. " * 100}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "d" * 2000}}]


def read(**members: Any) -> Prompt:
    prompt, _ = PromptReader(b"secret").read(json.dumps(members).encode())
    return prompt


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def common(one: Prompt, other: Prompt) -> int:
    """Leading blocks that two prompts share."""
    pairs = zip(one.hashes, other.hashes, strict=False)
    return next(
        (n for n, (a, b) in enumerate(pairs) if a != b), min(map(len, (one.hashes, other.hashes)))
    )


def test_a_conversation_that_goes_on_keeps_its_blocks() -> None:
    turns = [SYSTEM, user("x" * 3000)]
    before = read(messages=turns)
    after = read(messages=[*turns, {"role": "assistant", "content": "y" * 900}, user("z")])
    assert common(before, after) == len(before.hashes) > 5


def test_where_the_prompt_stands_in_the_body_does_not_matter() -> None:
    one = read(model="m", messages=[SYSTEM], temperature=1)
    other = read(messages=[SYSTEM], max_tokens=7, model="other")
    assert one == other


def test_a_shared_system_message_comes_before_different_tools() -> None:
    one = read(messages=[SYSTEM, user("a")], tools=TOOLS)
    other = read(messages=[SYSTEM, user("b")], tools=[{**TOOLS[0], "type": "other"}])
    assert common(one, other) == len(json.dumps(SYSTEM)) // 512


def test_tools_come_first_where_there_is_no_system_message() -> None:
    one = read(messages=[user("a" * 5000)], tools=TOOLS)
    other = read(messages=[user("b" * 5000)], tools=TOOLS)
    assert common(one, other) == len(json.dumps(TOOLS)) // 512


def test_different_salts_share_nothing() -> None:
    one = read(messages=[SYSTEM], cache_salt="a")
    other = read(messages=[SYSTEM], cache_salt="b")
    assert not set(one.hashes) & set(other.hashes)


@pytest.mark.parametrize("member", ["prompt", "input"])
def test_other_operations_have_prompts_as_well(member: str) -> None:
    assert len(read(**{member: "word " * 500}).hashes) == 4


def test_what_cannot_be_read_has_no_prompt() -> None:
    prompt, size = PromptReader(b"").read(b'{"messages": 7}')
    assert (prompt.hashes, size) == ((), 0)


def test_the_ratio_is_learnt() -> None:
    reader = PromptReader(b"secret")
    assert reader.block_tokens == 128
    for _ in range(10):
        reader.learn(10_000, 5_000)
    assert reader.block_tokens == 256
    prompt, size = reader.read(json.dumps({"prompt": "x" * 9_998}).encode())
    assert (prompt.tokens, size) == (5_000, 10_000)


def test_short_prompts_teach_nothing() -> None:
    reader = PromptReader(b"secret")
    reader.learn(10, 100)
    assert reader.block_tokens == 128
