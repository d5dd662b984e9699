"""From a client's request to one upstream's, and back: which codecs join the two.

What depends on the pair of formats is decided here, once for each attempt; dispatch and relay
know bytes only. Same formats pass through; everything else goes by way of chat (see `codec`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from sluice.backends.base import Dialect, Endpoint, Priority
from sluice.router.catalog import Deployment, Model, Tier
from sluice.wire.answer import UNREADABLE, Answer, read_answer
from sluice.wire.anthropic_answer import read_anthropic_error, read_message
from sluice.wire.anthropic_profile import profile_of
from sluice.wire.anthropic_request import names_of, to_messages
from sluice.wire.anthropic_stream import AnthropicChatStream
from sluice.wire.codec import Chained, ClientStream, StreamCodec
from sluice.wire.embeddings import Encoding
from sluice.wire.errors import ErrorDetail, read_error
from sluice.wire.functions import (
    FunctionCallStream,
    as_function_call,
    as_tools,
    offers_functions,
)
from sluice.wire.guided_decoding import with_structured_outputs
from sluice.wire.inline_data import without_data
from sluice.wire.messages_answer import to_message
from sluice.wire.messages_content import without_own_thinking
from sluice.wire.messages_passthrough import (
    AnthropicPassStream,
    anthropic_error,
    read_pass_message,
)
from sluice.wire.messages_request import to_chat as messages_to_chat
from sluice.wire.messages_stream import MessagesFromChat
from sluice.wire.objects import MalformedJSON, encode, raw
from sluice.wire.request import Request, upstream_body, without_in_messages
from sluice.wire.responses_answer import to_response
from sluice.wire.responses_passthrough import ResponsesPassStream, read_pass_response
from sluice.wire.responses_request import input_items, previous_response
from sluice.wire.responses_request import to_chat as responses_to_chat
from sluice.wire.responses_stream import ResponsesFromChat
from sluice.wire.stream import CompletionStream, StreamView
from sluice.wire.tool_ids import with_short_ids

ReadAnswer = Callable[[bytes], Answer | ErrorDetail]


@dataclass(frozen=True)
class Conversation:
    """What a Responses request continues, and the response that it makes.

    Attributes:
        response_id: of the response to come.
        history: items of the conversation so far, oldest first.
        referenced: stored items that the request's own input refers to, by their ids.
        key: what stands for it in routing, if one of its requests went to an `auto` alias.
    """

    response_id: str
    history: Sequence[dict[str, Any]] = ()
    referenced: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    key: bytes | None = None

    @cached_property
    def stored(self) -> bytes:
        """All that a model is given besides the request's own input, as JSON; empty if nothing."""
        items = [*self.history, *self.referenced.values()]
        return encode(items) if items else b""

    @cached_property
    def characters(self) -> int:
        """Of what is stored, counted as `Request.prompt_characters` is."""
        return without_data(self.stored).characters

    @property
    def images(self) -> bool:
        """Whether there are images in it."""
        return b'"type":"input_image"' in self.stored


class Call(msgspec.Struct, frozen=True):
    """A client's request as dispatch needs it.

    Attributes:
        endpoint: the operation that the client called.
        request: its checked request, in the client's own format.
        request_id: ours.
        created: when it came, seconds since the epoch.
        encoding: for embeddings, the encoding that the client wants.
        headers: of the client's, those that travel with its body to upstreams of its own format.
        conversation: for Responses.
        cache_salt: with which a vLLM upstream keeps the prompt's cached prefixes apart; None: they
            may be shared.
        team_id: whose it is.
        tier: of its traffic.
        priority: among the requests of its tier.
    """

    endpoint: Endpoint
    request: Request
    request_id: str
    created: int = 0
    encoding: Encoding | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    conversation: Conversation | None = None
    cache_salt: str | None = None
    team_id: str = ""
    tier: Tier = "interactive"
    priority: Priority = "normal"


#: What engines that schedule by priority are told: lower is earlier, and any batch request later
#: than any interactive one.
_ENGINE_PRIORITIES: Mapping[Priority, int] = {"high": 0, "normal": 1, "low": 2}
_BATCH_PRIORITY = 3


class Translation(msgspec.Struct, frozen=True):
    """One attempt's request, and how to read what comes back.

    Attributes:
        endpoint: the upstream's operation.
        body: the upstream's request.
        open_stream: makes the codec of a streamed answer.
        read_answer: reads a whole answer: the client's form of it, or what is wrong with it.
        read_error: reads the body of a refusal.
        headers: to be sent along.
        dropped: what was offered by the client and could not be passed on, for a header.
    """

    endpoint: Endpoint
    body: bytes
    open_stream: Callable[[], StreamCodec]
    read_answer: ReadAnswer
    read_error: Callable[[bytes], ErrorDetail | None] = read_error
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    dropped: tuple[str, ...] = ()


def translate(call: Call, model: Model, deployment: Deployment, dialect: Dialect) -> Translation:
    """The translation for a call to a deployment of a model.

    Raises:
        InvalidRequest: the upstream has no way to do what the request asks; names the parameter.
    """
    if call.endpoint is Endpoint.MESSAGES:
        if dialect.format == "anthropic":
            return _messages_pass(call, deployment)
        return _messages(call, model, deployment, dialect)
    if call.endpoint is Endpoint.RESPONSES:
        if dialect.responses:
            return _responses_pass(call, deployment)
        return _responses(call, deployment, dialect)
    return _chat(call, call.request, deployment, dialect)


def _chat(call: Call, request: Request, deployment: Deployment, dialect: Dialect) -> Translation:
    """The hub: a chat request (or another of OpenAI's simple ones) to either kind of upstream."""
    if not dialect.functions and (of_tools := as_tools(request)) is not request:
        inner = _chat(call, of_tools, deployment, dialect)
        if not offers_functions(request):
            return inner
        return _outside(inner, FunctionCallStream, as_function_call)
    if dialect.format == "anthropic":
        return _chat_to_anthropic(call, request, deployment)
    endpoint = call.endpoint
    if endpoint in (Endpoint.MESSAGES, Endpoint.RESPONSES):
        endpoint = Endpoint.CHAT
    request = _in_dialect(call, request, endpoint, dialect)
    if endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS):
        for name, value in deployment.defaults:
            if bytes(request.members.get(name, b"null")) == b"null":
                request = request.with_member(name, value)
    limit = {Endpoint.CHAT: dialect.token_limit, Endpoint.COMPLETIONS: "max_tokens"}
    return Translation(
        endpoint=endpoint,
        body=upstream_body(request, deployment.model, limit.get(endpoint), dialect.streamed_usage),
        open_stream=lambda: CompletionStream(view_of(request)),
        read_answer=lambda body: read_answer(
            body, request.model, request.prompt_characters, call.encoding
        ),
    )


def _in_dialect(call: Call, request: Request, endpoint: Endpoint, dialect: Dialect) -> Request:
    """A request of OpenAI's format as one of its speakers takes it."""
    if call.encoding == "base64" and not dialect.base64_embeddings:
        request = request.with_member("encoding_format", "float")
    if endpoint is Endpoint.CHAT:
        request = without_in_messages(request, dialect.foreign)
        if not dialect.vllm:  # whose own ids are longer than others take
            request = with_short_ids(request)
    if dialect.vllm:
        request = with_structured_outputs(request)
        if call.cache_salt is not None:
            request = request.with_member("cache_salt", call.cache_salt)
    if dialect.priority:  # the caller's own would let it overtake others
        request = request.with_member("priority", _engine_priority(call))
    return request


def _engine_priority(call: Call) -> int:
    late = _BATCH_PRIORITY if call.tier == "batch" else 0
    return late + _ENGINE_PRIORITIES[call.priority]


def _chat_to_anthropic(call: Call, request: Request, deployment: Deployment) -> Translation:
    names = names_of(request)
    return Translation(
        endpoint=Endpoint.MESSAGES,
        body=to_messages(request, profile_of(deployment.model)),
        open_stream=lambda: AnthropicChatStream(view_of(request), names, call.created),
        read_answer=lambda body: read_message(
            body, request.model, names, request.prompt_characters, call.created
        ),
        read_error=read_anthropic_error,
    )


def _messages_pass(call: Call, deployment: Deployment) -> Translation:
    """An Anthropic client and an Anthropic upstream: nothing is touched but the model's name."""
    request = call.request
    members = {**without_own_thinking(request.members), "model": raw(deployment.model)}
    return Translation(
        endpoint=Endpoint.MESSAGES,
        body=encode(members),
        open_stream=lambda: AnthropicPassStream(request.model),
        read_answer=lambda body: read_pass_message(body, request.model, request.prompt_characters),
        read_error=anthropic_error,
        headers=call.headers,
    )


def _messages(call: Call, model: Model, deployment: Deployment, dialect: Dialect) -> Translation:
    """An Anthropic client before an upstream that speaks chat."""
    given = call.request
    chat = messages_to_chat(
        given,
        vllm=dialect.vllm,
        reasoning="reasoning" in model.capabilities,
        system_first=dialect.vllm,
    )
    inner = _chat(call, chat, deployment, dialect)
    characters = chat.prompt_characters

    def whole(body: bytes) -> bytes:
        return to_message(body, given.model, characters)

    return _outside(inner, lambda: MessagesFromChat(given.model, characters), whole)


def _responses(call: Call, deployment: Deployment, dialect: Dialect) -> Translation:
    """A Responses client, before any upstream that can be reached by chat."""
    conversation = call.conversation or Conversation("")
    equivalent = responses_to_chat(call.request, conversation.history, conversation.referenced)
    inner = _chat(call, equivalent.request, deployment, dialect)
    about = (equivalent.echo, conversation.response_id, call.created, call.request.model)

    def whole(body: bytes) -> bytes | ErrorDetail:
        response = to_response(body, *about)
        return response if isinstance(response, ErrorDetail) else encode(response)

    outer = _outside(inner, lambda: ResponsesFromChat(*about), whole)
    return msgspec.structs.replace(outer, dropped=equivalent.dropped_tools)


def _responses_pass(call: Call, deployment: Deployment) -> Translation:
    """A Responses client and an upstream that has Responses.

    The conversation is ours all the same: it is sent along in full, so that it may continue on
    any upstream, and the response has our id.
    """
    request, conversation = call.request, call.conversation or Conversation("")
    previous = previous_response(request)
    members = {**request.members, "model": raw(deployment.model)}
    if previous is not None or conversation.referenced:
        own = input_items(request, conversation.response_id, conversation.referenced)
        members["input"] = raw([*conversation.history, *own])
        members.pop("previous_response_id", None)
    if request.max_tokens is not None:
        members["max_output_tokens"] = raw(request.max_tokens)

    def ours(_: str) -> str:
        return conversation.response_id

    shown = {"previous_response_id": previous}
    return Translation(
        endpoint=Endpoint.RESPONSES,
        body=encode(members),
        open_stream=lambda: ResponsesPassStream(request.model, ours, shown),
        read_answer=lambda body: read_pass_response(
            body, request.model, request.prompt_characters, ours, shown
        ),
    )


def _outside(
    inner: Translation,
    open_outer: Callable[[], ClientStream],
    whole: Callable[[bytes], bytes | ErrorDetail],
) -> Translation:
    """A translation into chat, with one from chat into the client's format around it."""

    def read(body: bytes) -> Answer | ErrorDetail:
        answer = inner.read_answer(body)
        if isinstance(answer, ErrorDetail):
            return answer
        try:
            outer = whole(answer.body)
        except MalformedJSON:
            return UNREADABLE
        return outer if isinstance(outer, ErrorDetail) else Answer(outer, answer.usage)

    return msgspec.structs.replace(
        inner,
        open_stream=lambda: Chained(inner.open_stream(), open_outer()),
        read_answer=read,
    )


def view_of(request: Request) -> StreamView:
    """How a chat client wants to see its stream."""
    options = request.stream_options
    if options is None:
        return StreamView(request.model)
    return StreamView(request.model, options.include_usage, options.continuous_usage_stats)
