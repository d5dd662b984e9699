"""Connections to what a process keeps its state in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sluice.billing.redis_link import RedisLink
from sluice.gateway.startup_errors import CommandError, ConfigError


def connect_redis(url: str) -> Redis:
    """The general client, for everything off the request path. It fails at once: what to do then
    is the caller's to decide.

    Raises:
        ConfigError: the URL is none that Redis has.
    """
    with _redis_url():
        return Redis.from_url(
            url, retry=Retry(NoBackoff(), 0), socket_timeout=5, socket_connect_timeout=1
        )


def redis_link(url: str) -> RedisLink:
    """The connection for the request path, not yet connected.

    Raises:
        ConfigError: the URL is none that Redis has.
    """
    with _redis_url():
        return RedisLink(url)


@contextmanager
def _redis_url() -> Iterator[None]:
    try:
        yield
    except ValueError:
        raise ConfigError("SLUICE_REDIS_URL is not a valid Redis URL") from None


async def connect_database(url: str) -> asyncpg.Pool:
    """A pool of connections.

    Raises:
        asyncpg.PostgresError, OSError: the database can't be reached.
    """
    return await asyncpg.create_pool(url, min_size=1, max_size=10, command_timeout=10)


async def open_database(url: str) -> asyncpg.Pool:
    """A pool of connections to the database of a command.

    Raises:
        CommandError: the database can't be reached.
        ConfigError: the URL is none that Postgres has.
        asyncpg.PostgresError: it refuses.
    """
    with reaching_database():
        return await connect_database(url)


@contextmanager
def reaching_database() -> Iterator[None]:
    """While connecting: what is wrong with the database's URL, or with the way there."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"can't reach the database of SLUICE_DATABASE_URL: {error}") from None
    except ValueError:
        raise ConfigError("SLUICE_DATABASE_URL is not a valid database URL") from None
