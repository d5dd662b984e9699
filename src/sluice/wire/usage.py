"""Token usage as the OpenAI dialect reports it, and estimates where an upstream reports none."""

from __future__ import annotations

import msgspec

CHARS_PER_TOKEN = 4


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one request.

    Attributes:
        input_tokens: all prompt tokens, the cached ones included.
        cached_input_tokens: prompt tokens read from a cache.
        cache_write_tokens: prompt tokens written to a cache.
        output_tokens: generated tokens, reasoning included.
        estimated: counted by us from text lengths, because the upstream reported nothing.
    """

    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False


class PromptDetails(msgspec.Struct):
    """`usage.prompt_tokens_details`; vLLM has its own name for cache writes."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    created_cache_tokens: int | None = None


class UsageBody(msgspec.Struct):
    """The `usage` object of chat, completions and embeddings."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None

    def usage(self) -> Usage:
        """The same as our own value; a count below zero is none."""
        details = self.prompt_tokens_details or PromptDetails()
        return Usage(
            input_tokens=max(self.prompt_tokens or 0, 0),
            cached_input_tokens=max(details.cached_tokens or 0, 0),
            cache_write_tokens=max(
                details.cache_write_tokens or details.created_cache_tokens or 0, 0
            ),
            output_tokens=max(self.completion_tokens or 0, 0),
        )


def estimate_tokens(characters: int) -> int:
    """Tokens that a text of so many characters has, roughly; 0 only for an empty text."""
    return -(-characters // CHARS_PER_TOKEN)
