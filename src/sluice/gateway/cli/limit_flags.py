"""Flags for limits, which organisations, teams and keys have alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from sluice.backends.base import Endpoint
from sluice.gateway.tenancy.limits import PRIORITIES, Limits

F = TypeVar("F", bound=Callable[..., Any])

#: The members that are limits.
LIMIT_MEMBERS = Limits.__struct_fields__

_COUNT, _BOUND = click.IntRange(0), click.IntRange(1)
_PERIODS = ("day", "week", "month")


def _budgets(_: click.Context, __: click.Parameter, flags: tuple[str, ...]) -> list[dict[str, str]]:
    return [_budget(flag) for flag in flags]


def _budget(flag: str) -> dict[str, str]:
    """`month=500`, with an alert `month=500:400`, the alert alone `month=:400`."""
    period, _, amounts = flag.partition("=")
    limit, _, alert = amounts.partition(":")
    if period not in _PERIODS or not (limit or alert):
        raise click.BadParameter(f"{flag!r} is not like month=500, month=500:400 or month=:400")
    members = {"period": period, "limit_usd": limit, "alert_usd": alert}
    return {name: value for name, value in members.items() if value}


_OPTIONS = (
    click.option("--requests-per-minute", type=_COUNT),
    click.option("--tokens-per-minute", type=_COUNT, help="Prompt and output together."),
    click.option("--max-concurrent", type=_COUNT, help="Requests in progress at a time."),
    click.option("--batch-requests-per-minute", type=_COUNT, help="Of the batch tier by itself."),
    click.option("--batch-tokens-per-minute", type=_COUNT),
    click.option("--batch-max-concurrent", type=_COUNT),
    click.option(
        "--budget",
        "budgets",
        metavar="PERIOD=LIMIT[:ALERT]",
        multiple=True,
        callback=_budgets,
        help="USD a day, week or month; repeatable.",
    ),
    click.option(
        "--allow-model", "allowed_models", multiple=True, help="Name, or NAME*; repeatable."
    ),
    click.option(
        "--allow-endpoint",
        "allowed_endpoints",
        type=click.Choice([each.value for each in Endpoint]),
        multiple=True,
        help="Repeatable.",
    ),
    click.option("--default-max-tokens", type=_BOUND, help="For requests that give none."),
    click.option("--max-output-tokens", type=_BOUND, help="The most that may be asked for."),
    click.option("--max-stored-bytes", type=_COUNT, help="That a team may keep in files."),
    click.option("--priority", type=click.Choice(PRIORITIES)),
    click.option("--isolate-prefix-cache/--no-isolate-prefix-cache", default=None),
    click.option("--keep-prompts/--no-keep-prompts", default=None, help="With labels of `auto`."),
)


def limit_flags(command: F) -> F:
    """Add the flags; the command gets each as an argument by the name of its member."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def unset_flag(*others: str) -> Callable[[F], F]:
    """Add `--unset`, for limits and other members that may be removed."""
    return click.option(
        "--unset",
        type=click.Choice([*LIMIT_MEMBERS, *others]),
        multiple=True,
        help="Remove a limit; repeatable.",
    )


def given(**flags: Any) -> dict[str, Any]:
    """The members of a body that flags give; those that were not given are left out."""
    members = {name: list(v) if isinstance(v, tuple) else v for name, v in flags.items()}
    return {name: value for name, value in members.items() if value not in (None, [])}


def patch(unset: tuple[str, ...], **flags: Any) -> dict[str, Any]:
    """A merge patch of flags; what is unset is null.

    Raises:
        click.UsageError: a member is given and unset, or there is nothing to change.
    """
    members = given(**flags)
    if twice := members.keys() & set(unset):
        raise click.UsageError(f"{', '.join(sorted(twice))}: given and unset")
    changes = {**members, **dict.fromkeys(unset)}
    if not changes:
        raise click.UsageError("nothing to change")
    return changes
