"""A crowd of clients, and what each of them saw.

The crowd runs in a thread of its own, so that a drill can stop and start servers meanwhile:

    with Crowd(url, key, model, clients=200) as crowd:
        crowd.wait_for_finished(500)
        gateway.kill()
        gateway.start()
    crowd.answers  # one for each request that was sent
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import msgspec

from tests.harness.polling import eventually

#: How long a client that was turned away or cut off waits before it asks again, in seconds.
REST_SECONDS = 0.05

_PROMPT_WORDS = 60
_LONGEST_ANSWER = 41  # what the simulator has to say


@dataclass(slots=True)
class Answer:
    """One request, as its client saw it.

    Attributes:
        kind: `json`, `stream` (usage asked for), `bare` (a stream without usage) or `embeddings`.
        request_id: from the headers; None if none came.
        status: HTTP status; None if no response began.
        finished: the whole body came, or the end marker of the stream.
        tokens: prompt and completion tokens, as reported or, of a bare stream, as counted.
        fault: what went wrong, in short; None if nothing did.
    """

    kind: str
    request_id: str | None = None
    status: int | None = None
    finished: bool = False
    tokens: tuple[int, int] = (0, 0)
    fault: str | None = None

    @property
    def complete(self) -> bool:
        """A finished success: there must be a charge for it."""
        return self.finished and self.status == 200


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request asks for."""

    kind: str
    words: int
    max_tokens: int

    @classmethod
    def any(cls, draw: random.Random) -> Ask:
        """Some request: half of them streams, all of different sizes."""
        kind = draw.choices(("json", "stream", "bare", "embeddings"), (4, 3, 2, 1))[0]
        return cls(kind, draw.randint(1, _PROMPT_WORDS), draw.randint(1, _LONGEST_ANSWER))

    @property
    def path(self) -> str:
        return "/v1/embeddings" if self.kind == "embeddings" else "/v1/chat/completions"

    def body(self, model: str) -> bytes:
        """The request's body."""
        text = " ".join(["word"] * self.words)
        body: dict[str, Any] = {"model": model}
        if self.kind == "embeddings":
            body["input"] = text
        else:
            body["messages"] = [{"role": "user", "content": text}]
            body["max_tokens"] = self.max_tokens
        if self.kind in ("stream", "bare"):
            body["stream"] = True
        if self.kind == "stream":
            body["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(body)


class Crowd:
    """Clients that ask again and again until told to stop; see the module."""

    def __init__(
        self,
        url: str,
        key: str,
        model: str,
        clients: int = 200,
        seed: int = 0,
        keep_connections: bool = True,
    ) -> None:
        self._url = url
        self._model = model
        self._clients = clients
        self._keep_connections = keep_connections
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._draw = random.Random(seed)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stop = threading.Event()
        self.answers: list[Answer] = []
        self.in_flight = 0
        self._complete = 0
        self._answered_at = time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def faults(self) -> Counter[str]:
        """What clients saw go wrong."""
        return Counter(answer.fault for answer in tuple(self.answers) if answer.fault is not None)

    def stop_asking(self) -> None:
        """Send nothing new from now on."""
        self._stop.set()

    def stop(self, seconds: float = 60) -> None:
        """Send nothing new, and wait for the answers that are due."""
        self.stop_asking()
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"{self.in_flight} requests hang"

    def wait_for_more(self, complete: int, seconds: float = 30) -> None:
        """Until so many more answers are complete."""
        goal = self._complete + complete
        eventually(lambda: self._complete >= goal, seconds, 0.005)

    def wait_for_silence(self, silence: float, seconds: float = 30) -> None:
        """Until nothing has been answered for so long."""
        eventually(lambda: time.monotonic() - self._answered_at > silence, seconds, 0.01)

    def wait_for_busy(self, seconds: float = 30) -> None:
        """Until nearly every client waits for an answer."""
        eventually(lambda: self.in_flight >= 0.9 * self._clients, seconds, 0.001)

    def _run(self) -> None:
        asyncio.run(self._crowd())

    async def _crowd(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=not self._keep_connections)
        timeout = aiohttp.ClientTimeout(total=60)
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=self._headers
            ) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._clients):
                group.create_task(self._client(session))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while not self._stop.is_set():
            ask = Ask.any(self._draw)
            answer = Answer(ask.kind)
            self.in_flight += 1
            try:
                await self._ask(session, ask, answer)
            except (aiohttp.ClientError, OSError) as error:
                answer.fault = type(error).__name__
            self.in_flight -= 1
            self.answers.append(answer)
            self._complete += answer.complete
            self._answered_at = time.monotonic()
            if answer.fault is not None:
                await asyncio.sleep(REST_SECONDS)

    async def _ask(self, session: aiohttp.ClientSession, ask: Ask, answer: Answer) -> None:
        body = ask.body(self._model)
        async with session.post(self._url + ask.path, data=body) as response:
            answer.status = response.status
            answer.request_id = response.headers.get("x-request-id")
            if response.content_type == "text/event-stream":
                await _read_stream(response, ask, answer)
            else:
                text = await response.read()  # fails if it is shorter than its content-length
                answer.finished = True
                if response.status == 200:
                    answer.tokens = _reported(msgspec.json.decode(text))
                else:
                    answer.fault = f"{response.status} {_code(text)}"


async def _read_stream(response: aiohttp.ClientResponse, ask: Ask, answer: Answer) -> None:
    counted = 0
    async for data in _events(response):
        if data == b"[DONE]":
            answer.finished = True
            if ask.kind == "bare":
                answer.tokens = (ask.words, counted)
            return
        event = msgspec.json.decode(data)
        if "error" in event:
            answer.fault = f"in-band {event['error']['code']}"
        elif event["choices"]:
            counted += bool(event["choices"][0]["delta"].get("content"))
        else:
            answer.tokens = _reported(event)
    answer.fault = answer.fault or "stream ended without its end"


async def _events(response: aiohttp.ClientResponse) -> Any:
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line[6:].strip()


def _reported(body: dict[str, Any]) -> tuple[int, int]:
    usage = body["usage"]
    return usage["prompt_tokens"], usage.get("completion_tokens", 0)


def _code(text: bytes) -> str:
    try:
        return str(msgspec.json.decode(text)["error"]["code"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "without a code"


def moments(seed: int, count: int, least: int, most: int) -> Iterator[int]:
    """How many answers to await before each of several blows, so that each falls elsewhere."""
    draw = random.Random(seed)
    return (draw.randint(least, most) for _ in range(count))
