"""Clients that want more than they may have, and behave badly.

They run in a thread of their own; each asks one gateway after another, at random.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import aiohttp

from tests.drills.fleet import MAX_BODY_BYTES, MOODY, STEADY
from tests.drills.judge import Wanted

Way = Literal["whole", "stream", "leave early", "leave midway", "give up", "garbage", "too large"]

#: How clients behave, of a hundred.
HOSTILE: dict[Way, int] = {
    "whole": 40,
    "stream": 30,
    "leave early": 6,
    "leave midway": 8,
    "give up": 6,
    "garbage": 4,
    "too large": 2,
}


@dataclass(frozen=True, slots=True)
class Habit:
    """What the clients of one key do.

    Attributes:
        who: the key's name, to the judge.
        secret: the key.
        clients: as many at the same time.
        seconds: how long answers take, from and to.
        tokens: of answers, from and to.
        room: how many times as much `max_tokens` is, from and to.
        rest: after an answer, and after a refusal, in seconds.
        moods: how many of a hundred requests go to the model whose upstream errs, or to none.
        gateways: which of them are asked, by number; none: all.
    """

    who: str
    secret: str
    clients: int
    seconds: tuple[float, float]
    tokens: tuple[int, int]
    rest: tuple[float, float] = (0.0, 0.05)
    room: tuple[float, float] = (1.0, 3.0)
    ways: dict[Way, int] = field(default_factory=lambda: dict(HOSTILE))
    moods: int = 10
    gateways: tuple[int, ...] = ()


@dataclass(slots=True)
class Told:
    """A client that waited as it was told.

    Attributes:
        seconds: that it was told to wait.
        status: of the answer then.
    """

    who: str
    seconds: float
    status: int = 0
    came: float = 0.0


class Demand:
    """See the module. Use as a context manager: leaving it stops the clients."""

    def __init__(self, urls: Sequence[str], habits: Sequence[Habit], seed: int = 0) -> None:
        self._urls = urls
        self._habits = habits
        self._draw = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._number = 0
        self._patient: list[Habit] = []
        self.began = 0.0
        self.told: list[Told] = []
        #: Number of answers, by key and by what came of them.
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._refusals: list[tuple[float, float]] = []

    def with_patience(self, habit: Habit) -> Self:
        """Have clients of a key use it up, and wait together as they are told."""
        self._patient.append(habit)
        return self

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "clients hang"

    def refusal_seconds(self, since: float, until: float) -> float:
        """How long it took on average to be told of a limit."""
        took = [seconds for began, seconds in self._refusals if since <= began < until]
        return sum(took) / len(took)

    def sleep_until(self, seconds: float) -> None:
        """Until so long after the beginning; the schedule of a drill is the time itself."""
        threading.Event().wait(max(0.0, self.began + seconds - time.monotonic()))

    def _run(self) -> None:
        asyncio.run(self._everybody())

    async def _everybody(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            asyncio.TaskGroup() as group,
        ):
            for habit in self._patient:
                group.create_task(self._wait_together(session, habit))
            for habit in self._habits:
                for _ in range(habit.clients):
                    group.create_task(self._client(session, habit))

    async def _client(self, session: aiohttp.ClientSession, habit: Habit) -> None:
        while not self._stop.is_set():
            outcome = await self._ask(session, habit)
            self.outcomes[habit.who, outcome] += 1
            rest = habit.rest[0] if outcome in ("200", "left") else habit.rest[1]
            await asyncio.sleep(rest * self._draw.uniform(0.7, 1.3))

    async def _ask(self, session: aiohttp.ClientSession, habit: Habit) -> str:
        way = self._draw.choices(list(habit.ways), list(habit.ways.values()))[0]
        seconds = 20.0
        if way == "leave early":
            seconds = self._draw.uniform(0.01, 0.15)
        elif way == "give up":
            seconds = self._draw.uniform(0.3, 0.8)
        started = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                status = await self._send(session, habit, self._body(habit, way), way)
        except TimeoutError:
            return "left" if way in ("leave early", "give up") else "hung"
        except (aiohttp.ClientError, OSError) as error:
            return type(error).__name__
        if status == 429:
            self._refusals.append((started, time.monotonic() - started))
        return str(status)

    async def _send(
        self, session: aiohttp.ClientSession, habit: Habit, body: bytes, way: Way
    ) -> int:
        urls = [self._urls[number] for number in habit.gateways] or self._urls
        url = self._draw.choice(urls) + "/v1/chat/completions"
        headers = {"authorization": f"Bearer {habit.secret}"}
        async with session.post(url, data=body, headers=headers) as response:
            if response.status == 200 and way == "leave midway":
                await response.content.readline()
                return 200  # leaving the block closes what has not been read
            await response.read()
            return response.status

    def _body(self, habit: Habit, way: Way) -> bytes:
        if way == "garbage":
            return b'{"model": "steady", "messages": [{'
        self._number += 1
        draw = self._draw
        model, kind = STEADY, "answer"
        if draw.random() * 100 < habit.moods:
            model, kind = draw.choice(((MOODY, "error"), (MOODY, "limited"), ("nobody", "answer")))
        if way == "give up":
            kind = "hang"
        body = wish(
            Wanted(
                habit.who,
                self._number,
                kind,  # type: ignore[arg-type]
                draw.uniform(*habit.seconds),
                draw.randint(*habit.tokens),
                draw.randint(60, 100),
            ),
            model,
            words=draw.randint(10, 60),
            room=draw.uniform(*habit.room),
            stream=way in ("stream", "leave midway"),
        )
        if way == "too large":
            body["messages"][0]["content"] += "x" * MAX_BODY_BYTES
        return json.dumps(body).encode()

    async def _wait_together(self, session: aiohttp.ClientSession, habit: Habit) -> None:
        """Use a limit up, be refused all at the same moment, and come again as told."""
        draw, body = self._draw, json.dumps(wish(self._patient_wish(habit), STEADY, 30)).encode()
        headers = {"authorization": f"Bearer {habit.secret}"}

        async def ask() -> tuple[int, float]:
            while True:  # a gateway that is dead just now is no answer
                url = draw.choice(self._urls) + "/v1/chat/completions"
                try:
                    async with session.post(url, data=body, headers=headers) as response:
                        await response.read()
                        wait = float(response.headers.get("retry-after-ms", 0)) / 1000
                        if response.status != 503:
                            return response.status, wait
                except (aiohttp.ClientError, OSError):
                    pass
                await asyncio.sleep(0.05)

        async def wait_and_ask(seconds: float) -> None:
            told = Told(habit.who, seconds)
            self.told.append(told)
            asked = time.monotonic()
            await asyncio.sleep(seconds)
            told.status, _ = await ask()
            told.came = time.monotonic() - asked

        while (await ask())[0] == 200:
            pass
        refused = await asyncio.gather(*(ask() for _ in range(habit.clients)))
        await asyncio.gather(*(wait_and_ask(wait) for status, wait in refused if status == 429))

    def _patient_wish(self, habit: Habit) -> Wanted:
        self._number += 1
        return Wanted(habit.who, self._number, "answer", habit.seconds[0], habit.tokens[0])


def wish(
    wanted: Wanted, model: str, words: int, room: float = 1.0, stream: bool = False
) -> dict[str, Any]:
    """The body of a request; `max_tokens` is so many times what will be generated."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": wanted.prompt(words)}],
        "max_tokens": max(1, int(wanted.tokens * room)),
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body
