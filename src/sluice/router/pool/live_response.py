"""A replica's response, watched: what a pool learns from the bytes that pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

import msgspec

from sluice.backends.base import ConnectionLost, UpstreamResponse
from sluice.router.pool.flight import Flight

_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_USAGE_NAME = b'"usage"'

#: A chunk that says who speaks and nothing else: some engines send it before anything is computed.
_OPENING = re.compile(
    rb'"delta"\s*:\s*\{\s*"role"\s*:\s*"assistant"(?:\s*,\s*"\w+"\s*:\s*(?:""|null))*\s*\}'
)


class _PromptDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None


class ReportedUsage(msgspec.Struct, frozen=True, gc=False):
    """What an engine says that a request took, in its own words.

    Attributes:
        prompt_tokens: of its prompt.
        completion_tokens: generated so far.
        prompt_tokens_details: of the cache; engines also leave it out where nothing was there.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were in the cache; None: it does not say."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


_USAGE_DECODER = msgspec.json.Decoder(ReportedUsage)


def last_usage(text: bytes) -> ReportedUsage | None:
    """The last `usage` object in a piece of an answer; None where there is none.

    Text that the model wrote can't be taken for it: quotes inside strings are escaped.
    """
    at = text.rfind(_USAGE_NAME)
    while at >= 0 and (found := _USAGE.match(text, at)) is None:
        at = text.rfind(_USAGE_NAME, 0, at)
    if at < 0 or found is None:
        return None
    try:
        return _USAGE_DECODER.decode(found[1])
    except msgspec.DecodeError:
        return None


def shows_token(head: bytes) -> bool:
    """Whether the beginning of a stream has a token, or an error, or anything else but openings and
    comments."""
    at = head.find(b"data:")
    while at >= 0:
        after = head.find(b"data:", at + 1)
        if _OPENING.search(head, at, after if after >= 0 else len(head)) is None:
            return True
        at = after
    return False


async def until_token(response: UpstreamResponse) -> bytes:
    """What comes of a stream up to its first token.

    Raises:
        ConnectionLost: it broke off, or ended, before that.
    """
    head = b""
    try:
        while not shows_token(head):
            piece = await response.next()
            if not piece:
                raise ConnectionLost("the replica's stream ended before it began")
            head += piece
    except BaseException:
        response.close()
        raise
    return head


class ResponseObserver(Protocol):
    """Is told how an answer goes."""

    def heard(self, flight: Flight) -> None:
        """A piece of the answer came."""
        ...

    def over(self, flight: Flight, usage: ReportedUsage | None, failed: bool) -> None:
        """It is complete, was dropped by its reader, or `failed` by the replica's fault; said
        once."""
        ...


class PooledResponse:
    """See `UpstreamResponse`."""

    __slots__ = (
        "_before",
        "_first",
        "_flight",
        "_inner",
        "_last",
        "_observer",
        "_over",
        "headers",
        "status",
    )

    def __init__(
        self,
        inner: UpstreamResponse,
        first: bytes | None,
        flight: Flight,
        observer: ResponseObserver,
    ) -> None:
        """Args:
        inner: the replica's.
        first: the first piece, where it has been read already.
        flight: whose answer it is.
        observer: learns how it goes.
        """
        self.status = inner.status
        self.headers: Mapping[str, str] = inner.headers
        self._inner = inner
        self._first = first
        self._flight = flight
        self._observer = observer
        self._before = b""
        self._last = b""
        self._over = False

    async def read(self, limit: int) -> bytes:
        first, self._first = self._first or b"", None
        try:
            body = first + await self._inner.read(limit - len(first))
        except ConnectionLost:
            self._end(failed=True)
            raise
        self._last = body
        self._end()
        return body

    async def next(self) -> bytes:
        piece, self._first = self._first, None
        if piece is None:
            try:
                piece = await self._inner.next()
            except ConnectionLost:
                self._end(failed=True)
                raise
        if not piece:
            self._end()
            return piece
        self._observer.heard(self._flight)
        self._before, self._last = self._last, piece
        if piece.endswith(b"[DONE]\n\n"):
            self._end()
        return piece

    def close(self) -> None:
        self._inner.close()
        self._end()

    def _end(self, failed: bool = False) -> None:
        if not self._over:
            self._over = True
            usage = last_usage(self._last) or last_usage(self._before + self._last)
            self._observer.over(self._flight, usage, failed)
