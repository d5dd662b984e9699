"""Storage: where the contents of files lie, a local folder or an object store by its URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

#: Objects are read and written in parts of this size, in bytes.
PART_BYTES = 1024 * 1024

#: Object stores take uploads in parts of at least 5 MiB.
_UPLOAD_PART_BYTES = 5 * 1024 * 1024

#: Ending of the name that an object in a folder has until it is complete.
_BEGUN = "#1"

#: Options that are of the HTTP client, whatever the store.
_CLIENT_OPTIONS = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "timeout"),
    *("proxy_url", "proxy_ca_certificate", "proxy_excludes", "user_agent"),
)


class StorageAway(Exception):
    """The object store can't be reached, or refused."""


class ObjectMissing(Exception):
    """There is no such object."""


class Storage:
    """Objects by path. Writing is atomic: an object is there as a whole, or not at all."""

    def __init__(
        self, place: Path | str, options: Mapping[str, str] | None = None, retries: int = 5
    ) -> None:
        """Args:
        place: a folder, made when it is first needed; or a URL such as `s3://bucket/prefix`, `gs://…`,
            `az://…`, whose credentials may also come from the environment.
        options: of the object store, by the names that its client library has for them.
        retries: of a call to an object store that failed.

        Raises:
            ValueError: no object store is known for the URL, or an option is wrong.
        """
        self._folder = _folder(place)
        if isinstance(place, Path):
            return
        try:
            self._store = _from_url(place, dict(options or {}), retries)
        except (BaseError, ValueError) as error:
            raise ValueError(f"is not usable: {_reason(error, options or {})}") from None

    @cached_property
    def _store(self) -> Any:
        return LocalStore(self._folder, mkdir=True)

    async def write(self, path: str, parts: AsyncIterator[bytes]) -> None:
        """Write an object, as its parts come.

        Args:
            parts: of about `PART_BYTES` each (see `in_parts`); what they raise is raised here,
                and then there is no object.

        Raises:
            StorageAway: see there.
        """
        with _named_errors():
            await obstore.put_async(
                self._store, path, parts, chunk_size=_UPLOAD_PART_BYTES, max_concurrency=2
            )

    async def read(self, path: str, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes of an object from `start` up to `end`, part by part. However slowly they are
        taken, no request to the store stays open.

        Raises:
            StorageAway: see there.
            ObjectMissing: it is not there.
        """
        while start < end:
            part = await self.range(path, start, min(PART_BYTES, end - start))
            yield part
            start += len(part)

    async def range(self, path: str, offset: int, length: int) -> bytes:
        """So many bytes of an object.

        Raises:
            StorageAway: see there; also if the object ends before.
            ObjectMissing: it is not there.
        """
        with _named_errors():
            part = await obstore.get_range_async(self._store, path, start=offset, length=length)
        if len(part) < length:
            raise StorageAway("an object is shorter than it was")
        return bytes(part)

    async def delete(self, path: str) -> None:
        """Remove an object, and what a process that died while it wrote it has left in a folder;
        nothing happens if it isn't there.

        Raises:
            StorageAway: see there.
        """
        try:
            with _named_errors():
                await obstore.delete_async(self._store, path)
        except ObjectMissing:
            pass
        if self._folder is not None:
            begun = self._folder / (path + _BEGUN)
            with _named_errors():
                await asyncio.to_thread(begun.unlink, missing_ok=True)


def _folder(place: Path | str) -> Path | None:
    if isinstance(place, Path):
        return place
    return Path(url2pathname(urlsplit(place).path)) if place.startswith("file:") else None


def _from_url(url: str, options: dict[str, str], retries: int) -> Any:
    if url.startswith("file:"):
        return LocalStore.from_url(url, mkdir=True)
    client: dict[str, Any] = {"connect_timeout": "5s", "timeout": "60s"}
    client |= {name: options.pop(name) for name in _CLIENT_OPTIONS if name in options}
    retry: Any = {"max_retries": retries, "retry_timeout": timedelta(seconds=30)}
    return from_url(
        url,
        config=cast("Any", options),
        client_options=cast("Any", client),
        retry_config=retry,
    )


def _reason(error: Exception, options: Mapping[str, str]) -> str:
    """The library's words, unless they hold what an option is."""
    text = str(error).partition("\n")[0]
    return type(error).__name__ if any(value in text for value in options.values()) else text


@contextmanager
def _named_errors() -> Iterator[None]:
    """The library's errors as ours. Their texts name addresses, and stay out of ours."""
    try:
        yield
    except FileNotFoundError:
        raise ObjectMissing("there is no such object") from None
    except (BaseError, OSError) as error:
        raise StorageAway(f"the object store failed: {type(error).__name__}") from error


async def in_parts(chunks: AsyncIterator[bytes], size: int = PART_BYTES) -> AsyncIterator[bytes]:
    """Chunks of any size as parts of at least `size` bytes, all but the last."""
    held: list[bytes] = []
    length = 0
    async for chunk in chunks:
        held.append(chunk)
        length += len(chunk)
        if length >= size:
            yield b"".join(held)
            held, length = [], 0
    if held:
        yield b"".join(held)
