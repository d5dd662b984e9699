"""Providers' batch APIs, OpenAI's and Anthropic's, over scripted answers.

A batch stays as it was handed over until the test ends it. Answers are made by `answer`, from a
request's body; a test may give single requests another end.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Body = dict[str, Any]
Answer = Callable[[Body], Body]


@dataclass
class Held:
    """A batch at a provider.

    Attributes:
        requests: bodies by their `custom_id`.
        cancelled: its end was asked for.
        result: its result lines, once it has ended.
        status: as the provider has it.
    """

    id: str
    requests: dict[str, Body]
    created: datetime
    key: str
    metadata: dict[str, str] = field(default_factory=dict)
    endpoint: str = ""
    cancelled: bool = False
    status: str = "in_progress"
    output: bytes = b""
    code: str = ""


class _Server:
    """What both have in common.

    Attributes:
        batches: by their ids, oldest first.
        fail: is asked before each call, and may give the answer to it.
        done: is told of each call that was carried out, and its answer waits for it.
        lose_answers: calls that make a batch do so, and their answers are lost.
    """

    def __init__(self) -> None:
        self.batches: dict[str, Held] = {}
        self.fail: Callable[[web.Request], web.StreamResponse | None] = lambda request: None
        self.done: Callable[[web.Request], Awaitable[None]] | None = None
        self.lose_answers = False
        self.calls: list[tuple[str, str]] = []
        app = web.Application(middlewares=[self._noting], client_max_size=1 << 28)
        self._route(app.router)
        self.server = TestServer(app, host="127.0.0.1")

    @property
    def batch(self) -> Held:
        """The only batch."""
        (held,) = self.batches.values()
        return held

    def _route(self, router: web.UrlDispatcher) -> None:
        raise NotImplementedError

    @web.middleware
    async def _noting(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        self.calls.append((request.method, request.path))
        failure = self.fail(request)
        if failure is not None:
            return failure
        answer: web.StreamResponse = await handler(request)
        if self.done is not None:
            await self.done(request)
        return answer

    def _held(self, request: web.Request) -> Held:
        held = self.batches.get(request.match_info["id"])
        if held is None:
            raise web.HTTPNotFound(
                text=json.dumps({"error": {"type": "not_found_error", "message": "none such"}}),
                content_type="application/json",
            )
        return held

    def _made(self, request: web.Request, held: Held, shown: Body) -> web.Response:
        self.batches[held.id] = held
        if self.lose_answers and request.transport is not None:
            request.transport.abort()
        return web.json_response(shown)


class OpenAIProvider(_Server):
    """OpenAI's files and batches; chat, called live, has the same answers."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/v1"

    def end(
        self,
        held: Held,
        status: str = "completed",
        ends: Mapping[str, bytes | None] | None = None,
        answer: Answer | None = None,
    ) -> None:
        """End a batch.

        Args:
            ends: by `custom_id`, lines in place of the answers; None: no line at all. With
                another status than `completed`, requests that are not among them get none.
        """
        lines: list[bytes] = []
        for name, body in held.requests.items():
            if ends is not None and name in ends:
                line = ends[name]
            elif status == "completed":
                line = answered(name, (answer or chat_answer)(body))
            else:
                continue
            if line is not None:
                lines.append(line)
        held.status = status
        self.files[f"file-out-{held.id}"] = held.output = b"".join(each + b"\n" for each in lines)

    def _route(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/chat/completions", self._live)
        router.add_post("/v1/files", self._upload)
        router.add_get("/v1/files/{id}/content", self._content)
        router.add_delete("/v1/files/{id}", self._delete)
        router.add_post("/v1/batches", self._create)
        router.add_get("/v1/batches", self._list)
        router.add_get("/v1/batches/{id}", self._retrieve)
        router.add_post("/v1/batches/{id}/cancel", self._cancel)

    async def _live(self, request: web.Request) -> web.Response:
        return web.json_response(chat_answer(await request.json()))

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        assert form["purpose"] == "batch"
        id = f"file-in-{len(self.files)}"
        self.files[id] = file.file.read()
        return web.json_response(
            {
                "id": id,
                "object": "file",
                "bytes": len(self.files[id]),
                "created_at": 1,
                "filename": file.filename,
                "purpose": "batch",
                "status": "processed",
            }
        )

    async def _content(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self.files[request.match_info["id"]])

    async def _delete(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        del self.files[id]
        return web.json_response({"id": id, "object": "file", "deleted": True})

    async def _create(self, request: web.Request) -> web.Response:
        given = await request.json()
        assert given["completion_window"] == "24h"
        lines = [json.loads(line) for line in self.files[given["input_file_id"]].splitlines()]
        assert all(line["method"] == "POST" for line in lines)
        assert {line["url"] for line in lines} == {given["endpoint"]}
        held = Held(
            id=f"batch_upstream_{len(self.batches)}",
            requests={line["custom_id"]: line["body"] for line in lines},
            created=datetime.now(UTC),
            key=request.headers["authorization"].removeprefix("Bearer "),
            metadata={**given["metadata"], "input": given["input_file_id"]},
            endpoint=given["endpoint"],
        )
        return self._made(request, held, self._shown(held))

    async def _list(self, request: web.Request) -> web.Response:
        newest = [self._shown(held) for held in reversed(self.batches.values())]
        return web.json_response({"object": "list", "data": newest, "has_more": False})

    async def _retrieve(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(self._held(request)))

    async def _cancel(self, request: web.Request) -> web.Response:
        held = self._held(request)
        held.cancelled, held.status = True, "cancelling"
        return web.json_response(self._shown(held))

    def _shown(self, held: Held) -> Body:
        output = f"file-out-{held.id}"
        return {
            "id": held.id,
            "object": "batch",
            "endpoint": held.endpoint,
            "completion_window": "24h",
            "created_at": int(held.created.timestamp()),
            "input_file_id": held.metadata["input"],
            "status": held.status,
            "metadata": held.metadata,
            "output_file_id": output if output in self.files else None,
            "errors": {"data": [{"code": held.code}]} if held.code else None,
        }


class AnthropicProvider(_Server):
    """Anthropic's Message Batches."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def end(self, held: Held, ends: Mapping[str, bytes | None] | None = None) -> None:
        """End a batch.

        Args:
            ends: by `custom_id`, lines in place of the answers; None: no line at all.
        """
        lines: list[bytes] = []
        for name, body in held.requests.items():
            message = {"type": "succeeded", "message": message_answer(body)}
            line: bytes | None = json.dumps({"custom_id": name, "result": message}).encode()
            if ends is not None and name in ends:
                line = ends[name]
            if line is not None:
                lines.append(line)
        held.status = "ended"
        held.output = b"".join(each + b"\n" for each in lines)

    def _route(self, router: web.UrlDispatcher) -> None:
        base = "/v1/messages/batches"
        router.add_post(base, self._create)
        router.add_get(base, self._list)
        router.add_get(base + "/{id}", self._retrieve)
        router.add_delete(base + "/{id}", self._delete)
        router.add_get(base + "/{id}/results", self._results)
        router.add_post(base + "/{id}/cancel", self._cancel)

    async def _create(self, request: web.Request) -> web.Response:
        given = (await request.json())["requests"]
        assert all("stream" not in each["params"] for each in given)
        held = Held(
            id=f"msgbatch_{len(self.batches)}",
            requests={each["custom_id"]: each["params"] for each in given},
            created=datetime.now(UTC),
            key=request.headers["authorization"].removeprefix("Bearer "),
        )
        return self._made(request, held, self._shown(held))

    async def _list(self, request: web.Request) -> web.Response:
        newest = [self._shown(held) for held in reversed(self.batches.values())]
        return web.json_response(
            {"data": newest, "has_more": False, "first_id": None, "last_id": None}
        )

    async def _retrieve(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(self._held(request)))

    async def _delete(self, request: web.Request) -> web.Response:
        del self.batches[self._held(request).id]
        return web.json_response({"id": request.match_info["id"], "type": "message_batch_deleted"})

    async def _results(self, request: web.Request) -> web.Response:
        return web.Response(body=self._held(request).output, content_type="application/x-jsonl")

    async def _cancel(self, request: web.Request) -> web.Response:
        held = self._held(request)
        held.cancelled, held.status = True, "canceling"
        return web.json_response(self._shown(held))

    def _shown(self, held: Held) -> Body:
        ended = held.status == "ended"
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        counts["succeeded" if ended else "processing"] = len(held.requests)
        return {
            "id": held.id,
            "type": "message_batch",
            "processing_status": held.status,
            "request_counts": counts,
            "created_at": held.created.isoformat(),
            "expires_at": (held.created + timedelta(hours=24)).isoformat(),
            "ended_at": datetime.now(UTC).isoformat() if ended else None,
            "results_url": f"{self.url}/v1/messages/batches/{held.id}/results" if ended else None,
        }


def chat_answer(body: Body) -> Body:
    """A chat completion; its text is the request's."""
    text = body["messages"][-1]["content"]
    return {
        "id": "chatcmpl-upstream",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": f"echo: {text}"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010},
    }


def message_answer(body: Body) -> Body:
    """A message; its text is the request's."""
    content = body["messages"][-1]["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    return {
        "id": "msg_upstream",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": f"echo: {text}"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1000, "output_tokens": 10},
    }


def answered(name: str, body: Body, status: int = 200) -> bytes:
    """A line of OpenAI's output file."""
    response = {"status_code": status, "request_id": "req_upstream", "body": body}
    line = {"id": "batch_req_x", "custom_id": name, "response": response, "error": None}
    return json.dumps(line).encode()


def not_run(name: str, code: str) -> bytes:
    """A line of OpenAI's error file, of a request that was not run."""
    error = {"code": code, "message": "not run"}
    return json.dumps({"custom_id": name, "response": None, "error": error}).encode()


def anthropic_end(name: str, result: Body) -> bytes:
    """A line of Anthropic's results."""
    return json.dumps({"custom_id": name, "result": result}).encode()
