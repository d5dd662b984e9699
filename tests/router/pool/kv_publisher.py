"""An engine's publisher of KV events, with its replay, in this process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from sluice.backends.vllm import EventSource, NoEventSource, VLLMConfig, VLLMInspector

_END = (-1).to_bytes(8, "big", signed=True)


def stored(
    blocks: Sequence[int], parent: int | None = None, session: str | None = None, **more: Any
) -> dict[str, Any]:
    """A `BlockStored`, as vLLM sends it."""
    return {
        "type": "BlockStored",
        "block_hashes": list(blocks),
        "parent_block_hash": parent,
        "token_ids": [1, 2, 3] * len(blocks),
        "block_size": 128,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "session_id": session,
        **more,
    }


def removed(blocks: Sequence[int], **more: Any) -> dict[str, Any]:
    """A `BlockRemoved`."""
    return {
        "type": "BlockRemoved",
        "block_hashes": list(blocks),
        "medium": "GPU",
        "group_idx": 0,
        **more,
    }


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: dict[str, Any]) -> bytes:
    """A message."""
    return msgspec.msgpack.encode([1.5, events, 0])


class Publisher:
    """Numbers messages, sends them, and sends the last ones again to who asks."""

    def __init__(self, kept: int = 100, replays: bool = True) -> None:
        """Args:
        kept: messages that can be had again.
        replays: whether they can.
        """
        self._context = zmq.Context()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._number = 0
        self._publishing, self._replaying = self._context.socket(zmq.PUB), None
        self._publishing.bind("tcp://127.0.0.1:*")
        replay = None
        if replays:
            self._replaying = self._context.socket(zmq.ROUTER)
            self._replaying.bind("tcp://127.0.0.1:*")
            replay = self._replaying.getsockopt_string(zmq.LAST_ENDPOINT)
        events = self._publishing.getsockopt_string(zmq.LAST_ENDPOINT)
        self.source = EventSource(events, replay, "")
        self.asked: list[int] = []
        self._serving = asyncio.create_task(self._serve())

    def publish(self, *events: dict[str, Any], lose: bool = False) -> None:
        """Send events in one message; `lose` it on the way."""
        self.send(batch(*events), lose)

    def send(self, payload: bytes, lose: bool = False) -> None:
        """The same for any message."""
        number, self._number = self._number, self._number + 1
        self._kept.append((number, payload))
        if not lose:
            self._publishing.send_multipart([b"", number.to_bytes(8, "big"), payload])

    async def stop(self) -> None:
        """Go away without a word."""
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _serve(self) -> None:
        while self._replaying is not None:
            while self._replaying.poll(0):
                client, _, start = self._replaying.recv_multipart()
                first = int.from_bytes(start, "big")
                self.asked.append(first)
                for number, payload in self._kept:
                    if number >= first:
                        numbered = number.to_bytes(8, "big")
                        self._replaying.send_multipart([client, b"", b"", numbered, payload])
                self._replaying.send_multipart([client, b"", b"", _END, b""])
            await asyncio.sleep(0.005)


class SourceInspector(VLLMInspector):
    """Says where a publisher is."""

    def __init__(self, publisher: Publisher | None) -> None:
        super().__init__(VLLMConfig("http://fake"))
        self.publisher = publisher
        self.error: NoEventSource | None = None

    async def event_source(self, seconds: float) -> EventSource | None:
        if self.error is not None:
            raise self.error
        return None if self.publisher is None else self.publisher.source
