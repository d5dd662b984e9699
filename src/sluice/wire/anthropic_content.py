"""The content of chat messages as Anthropic's blocks: text, images, files, thinking.

`attachment` is the form in which Anthropic takes files.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from sluice.wire.anthropic_profile import unsupported
from sluice.wire.errors import InvalidRequest
from sluice.wire.objects import RawObject

Block = dict[str, Any]


class _ImageURL(msgspec.Struct):
    url: str


class _File(msgspec.Struct):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class Part(msgspec.Struct):
    """A part of a chat message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _ImageURL | None = None
    file: _File | None = None
    cache_control: Block | None = None
    prompt_cache_breakpoint: Block | None = None


def text_block(text: str) -> Block:
    """A text."""
    return {"type": "text", "text": text}


def is_thinking(block: Block) -> bool:
    """Whether the block is thought, shown or not."""
    return block["type"] in ("thinking", "redacted_thinking")


def marked(blocks: list[Block], cache_control: Block | None) -> list[Block]:
    """With a cache breakpoint on the last block."""
    if cache_control is not None and blocks:
        blocks[-1]["cache_control"] = cache_control
    return blocks


def content_blocks(content: str | list[Part] | None, files: bool, where: str) -> list[Block]:
    """A message's content. Blank texts are refused upstream, and say nothing.

    Args:
        content: as it came.
        files: whether images and files may be among it.
        where: the place of the content.
    """
    if isinstance(content, str):
        return [text_block(content)] if content.strip() else []
    blocks: list[Block] = []
    for number, part in enumerate(content or []):
        block = _part(part, files, f"{where}[{number}]")
        if block["type"] != "text" or block["text"].strip():
            blocks += marked([block], part.cache_control)
    return blocks


def _part(part: Part, files: bool, where: str) -> Block:
    if part.type in ("text", "refusal"):
        block = text_block(part.text or part.refusal or "")
    elif part.type == "image_url" and part.image_url is not None and files:
        block = _image(part.image_url.url, f"{where}.image_url")
    elif part.type == "file" and part.file is not None and files:
        if part.file.file_data is None:
            raise unsupported("files by id", f"{where}.file.file_id")
        block = attachment(part.file.file_data, f"{where}.file.file_data", part.file.filename)
    else:
        raise unsupported(f"`{part.type}` content here", where)
    if part.prompt_cache_breakpoint is not None:
        block["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    return block


def _image(url: str, where: str) -> Block:
    if url.startswith(("http://", "https://")):  # fetched by Anthropic, never by the gateway
        return {"type": "image", "source": {"type": "url", "url": url}}
    block = attachment(url, where) if url.startswith("data:") else {}
    if block.get("type") != "image":
        raise InvalidRequest(f"`{where}` is no png, jpeg, gif or webp image", where)
    return block


def thinking_blocks(thoughts: Sequence[RawObject], where: str) -> Iterator[Block]:
    """The blocks that a client returns, as they came, without the index that streams give them."""
    for number, block in enumerate(thoughts):
        kind = msgspec.json.decode(block.get("type", b"null"))
        seal = "data" if kind == "redacted_thinking" else "signature"
        empty = not any(_filled(block, name) for name in (seal, "thinking"))
        if kind == "thinking" and empty:
            continue
        if kind not in ("thinking", "redacted_thinking") or not _filled(block, seal):
            param = f"{where}.thinking_blocks[{number}]"
            raise InvalidRequest(f"`{param}` is no thinking that Anthropic has signed", param)
        yield {name: value for name, value in block.items() if name != "index"} | {"type": kind}


def _filled(block: RawObject, name: str) -> bool:
    return bytes(block.get(name, b"null")) not in (b"null", b'""')


_DATA_URI = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF": "application/pdf",
}


def attachment(data: str, param: str, title: str | None = None) -> dict[str, Any]:
    """A data URI, or bare base64, as a block: an image, a PDF document or a text document.

    What it is is read off its first bytes, because labels are often wrong.

    Raises:
        InvalidRequest: it is none of these, or not base64; names the part.
    """
    labelled = _DATA_URI.fullmatch(data)
    label, payload = labelled.groups() if labelled else ("", data)
    payload = "".join(payload.split())
    try:
        content = base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"`{param}` is not valid base64 data", param) from None
    kind = _kind(content) or label.lower().replace("image/jpg", "image/jpeg")
    if kind in _IMAGES:
        return {"type": "image", "source": _base64(kind, payload)}
    if kind == "application/pdf":
        block = {"type": "document", "source": _base64(kind, payload)}
    else:
        block = {"type": "document", "source": _text_source(content, param)}
    return block | ({"title": title} if title else {})


def _kind(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC.items() if content.startswith(magic)), None)


def _base64(media_type: str, payload: str) -> dict[str, Any]:
    return {"type": "base64", "media_type": media_type, "data": payload}


def _text_source(content: bytes, param: str) -> dict[str, Any]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or not text.strip():
        raise InvalidRequest(
            f"`{param}` holds neither text, nor a PDF, nor an image that this model reads", param
        )
    return {"type": "text", "media_type": "text/plain", "data": text}
