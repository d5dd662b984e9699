"""`sluice batch submit|watch|results|cancel`: batches from the command line, with a team's key."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sluice.gateway.cli.batch_client import BatchClient, batch_client
from sluice.gateway.cli.running import run

_ENDED = ("completed", "failed", "expired", "cancelled")

_key_option = click.option(
    "--key", envvar="SLUICE_KEY", required=True, help="A team's key, or SLUICE_KEY."
)
_poll_option = click.option(
    "--every",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.05, 3600),
    help="Seconds between two looks.",
)


def _metadata(_: click.Context, __: click.Parameter, flags: tuple[str, ...]) -> dict[str, str]:
    pairs = [flag.partition("=") for flag in flags]
    if any(not equals for _, equals, _ in pairs):
        raise click.BadParameter("must be like name=value")
    return {name: value for name, _, value in pairs}


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@_key_option
@click.option("--priority", type=click.Choice(["high", "normal", "low"]))
@click.option("--completion-window", help="24h, or less, such as 90m.")
@click.option("--callback-url", help="Is told when the batch has ended.")
@click.option(
    "--metadata", multiple=True, metavar="NAME=VALUE", callback=_metadata, help="Repeatable."
)
@click.option("--watch", "then_watch", is_flag=True, help="Stay, and show the progress.")
@_poll_option
def submit(
    file: Path,
    key: str,
    metadata: dict[str, str],
    then_watch: bool,
    every: float,
    **options: str | None,
) -> None:
    """Submit the requests in FILE, one JSON object a line, as a batch."""
    fields = {name: value for name, value in options.items() if value is not None}
    if metadata:
        fields["metadata"] = msgspec.json.encode(metadata).decode()

    async def work() -> dict[str, Any]:
        async with batch_client(key) as client:
            made = await client.submit(file, fields)
            click.echo(made["batch_id"])
            return await _watched(client, made, every) if then_watch else made

    batch = run(work())
    if then_watch:
        _conclude(batch)


@click.command()
@click.argument("batch_id")
@_key_option
@_poll_option
def watch(batch_id: str, key: str, every: float) -> None:
    """Show the progress of a batch until it has ended.

    The exit code is 0 if the batch completed, also with errors, and else 1.
    """

    async def work() -> dict[str, Any]:
        async with batch_client(key) as client:
            return await _watched(client, await client.get(batch_id), every)

    _conclude(run(work()))


@click.command()
@click.argument("batch_id")
@_key_option
@click.option("--errors", is_flag=True, help="What failed, instead.")
@click.option("--follow", is_flag=True, help="Go on until the batch has ended.")
@click.option("--after", default=0, type=click.IntRange(0), help="Go on after this `sequence`.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write to, with --after behind what it has; standard output by default.",
)
def results(
    batch_id: str, key: str, errors: bool, follow: bool, after: int, output: Path | None
) -> None:
    """Write the results of a batch, also while it runs: one JSON object a line."""

    async def work(write: Callable[[bytes], Any]) -> None:
        async with batch_client(key) as client:
            kind = "errors" if errors else "results"
            async for line in client.lines(batch_id, kind, after, follow):
                write(line)

    if output is None:
        run(work(sys.stdout.buffer.write))
        sys.stdout.buffer.flush()
        return
    try:
        with output.open("ab" if after else "wb") as file:
            run(work(file.write))
    except OSError as error:
        raise click.ClickException(f"{output}: {error.strerror}") from None


@click.command()
@click.argument("batch_id")
@_key_option
def cancel(batch_id: str, key: str) -> None:
    """Stop a batch: what runs may finish, what waits does not begin."""

    async def work() -> dict[str, Any]:
        async with batch_client(key) as client:
            return await client.cancel(batch_id)

    click.echo(_summary(run(work())))


class _Rate(ProgressColumn):
    """Requests a second of late."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


async def _watched(client: BatchClient, batch: dict[str, Any], every: float) -> dict[str, Any]:
    """Show a batch until it has ended; gives its last state."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(batch["status"], total=batch["request_counts"]["total"])
        while True:
            counts = batch["request_counts"]
            done = counts["completed"] + counts["failed"]
            failed = f", {counts['failed']} failed" if counts["failed"] else ""
            progress.update(bar, completed=done, description=f"{batch['status']}{failed}")
            if batch["status"] in _ENDED:
                return batch
            await asyncio.sleep(every)
            batch = await client.get(batch["batch_id"])


def _summary(batch: dict[str, Any]) -> str:
    counts = batch["request_counts"]
    return (
        f"{batch['status']}: {counts['completed']} of {counts['total']} completed,"
        f" {counts['failed']} failed, {batch['cost_usd']} USD"
    )


def _conclude(batch: dict[str, Any]) -> None:
    click.echo(_summary(batch))
    if batch["status"] != "completed":
        sys.exit(1)
