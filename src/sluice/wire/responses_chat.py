"""Items of the Responses format as the messages of a chat.

Responses keeps what a model said as separate items (reasoning, text, every call) and lets the
outputs of calls come anywhere later. Chat wants one message for all that a model said in a turn,
and the outputs of its calls right behind it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sluice.wire.errors import InvalidRequest
from sluice.wire.objects import encode
from sluice.wire.responses_items import Item, unseal
from sluice.wire.responses_tools import CUSTOM_INPUT, Toolbox

Message = dict[str, Any]
Part = dict[str, Any]

_OUTPUTS = ("function_call_output", "custom_tool_call_output")

#: Traces of tools that ran at a provider: what came of them is in the messages that follow.
_TRACES = frozenset(
    {
        "additional_tools",
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)


class _Turn:
    """What the model said in one go."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.calls: list[dict[str, Any]] = []
        self.reasoning = ""
        self.blocks: list[Any] = []

    def message(self) -> Message:
        message: Message = {"role": "assistant", "content": _content(self.parts)}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.blocks:
            message["thinking_blocks"] = self.blocks
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class ChatHistory:
    """One conversation's translation. Used once."""

    def __init__(self, box: Toolbox) -> None:
        self._box = box
        self._messages: list[Message] = []
        self._outputs: defaultdict[str, deque[list[Part]]] = defaultdict(deque)
        self._turn: _Turn | None = None
        self._takers: Mapping[str, Callable[[Item, str], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._call,
            "custom_tool_call": self._call,
            **dict.fromkeys(_OUTPUTS, self._output),
        }

    def messages(
        self, instructions: str | None, items: Iterable[tuple[str, str, Item]]
    ) -> list[Message]:
        """The messages.

        Args:
            instructions: of this request.
            items: the conversation, each item with its type and the name of its place.

        Raises:
            InvalidRequest: an item is malformed, or has no place in a chat; calls and their
                outputs don't pair up.
        """
        if instructions:
            self._messages.append({"role": "system", "content": instructions})
        items = list(items)
        for kind, where, item in items:
            if kind in _OUTPUTS:
                call_id = _text(item, "call_id", where)
                self._outputs[call_id].append(_output_parts(item, where))
        for kind, where, item in items:
            if kind in _TRACES:
                continue
            taker = self._takers.get(kind)
            if taker is None:
                raise InvalidRequest(
                    f"`{where}`: items of type `{kind}` are not available for this model",
                    where,
                    "unsupported_parameter",
                )
            taker(item, where)
        self._flush()
        for call_id, outputs in self._outputs.items():
            if outputs:
                raise InvalidRequest(
                    f"No tool call found for function call output with call_id {call_id}.", "input"
                )
        return self._messages

    def _flush(self) -> None:
        """The turn is over: its message, and what its calls gave."""
        turn, self._turn = self._turn, None
        if turn is None or not (turn.parts or turn.calls):
            return  # reasoning that led to nothing
        self._messages.append(turn.message())
        seen: list[Part] = []
        for call in turn.calls:
            outputs = self._outputs[call["id"]]
            if not outputs:
                raise InvalidRequest(
                    f"No tool output found for function call {call['id']}.", "input"
                )
            parts = outputs.popleft()
            texts = [part for part in parts if part["type"] == "text"]
            seen += [part for part in parts if part["type"] != "text"]
            content = _content(texts) if texts else ""
            self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        if seen:  # tool messages hold text only
            self._messages.append({"role": "user", "content": seen})

    def _message(self, item: Item, where: str) -> None:
        role = item.get("role")
        if role not in ("user", "system", "developer", "assistant"):
            raise InvalidRequest(f"`{where}.role` is invalid", f"{where}.role")
        parts = _parts(item.get("content"), f"{where}.content")
        if role != "assistant":
            self._flush()
            self._messages.append({"role": role, "content": _content(parts)})
            return
        turn = self._turn
        if turn is not None and turn.parts and not turn.calls:
            turn = self._next_turn()
        (turn or self._next_turn()).parts.extend(parts)

    def _reasoning(self, item: Item, where: str) -> None:
        """Reasoning of another origin can't be read by whoever is asked next."""
        found = unseal(item.get("encrypted_content")) or (_reasoning_text(item), [])
        text, blocks = found
        turn = self._turn
        if turn is None or turn.parts or turn.calls:
            turn = self._next_turn()
        turn.reasoning += text
        turn.blocks += blocks

    def _call(self, item: Item, where: str) -> None:
        call_id, name = _text(item, "call_id", where), _text(item, "name", where)
        if item["type"] == "custom_tool_call":
            arguments = encode({CUSTOM_INPUT: _text(item, "input", where, empty=True)}).decode()
        else:
            arguments = _text(item, "arguments", where, empty=True) or "{}"
        function = {
            "name": self._box.chat_name(name, item.get("namespace")),
            "arguments": arguments,
        }
        turn = self._turn or self._next_turn()
        turn.calls.append({"id": call_id, "type": "function", "function": function})

    def _output(self, item: Item, where: str) -> None:
        """Outputs were taken with their calls; here a turn ends at the latest."""
        self._flush()

    def _next_turn(self) -> _Turn:
        self._flush()
        self._turn = _Turn()
        return self._turn


def _reasoning_text(item: Item) -> str:
    content = item.get("content")
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _text(item: Mapping[str, Any], name: str, where: str, *, empty: bool = False) -> str:
    text = item.get(name)
    if not isinstance(text, str) or not (text or empty):
        raise InvalidRequest(f"`{where}.{name}` must be text", f"{where}.{name}")
    return text


def _content(parts: list[Part]) -> str | list[Part] | None:
    """Plain text where that says it all, which every upstream takes."""
    if not parts:
        return None
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        text: str = parts[0]["text"]
        return text
    return parts


def _output_parts(item: Item, where: str) -> list[Part]:
    output = item.get("output")
    return _parts(output, f"{where}.output")


def _parts(content: Any, where: str) -> list[Part]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidRequest(f"`{where}` must be text or a list of parts", where)
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _part(part: Any, where: str) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    maker = _MAKERS.get(kind) if isinstance(kind, str) else None
    if maker is None:
        raise InvalidRequest(f"`{where}.type` is not known", where)
    made = maker(part, where)
    if part.get("prompt_cache_breakpoint") is not None:
        made["prompt_cache_breakpoint"] = part["prompt_cache_breakpoint"]
    return made


def _text_part(part: Mapping[str, Any], where: str) -> Part:
    return {"type": "text", "text": _text(part, "text", where, empty=True)}


def _refusal_part(part: Mapping[str, Any], where: str) -> Part:
    return {"type": "refusal", "refusal": _text(part, "refusal", where, empty=True)}


def _image_part(part: Mapping[str, Any], where: str) -> Part:
    url = part.get("image_url")
    if not isinstance(url, str):
        raise InvalidRequest(
            f"`{where}.image_url` is required: this model takes images by URL or data URL only",
            f"{where}.image_url",
            "unsupported_parameter",
        )
    image = {"url": url}
    if isinstance(part.get("detail"), str):
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _file_part(part: Mapping[str, Any], where: str) -> Part:
    names = ("file_data", "file_id", "filename")
    file = {name: part[name] for name in names if isinstance(part.get(name), str)}
    if "file_data" not in file and "file_id" not in file:
        raise InvalidRequest(
            f"`{where}` must have `file_data` or `file_id`: this model takes no files by URL",
            where,
            "unsupported_parameter",
        )
    return {"type": "file", "file": file}


def _audio_part(part: Mapping[str, Any], where: str) -> Part:
    return {"type": "input_audio", "input_audio": part.get("input_audio")}


_MAKERS: Mapping[str, Callable[[Mapping[str, Any], str], Part]] = {
    "input_text": _text_part,
    "output_text": _text_part,
    "text": _text_part,
    "summary_text": _text_part,
    "refusal": _refusal_part,
    "input_image": _image_part,
    "input_file": _file_part,
    "input_audio": _audio_part,
}
