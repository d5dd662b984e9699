"""The `Range` header of one range of bytes (RFC 9110)."""

from __future__ import annotations

import re

#: No file is longer than 18 digits say.
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class NotSatisfiable(Exception):
    """The range begins behind the end."""


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The range from its first byte up to, and without, its last; None: all is asked for, or
    something that may be ignored, as several ranges may.

    Raises:
        NotSatisfiable: see there.
    """
    found = _RANGE.fullmatch(header.replace(" ", "")) if header is not None else None
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:  # the last so many
        start, end = max(0, size - int(found[2])), size
    else:
        start = int(found[1])
        end = min(int(found[2]) + 1, size) if found[2] else size
        if found[2] and int(found[2]) < start:
            return None
    if start >= size or (not found[1] and int(found[2]) == 0):
        raise NotSatisfiable
    return start, end
