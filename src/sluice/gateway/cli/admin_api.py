"""The admin API, as the commands call it: the gateway at SLUICE_URL, with SLUICE_ADMIN_KEY."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from sluice.gateway.environment import AdminAccess, Environment
from sluice.gateway.startup_errors import CommandError

_PAGE = 1000


class NotThere(CommandError):
    """What was asked for is not there."""


@dataclass(frozen=True, slots=True)
class _Answer:
    body: bytes
    etag: str | None


def path(*segments: str) -> str:
    """A path of the API; names and ids of people's choice stay one segment each."""
    return "/" + "/".join(quote(segment, safe="") for segment in segments)


async def call(
    method: str,
    url_path: str,
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, str | None] | None = None,
) -> str:
    """Call it; give its answer, indented. Members that are None are left out of the body.

    Raises:
        CommandError: it can't be reached, or it refused.
    """
    given = {name: value for name, value in (body or {}).items() if value is not None}
    return _indented((await _ask(method, url_path, given, query)).body)


async def update(url_path: str, changes: Mapping[str, Any]) -> str:
    """Change a record as it is now: if somebody else changes it meanwhile, nothing is done.

    Args:
        changes: a merge patch; None removes a member.

    Raises:
        CommandError: it can't be reached, or it refused.
    """
    etag = (await _ask("GET", url_path)).etag
    return _indented((await _ask("PATCH", url_path, changes, etag=etag)).body)


async def replace(url_path: str, body: Mapping[str, Any], query: Mapping[str, str | None]) -> str:
    """Put something in the place of what is there now: if somebody else changes it meanwhile,
    nothing is done.

    Raises:
        CommandError: it can't be reached, or it refused.
    """
    try:
        etag = (await _ask("GET", url_path, query=query)).etag
    except NotThere:
        etag = None
    return _indented((await _ask("PUT", url_path, body, query, etag)).body)


async def listed(
    url_path: str, query: Mapping[str, str | None] | None = None, at_most: int | None = None
) -> str:
    """A list, of all its pages.

    Raises:
        CommandError: it can't be reached, or it refused.
    """
    found: list[Any] = []
    cursor: str | None = None
    while True:
        limit = _PAGE if at_most is None else min(_PAGE, at_most - len(found))
        turn = {**(query or {}), "limit": str(limit), "cursor": cursor}
        page = msgspec.json.decode((await _ask("GET", url_path, query=turn)).body)
        found += page["data"]
        cursor = page["next"]
        if cursor is None or len(found) == at_most:
            return _indented(msgspec.json.encode({"data": found}))


async def call_as(key: str, url_path: str) -> str:
    """Read something with another key than the administrator's.

    Raises:
        CommandError: it can't be reached, or it refused.
    """
    access = AdminAccess(Environment.read().url, key)
    return _indented((await _ask("GET", url_path, access=access)).body)


async def _ask(
    method: str,
    url_path: str,
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, str | None] | None = None,
    etag: str | None = None,
    access: AdminAccess | None = None,
) -> _Answer:
    access = access or Environment.read().admin_access()
    params = {name: value for name, value in (query or {}).items() if value is not None}
    headers = {"authorization": f"Bearer {access.key}"}
    if etag is not None:
        headers["if-match"] = etag
    content = None if body is None else msgspec.json.encode(body)
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.request(
                method,
                URL(access.url + url_path, encoded=True),
                params=params,
                data=content,
            ) as response,
        ):
            text, status = await response.read(), response.status
            answer = _Answer(text, response.headers.get("etag"))
    except (aiohttp.ClientError, OSError) as error:
        raise CommandError(f"can't reach {access.url}: {error}") from None
    if status >= 400:
        kind = NotThere if status == 404 else CommandError
        raise kind(error_message(text) or f"the gateway answered with status {status}")
    return answer


def _indented(text: bytes) -> str:
    try:
        return msgspec.json.format(text).decode()
    except msgspec.DecodeError:
        raise CommandError("the answer is not a gateway's; is SLUICE_URL right?") from None


def error_message(text: bytes) -> str | None:
    """What an error body says; None: it is none."""
    try:
        error = msgspec.json.decode(text)["error"]
        param = error.get("param")
        return f"{error['message']}" if param is None else f"{error['message']} ({param})"
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return None
