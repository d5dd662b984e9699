"""An upstream that is a witness: what was in progress at every moment, what it generated, and what
that costs. A process of its own, so that nobody else's work moves its clock.

The caller's prompt says what is to happen (see `Wanted`). What comes when is told by the system's
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import aiohttp
from aiohttp import web

Kind = Literal["answer", "error", "limited", "hang"]

#: Characters of a token, as gateways estimate where they aren't told.
CHARACTERS = 4
WORD = "wor "
_PIECE_SECONDS = 0.05
_ESTABLISHED = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a prompt asks for.

    Attributes:
        who: whose request it is.
        number: tells requests apart.
        seconds: how long the answer takes.
        tokens: of the answer.
        share: of the prompt's characters that count as tokens, in percent of the usual.
    """

    who: str
    number: int
    kind: Kind = "answer"
    seconds: float = 0.0
    tokens: int = 1
    share: int = 100

    def prompt(self, words: int) -> str:
        """The prompt, with so many words after the wish."""
        return json.dumps(asdict(self)) + " |" + " word" * words

    @classmethod
    def of(cls, prompt: str) -> Wanted:
        """What a prompt asks for."""
        return cls(**json.loads(prompt.partition(" |")[0]))


@dataclass(slots=True)
class Seen:
    """One call.

    Attributes:
        request_id: the gateway's.
        began, ended: on the monotonic clock, seconds.
        end: `finished`, `error`, or `cut` by the caller; empty while it is in progress.
        prompt, completion: tokens, as reported, or as generated until it was cut.
        reserved: tokens that it could come to.
    """

    who: str
    number: int
    request_id: str
    model: str
    stream: bool
    began: float
    ended: float = 0.0
    end: str = ""
    prompt: int = 0
    completion: int = 0
    reserved: int = 0


class Judge:
    """Answers as it is asked to, and writes down what it sees."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []
        self._open: dict[int, tuple[Seen, Any]] = {}

    def application(self) -> web.Application:
        """Its HTTP side."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/seen", self.tell)
        return app

    async def tell(self, _: web.Request) -> web.Response:
        """All that was seen."""
        return web.json_response([asdict(each) for each in self._seen])

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        self._look_for_leavers()
        body = json.loads(await request.read())
        content = body["messages"][-1]["content"]
        wanted = Wanted.of(content)
        seen = Seen(
            wanted.who,
            wanted.number,
            request.headers.get("x-request-id", ""),
            body["model"],
            bool(body.get("stream")),
            time.monotonic(),
        )
        self._seen.append(seen)
        assert request.transport is not None
        self._open[id(seen)] = (seen, request.transport.get_extra_info("socket"))
        try:
            if wanted.kind in ("error", "limited"):
                return self._refuse(seen, wanted)
            seen.prompt = -(-len(content) // CHARACTERS) * wanted.share // 100
            seen.reserved = seen.prompt + body["max_tokens"]
            if wanted.kind == "hang":
                await asyncio.sleep(3600)
            if seen.stream:
                return await self._stream(request, seen, wanted)
            return await self._whole(seen, wanted)
        finally:  # cancelled: the caller has gone
            self._end(seen, "cut")

    def _refuse(self, seen: Seen, wanted: Wanted) -> web.Response:
        self._end(seen, "error")
        error = {"error": {"message": "no", "type": "server_error"}}
        return web.json_response(error, status=429 if wanted.kind == "limited" else 500)

    async def _whole(self, seen: Seen, wanted: Wanted) -> web.Response:
        until = seen.began + wanted.seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _PIECE_SECONDS))
            share = 1 - max(0.0, until - time.monotonic()) / wanted.seconds
            seen.completion = int(wanted.tokens * share)
        seen.completion = wanted.tokens
        self._end(seen, "finished")
        message = {"role": "assistant", "content": WORD * wanted.tokens}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {**_head(seen, "chat.completion"), "choices": [choice], "usage": _usage(seen)}
        )

    async def _stream(self, request: web.Request, seen: Seen, wanted: Wanted) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        pieces = max(1, min(wanted.tokens, int(wanted.seconds / _PIECE_SECONDS)))
        for piece in range(1, pieces + 1):
            said, seen.completion = seen.completion, wanted.tokens * piece // pieces
            text = WORD * (seen.completion - said)
            await response.write(_event(seen, {"role": "assistant", "content": text}))
            await asyncio.sleep(
                max(0, seen.began + wanted.seconds * piece / pieces - time.monotonic())
            )
        self._end(seen, "finished")
        last = json.dumps(
            {**_head(seen, "chat.completion.chunk"), "choices": [], "usage": _usage(seen)}
        )
        await response.write(
            _event(seen, {}, "stop") + f"data: {last}\n\ndata: [DONE]\n\n".encode()
        )
        return response

    def _end(self, seen: Seen, end: str) -> None:
        if not seen.end:
            seen.end, seen.ended = end, time.monotonic()
            del self._open[id(seen)]

    def _look_for_leavers(self) -> None:
        """Whose connection is closed has left, even if its event has not been served yet."""
        for seen, connection in list(self._open.values()):
            if _state(connection) != _ESTABLISHED:
                self._end(seen, "cut")


def _state(connection: Any) -> int:
    try:
        return int(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0])
    except OSError:
        return 0


def _head(seen: Seen, kind: str) -> dict[str, Any]:
    return {"id": f"c-{seen.number}", "object": kind, "created": 1, "model": seen.model}


def _event(seen: Seen, delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    text = json.dumps({**_head(seen, "chat.completion.chunk"), "choices": [choice]})
    return f"data: {text}\n\n".encode()


def _usage(seen: Seen) -> dict[str, int]:
    return {
        "prompt_tokens": seen.prompt,
        "completion_tokens": seen.completion,
        "total_tokens": seen.prompt + seen.completion,
    }


def most_at_once(calls: Iterable[Seen]) -> int:
    """The largest number in progress at one moment."""
    steps = sorted(
        step for call in calls for step in ((call.began, 1), (call.ended or float("inf"), -1))
    )
    now = most = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def mean_in_progress(calls: Iterable[Seen], since: float, until: float) -> float:
    """The mean number in progress over a time."""
    total = sum(
        max(0.0, min(call.ended or until, until) - max(call.began, since)) for call in calls
    )
    return total / (until - since)


def most_in_a_minute(calls: Iterable[tuple[float, int]]) -> int:
    """The largest sum of amounts whose moments lie within 60 seconds of each other."""
    moments = sorted(calls)
    first = total = most = 0
    for moment, amount in moments:
        total += amount
        while moments[first][0] <= moment - 60:
            total -= moments[first][1]
            first += 1
        most = max(most, total)
    return most


async def seen(url: str) -> list[Seen]:
    """What a judge has seen."""
    async with aiohttp.ClientSession() as session, session.get(url + "/seen") as answer:
        return [Seen(**each) for each in await answer.json()]


async def _serve(port: int) -> None:
    runner = web.AppRunner(Judge().application(), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=512).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
