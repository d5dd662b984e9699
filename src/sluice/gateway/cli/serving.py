"""`sluice serve` and `sluice simulator`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sluice.gateway import operations
from sluice.gateway.cli.running import run
from sluice.gateway.cli.shared_options import config_option, host_option, port_option
from sluice.gateway.engine_options import engine_options, engine_settings, simulator_config
from sluice.gateway.logs import configure_logs


@click.command()
@config_option
@host_option
@port_option
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64))
def serve(config_path: Path | None, host: str, port: int, workers: int) -> None:
    """Run the gateway against SLUICE_DATABASE_URL and SLUICE_REDIS_URL."""
    configure_logs()
    run(operations.serve(config_path, host, port, workers))


@click.command()
@host_option
@click.option("--port", default=8101, show_default=True, type=click.IntRange(1, 65535))
@click.option("--model", default="simulator", show_default=True, help="Name that it serves.")
@click.option("--ttft-ms", default=20.0, show_default=True, help="Time to first token.")
@click.option("--itl-ms", default=5.0, show_default=True, help="Time between tokens.")
@engine_options
def simulator(
    host: str, port: int, model: str, ttft_ms: float, itl_ms: float, **engine: Any
) -> None:
    """Serve a vLLM look-alike over HTTP; any option from `--kv-blocks` on gives it an engine."""
    configure_logs()
    config = simulator_config(ttft_ms, itl_ms, engine_settings(engine))
    run(operations.simulator(host, port, model, config))
