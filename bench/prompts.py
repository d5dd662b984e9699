"""Prompts as people's are: of many lengths, no two with the same beginning."""

from __future__ import annotations

from random import Random

#: Tokens of prompts, the middle of each tenth of the conversations that Azure published in 2023
#: (AzureLLMInferenceTrace_conv): 1,020 is their median.
_TENTHS = (181, 372, 396, 414, 984, 1_045, 1_097, 1_189, 1_877, 4_083)

_WORDS = ("river", "stone", "cloud", "green", "window", "paper", "night", "market", "seven")

#: Of these words, with the tokenizer of the tests' model.
_TOKENS_A_WORD = 2.79


class Prompts:
    """Draws prompts. What is drawn twice with the same seed has the same lengths, and other words,
    so that nothing of it is in a cache."""

    def __init__(self, longest: int) -> None:
        """Args:
        longest: tokens of the longest ones, which the engine's context must hold with the answer.
        """
        self._tenths = [min(each, longest) for each in _TENTHS]
        self._words = Random(1)

    def draw(self, lengths: Random) -> str:
        """A prompt, as long as `lengths` decides."""
        count = round(lengths.choice(self._tenths) / _TOKENS_A_WORD)
        return " ".join(self._words.choices(_WORDS, k=count))
