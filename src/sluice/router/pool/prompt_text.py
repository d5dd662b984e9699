"""From the body of a request to what placement knows of its prompt.

The text that is hashed is the JSON of the prompt's members as they stand in the body, in the order
in which chat templates print them: the system message, the tools, the other messages. It is not
the text that the model reads, and it need not be: two prompts whose JSON agrees for some length
agree for as long in the model's own text, and clients write the same conversation in the same way.

How many tokens a byte stands for is learnt from what engines report.
"""

from __future__ import annotations

import msgspec

from sluice.router.pool.blocks import BLOCK_BYTES, block_hashes, isolation_salt
from sluice.router.pool.placement import Prompt

_RAW_NOTHING = msgspec.Raw(b"")

#: What the weight of a new observation falls to, and what tokens a byte may stand for.
_LEAST_WEIGHT = 0.02
_FEWEST, _MOST = 0.05, 1.0


class _Body(msgspec.Struct):
    """The members that the engine's prefix cache depends on."""

    messages: list[msgspec.Raw] | None = None
    prompt: msgspec.Raw = _RAW_NOTHING
    input: msgspec.Raw = _RAW_NOTHING
    tools: msgspec.Raw = _RAW_NOTHING
    cache_salt: str | None = None


_DECODER = msgspec.json.Decoder(_Body)


class PromptReader:
    """Reads the prompts of one pool."""

    def __init__(self, secret: bytes, tokens_per_byte: float = 0.25) -> None:
        """Args:
        secret: of the hashes' salts, the same in every gateway; up to 64 bytes.
        tokens_per_byte: assumed until it has been seen.
        """
        self._secret = secret
        self._tokens_per_byte = tokens_per_byte
        self._seen = 0
        self._salts: dict[str, int] = {}

    @property
    def block_tokens(self) -> int:
        """Tokens that a block of text stands for."""
        return max(1, round(BLOCK_BYTES * self._tokens_per_byte))

    def read(self, body: bytes) -> tuple[Prompt, int]:
        """The prompt of a request's body, and its length in bytes.

        A body that can't be read is the engine's to refuse, and has an empty prompt here.
        """
        try:
            members = _DECODER.decode(body)
        except msgspec.DecodeError:
            return Prompt(1, (), self.block_tokens), 0
        text = _canonical(members)
        hashes = block_hashes(text, self._salt(members.cache_salt or ""))
        tokens = max(1, round(len(text) * self._tokens_per_byte))
        return Prompt(tokens, hashes, self.block_tokens), len(text)

    def learn(self, size: int, tokens: int) -> None:
        """A prompt of so many bytes had so many tokens, as an engine counted them."""
        if size < BLOCK_BYTES or tokens < 1:
            return  # what the template adds would count for too much
        self._seen += 1
        weight = max(1 / self._seen, _LEAST_WEIGHT)
        ratio = min(max(tokens / size, _FEWEST), _MOST)
        self._tokens_per_byte += weight * (ratio - self._tokens_per_byte)

    def _salt(self, scope: str) -> int:
        salt = self._salts.get(scope)
        if salt is None:
            if len(self._salts) >= 10_000:
                self._salts.clear()
            salt = self._salts[scope] = isolation_salt(self._secret, scope)
        return salt


def _canonical(members: _Body) -> bytes:
    messages = members.messages
    if messages is None:
        return bytes(members.prompt) or bytes(members.input)
    tools = bytes(members.tools)
    if not tools:
        return b",".join(messages)
    system = [message for message in messages[:1] if b'"system"' in bytes(message)[:200]]
    return b",".join([*system, tools, *messages[len(system) :]])
