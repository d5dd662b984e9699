"""Requests of the OpenAI dialect: what the gateway reads of them, and how they go upstream.

Only members that the gateway acts on are looked at; the rest belongs to the upstream and passes
byte for byte, unknown members included. What would steer the gateway's own upstream calls
(addresses, credentials) is refused by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from sluice.wire.errors import InvalidRequest
from sluice.wire.inline_data import read_prompt
from sluice.wire.objects import MalformedJSON, RawObject, decode_object, encode, raw

T = TypeVar("T")

TOKEN_LIMITS = ("max_completion_tokens", "max_tokens")

#: Members that belong to the gateway: read, then taken out before dispatch.
OURS = ("x-tier", "x-team-id", "disable_fallbacks")

#: Members by which a caller would choose where, or with whose credential, a call goes.
REFUSED = frozenset(
    {
        "api_base",
        "api_key",
        "api_type",
        "api_version",
        "azure_endpoint",
        "base_url",
        "custom_llm_provider",
        "extra_headers",
        "kv_transfer_params",  # vLLM connects to the host that it names
        "litellm_params",
        "model_list",
        "organization",
    }
)


_TEXTS: Any = str | list[Any]


class StreamOptions(msgspec.Struct):
    """`stream_options`, as far as the gateway reads it."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Request(msgspec.Struct, frozen=True):
    """A data-plane request, checked.

    Attributes:
        members: the body's members as they came, without the gateway's own.
        model: the model asked for.
        stream: server-sent events are asked for.
        stream_options: the client's own.
        max_tokens: the bound on output tokens, under whichever name it came; None if absent.
        tier: `x-tier` of the body, or None.
        team_id: `x-team-id` of the body, or None.
        disable_fallbacks: the caller wants the first failure, as it is.
        prompt_characters: length of the prompt's JSON text, and of what it continues; pictures and
            other data count as what their tokens would have.
        legible: the members without such data, where the prompt holds any.
        images: whether there are images in such data, or in what the prompt continues.
    """

    members: RawObject
    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    tier: str | None = None
    team_id: str | None = None
    prompt_characters: int = 0
    disable_fallbacks: bool = False
    legible: RawObject | None = None
    images: bool = False

    @property
    def readable(self) -> RawObject:
        """The members, for those who read the prompt: without pictures and other data in it."""
        return self.members if self.legible is None else self.legible

    def bounded(self, max_tokens: int) -> Request:
        """The same request with a bound on its output."""
        return msgspec.structs.replace(self, max_tokens=max_tokens)

    def with_member(self, name: str, value: Any) -> Request:
        """The same request with a member set."""
        return msgspec.structs.replace(self, members={**self.members, name: raw(value)})


def permitted_members(body: bytes) -> RawObject:
    """The members of a body, none of them refused.

    Raises:
        InvalidRequest: the body is no JSON object, or has a member that callers can't set.
    """
    try:
        members = decode_object(body)
    except MalformedJSON as error:
        raise InvalidRequest(
            f"the body is not a valid JSON object: {error}", code="invalid_json"
        ) from None
    for name in members:
        if name in REFUSED:
            raise InvalidRequest(
                f"`{name}` can't be set by a caller", name, "unsupported_parameter"
            )
    return members


def read_request(body: bytes, prompt: str) -> Request:
    """Read a body.

    Args:
        body: the JSON text.
        prompt: the member that holds the prompt: `messages`, `prompt` or `input`.

    Raises:
        InvalidRequest: with the parameter named.
    """
    members = permitted_members(body)
    stream = _member(members, "stream", bool) or False
    options = _member(members, "stream_options", StreamOptions)
    if options is not None and not stream:
        raise InvalidRequest(
            "`stream_options` is only allowed when `stream` is true", "stream_options"
        )
    read = read_prompt(members, prompt)
    request = Request(
        members=members,
        model=_required(members, "model", str),
        stream=stream,
        stream_options=options,
        max_tokens=_token_limit(members),
        tier=_member(members, "x-tier", str),
        team_id=_member(members, "x-team-id", str),
        disable_fallbacks=_member(members, "disable_fallbacks", bool) or False,
        prompt_characters=read.characters,
        legible=read.legible,
        images=read.images,
    )
    for name in OURS:
        members.pop(name, None)
    return request


def check_chat(request: Request) -> None:
    """Refuse a chat request whose messages can't be any.

    Raises:
        InvalidRequest: naming the member.
    """
    messages = _required(request.members, "messages", list[Message])
    if not messages:
        raise InvalidRequest("`messages` must hold at least one message", "messages")
    _positive(request.members, "n")


def check_completion(request: Request) -> None:
    """Refuse a legacy completion without a prompt.

    Raises:
        InvalidRequest: naming the member.
    """
    texts(request.members, "prompt")
    _positive(request.members, "n")


def texts(members: RawObject, name: str) -> list[Any]:
    """A member that is one text or several, each a string or an array of tokens.

    Raises:
        InvalidRequest: it is absent, or anything else.
    """
    value: Any = _required(members, name, _TEXTS)
    if isinstance(value, str) or (value and isinstance(value[0], int)):
        value = [value]
    several: list[Any] = value
    if all(isinstance(item, str) for item in several) or all(map(_is_tokens, several)):
        return several
    raise InvalidRequest(f"`{name}` must be text, token ids, or a list of either", name)


def _is_tokens(item: Any) -> bool:
    return isinstance(item, list) and all(type(token) is int for token in item)


class Message(msgspec.Struct):
    """A message, as far as the gateway insists on its form."""

    role: str
    content: msgspec.Raw = msgspec.Raw(b"null")


def without_in_messages(request: Request, names: Sequence[str]) -> Request:
    """A chat request whose messages lack some members; the rest stays as it is, to the byte.

    Raises:
        InvalidRequest: `messages` can't be read.
    """
    text = bytes(request.members.get("messages", b""))
    if not any(b'"%s"' % name.encode() in text for name in names):
        return request
    messages = _required(request.members, "messages", list[dict[str, msgspec.Raw]])
    kept = [
        {name: value for name, value in message.items() if name not in names}
        for message in messages
    ]
    return request.with_member("messages", kept)


def upstream_body(
    request: Request,
    model: str,
    token_limit: str | None,
    streamed_usage: Mapping[str, bool] | None,
) -> bytes:
    """The body as it goes upstream.

    Args:
        request: the checked request.
        model: the upstream's model name.
        token_limit: the name under which this upstream takes the bound on output tokens; None
            where the operation has none.
        streamed_usage: `stream_options` by which this upstream reports usage in a stream.
    """
    members = dict(request.members)
    members["model"] = raw(model)
    if token_limit is not None and request.max_tokens is not None:
        for name in TOKEN_LIMITS:
            members.pop(name, None)
        members[token_limit] = raw(request.max_tokens)
    if request.stream and streamed_usage:
        asked = msgspec.json.decode(members.get("stream_options", b"null")) or {}
        members["stream_options"] = raw({**asked, **streamed_usage})
    return encode(members)


def _token_limit(members: RawObject) -> int | None:
    """The bound on output tokens; `max_completion_tokens` wins where both are given."""
    for name in TOKEN_LIMITS:
        value = _member(members, name, int)
        if value is not None:
            if value < 1:
                raise InvalidRequest(f"`{name}` must be at least 1", name)
            return value
    return None


def _positive(members: RawObject, name: str) -> None:
    value = _member(members, name, int)
    if value is not None and value < 1:
        raise InvalidRequest(f"`{name}` must be at least 1", name)


@lru_cache(maxsize=64)
def _decoder(kind: Hashable) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _member(members: RawObject, name: str, kind: type[T]) -> T | None:
    """A member of the given type; None where it is absent or null."""
    text = members.get(name)
    if text is None or bytes(text) == b"null":
        return None
    try:
        value: T = _decoder(cast("Hashable", kind)).decode(text)
        return value
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"`{name}` is invalid: {_reason(error)}", name) from None
    except RecursionError:
        raise InvalidRequest(f"`{name}` is nested too deeply", name) from None


def _required(members: RawObject, name: str, kind: type[T]) -> T:
    value = _member(members, name, kind)
    if value is None:
        raise InvalidRequest(f"`{name}` is required", name, "missing_required_parameter")
    return value


def member(members: RawObject, name: str, kind: Any) -> Any:
    """A member decoded as a type, for checks of single operations; None where absent or null.

    Raises:
        InvalidRequest: the member has another type.
    """
    return _member(members, name, kind)


def _reason(error: msgspec.DecodeError) -> str:
    """msgspec's text, which counts from the member itself."""
    return str(error).replace("`$", "`").replace(" - at ``", "")
