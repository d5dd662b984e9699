"""Thousands of slow streams at once, from one process.

Run as `python -m bench.hold`; it prints one JSON object. Bare sockets, since an
HTTP client's own work would show up as the gateway's latency.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import cast
from urllib.parse import urlsplit

from bench import answers
from bench.eventloop import run
from bench.machine import raise_open_files

#: New streams a second. All at once would measure a queue, not the gateway.
_OPENED_A_SECOND = 1000
_STARTS_A_SECOND = 20
_GRACE_SECONDS = 60.0


@dataclass
class Held:
    """What happened to the streams. Times in milliseconds, to the first word of content."""

    streams: int
    complete: int = 0
    held_at_once: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    ttfb_p50_ms: float = 0.0
    ttfb_p99_ms: float = 0.0


@dataclass
class Tally:
    """Shared by all streams of a run."""

    open: int = 0
    most_open: int = 0
    complete: int = 0
    ttfb: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class HeldStream(asyncio.Protocol):
    """One connection with one stream."""

    def __init__(self, request: bytes, question: answers.Question, tally: Tally) -> None:
        self._request = request
        self._question = question
        self._tally = tally
        self._started = time.perf_counter()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._has_word = False
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        # uvloop's transports don't derive from asyncio's, so it can't be asserted.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note the first word; close at the last."""
        self._received += data
        if not self._has_word:
            self._look_for_first_word()
        # The end mark may be split between two reads.
        elif self._question.tail.encode() in self._received[-len(data) - 32 :]:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """The gateway hung up."""
        self._end("connection lost" if exc is None else type(exc).__name__)

    def give_up(self) -> None:
        """It has taken too long."""
        self._end("timed out")

    def _look_for_first_word(self) -> None:
        if not self._received.startswith(b"HTTP/1.1 200"):
            if b"\r\n" in self._received:
                self._end(f"status {bytes(self._received[9:12]).decode(errors='replace')}")
        elif answers.MARKER.encode() in self._received:
            self._has_word = True
            self._tally.ttfb.append((time.perf_counter() - self._started) * 1000)
            self._tally.open += 1
            self._tally.most_open = max(self._tally.most_open, self._tally.open)

    def _end(self, error: str | None = None) -> None:
        if self.ended.done():
            return
        self.ended.set_result(None)
        self._tally.open -= self._has_word
        words = self._received.count(answers.MARKER.encode())
        if error is None and words != self._question.words:
            error = f"{words} of {self._question.words} words"
        if error is None:
            self._tally.complete += 1
        else:
            self._tally.errors[error] += 1
        if self._transport is not None:
            self._transport.close()


def _http_request(url: str, key: str | None, body: bytes) -> bytes:
    parts = urlsplit(url)
    head = [
        f"POST {parts.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if key is not None:
        head.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*head, "", ""]).encode() + body


async def _one(url: str, make: Callable[[], HeldStream], tally: Tally, limit: float) -> None:
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limit):
            _, stream = await loop.create_connection(make, parts.hostname or "", parts.port or 80)
    except (OSError, TimeoutError) as error:
        tally.errors[f"connect: {type(error).__name__}"] += 1
        return
    try:
        async with asyncio.timeout(limit):
            await stream.ended
    except TimeoutError:
        stream.give_up()


async def hold(url: str, key: str | None, model: str, streams: int, events: int) -> Held:
    """Open `streams` streams over a few seconds and read each to its end."""
    question = answers.ask_held(model, events)
    tally = Tally()
    make = partial(HeldStream, _http_request(url, key, question.body), question, tally)
    limit = events + streams / _OPENED_A_SECOND + _GRACE_SECONDS
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(streams):
            due = number // (_OPENED_A_SECOND // _STARTS_A_SECOND) / _STARTS_A_SECOND
            await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
            group.create_task(_one(url, make, tally, limit))
    held = Held(streams, tally.complete, tally.most_open, dict(tally.errors))
    if len(tally.ttfb) > 1:
        cuts = statistics.quantiles(tally.ttfb, n=100)
        held.ttfb_p50_ms, held.ttfb_p99_ms = round(cuts[49], 1), round(cuts[98], 1)
    return held


def main() -> None:
    """Parse the command line, hold, and print what happened."""
    parser = argparse.ArgumentParser(description="Hold many slow streams")
    parser.add_argument("--url", required=True)
    parser.add_argument("--key")
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--events", type=int, required=True)
    args = parser.parse_args()
    raise_open_files()
    held = run(hold(args.url, args.key, args.model, args.streams, args.events))
    print(json.dumps(asdict(held)))


if __name__ == "__main__":
    main()
