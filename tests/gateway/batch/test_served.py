"""Files and batches as users have them: a gateway and a batch worker as processes, the official
SDK, and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest
from click.testing import CliRunner, Result
from openai import OpenAI
from openai.types import Batch

from sluice.gateway.cli import main
from tests.gateway.batch.doors_site import BODY, jsonl, request_line
from tests.harness.gateway import TEAM_KEY, Gateway, Process, sluice
from tests.harness.polling import eventually

CHAT: Final = "/v1/chat/completions"
LINES = 20
REQUESTS = jsonl(
    *(request_line(f"r{number}") for number in range(LINES)),
    request_line("bad", body={"model": "simulated", "messages": []}),
)


@pytest.fixture(scope="module")
def worker(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A batch worker beside the gateway, with its configuration."""
    config = gateway.command[gateway.command.index("--config") + 1]
    log = tmp_path_factory.mktemp("batch") / "batch.log"
    process = Process(sluice("batch", "--config", config), gateway.env, log)
    process.start()
    yield process
    assert process.running(), process.log_text()[-3000:]
    process.stop()


def check_lines(text: bytes, ids: set[str], status: int) -> None:
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["custom_id"] for line in lines} == ids
    for line in lines:
        assert line["id"].startswith("batch_req_")
        assert line["error"] is None
        assert line["response"]["status_code"] == status
        assert line["response"]["request_id"]


def test_the_sdk_from_upload_to_output(client: OpenAI, worker: Process) -> None:
    file = client.files.create(file=("jobs.jsonl", REQUESTS), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"a": "b"}
    )

    def ended() -> Batch | None:
        now = client.batches.retrieve(batch.id)
        return now if now.status == "completed" else None

    done = eventually(ended, 60)
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": LINES + 1, "completed": LINES, "failed": 1}
    assert done.metadata == {"a": "b"}
    assert done.output_file_id is not None
    assert done.error_file_id is not None
    output = client.files.retrieve(done.output_file_id)
    assert output.purpose == "batch_output"
    content = client.files.content(output.id).read()
    assert len(content) == output.bytes
    check_lines(content, {f"r{number}" for number in range(LINES)}, 200)
    check_lines(client.files.content(done.error_file_id).read(), {"bad"}, 400)
    listed = {each.id for each in client.files.list(purpose="batch_output")}
    assert {done.output_file_id, done.error_file_id} <= listed


def test_results_are_followed_from_anywhere(http: httpx.Client, worker: Process) -> None:
    kind = {"content-type": "application/x-www-form-urlencoded"}  # as curl --data-binary has it
    job = http.post("/v1/batch", content=REQUESTS, headers=kind).json()
    url = f"/v1/batch/{job['batch_id']}"
    first: list[Any] = []
    with http.stream("GET", f"{url}/results?follow=true") as response:
        for line in response.iter_lines():
            first.append(json.loads(line))
            if len(first) == 5:
                break
    after = first[-1]["sequence"]
    with http.stream("GET", f"{url}/results?follow=true&after={after}") as response:
        rest = [json.loads(line) for line in response.iter_lines()]
    ids = [line["custom_id"] for line in first + rest]
    assert sorted(ids) == sorted(f"r{number}" for number in range(LINES))
    ended = http.get(url).json()
    assert ended["status"] == "completed"
    assert float(ended["cost_usd"]) > 0
    assert [json.loads(line)["custom_id"] for line in http.get(f"{url}/errors").iter_lines()] == [
        "bad"
    ]


def test_a_refusal_is_heard_though_much_is_still_to_be_sent(client: OpenAI) -> None:
    content = b"bad\n" + jsonl(request_line("a", body={**BODY, "x": "y" * 900_000})) * 30
    with pytest.raises(openai.BadRequestError, match="Line 1"):
        client.files.create(file=("jobs.jsonl", content), purpose="batch")
    stranger = client.with_options(api_key="sk-nobody")
    with pytest.raises(openai.AuthenticationError):
        stranger.files.create(file=("jobs.jsonl", content), purpose="batch")


def command(gateway: Gateway, *arguments: str) -> Result:
    environment = {"SLUICE_URL": gateway.url, "SLUICE_KEY": TEAM_KEY}
    return CliRunner().invoke(main, ["batch", *arguments], env=environment)


def test_the_command_line(gateway: Gateway, worker: Process, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(REQUESTS)
    done = command(
        gateway,
        *("submit", str(file), "--watch", "--every", "0.1"),
        *("--metadata", "a=b", "--priority", "high"),
    )
    assert done.exit_code == 0, done.stderr
    batch_id, summary = done.stdout.splitlines()
    assert summary.startswith(f"completed: {LINES} of {LINES + 1} completed, 1 failed, 0.")
    assert command(gateway, "watch", batch_id).stdout.strip() == summary
    results = command(gateway, "results", batch_id)
    assert len(results.stdout.splitlines()) == LINES
    output = tmp_path / "errors.jsonl"
    command(gateway, "results", batch_id, "--errors", "--follow", "--output", str(output))
    error = json.loads(output.read_bytes())
    assert error["custom_id"] == "bad"
    rest = ("--errors", "--after", str(error["sequence"]), "--output", str(output))
    command(gateway, "results", batch_id, *rest)
    assert json.loads(output.read_bytes()) == error
    refused = command(gateway, "cancel", batch_id)
    assert refused.exit_code == 1
    assert "Cannot cancel" in refused.stderr


def test_what_the_command_line_says_of_faults(gateway: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(b"bad")
    refused = command(gateway, "submit", str(file))
    assert (refused.exit_code, "Line 1" in refused.stderr) == (1, True)
    unknown = command(gateway, "watch", "batch_1")
    assert (unknown.exit_code, "batch_1" in unknown.stderr) == (1, True)
