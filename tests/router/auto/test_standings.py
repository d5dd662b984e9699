"""What stands for a conversation, and what it had."""

from __future__ import annotations

import msgspec

from sluice.router.auto.standings import SILENCE_SECONDS, Conversations, Standings
from sluice.router.complexity.view import read_view
from sluice.wire.request import Request
from tests.router.auto.samples import policy, request

POLICY = policy()


def key(asked: Request, team: str = "t", session: bytes | None = None) -> bytes:
    return Conversations(team, "auto").key(session, read_view(asked.members))


def turns(*texts: str, system: str = "be brief") -> Request:
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": system}] + [
        {"role": roles[number % 2], "content": text} for number, text in enumerate(texts)
    ]
    return request("", messages=messages)


def test_a_conversation_is_known_by_how_it_began() -> None:
    first = key(turns("hello"))
    assert key(turns("hello", "hi", "and now?")) == first
    assert key(turns("good morning", "hi", "and now?")) != first
    assert key(turns("hello", system="be kind")) != first
    assert key(turns("hello"), team="u") != first


def test_a_long_beginning_tells_conversations_apart_by_its_ends_and_its_length() -> None:
    long = "x" * 50_000
    first = key(turns(long))
    assert key(turns(long, "hi", "and now?")) == first
    assert len({first, *map(key, (turns(long + "y"), turns("y" + long), turns(long + "x")))}) == 4


def test_a_huge_beginning_tells_conversations_apart_by_its_first_65536_bytes() -> None:
    huge = "x" * 65_000
    first = key(turns(huge + "a" * 100_000))
    assert key(turns(huge + "a" * 100_000, "hi", "and now?")) == first
    assert key(turns(huge + "b" * 100_000, "hi", "and now?")) != first
    assert key(turns("y" + huge + "a" * 100_000)) != first


def test_behind_a_huge_system_message_each_request_stands_for_itself() -> None:
    asked = [turns(text, system="x" * 70_000) for text in ("hello", "good morning")]
    assert key(asked[0]) != key(asked[1])


def test_a_session_that_is_named_is_one_whatever_is_said() -> None:
    assert key(turns("a"), session=b"s") == key(turns("b"), session=b"s")
    assert key(turns("a"), session=b"s") != key(turns("a"), session=b"r")


def test_whatever_comes_has_a_key() -> None:
    for messages in (b"[]", b"{}", b"[1]", b"[" * 5_000, b'[{"role":"assistant"}]'):
        asked = Request({"messages": msgspec.Raw(messages)}, "auto")
        assert len(key(asked)) == 16
    prompts = [Request({"prompt": msgspec.Raw(text)}, "auto") for text in (b'"a"', b'"b"')]
    assert key(prompts[0]) != key(prompts[1])


def test_silence_ends_a_conversation() -> None:
    now = [0.0]
    standings = Standings(clock=lambda: now[0])
    standings.put(b"c", 0.5, 1, POLICY)
    now[0] = SILENCE_SECONDS
    known = standings.get(b"c", POLICY)
    assert known is not None
    assert known == (0.5, 1)
    now[0] += 1
    assert standings.get(b"c", POLICY) is None


def test_another_policy_has_other_tiers() -> None:
    standings = Standings()
    standings.put(b"c", 0.5, 1, POLICY)
    assert standings.get(b"c", policy()) is None


def test_those_that_were_silent_the_longest_go() -> None:
    standings = Standings(most=6)
    for name in (b"a", b"b", b"c", b"a", b"d"):  # after the third all are old, after the fifth two
        standings.put(name, 0.1, 0, POLICY)
    assert all(standings.get(name, POLICY) for name in (b"a", b"b", b"c", b"d"))
    standings.put(b"e", 0.1, 0, POLICY)
    known = [name for name in (b"a", b"b", b"c", b"d", b"e") if standings.get(name, POLICY)]
    assert known == [b"a", b"d", b"e"]
