"""The official OpenAI SDK against canned answers, over a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from openai import OpenAI


class Canned:
    """What to answer, and what was asked.

    Attributes:
        answer: a body; bytes are a stream of events.
        asked: the bodies of the requests.
    """

    def __init__(self, answer: bytes | dict[str, Any]) -> None:
        self.answer = answer
        self.asked: list[bytes] = []


@contextmanager
def sdk(answer: bytes | dict[str, Any]) -> Iterator[tuple[OpenAI, Canned]]:
    """A client whose every request gets the given answer."""
    canned = Canned(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            canned.asked.append(self.rfile.read(int(self.headers["content-length"])))
            streamed = isinstance(canned.answer, bytes)
            body = canned.answer if isinstance(canned.answer, bytes) else None
            body = json.dumps(canned.answer).encode() if body is None else body
            self.send_response(200)
            self.send_header(
                "content-type", "text/event-stream" if streamed else "application/json"
            )
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    client = OpenAI(
        base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="sk-test", max_retries=0
    )
    try:
        yield client, canned
    finally:
        client.close()
        server.shutdown()
        thread.join()
        server.server_close()
