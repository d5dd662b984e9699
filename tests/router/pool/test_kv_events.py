"""What engines say of their caches, and what the index makes of it."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.backends.base import Endpoint, UpstreamRequest
from sluice.router.pool.blocks import BLOCK_BYTES
from sluice.router.pool.bounds import ReplicaLimits
from sluice.router.pool.engine_caches import (
    SESSION_HEADER,
    SETTLE_SECONDS,
    EngineCaches,
    FinishedPrompt,
)
from sluice.router.pool.kv_events import Cleared, Removed, Stored, UnreadableEvents, read_batch
from sluice.router.pool.placement import PrefixLoad
from sluice.router.pool.prefix_map import PrefixMap
from sluice.router.pool.resident import ResidentBlocks
from sluice.router.pool.scheduler import PoolScheduler
from tests.router.pool.kv_publisher import CLEARED, batch, removed, stored

#: Messages of vLLM 0.32 on a CPU: a prompt with a `cache_salt`, a block that its output filled, and
#: a step that evicted that one.
RECORDED = {
    name: base64.b64decode(text)
    for name, text in json.loads(
        Path(__file__).with_name("kv_events_recorded.json").read_text()
    ).items()
}


def test_what_vllm_sends_is_read() -> None:
    chain = (5047948792337471257, 15364896488243960897, 5785748842945472798)
    assert read_batch(RECORDED["stored"]) == [Stored(chain, None, 128, "gw-1", 0)]
    grown = Stored((10867867369503095311,), chain[-1], 128, "gw-3", 0)
    assert read_batch(RECORDED["grown"]) == [grown]
    evicted, after = read_batch(RECORDED["evicted"])
    assert evicted == Removed(grown.blocks, 0)
    assert isinstance(after, Stored)


def test_whole_hashes_name_the_same_blocks_as_their_last_bits() -> None:
    whole = bytes(24) + (1 << 63).to_bytes(8, "big")
    (event,) = read_batch(batch(stored([whole], parent=whole)))  # type: ignore[list-item, arg-type]
    assert event == Stored((1 << 63,), 1 << 63, 128, None, 0)


def test_what_says_nothing_of_prefixes_is_left_out() -> None:
    told = [
        stored([1], medium="CPU"),
        stored([1], locality="REMOTE"),
        stored([1], kv_cache_spec_kind="sliding_window"),
        removed([1], medium="STORAGE"),
        {"type": "BlockWarmed", "warmth": 3},
        CLEARED,
    ]
    assert read_batch(batch(*told)) == [Cleared()]


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", msgspec.msgpack.encode({"ts": 1}), msgspec.msgpack.encode([1.5, [[]]])],
)
def test_what_is_no_batch_is_said(payload: bytes) -> None:
    with pytest.raises(UnreadableEvents):
        read_batch(payload)


def test_a_block_leads_to_its_prompts_beginning() -> None:
    resident = ResidentBlocks()
    resident.apply(Stored((1, 2, 3), None, 128, None, 0))
    resident.apply(Stored((4,), 3, 128, None, 0))
    resident.apply(Stored((6,), 5, 128, None, 0))
    assert resident.chain(4) == [1, 2, 3, 4]
    assert resident.chain(6) is None  # what was before it has not been heard
    assert resident.chain(9) is None
    assert resident.apply(Removed((4,), 0)) == [4]
    assert (resident.before(2), resident.before(1), resident.before(4)) == (1, None, None)


def test_layers_of_another_kind_do_not_count() -> None:
    resident = ResidentBlocks()
    resident.apply(Stored((1,), None, 128, None, 1))
    assert resident.apply(Stored((2,), None, 64, None, 2)) == ()
    assert resident.apply(Removed((1,), 2)) == ()
    assert (len(resident), resident.block_size) == (1, 128)


def test_the_number_of_blocks_is_bounded() -> None:
    resident = ResidentBlocks(most=10)
    for number in range(0, 100, 2):
        resident.apply(Stored((number, number + 1), None, 128, None, 0))
        resident.apply(Stored((number + 1,), number, 128, None, 0))
    assert len(resident) == 10
    assert len(resident._copies) <= 10


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5))))
def test_a_block_is_there_as_long_as_one_copy_is(steps: list[tuple[bool, int]]) -> None:
    resident, copies = ResidentBlocks(), Counter[int]()
    for stores, block in steps:
        if stores:
            resident.apply(Stored((block,), None, 128, None, 0))
            copies[block] += 1
        else:
            gone = resident.apply(Removed((block,), 0))
            copies[block] = max(0, copies[block] - 1)
            assert block not in gone or not copies[block]
        assert len(resident) == sum(count > 0 for count in copies.values())


def test_text_is_mapped_by_the_share_of_its_tokens() -> None:
    known = PrefixMap()
    before: dict[int, int | None] = {}
    known.learn([1, 2, 3, 4], [11, 12, 13, 14, 15, 16, 17, 18], 2.0, before.get)
    assert known.images([1, 2, 3, 4, 5]) == [12, 14, 16, 18]
    assert known.sources(16) == (3,)
    assert known.sources(15) == ()


def test_what_two_prompts_share_is_mapped_to_what_both_have() -> None:
    known = PrefixMap()
    # Block 2 of the text ends in both prompts' second block, which the first one's reckoning missed
    # by one: the third is its own alone.
    before = {13: 12, 12: 11}
    known.learn([1, 2], [11, 12, 13], 1.4, before.get)
    assert known.images([1, 2]) == [11, 13]
    known.learn([1, 2, 3], [11, 12, 23, 24], 1.1, before.get)
    assert known.images([1, 2, 3]) == [11, 12, 23]
    assert known.sources(13) == ()


def test_the_map_is_bounded() -> None:
    known = PrefixMap(most=3)
    before: dict[int, int | None] = {}
    for number in range(20):
        known.learn([number], [100 + number], 1.0, before.get)
    assert [number for number in range(20) if known.images([number])] == [17, 18, 19]
    assert [number for number in range(20) if known.sources(100 + number)] == [17, 18, 19]


class Scene:
    """Two replicas, and what is said of them."""

    def __init__(self) -> None:
        self.scheduler = PoolScheduler("gateway", PrefixLoad(Random(1)))
        self.caches = EngineCaches(self.scheduler)
        for name in "ab":
            self.scheduler.join(name, ReplicaLimits(1_000, 128))
            self.caches.begin(name)
        self.requests = 0

    def says(self, replica: str, *events: Stored | Removed | Cleared) -> None:
        self.caches.apply(replica, events)

    def has(self, replica: str, hashes: Sequence[int]) -> int:
        return self.scheduler.index.match(tuple(hashes)).get(replica, 0)

    def session(self, hashes: Sequence[int] = (), body: bytes = b'{"a":1}') -> str:
        """A new request's."""
        self.requests += 1
        request = UpstreamRequest(Endpoint.CHAT, "m", body, True, "r", headers={"x-a": "1"})
        self.request = self.caches.tagged(request, str(self.requests), hashes)
        assert self.request.headers["x-a"] == "1"
        return self.request.headers[SESSION_HEADER]

    def served(
        self,
        hashes: Sequence[int],
        blocks: Sequence[int],
        replica: str = "a",
        parent: int | None = None,
        tokens: int | None = None,
    ) -> None:
        """A prompt of so many blocks is computed by a replica, and its answer ends."""
        session = self.session(hashes)
        if blocks:
            self.says(replica, Stored(tuple(blocks), parent, 128, session, 0))
        size, count = len(hashes) * BLOCK_BYTES, tokens or 128 * len(hashes)
        prompt = FinishedPrompt(str(self.requests), replica, tuple(hashes), size, count)
        self.caches.finished(prompt, 0.0)
        self.caches.settle(SETTLE_SECONDS)


def test_what_others_had_stored_is_found_once_the_prompt_is_known() -> None:
    scene = Scene()
    scene.says("b", Stored((11, 12), None, 128, "somebody's", 0))
    scene.served([1, 2, 3], [11, 12, 13])
    assert (scene.has("a", [1, 2, 3]), scene.has("b", [1, 2, 3])) == (3, 2)
    free = scene.scheduler.index.free("b")
    assert scene.scheduler.loads["b"].free_blocks == free == 998


def test_what_is_stored_later_is_found_at_once() -> None:
    scene = Scene()
    scene.served([1, 2, 3], [11, 12, 13])
    scene.says("b", Stored((11, 12, 13), None, 128, None, 0))
    assert scene.has("b", [1, 2, 3]) == 3


def test_what_is_evicted_is_gone_and_its_copies_are_not() -> None:
    scene = Scene()
    scene.served([1, 2, 3], [11, 12, 13])
    scene.says("a", Stored((13,), 12, 128, None, 0), Removed((13,), 0))
    assert scene.has("a", [1, 2, 3]) == 3
    scene.says("a", Removed((13,), 0))
    assert scene.has("a", [1, 2, 3]) == 2
    assert scene.scheduler.loads["a"].free_blocks == 0  # who evicts is full


def test_a_cleared_cache_has_nothing() -> None:
    scene = Scene()
    scene.served([1, 2, 3], [11, 12, 13])
    scene.says("a", Cleared())
    assert (scene.has("a", [1, 2, 3]), scene.caches.resident("a")) == (0, 0)


def test_a_prompt_whose_beginning_was_cached_is_known_whole() -> None:
    scene = Scene()
    scene.says("a", Stored((11, 12), None, 128, "somebody's", 0))
    scene.served([1, 2, 3], [13], parent=12)
    scene.says("b", Stored((11,), None, 128, None, 0))
    assert scene.has("b", [1, 2, 3]) == 1


def test_generated_blocks_are_not_the_prompts() -> None:
    scene = Scene()
    scene.served([1, 2], [11, 12, 13, 14], tokens=300)
    scene.says("b", Stored((11, 12), None, 128, None, 0))
    assert scene.has("b", [1, 2]) == 2


@pytest.mark.parametrize(
    ("parent", "tokens"),
    [(9, None), (None, 1_000)],
    ids=["the beginning was not heard", "more tokens than blocks: a list of prompts"],
)
def test_a_prompt_that_is_not_known_whole_teaches_nothing(
    parent: int | None, tokens: int | None
) -> None:
    scene = Scene()
    scene.served([1, 2], [11, 12], parent=parent, tokens=tokens)
    scene.says("b", Stored((11, 12), None, 128, None, 0))
    assert scene.has("b", [1, 2]) == 0


def test_silence_takes_nothing_away() -> None:
    scene = Scene()
    scene.scheduler.index.insert("b", [1, 2, 3])
    scene.served([1, 2, 3], [11, 12, 13])
    assert scene.has("b", [1, 2, 3]) == 3  # believed, though not said: it may name them otherwise
    scene.caches.begin("a")
    scene.caches.end("b")
    assert (scene.has("a", [1, 2, 3]), scene.has("b", [1, 2, 3])) == (3, 3)
    assert (scene.caches.resident("a"), scene.caches.resident("b")) == (0, 0)
    scene.says("b", Removed((11,), 0))
    assert scene.has("b", [1, 2, 3]) == 3


def test_prompts_with_different_salts_do_not_meet() -> None:
    """Both chains begin with the salt, so that equal texts have neither in common."""
    scene = Scene()
    scene.served([1, 2], [11, 12])
    scene.served([71, 72], [81, 82])
    scene.says("b", Stored((81, 82), None, 128, None, 0))
    assert (scene.has("b", [1, 2]), scene.has("b", [71, 72])) == (0, 2)
    scene.says("a", Removed((82, 81), 0))
    assert (scene.has("a", [1, 2]), scene.has("a", [71, 72])) == (2, 0)


def test_other_peoples_sessions_are_not_ours() -> None:
    scene = Scene()
    scene.session()
    scene.says("a", Stored((11,), None, 128, "sluice-0000000000000000-1", 0))
    scene.caches.finished(FinishedPrompt("1", "a", (1,), BLOCK_BYTES, 128), 0.0)
    scene.caches.settle(SETTLE_SECONDS)
    scene.says("b", Stored((11,), None, 128, None, 0))
    assert scene.has("b", [1]) == 0


def test_a_prompt_that_was_cached_whole_is_told_when_it_comes_again() -> None:
    scene = Scene()
    scene.says("a", Stored((11, 12), None, 128, None, 0))
    scene.served([1, 2], [])
    assert scene.request.body == b'{"a":1}'  # most prompts bring something new, which tells
    session = scene.session([1, 2])
    assert json.loads(scene.request.body) == {
        "a": 1,
        "vllm_xargs": {"kv_cache_report_mode": "full"},
    }
    scene.says("a", Stored((11, 12), None, 128, session, 0))  # told again, and not stored again
    scene.caches.finished(FinishedPrompt("2", "a", (1, 2), 2 * BLOCK_BYTES, 256), 0.0)
    scene.caches.settle(SETTLE_SECONDS)
    scene.says("b", Stored((11,), None, 128, None, 0))
    assert scene.has("b", [1, 2]) == 1
    scene.says("a", Removed((12,), 0))
    assert scene.has("a", [1, 2]) == 1
    scene.served([1, 2], [])
    scene.session([1, 2])
    assert scene.request.body == b'{"a":1}'


def test_a_callers_own_extra_arguments_are_left_alone() -> None:
    scene = Scene()
    scene.says("a", Stored((11,), None, 128, None, 0))
    scene.served([1], [])
    body = b'{"vllm_xargs":{}}'
    assert not scene.session([1], body).endswith("-reported")
    assert scene.request.body == body
