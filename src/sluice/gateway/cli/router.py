"""`sluice router`: train a scorer of requests on outcomes, score with it, and judge it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from sluice.gateway.cli.learning import COMMANDS
from sluice.router.complexity.model import InvalidModel
from sluice.router.complexity.scorer import Scorer
from sluice.router.complexity.view import RequestView, read_view
from sluice.wire.objects import MalformedJSON, decode_object

if TYPE_CHECKING:
    from sluice.router.training.rows import Row

_file = click.Path(path_type=Path, exists=True, dir_okay=False)
_data_option = click.option(
    "--data",
    required=True,
    type=_file,
    help="JSON lines: prompt, strong_score, weak_score (0 to 1), and perhaps weight and group.",
)


@click.group("router")
def router() -> None:
    """How much a request needs a strong model: train, score, report."""


@router.command()
@_data_option
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False))
def train(data: Path, out: Path) -> None:
    """Fit a model to labelled prompts, and tell what it is worth by cross-validation."""
    # Training needs numpy, which takes long to load; other commands don't wait for it.
    from sluice.router.training import fit, report  # noqa: PLC0415

    try:
        trained = fit.train(_rows(data))
    except ValueError as error:
        raise click.ClickException(f"{data}: {error}") from None
    out.write_bytes(trained.model)
    click.echo(report.render_trained(trained))


@router.command()
@click.option("--model", type=_file, help="As trained; without one: the rule.")
@click.option("--explain", is_flag=True, help="JSON lines with the reasons beside the score.")
def score(model: Path | None, explain: bool) -> None:
    """Read JSON lines with a `prompt` (or whole requests) and print a score, 0 to 1, a line."""
    scorer = _scorer(model)
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if not line.strip():
            continue
        scored = scorer.score(_view(line, number))
        if explain:
            click.echo(msgspec.json.encode({"score": scored.score, "reasons": scored.reasons}))
        else:
            click.echo(f"{scored.score:.6f}")


@router.command("report")
@_data_option
@click.option("--model", required=True, type=_file, help="As trained, on other prompts.")
@click.option("--present", type=_file, help="The model to compare with; without one: the rule.")
def report_command(data: Path, model: Path, present: Path | None) -> None:
    """Quality against cost of a model on labelled prompts that it has not seen."""
    from sluice.router.training import promotion, report  # noqa: PLC0415

    candidate, other = _scorer(model), _scorer(present)
    try:
        comparison = promotion.compare(candidate, other, _rows(data))
    except ValueError as error:
        raise click.ClickException(f"{data}: {error}") from None
    click.echo(report.render_comparison(comparison, candidate.name, other.name))


def _rows(data: Path) -> list[Row]:
    from sluice.router.training.rows import read_rows  # noqa: PLC0415

    with data.open("rb") as lines:
        return read_rows(lines)


def _scorer(model: Path | None) -> Scorer:
    if model is None:
        return Scorer()
    try:
        return Scorer.of_model(model.read_bytes())
    except InvalidModel as error:
        raise click.ClickException(f"{model}: {error}") from None


def _view(line: bytes, number: int) -> RequestView:
    try:
        members = decode_object(line)
        if "messages" in members or "input" in members:
            return read_view(members)
        return RequestView.of_prompt(msgspec.json.decode(members["prompt"], type=str))
    except KeyError:
        raise click.ClickException(f"line {number}: `prompt` is required") from None
    except (MalformedJSON, msgspec.DecodeError) as error:
        raise click.ClickException(f"line {number}: {error}") from None


for _command in COMMANDS:
    router.add_command(_command)
