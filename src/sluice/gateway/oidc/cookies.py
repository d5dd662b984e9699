"""Cookies of people's browsers, and whether a request with one is the browser's own doing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie

from litestar.datastructures import Cookie

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

Headers = Iterable[tuple[bytes, bytes]]


class Cookies:
    """The cookies' names and attributes, by how browsers reach the gateway.

    With https the `__Host-` prefix makes browsers see to it that no other host, and no page
    without encryption, has set them.
    """

    def __init__(self, secure: bool) -> None:
        self._secure = secure
        prefix = "__Host-" if secure else ""
        self.session = f"{prefix}sluice-session"
        self.login = f"{prefix}sluice-login"

    def set(self, name: str, value: str, seconds: int) -> Cookie:
        """A cookie to be set; no seconds delete it."""
        return Cookie(
            name, value=value, max_age=seconds, secure=self._secure, httponly=True, samesite="lax"
        )

    def read(self, headers: Headers, name: str) -> str | None:
        """A cookie of a request."""
        for key, value in headers:
            if key != b"cookie":
                continue
            try:
                found = SimpleCookie(value.decode("latin-1")).get(name)
            except CookieError:
                continue
            if found is not None and found.value:
                return found.value
        return None


def is_own_doing(method: str, headers: Mapping[bytes, bytes], origin: str) -> bool:
    """Whether a request that brings a cookie was made by our own pages, or changes nothing.

    Browsers say where a request comes from, and pages can't make them say otherwise. Where they
    say nothing, the request is not believed to be a browser's.
    """
    if method in _SAFE:
        return True
    site = headers.get(b"sec-fetch-site")
    if site is not None and site != b"same-origin":
        return False
    given = headers.get(b"origin")
    if given is not None:
        return given.decode("latin-1") == origin
    return site is not None
