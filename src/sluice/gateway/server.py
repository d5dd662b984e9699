"""One gateway process: serve until told to stop, then drain."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time

import structlog

from sluice.gateway.body_clock import BodyClock
from sluice.gateway.header_guard import HeaderGuard
from sluice.gateway.lifeline import Cut
from sluice.gateway.listener import create_server
from sluice.gateway.wiring import Gateway

#: A gateway that is told to stop answers for at least this long, in seconds: connections that were
#: accepted or reused at that moment get their 503 and not a reset.
LINGER_SECONDS = 0.25

#: After the drain deadline requests are cut; they have this long to settle, in seconds.
SETTLE_SECONDS = 5.0

#: What is settled may still be on its way to clients; connections have this long, in seconds.
CLOSE_SECONDS = 2.0

_log = structlog.get_logger("sluice")


async def serve_gateway(gateway: Gateway, host: str, port: int, drain_seconds: float) -> None:
    """Serve until SIGINT or SIGTERM, then drain and stop.

    Draining: new requests are refused with 503, those in progress finish; after `drain_seconds`
    they are cut, and settle. A second signal cuts them at once.
    """
    stop = _StopSignals()
    await gateway.start()
    _tune_collector()
    server = create_server(
        HeaderGuard(
            BodyClock(gateway.app, gateway.connections.body_seconds),
            gateway.connections.max_header_bytes,
        ),
        host,
        port,
        gateway.connections,
    )
    serving = asyncio.create_task(server.serve())
    _log.info("gateway listening", host=host, port=port, pid=os.getpid())
    await stop.wait(serving)
    gateway.pipeline.draining = True
    _log.info("gateway draining", in_progress=len(gateway.lifelines))
    await asyncio.sleep(LINGER_SECONDS)
    await _until_idle(gateway, stop, drain_seconds)
    gateway.lifelines.cut_all(Cut.SHUTDOWN)
    await _until_idle(gateway, stop, SETTLE_SECONDS, hurry=False)
    await gateway.stop()
    server.stop()
    # The server waits for its connections, and so for clients that don't read: not for long.
    await asyncio.wait({serving}, timeout=CLOSE_SECONDS)
    _log.info("gateway stopped")


def _tune_collector() -> None:
    """Collect cycles less eagerly: requests leave next to none, and with thousands of open
    streams each full collection walks them all. What start-up made is left out for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _until_idle(
    gateway: Gateway, stop: _StopSignals, seconds: float, hurry: bool = True
) -> None:
    deadline = time.monotonic() + seconds
    while len(gateway.lifelines) and time.monotonic() < deadline and not (hurry and stop.twice):
        await asyncio.sleep(0.02)


class _StopSignals:
    """SIGINT and SIGTERM, counted."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.twice = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    async def wait(self, serving: asyncio.Task[None]) -> None:
        """Until the first signal, or the server's own end."""
        asked = asyncio.ensure_future(self._asked.wait())
        await asyncio.wait({asked, serving}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if serving.done():
            serving.result()

    def _on_signal(self) -> None:
        self.twice = self._asked.is_set()
        self._asked.set()
