"""Simulated replicas as processes of their own."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.harness.gateway import Process, free_port, sluice
from tests.harness.polling import eventually


class SimulatedReplica(Process):
    """`sluice simulator` with an engine."""

    def __init__(self, directory: Path, number: int, *arguments: str) -> None:
        self.port = free_port()
        self.name = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.name}"
        command = sluice("simulator", "--port", str(self.port), "--model", "sim", *arguments)
        super().__init__(command, {}, directory / f"replica-{number}.log")

    def start(self) -> None:
        super().start()
        eventually(self._answers, 30)

    def _answers(self) -> bool:
        assert self.running(), self.log_text()[-3000:]
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False
