"""What `sluice router loop` does."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from sluice.gateway.config_file import load_config
from sluice.gateway.connections import open_database
from sluice.gateway.environment import Environment, needed
from sluice.gateway.startup_errors import CommandError


async def learn(config_path: Path | None, once: bool) -> None:
    """Run the loop that teaches `auto`, until told to stop.

    Args:
        once: only do what is due, and train candidates whether or not they are.
    """
    # Threads of its linear algebra spin while others work, and make training ten times slower.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # it takes numpy, whose import would slow every other command down
    from sluice.gateway.learning.loop import LearningLoop  # noqa: PLC0415

    config = load_config(config_path)
    pool = await open_database(needed(Environment.read().database_url, "SLUICE_DATABASE_URL"))
    learning = LearningLoop(pool, config.learning.retraining)
    if once:
        if not await learning.look(train=True):
            raise CommandError("another process is at it")
        await pool.close()
        return
    running = asyncio.create_task(learning.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.gather(running, return_exceptions=True)
    pool.terminate()
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error
