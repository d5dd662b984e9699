"""Corrects a pool's index by what its engines say of their caches.

    dispatch        the request carries a session's name, which the engine repeats in its events
    events          what is stored and evicted at each replica, block by block
    the answer's    the prompt is known in both forms: its blocks of text, and the chain of blocks
    end             that ends in the session's last one
    (no events)     the whole prompt was cached: the next request with it asks for a report
    from then on    an event about one of these blocks changes the index, at whichever replica it
                    happens and whoever's request made it happen

The index is never corrected by silence: that a replica has not said that it holds a block may mean
that it was not heard, or that it names its blocks otherwise. Nothing of this is on the way of a
request, except for the header.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from secrets import token_hex

import msgspec

from sluice.backends.base import Endpoint, UpstreamRequest
from sluice.router.pool.blocks import BLOCK_BYTES
from sluice.router.pool.kv_events import Cleared, EventKind, KvEvent, Stored
from sluice.router.pool.prefix_map import PrefixMap
from sluice.router.pool.resident import ResidentBlocks
from sluice.router.pool.scheduler import PoolScheduler

#: The header by which vLLM is told a request's session.
SESSION_HEADER = "x-session-id"

#: How long events may be behind the answer that they belong to, in seconds.
SETTLE_SECONDS = 0.5

#: Sessions whose last block is remembered until their answers end; and prompts that were not to be
#: told from events.
_MOST_SESSIONS, _MOST_UNKNOWN = 20_000, 10_000

#: What the sessions of gateways begin with; and what those end with whose engine was asked to tell
#: of all blocks that it found cached, so that every gateway knows these for blocks told before.
_SESSIONS, _REPORTED = "sluice-", "-reported"

#: How vLLM is asked, and of what.
_ASK_REPORT = b',"vllm_xargs":{"kv_cache_report_mode":"full"}}'
_REPORTING = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})


@dataclass(frozen=True, slots=True)
class FinishedPrompt:
    """A prompt that an engine has computed.

    Attributes:
        request: the name that its request was tagged with.
        replica: where that was.
        hashes: its blocks of text.
        size: its bytes.
        tokens: as the engine counted them.
    """

    request: str
    replica: str
    hashes: Sequence[int]
    size: int
    tokens: int


class EngineCaches:
    """What the engines of one pool say they have."""

    def __init__(self, scheduler: PoolScheduler) -> None:
        """Args:
        scheduler: whose index is corrected.
        """
        self._scheduler = scheduler
        self._residents: dict[str, ResidentBlocks] = {}
        self._map = PrefixMap()
        self._prefix = f"{_SESSIONS}{token_hex(8)}-"  # nobody else's session is taken for ours
        self._sessions: OrderedDict[str, tuple[str, int | None]] = OrderedDict()
        self._finished: deque[tuple[float, FinishedPrompt]] = deque()
        self._unknown: dict[int, None] = {}  # last blocks of text

    def tagged(self, request: UpstreamRequest, name: str, hashes: Sequence[int]) -> UpstreamRequest:
        """A request by whose name its blocks will be known.

        Args:
            request: as it came.
            name: no other request's in this process; the same as its `FinishedPrompt` has.
            hashes: its prompt's blocks of text.
        """
        session, body = self._prefix + name, request.body
        if self._unknown and hashes and hashes[-1] in self._unknown:
            del self._unknown[hashes[-1]]
            if request.endpoint in _REPORTING and b'"vllm_xargs"' not in body:
                session += _REPORTED
                body = body[: body.rindex(b"}")] + _ASK_REPORT
        headers = {**request.headers, SESSION_HEADER: session}
        return msgspec.structs.replace(request, body=body, headers=headers)

    def resident(self, replica: str) -> int:
        """Blocks of its own size that a replica says it holds; 0 while it is not heard."""
        resident = self._residents.get(replica)
        return 0 if resident is None else len(resident)

    def begin(self, replica: str) -> None:
        """A replica is heard from now on; what it said before, if it was heard already, is not to
        be relied on."""
        self._residents[replica] = ResidentBlocks()

    def end(self, replica: str) -> None:
        """A replica is no longer heard; what is believed of it stays in the index. An unknown one
        is ignored."""
        self._residents.pop(replica, None)

    def apply(self, replica: str, events: Iterable[KvEvent]) -> Counter[EventKind]:
        """Take in what a replica says.

        Args:
            replica: its name; one that is not heard is ignored.
            events: in its order.

        Returns:
            How many blocks were stored and removed, and how often all were.
        """
        counts: Counter[EventKind] = Counter()
        resident = self._residents.get(replica)
        if resident is None:
            return counts
        for event in events:
            blocks = resident.apply(event, repeated=_reported(event))
            if isinstance(event, Cleared):
                counts["cleared"] += 1
                self._cleared(replica)
            elif isinstance(event, Stored):
                counts["stored"] += len(blocks)
                self._stored(replica, event, blocks)
            else:
                counts["removed"] += len(blocks)
                self._scheduler.index.evicted(replica, self._texts(blocks))
        self._reckon(replica)
        return counts

    def finished(self, prompt: FinishedPrompt, now: float) -> None:
        """An answer has ended well; its events may yet come."""
        if prompt.hashes and prompt.tokens:
            self._finished.append((now + SETTLE_SECONDS, prompt))

    def settle(self, now: float) -> None:
        """Learn from the answers whose events have come; several times a second."""
        while self._finished and self._finished[0][0] <= now:
            self._learn(self._finished.popleft()[1])

    def _learn(self, prompt: FinishedPrompt) -> None:
        replica, last = self._sessions.pop(self._prefix + prompt.request, (prompt.replica, None))
        resident = self._residents.get(prompt.replica)
        if resident is None or not resident.block_size or replica != prompt.replica:
            return
        blocks = prompt.tokens // resident.block_size
        chain = None if last is None else resident.chain(last)
        if chain is None or len(chain) < blocks:
            self._wonder(prompt.hashes[-1])  # nothing was stored, or where it begins is not known
            return
        tokens_per_block = BLOCK_BYTES * prompt.tokens / prompt.size
        new = self._map.learn(
            prompt.hashes, chain[:blocks], tokens_per_block / resident.block_size, resident.before
        )
        if new:
            self._find(new)

    def _wonder(self, text_block: int) -> None:
        if self._map.images([text_block]):
            return
        self._unknown[text_block] = None
        if len(self._unknown) > _MOST_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]

    def _find(self, new: Sequence[int]) -> None:
        """Enter what replicas have of a prompt's blocks that could not be told before."""
        images = self._map.images(new)
        for replica, resident in self._residents.items():
            depth = resident.depth(images)
            if depth:
                self._scheduler.index.insert(replica, new[:depth])
                self._reckon(replica)

    def _stored(self, replica: str, event: Stored, blocks: Sequence[int]) -> None:
        texts = self._texts(blocks)
        if texts:
            self._scheduler.index.insert(replica, texts)
        if blocks and event.session is not None and event.session.startswith(self._prefix):
            self._sessions[event.session.removesuffix(_REPORTED)] = replica, blocks[-1]
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)

    def _cleared(self, replica: str) -> None:
        self._scheduler.index.clear(replica)
        self._reckon(replica)

    def _texts(self, blocks: Sequence[int]) -> list[int]:
        return [text_block for block in blocks for text_block in self._map.sources(block)]

    def _reckon(self, replica: str) -> None:
        if replica in self._scheduler.index and replica in self._scheduler.loads:
            free = self._scheduler.index.free(replica)
            self._scheduler.loads[replica].free_blocks = free


def _reported(event: KvEvent) -> bool:
    session = event.session if isinstance(event, Stored) else None
    return session is not None and session.startswith(_SESSIONS) and session.endswith(_REPORTED)
