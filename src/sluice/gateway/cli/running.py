"""How commands run: what is known to go wrong is one line, without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import asyncpg
import click
import uvloop
from redis.exceptions import RedisError

from sluice.gateway.embedded.errors import EmbeddedServerError
from sluice.gateway.startup_errors import CommandError, ConfigError, PortTaken
from sluice.gateway.supervisor import PartFailedError
from sluice.migrations import MigrationError

T = TypeVar("T")

#: Everything that may go wrong at start and has a cause to name; the rest is a bug.
_EXPLAINED = (
    ConfigError,
    EmbeddedServerError,
    MigrationError,
    PartFailedError,
    PortTaken,
    CommandError,
)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end."""
    try:
        return uvloop.run(work)
    except _EXPLAINED as error:
        raise click.ClickException(str(error)) from None
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise click.ClickException(f"the database refused: {error}") from None
    except RedisError as error:
        raise click.ClickException(f"Redis: {error}") from None
    except KeyboardInterrupt:
        sys.exit(130)


def show(work: Coroutine[Any, Any, str]) -> None:
    """Run to the end, and print what it gives."""
    click.echo(run(work))
