"""What is outstanding at each replica, as one gateway process knows it.

Its own part is exact: it changes at dispatch, at the first token and at the end. The part of the
other gateways comes as hints. A hint carries what its sender has outstanding at one replica in
absolute numbers, not the change: a lost hint is healed by the next one, a repeated or late one is
recognised by its number and ignored. A gateway that has fallen silent is forgotten after
`silence` seconds, since its connections, and with them its requests, are gone; with no hints at
all a gateway sees its own part, which is how a single one works anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgspec

#: Seconds after which nothing from a gateway means that it is gone.
SILENCE_SECONDS = 5.0


@dataclass(slots=True)
class Load:
    """Work outstanding at a replica.

    Attributes:
        replica: its name.
        queued_prefill_tokens: tokens sent there that no first token has yet paid for.
        running: requests without an end.
        context_tokens: prompt and output tokens of those, which is KV cache that they hold.
        free_blocks: of its prefix cache, which a prompt can have at nobody's expense.
        weight: 1, or less while a replica re-enters slowly: the share of the usual load that
            it is given.
    """

    replica: str
    queued_prefill_tokens: int = 0
    running: int = 0
    context_tokens: int = 0
    weight: float = 1.0
    free_blocks: int = 0


class Hint(msgspec.Struct, frozen=True, gc=False):
    """What one gateway tells the others when it dispatched, saw a first token or an end.

    Attributes:
        gateway: the sender.
        number: counts its hints, so that an old one is not taken for news.
        replica: which replica it is about.
        queued_prefill_tokens: the sender's own outstanding, after the change.
        running: the same.
        context_tokens: the same.
        hashes: the blocks that the replica is about to have, at a dispatch; else empty.
        waiting: requests in the sender's queue.
        urgent: the interactive ones among them.
    """

    gateway: str
    number: int
    replica: str
    queued_prefill_tokens: int
    running: int
    context_tokens: int
    hashes: tuple[int, ...] = ()
    waiting: int = 0
    urgent: int = 0


@dataclass(slots=True)
class _Peer:
    """Another gateway: the numbers of its last hints, and when it was last heard."""

    heard: float
    waiting: int
    number: int
    parts: dict[str, Hint]
    urgent: int = 0


class LoadBook:
    """The outstanding work of all replicas, own and of the other gateways."""

    def __init__(self, gateway: str, silence: float = SILENCE_SECONDS) -> None:
        """Args:
        gateway: this process's name among the gateways.
        silence: seconds after which a gateway that says nothing is forgotten.
        """
        self.gateway = gateway
        self._silence = silence
        self._loads: dict[str, Load] = {}
        self._own: dict[str, Load] = {}
        self._peers: dict[str, _Peer] = {}
        self._number = 0
        #: Requests in the own queue, and the interactive ones, which hints tell the others.
        self.waiting = 0
        self.urgent = 0

    def add(self, replica: str) -> None:
        """Take a replica in; what the others have said of it already counts."""
        if replica in self._loads:
            return
        load = self._loads[replica] = Load(replica)
        self._own[replica] = Load(replica)
        for peer in self._peers.values():
            part = peer.parts.get(replica)
            if part is not None:
                _shift(load, part.queued_prefill_tokens, part.running, part.context_tokens)

    def remove(self, replica: str) -> None:
        """Forget a replica and what was outstanding there."""
        self._loads.pop(replica, None)
        self._own.pop(replica, None)

    def __getitem__(self, replica: str) -> Load:
        """The load of a replica, which changes in place."""
        return self._loads[replica]

    def __iter__(self) -> Iterator[Load]:
        """All loads, in the order in which the replicas came."""
        return iter(self._loads.values())

    def __contains__(self, replica: str) -> bool:
        """Whether the replica is known."""
        return replica in self._loads

    @property
    def peers(self) -> Collection[str]:
        """Names of the other gateways that are alive."""
        return self._peers.keys()

    @property
    def rivals(self) -> int:
        """How many other gateways have requests waiting."""
        return sum(peer.waiting > 0 for peer in self._peers.values())

    @property
    def urgent_elsewhere(self) -> int:
        """How many interactive requests wait at other gateways."""
        return sum(peer.urgent for peer in self._peers.values())

    @property
    def own_prefill_tokens(self) -> int:
        """Queued prefill tokens at all replicas that this gateway sent."""
        return sum(own.queued_prefill_tokens for own in self._own.values())

    def own_running(self, replica: str) -> int:
        """Requests of this gateway at a replica; none at an unknown one."""
        own = self._own.get(replica)
        return 0 if own is None else own.running

    def dispatched(self, replica: str, prefill_tokens: int, context_tokens: int) -> None:
        """A request went to a replica; an unknown one is ignored, here and below.

        Args:
            replica: where it went.
            prefill_tokens: of its prompt that the replica has to compute.
            context_tokens: the KV cache that it will hold, prompt and output.
        """
        self._change(replica, prefill_tokens, 1, context_tokens)

    def first_token(self, replica: str, prefill_tokens: int) -> None:
        """The prompt of a request is computed, for which so many tokens were outstanding."""
        self._change(replica, -prefill_tokens, 0, 0)

    def ended(self, replica: str, prefill_tokens: int, context_tokens: int) -> None:
        """A request is no longer outstanding, for whatever reason.

        Args:
            replica: where it was.
            prefill_tokens: of its prompt that were still to be computed.
            context_tokens: as it was dispatched with.
        """
        self._change(replica, -prefill_tokens, -1, -context_tokens)

    def hint(self, replica: str, hashes: tuple[int, ...] = ()) -> Hint:
        """What to tell the other gateways of a replica now.

        Args:
            replica: whose outstanding work changed.
            hashes: of the prompt that went there; empty at a first token or an end.
        """
        self._number += 1
        own = self._own[replica]
        return Hint(
            self.gateway,
            self._number,
            replica,
            own.queued_prefill_tokens,
            own.running,
            own.context_tokens,
            hashes,
            self.waiting,
            self.urgent,
        )

    def receive(self, hint: Hint, now: float) -> bool:
        """Take in what another gateway says.

        Args:
            hint: from anyone; one's own is ignored.
            now: seconds.

        Returns:
            Whether it was news.
        """
        if hint.gateway == self.gateway:
            return False
        peer = self._peers.setdefault(hint.gateway, _Peer(now, 0, 0, {}))
        peer.heard = now
        if hint.number > peer.number:
            peer.number, peer.waiting, peer.urgent = hint.number, hint.waiting, hint.urgent
        before = peer.parts.get(hint.replica)
        if before is not None and before.number >= hint.number:
            return False
        peer.parts[hint.replica] = hint
        load = self._loads.get(hint.replica)
        if load is not None:
            _shift(
                load,
                hint.queued_prefill_tokens - (before.queued_prefill_tokens if before else 0),
                hint.running - (before.running if before else 0),
                hint.context_tokens - (before.context_tokens if before else 0),
            )
        return True

    def expire(self, now: float) -> None:
        """Forget the gateways that have been silent for too long.

        Args:
            now: seconds.
        """
        for name, peer in list(self._peers.items()):
            if now - peer.heard > self._silence:
                del self._peers[name]
                for part in peer.parts.values():
                    load = self._loads.get(part.replica)
                    if load is not None:
                        _shift(
                            load,
                            -part.queued_prefill_tokens,
                            -part.running,
                            -part.context_tokens,
                        )

    def _change(self, replica: str, prefill: int, running: int, context: int) -> None:
        load = self._loads.get(replica)
        if load is not None:
            _shift(load, prefill, running, context)
            _shift(self._own[replica], prefill, running, context)


def _shift(load: Load, prefill: int, running: int, context: int) -> None:
    load.queued_prefill_tokens += prefill
    load.running += running
    load.context_tokens += context
