"""Pictures, recordings and files that a prompt holds as base64: nothing to read, and no text to
count.

A photo of a megabyte costs some thousand tokens, and not the 350,000 that as many letters would.
"""

from __future__ import annotations

import re

import msgspec

from sluice.wire.objects import RawObject
from sluice.wire.usage import CHARS_PER_TOKEN

#: What an image costs, about, at the size to which models scale large ones.
IMAGE_TOKENS = 1_600

#: A page of a PDF costs some 2,000 tokens and is some 90,000 characters of base64.
_PDF_CHARACTERS_PER_TOKEN = 45

#: Bytes of the shortest that is looked for; what is shorter does little harm as text.
_LEAST = 16_384

#: Bytes that are left of either end: they tell one from another, and say what it is.
_KEPT = 64

#: What comes before data: the member that holds it, in every format that clients write.
_MEMBER = re.compile(rb'"(?:url|image_url|file_data|data)"\s*+:\s*+"\Z')
_LONGEST_MEMBER = 32
#: Its type stands at its beginning, or in a member beside it in its object.
_PDF, _IMAGE = b"application/pdf", b"image"
_NEAR = 128
_BEGUN = re.compile(rb"(?:data:[^,\"]{1,100},)?+[A-Za-z0-9+/=_\\-]++")
_BASE64 = re.compile(rb"[A-Za-z0-9+/=_\\-]++")
_SAMPLE = 256


class Legible(msgspec.Struct, frozen=True, gc=False):
    """A text of JSON without the data in it.

    Attributes:
        text: in which of each there is no more than the ends.
        characters: of the text, with as many for each as its tokens would have.
        images: whether there are images among it.
    """

    text: bytes
    characters: int
    images: bool = False


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt without the data in it.

    Attributes:
        legible: the request's members with it; None where they are as they came.
        characters, images: see `Legible`.
    """

    legible: RawObject | None
    characters: int
    images: bool


def without_data(text: bytes) -> Legible:
    """A text of JSON without the data in it.

    It is looked for in steps as long as the shortest, from quote to quote, so that most of a text
    is never looked at.
    """
    kept: list[bytes] = []
    done, tokens, at, images = 0, 0, _LEAST, False
    while at < len(text):
        begin = text.rfind(b'"', at - _LEAST, at) + 1
        end = text.find(b'"', at)
        if end < 0:
            break
        if end - begin >= _LEAST and _is_data(text, begin, end):
            kept.append(text[done : begin + _KEPT].removesuffix(b"\\"))  # of an escaped slash
            done = end - _KEPT
            kind = _kind(text, begin, end)
            tokens += tokens_of_data(end - begin, pdf=_PDF in kind)
            images = images or _IMAGE in kind
        at = end + _LEAST
    if not kept:
        return Legible(text, len(text))
    kept.append(text[done:])
    legible = b"".join(kept)
    return Legible(legible, len(legible) + tokens * CHARS_PER_TOKEN, images)


def tokens_of_data(characters: int, pdf: bool) -> int:
    """What data costs, about.

    Args:
        characters: of its base64.
        pdf: whether it is a document; else it counts as an image.
    """
    pages = -(-characters // _PDF_CHARACTERS_PER_TOKEN) if pdf else 0
    return max(pages, IMAGE_TOKENS)


def read_prompt(members: RawObject, *names: str) -> Prompt:
    """A prompt without the data in it.

    Args:
        members: a request's.
        names: of those that hold the prompt.
    """
    legible: RawObject = {}
    characters, images = 0, False
    for name in names:
        size = len(memoryview(members.get(name, b"")))
        if size > _LEAST:
            text = bytes(members[name])
            without = without_data(text)
            size, images = without.characters, images or without.images
            if without.text is not text:
                legible[name] = msgspec.Raw(without.text)
        characters += size
    return Prompt({**members, **legible} if legible else None, characters, images)


def _kind(text: bytes, begin: int, end: int) -> bytes:
    """What says of which type the data between these places is."""
    before = text[max(begin - _NEAR, 0) : begin].rpartition(b"{")[2]
    return before + text[begin : begin + _KEPT] + text[end : end + _NEAR].partition(b"}")[0]


def _is_data(text: bytes, begin: int, end: int) -> bool:
    """Whether the string between these places is data, by where it is and by samples of it."""
    if _MEMBER.search(text, max(begin - _LONGEST_MEMBER, 0), begin) is None:
        return False
    middle = (begin + end) // 2
    return (
        _BEGUN.fullmatch(text, begin, begin + _SAMPLE) is not None
        and _BASE64.fullmatch(text, middle, middle + _SAMPLE) is not None
        and _BASE64.fullmatch(text, end - _SAMPLE, end) is not None
    )
