"""Schemas of what Litestar can't see: bodies of the data plane, answers, errors."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_OBJECT: Schema = {"type": "object"}


def _object(required: str = "", **members: Schema) -> Schema:
    """An open object; the names of its required members are separated by blanks."""
    schema: Schema = {"type": "object", "properties": members, "additionalProperties": True}
    return {**schema, "required": required.split()} if required else schema


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _maybe(kind: str, **more: Any) -> Schema:
    """A member whose null is its absence."""
    return {"type": [kind, "null"], **more}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


_LIMIT = _maybe("integer", minimum=1, description="Bound on output tokens")
_STREAM_OPTIONS = {
    **_object(
        include_usage={"type": "boolean"},
        continuous_usage_stats={"type": "boolean"},
    ),
    "type": ["object", "null"],
    "description": "Only where `stream` is true",
}

#: Sluice's own members, which never reach an upstream, and those that all operations have.
_COMMON: dict[str, Schema] = {
    "model": {**_TEXT, "description": "A name of the catalogue"},
    "x-tier": {"enum": ["interactive", "batch", None], "description": "`interactive` by default"},
    "x-team-id": _maybe("string", description="The key's own team, by id or name"),
    "disable_fallbacks": _maybe("boolean", description="The first failure, as it is"),
}
_STREAMED: dict[str, Schema] = {"stream": _maybe("boolean"), "stream_options": _STREAM_OPTIONS}
_LIMITS: dict[str, Schema] = {"max_tokens": _LIMIT, "n": _maybe("integer", minimum=1)}
_SAMPLING: dict[str, Schema] = {"temperature": _maybe("number"), "top_p": _maybe("number")}
_TOKENS = _list({"type": "integer"})
_INPUTS = _either(_TEXT, _list(_TEXT), _TOKENS, _list(_TOKENS))
_TYPED = _object("type", type=_TEXT)
_CONTENT = _either(_TEXT, _list(_TYPED), {"type": "null"})
_CHOICE = _either(_TEXT, _TYPED, {"type": "null"})
_USAGE = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)

_REQUESTS: dict[str, Schema] = {
    "ChatCompletionRequest": _object(
        "model messages",
        messages=_list(_object("role", role=_TEXT, content=_CONTENT), minItems=1),
        max_completion_tokens={**_LIMIT, "description": "Wins over `max_tokens`"},
        tools=_list(_TYPED),
        tool_choice=_CHOICE,
        response_format=_either(_TYPED, {"type": "null"}),
        reasoning_effort=_maybe("string"),
        stop=_either(_TEXT, _list(_TEXT), {"type": "null"}),
        **_COMMON,
        **_STREAMED,
        **_LIMITS,
        **_SAMPLING,
    ),
    "CompletionRequest": _object(
        "model prompt", prompt=_INPUTS, **_COMMON, **_STREAMED, **_LIMITS, **_SAMPLING
    ),
    "EmbeddingsRequest": _object(
        "model input",
        input=_INPUTS,
        encoding_format={"enum": ["float", "base64", None]},
        **_COMMON,
    ),
    "ModerationRequest": _object("model", input=_either(_TEXT, _list({})), **_COMMON),
    "MessagesRequest": _object(
        "model messages max_tokens",
        messages=_ref("MessagesTurns"),
        max_tokens={**_COUNT, "description": "Bound on output tokens"},
        system=_CONTENT,
        stream=_maybe("boolean"),
        stop_sequences=_list(_TEXT),
        tools=_list(_object("name", name=_TEXT)),
        tool_choice=_either(_TYPED, {"type": "null"}),
        thinking=_maybe("object"),
        output_config=_maybe("object"),
        metadata=_maybe("object"),
        service_tier=_maybe("string"),
        top_k=_maybe("integer"),
        **_COMMON,
        **_SAMPLING,
    ),
    "MessagesTurns": _list(
        _object(
            "role content",
            role={"enum": ["user", "assistant", "system"]},
            content=_either(_TEXT, _list(_TYPED)),
        ),
        minItems=1,
    ),
    "CountTokensRequest": _object(
        "model messages",
        model=_COMMON["model"],
        messages=_ref("MessagesTurns"),
        system=_CONTENT,
        tools=_list(_OBJECT),
    ),
    "ResponsesRequest": _object(
        "model",
        input=_either(_TEXT, _list(_object(type=_TEXT))),
        instructions=_maybe("string"),
        max_output_tokens=_LIMIT,
        previous_response_id=_maybe("string"),
        store=_maybe("boolean", description="Keep the response; so by default"),
        tools=_list(_TYPED),
        tool_choice=_CHOICE,
        parallel_tool_calls=_maybe("boolean"),
        text=_maybe("object"),
        reasoning=_maybe("object"),
        include=_list(_TEXT),
        top_logprobs=_maybe("integer"),
        **_COMMON,
        **_STREAMED,
        **_SAMPLING,
    ),
}

_ANSWERS: dict[str, Schema] = {
    "ChatCompletion": _object(
        "id object created model choices",
        id=_TEXT,
        object={"const": "chat.completion"},
        created=_COUNT,
        model={**_TEXT, "description": "As it was asked for"},
        choices=_list(_object("message", index=_COUNT, message=_OBJECT, finish_reason={})),
        usage=_USAGE,
    ),
    "Completion": _object(
        "id object created model choices",
        id=_TEXT,
        object={"const": "text_completion"},
        created=_COUNT,
        model=_TEXT,
        choices=_list(_object("text", index=_COUNT, text=_TEXT, finish_reason={})),
        usage=_USAGE,
    ),
    "Embeddings": _object(
        "object data model usage",
        object={"const": "list"},
        data=_list(
            _object(
                "embedding index object",
                embedding=_either(_TEXT, _list({"type": "number"})),
                index=_COUNT,
                object={"const": "embedding"},
            )
        ),
        model=_TEXT,
        usage=_object(prompt_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "Moderation": _object("results", id=_TEXT, model=_TEXT, results=_list(_OBJECT)),
    "Message": _object(
        "id type role model content stop_reason usage",
        id=_TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        model=_TEXT,
        content=_list(_TYPED),
        stop_reason=_maybe("string"),
        usage=_object("input_tokens output_tokens", input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "TokenCount": _object("input_tokens", input_tokens=_COUNT),
    "Response": _object(
        "id object status model output",
        id=_TEXT,
        object={"const": "response"},
        status=_TEXT,
        model=_TEXT,
        output=_list(_OBJECT),
        usage=_maybe("object"),
    ),
    "DeletedResponse": _object(
        "id object deleted", id=_TEXT, object={"const": "response"}, deleted={"const": True}
    ),
    "InputItems": _object(
        "object data has_more",
        object={"const": "list"},
        data=_list(_OBJECT),
        has_more={"const": False},
        first_id=_maybe("string"),
        last_id=_maybe("string"),
    ),
    "Model": _object(
        "id object created owned_by context_length capabilities",
        id=_TEXT,
        object={"const": "model"},
        created=_COUNT,
        owned_by=_TEXT,
        type={"const": "model"},
        display_name=_TEXT,
        created_at={**_TEXT, "format": "date-time"},
        context_length=_COUNT,
        capabilities=_list(_TEXT),
    ),
    "Models": _object(
        "object data has_more",
        object={"const": "list"},
        data=_list(_ref("Model")),
        has_more={"const": False},
        first_id=_maybe("string"),
        last_id=_maybe("string"),
    ),
    **{
        name: _object(
            "data has_more next",
            data=_list(_ref(of)),
            has_more={"type": "boolean"},
            next=_maybe("string", description="The cursor of the following page"),
        )
        for name, of in {
            "Organisations": "Organisation",
            "Teams": "Team",
            "Keys": "Key",
            "Tokens": "Token",
            "ModelVersions": "ModelVersion",
            "RoutingDocuments": "RoutingRecord",
            "RouterModels": "RouterModel",
            "Changes": "Entry",
        }.items()
    },
    "RoutingAnswer": {"anyOf": [_ref("RoutingRecord"), _ref("Preview")]},
    "ShownToken": {
        "allOf": [_ref("Token"), _object("token", token=_TEXT)],
        "description": "A new token's record with the token itself, shown this once",
    },
    "KeyLimits": _object(
        "organisation team key effective",
        organisation=_ref("LevelLimits"),
        team=_ref("LevelLimits"),
        key=_ref("LevelLimits"),
        effective=_object(
            "budgets allowed_models allowed_endpoints priority isolate_prefix_cache keep_prompts",
            requests_per_minute=_ref("Binding"),
            tokens_per_minute=_ref("Binding"),
            max_concurrent=_ref("Binding"),
            budgets=_list(_object("level period", level=_TEXT, period=_TEXT)),
            allowed_models=_list(_TEXT),
            allowed_endpoints=_list(_TEXT),
            default_max_tokens=_maybe("integer"),
            max_output_tokens=_maybe("integer"),
            max_stored_bytes=_maybe("integer"),
            priority=_TEXT,
            isolate_prefix_cache={"type": "boolean"},
            keep_prompts={"type": "boolean"},
        ),
    ),
    "LevelLimits": _object(
        "id name budgets",
        id=_TEXT,
        name=_TEXT,
        budgets=_list(_ref("Budget")),
        state={**_OBJECT, "description": "What remains, and what was spent"},
    ),
    "Binding": {
        **_object("limit level", limit=_COUNT, level=_TEXT),
        "type": ["object", "null"],
        "description": "The tightest limit, and the level that sets it",
    },
    "ShownKey": {
        "allOf": [_ref("Key"), _object("key", key=_TEXT)],
        "description": "A new key's record with the key itself, shown this once",
    },
    "Readiness": _object(
        "status checks",
        status={"enum": ["ok", "degraded", "unavailable"]},
        checks={"type": "object", "additionalProperties": _TEXT},
    ),
}

_ERRORS: dict[str, Schema] = {
    "Error": _object(
        "error",
        error=_object(
            "message type param code",
            message=_TEXT,
            type=_TEXT,
            param=_maybe("string"),
            code=_maybe("string"),
        ),
    ),
    "AnthropicError": _object(
        "type error",
        type={"const": "error"},
        error=_object("type message", type=_TEXT, message=_TEXT),
        request_id=_TEXT,
    ),
}

#: By name.
SCHEMAS: dict[str, Schema] = {**_REQUESTS, **_ANSWERS, **_ERRORS}
