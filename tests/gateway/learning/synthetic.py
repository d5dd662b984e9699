"""Prompts whose difficulty is a matter of their subject, and an upstream that shows it: the large
model is right about everything, the small one about easy subjects only, and the judge can tell."""

from __future__ import annotations

import random
import re

from tests.harness.upstream import Call, completion, stream_in_full

EASY = ("gardens", "kitchens", "birds", "bicycles", "weather", "holidays")
HARD = ("tensors", "proteins", "statutes", "turbines", "lattices", "orbits")
_VERBS = ("explain", "compare", "list", "describe", "name", "sketch")

MARKER = "in-the-loop"


def prompts(count: int, seed: int) -> list[str]:
    """Prompts of both kinds, all different."""
    draw = random.Random(seed)
    return [
        f"Please {draw.choice(_VERBS)} something about {draw.choice(EASY + HARD)},"
        f" {MARKER} {seed}-{number}."
        for number in range(count)
    ]


def is_hard(text: str) -> bool:
    """Whether the small model can't."""
    return any(subject in text for subject in HARD)


def answer(call: Call) -> None:
    """Be one of the three models."""
    body = call.json
    text = body["messages"][-1]["content"]
    match body["model"]:
        case "judge":
            first, second = (f"<{name}_answer>\nright" in text for name in ("first", "second"))
            said = f'{{"first": {float(first)}, "second": {float(second)}}}'
        case "small" if is_hard(re.sub("<.*", "", text)):
            said = "wrong"
        case _:
            said = "right"
    if body.get("stream"):
        stream_in_full(call, (said[:2], said[2:]))
    else:
        call.respond(200, completion(body["model"], said))
