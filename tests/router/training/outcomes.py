"""Made-up outcomes: prompts of a few topics, of which some gain much by the strong model."""

from __future__ import annotations

import random

import msgspec

from sluice.router.complexity.features import extract
from sluice.router.complexity.view import RequestView
from sluice.router.training.rows import Row

#: Topic to the chance that the strong model succeeds, and that the weak one does.
CHANCES = {
    "tides of the western harbour": (0.9, 0.85),
    "orders of the bakery": (0.9, 0.4),
    "names of the kings": (0.8, 0.75),
    "wiring of the old mill": (0.85, 0.2),
}


def prompts(count: int, seed: int = 0) -> list[tuple[str, float, float]]:
    """Prompts with the two outcomes, each 0 or 1."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        topic, (strong, weak) = draw.choice(list(CHANCES.items()))
        prompt = f"Case {number}: what do you know of the {topic}, {draw.random():.9f}?"
        found.append((prompt, float(draw.random() < strong), float(draw.random() < weak)))
    return found


def rows(count: int, seed: int = 0) -> list[Row]:
    """The same as rows."""
    return [
        Row(extract(RequestView.of_prompt(prompt)), strong, weak)
        for prompt, strong, weak in prompts(count, seed)
    ]


def lines(count: int, seed: int = 0) -> bytes:
    """The same as JSON lines."""
    return b"".join(
        msgspec.json.encode({"prompt": prompt, "strong_score": strong, "weak_score": weak}) + b"\n"
        for prompt, strong, weak in prompts(count, seed)
    )
