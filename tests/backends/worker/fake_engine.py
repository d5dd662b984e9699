"""A program that looks like vLLM's server to a worker, and does what a test tells it.

Run as a script with vLLM's options, of which it reads the address. `POST /fake` changes its state;
`--journal FILE` gets a line with the process ids of the engine and of a child of it at each start;
`--crash` makes it end at once, `--mute` never answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from aiohttp import web

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="fake"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="fake"}} {waiting}
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 7.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="fake"}} {kv_usage}
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="fake"}} {tokens}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="fake"}} {tokens}
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="128",engine="0",num_gpu_blocks="1000",num_cpu_blocks="0"}} 1.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="fake"}} 3.0
"""


@dataclass
class State:
    """What a test tells: gauges, and faults.

    Attributes:
        dead: the health check says that the engine is.
        stuck: no token is made.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    tokens: float = 0.0
    dead: bool = False
    stuck: bool = False


def application(state: State) -> web.Application:
    """The server."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=503 if state.dead else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=METRICS.format(**vars(state)))

    async def complete(request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        while state.stuck:
            await asyncio.sleep(0.01)
        tokens = body["max_tokens"]
        state.tokens += tokens
        choice = {"index": 0, "text": "a" * tokens, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        answer = {"id": "c", "object": "text_completion", "created": 1, "model": body["model"]}
        return web.json_response({**answer, "choices": [choice], "usage": usage})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def tell(request: web.Request) -> web.Response:
        for name, value in (await request.json()).items():
            assert name in {field.name for field in fields(State)}
            setattr(state, name, value)
        return web.Response()

    app = web.Application()
    app.add_routes(
        [
            web.get("/health", health),
            web.get("/metrics", metrics),
            web.get("/v1/models", models),
            web.post("/v1/completions", complete),
            web.post("/fake", tell),
        ]
    )
    return app


def main() -> None:
    """Serve until told otherwise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--crash", action="store_true")
    parser.add_argument("--mute", action="store_true", help="never listen")
    parser.add_argument("--deaf", action="store_true", help="to SIGTERM")
    options, _ = parser.parse_known_args()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with options.journal.open("a") as journal:
        journal.write(f"{os.getpid()} {child.pid}\n")
    if options.crash:
        sys.exit(9)
    if options.mute:
        child.wait()
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(application(State()))
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, options.host, options.port).start())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, (lambda: None) if options.deaf else loop.stop)
    loop.run_forever()


if __name__ == "__main__":
    main()
