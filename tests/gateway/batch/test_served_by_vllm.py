"""Batches over the real engine: by the official SDK, and by curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.engines.vllm_engine import VllmEngine
from tests.gateway.batch.doors_site import jsonl, request_line
from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import TEAM_KEY, Gateway, Process, sluice
from tests.harness.polling import eventually

pytestmark = pytest.mark.vllm

LINES = 24
TOKENS = 6
BODY = {"model": "llama", "max_tokens": TOKENS, "messages": [{"role": "user", "content": "waves"}]}
REQUESTS = jsonl(*(request_line(f"r{number}", body=BODY) for number in range(LINES)))


@pytest.fixture(scope="module")
def batch_gateway(
    vllm_engine: VllmEngine, start_gateway: StartGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway before the engine, and a batch worker beside it."""
    config: dict[str, Any] = {
        "providers": {"gpu": {"kind": "vllm", "replicas": [vllm_engine.url]}},
        "models": [
            model("llama", {"provider": "gpu", "model": vllm_engine.model}, context_length=2048)
        ],
    }
    gateway = start_gateway("batch-vllm", config)
    path = gateway.command[gateway.command.index("--config") + 1]
    log = tmp_path_factory.mktemp("batch-vllm") / "batch.log"
    worker = Process(sluice("batch", "--config", path), gateway.env, log)
    worker.start()
    yield gateway
    assert worker.running(), worker.log_text()[-3000:]
    worker.stop()


def check(text: bytes) -> None:
    lines = [json.loads(line) for line in text.splitlines()]
    assert sorted(line["custom_id"] for line in lines) == sorted(f"r{n}" for n in range(LINES))
    for line in lines:
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["body"]["usage"]["completion_tokens"] == TOKENS


def test_the_official_sdk_from_upload_to_output(batch_gateway: Gateway) -> None:
    client = OpenAI(base_url=f"{batch_gateway.url}/v1", api_key=TEAM_KEY)
    file = client.files.create(file=("jobs.jsonl", REQUESTS), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    batch = eventually(
        lambda: (
            found if (found := client.batches.retrieve(made.id)).status == "completed" else None
        ),
        60,
    )
    assert batch is not None
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (LINES, 0)
    assert batch.output_file_id is not None
    check(client.files.content(batch.output_file_id).content)
    tiers = batch_gateway.api("GET", "/v1/usage")["by_tier"]
    (spent,) = [tier for tier in tiers if tier["tier"] == "batch"]
    assert spent["requests"] >= LINES


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not there")
def test_lines_by_curl(batch_gateway: Gateway, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_bytes(REQUESTS)

    def curl(*arguments: str) -> bytes:
        authorization = f"authorization: Bearer {TEAM_KEY}"
        command = ["curl", "--silent", "--show-error", "--fail", "-H", authorization, *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=120).stdout

    door = f"{batch_gateway.url}/v1/batch"
    made = json.loads(curl("--data-binary", f"@{jobs}", door))
    assert made["request_counts"]["total"] == LINES
    check(curl(f"{door}/{made['batch_id']}/results?follow=true"))
