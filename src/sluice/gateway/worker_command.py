"""`sluice worker`: one vLLM beside its hardware, in the pool while it is well."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import aiohttp
import click
import structlog
import uuid_utils
import uvloop
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from yarl import URL

from sluice.backends.replicas import Announcement, Replicas
from sluice.backends.worker.client import EngineClient
from sluice.backends.worker.command import engine_command, engine_environment
from sluice.backends.worker.gpu import GpuMemory
from sluice.backends.worker.lease import Lease
from sluice.backends.worker.model import (
    ModelUnusable,
    ServedModel,
    read_model,
    weights_directory,
)
from sluice.backends.worker.restarts import RestartPolicy
from sluice.backends.worker.vitals import Patience
from sluice.backends.worker.watch import WatchConfig
from sluice.backends.worker.worker import ExitCode, StopRequest, Worker, WorkerConfig
from sluice.gateway.environment import AdminAccess, Environment
from sluice.gateway.logs import configure_logs
from sluice.gateway.startup_errors import ConfigError

#: vLLM's server, in the environment that the worker itself runs in.
OWN_VLLM = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")

_ASK_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 1.0

_log = structlog.get_logger("sluice.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What the command line says; times in seconds.

    Attributes:
        model: name in the registry; None: `model_file` describes it.
        version: its version, or the stage whose version it is to be.
        model_file: JSON in the form of the registry's answer.
        weights: where the weights are on this machine; None: where the registry says.
        pool: to join another than the registry's.
        host, port: where the engine listens.
        advertise: the engine's URL for gateways; None: this host's name.
        kv_events_port: where it publishes what happens to its prefix cache; None: it does not.
        program: what starts vLLM's server.
        verified: where checksums of unchanged files are kept.
        registry: until the registry must have answered.
        extra: the operator's own options for vLLM.
    """

    model: str | None
    version: str
    model_file: Path | None
    weights: Path | None
    pool: str | None
    host: str
    port: int
    advertise: str | None
    kv_events_port: int | None
    program: Sequence[str]
    verified: Path | None
    registry: float
    start: float
    silent: float
    hung: float
    restarts: int
    drain: float
    grace: float
    extra: Sequence[str]


@click.command()
@click.argument("model", required=False)
@click.argument("vllm_args", nargs=-1, type=click.UNPROCESSED)
@click.option("--version", default="prod", show_default=True, help="Or the stage that it is in.")
@click.option(
    "--model-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Describes the model instead of the registry.",
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path, file_okay=False),
    help="Their directory on this machine; by default where the registry says.",
)
@click.option("--pool", help="Join this pool instead of the registry's.")
@click.option("--host", default="0.0.0.0", show_default=True, help="Where the engine listens.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535))
@click.option("--advertise", metavar="URL", help="The engine's address for gateways.")
@click.option(
    "--kv-events-port",
    type=click.IntRange(1, 65534),
    help="Publish what happens to its prefix cache here, for gateways; the next port is taken too.",
)
@click.option("--engine-command", help="Starts vLLM's server; by default this Python's vLLM.")
@click.option(
    "--verified-cache",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Checksums of unchanged weights; by default below the user's cache directory.",
)
@click.option("--no-verified-cache", is_flag=True, help="Compute every checksum at every start.")
@click.option("--registry-seconds", default=120.0, show_default=True, help="To read the model.")
@click.option("--start-seconds", default=1800.0, show_default=True, help="To load the model.")
@click.option("--silent-seconds", default=5.0, show_default=True, help="Then it takes no requests.")
@click.option("--hung-seconds", default=60.0, show_default=True, help="Then it is started again.")
@click.option(
    "--crashes", default=5, show_default=True, type=click.IntRange(1), help="In a row: give up."
)
@click.option("--drain-seconds", default=120.0, show_default=True, help="To finish requests.")
@click.option("--grace-seconds", default=10.0, show_default=True, help="For the engine to end.")
def worker(
    model: str | None,
    vllm_args: tuple[str, ...],
    version: str,
    model_file: Path | None,
    weights: Path | None,
    pool: str | None,
    host: str,
    port: int,
    advertise: str | None,
    kv_events_port: int | None,
    engine_command: str | None,
    verified_cache: Path | None,
    no_verified_cache: bool,
    registry_seconds: float,
    start_seconds: float,
    silent_seconds: float,
    hung_seconds: float,
    crashes: int,
    drain_seconds: float,
    grace_seconds: float,
) -> None:
    """Run vLLM for MODEL, and keep it in its pool while it is well.

    Options of vLLM's own go after `--`. With --model-file, MODEL is left out.
    """
    if model is not None and (model_file is not None or model.startswith("-")):
        vllm_args, model = (model, *vllm_args), None  # it is one of vLLM's options
    if model is None and model_file is None:
        raise click.UsageError("name a MODEL of the registry, or give --model-file")
    options = WorkerOptions(
        model=model,
        version=version,
        model_file=model_file,
        weights=weights,
        pool=pool,
        host=host,
        port=port,
        advertise=advertise,
        kv_events_port=kv_events_port,
        program=OWN_VLLM if engine_command is None else shlex.split(engine_command),
        verified=None if no_verified_cache else verified_cache or _default_cache(),
        registry=registry_seconds,
        start=start_seconds,
        silent=silent_seconds,
        hung=hung_seconds,
        restarts=crashes,
        drain=drain_seconds,
        grace=grace_seconds,
        extra=vllm_args,
    )
    configure_logs()
    try:
        code = uvloop.run(run_worker(options, Environment.read()))
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    sys.exit(code)


async def run_worker(options: WorkerOptions, environment: Environment) -> ExitCode:
    """Run one to its end; says how it ended.

    Raises:
        ConfigError: the environment lacks something.
    """
    if environment.redis_url is None:
        raise ConfigError("SLUICE_REDIS_URL is not set")
    stop = StopRequest()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.signal)
    try:
        model = await _model(options, environment, stop)
        if model is None:
            return ExitCode.STOPPED
        directory = options.weights or weights_directory(model.weights)
    except ModelUnusable as error:
        _log.error("model unusable", problem=str(error))
        return ExitCode.MODEL_UNUSABLE
    return await _serve(options, environment.redis_url, model, directory.absolute(), stop)


async def _serve(
    options: WorkerOptions, redis_url: str, model: ServedModel, weights: Path, stop: StopRequest
) -> ExitCode:
    try:
        redis = Redis.from_url(
            redis_url, retry=Retry(NoBackoff(), 0), socket_timeout=1, socket_connect_timeout=1
        )
    except ValueError:
        raise ConfigError("SLUICE_REDIS_URL is not a valid Redis URL") from None
    gpu = await asyncio.to_thread(GpuMemory.find)
    client = EngineClient(
        f"http://{_reachable(options.host)}:{options.port}",
        model.name,
        embeds=model.embeds,
        priorities=model.engine.priority_scheduling,
    )
    lease = Lease(Replicas(redis.execute_command), _announcement(options, model))
    runner = Worker(model, _config(options, model, weights), lease, client, stop, gpu)
    try:
        return await runner.run()
    finally:
        await client.close()
        await redis.aclose()


def _config(options: WorkerOptions, model: ServedModel, weights: Path) -> WorkerConfig:
    return WorkerConfig(
        command=engine_command(
            options.program,
            model,
            weights,
            options.host,
            options.port,
            options.extra,
            options.kv_events_port,
        ),
        environment=engine_environment(os.environ),
        weights=weights,
        verified=options.verified,
        watch=WatchConfig(
            start=options.start,
            probe_every=min(5.0, options.hung / 4),
            patience=Patience(options.silent, options.hung),
        ),
        restarts=RestartPolicy(attempts=options.restarts),
        drain=options.drain,
        grace=options.grace,
    )


def _announcement(options: WorkerOptions, model: ServedModel) -> Announcement:
    return Announcement(
        id=str(uuid_utils.uuid7()),
        pool=options.pool or model.pool,
        url=(options.advertise or f"http://{socket.gethostname()}:{options.port}").rstrip("/"),
        model=model.name,
        version=model.version,
        state="joining",
        since=time.time(),
        stage=model.stage,
    )


async def _model(
    options: WorkerOptions, environment: Environment, stop: StopRequest
) -> ServedModel | None:
    """What is to be served; None: asked to stop before that was known.

    Raises:
        ModelUnusable: it can't be.
        ConfigError: there is no admin key to ask with.
    """
    if options.model_file is not None:
        try:
            return read_model(options.model_file.read_bytes())
        except OSError as error:
            raise ModelUnusable(f"{options.model_file} can't be read: {error.strerror}") from None
    path = "/admin/models/{}/versions/{}".format(
        *(quote(part or "", safe="") for part in (options.model, options.version))
    )
    access = environment.admin_access()
    deadline = time.monotonic() + options.registry
    while not stop.asked:
        try:
            return read_model(await _ask(access, path))
        except _RegistryAway as error:
            if time.monotonic() > deadline:
                raise ModelUnusable(f"the registry can't be read: {error}") from None
            _log.warning("registry away", problem=str(error))
            await stop.pause(_ASK_AGAIN_SECONDS)
    return None


class _RegistryAway(Exception):
    """The gateway did not answer, or can't at present."""


async def _ask(access: AdminAccess, path: str) -> bytes:
    headers = {"authorization": f"Bearer {access.key}"}
    try:
        async with (
            asyncio.timeout(_ASK_SECONDS),
            aiohttp.ClientSession(headers=headers) as session,
            session.get(URL(access.url + path, encoded=True)) as response,
        ):
            text = await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _RegistryAway(f"{access.url}: {type(error).__name__}") from None
    if response.status >= 500 or response.status == 429:
        raise _RegistryAway(f"{access.url}: status {response.status}")
    if response.status != 200:
        said = text[:500].decode("utf-8", "replace")
        raise ModelUnusable(f"the registry answers {response.status} to {path}: {said}")
    return text


def _reachable(host: str) -> str:
    """Where the engine is reached from here."""
    if host in ("0.0.0.0", ""):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def _default_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sluice" / "verified-weights.json"
