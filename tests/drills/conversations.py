"""Conversations as people hold them with a model, and how a pool serves them.

A message of some hundred tokens, an answer, a while to read it, and all of it again with the next
message. By the traces that were published: of those in Mooncake's conversation trace that go on, a
turn makes half of the prompts longer by 481 tokens or more, a quarter by less than 290; half of the
answers in Azure's of 2023 have 129 tokens or more. People take minutes between two turns; here they
take seconds, and are so few that the machine carries the engines: where those wait for a processor,
the time to the first token says nothing of caches.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.drills.pool_site import Client, Served, in_groups
from tests.engines.vllm_engine import VllmEngine

TURNS = 6
SYSTEM_TOKENS = 1000
MESSAGE_TOKENS = 300
ANSWER_TOKENS = 128
#: Conversations that are held at the same time.
AT_ONCE = 6


class Vocabulary:
    """Words that are one token each, in what people say and in what the model answers.

    What a trained model writes is read again as the tokens that it was written in, so that an
    engine finds its answers in its cache. Noise is not: so the model is held to these words.
    """

    def __init__(self, model: Path) -> None:
        """Args:
        model: directory of the tiny model.
        """
        ids: Mapping[str, int] = json.loads((model / "tokenizer.json").read_text())["model"][
            "vocab"
        ]
        words = [token for token in sorted(ids) if token[0] == "Ġ" and token[1:].islower()]
        self._words = [word[1:] for word in words]
        #: Makes a request's answer one of words.
        self.only_words = {str(ids[word]): 100 for word in words}

    def text(self, draw: Random, tokens: int) -> str:
        """Of so many tokens."""
        return " ".join(draw.choices(self._words, k=tokens))


class Conversations:
    """Conversations with one system prompt, new to all engines, over one pool."""

    def __init__(
        self,
        client: Client,
        engines: Sequence[VllmEngine],
        pool: str,
        words: Vocabulary,
        seed: int,
        reading: float,
    ) -> None:
        """Args:
        client: asks for them.
        engines: of the pool.
        pool: its name.
        words: what they are made of.
        seed: of everything that is drawn.
        reading: seconds from an answer to the next message, on average.
        """
        self.pool = pool
        self._client = client
        self._engines = engines
        self._words = words
        self._seed = seed
        self._reading = reading
        self._system = words.text(Random(seed), SYSTEM_TOKENS)
        self._queries = self._hits = 0.0
        self.answers: list[Served] = []

    @property
    def hit_rate(self) -> float:
        """By the engines' own counters."""
        return self._hits / self._queries

    @property
    def ttft(self) -> float:
        """The mean, in seconds."""
        return statistics.mean(answer.ttft for answer in self.answers)

    @property
    def replicas(self) -> int:
        """How many served them."""
        return len({answer.replica for answer in self.answers})

    async def hold(self, numbers: range) -> None:
        """Hold some of them."""
        queries, hits = self._counters()
        jobs = [self._converse(Random(f"{self._seed} {number}")) for number in numbers]
        await in_groups(AT_ONCE, jobs)
        now = self._counters()
        self._queries += now[0] - queries
        self._hits += now[1] - hits

    async def _converse(self, draw: Random) -> None:
        messages: list[dict[str, Any]] = [{"role": "system", "content": self._system}]
        for _ in range(TURNS):
            if self._reading:
                await asyncio.sleep(draw.expovariate(1 / self._reading))
            said = self._words.text(draw, MESSAGE_TOKENS)
            messages.append({"role": "user", "content": said})
            served = await self._client.ask(
                self.pool, messages, ANSWER_TOKENS, logit_bias=self._words.only_words
            )
            assert served.finished, served
            messages.append({"role": "assistant", "content": served.text})
            self.answers.append(served)

    def _counters(self) -> tuple[float, float]:
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        queries, hits = (sum(engine.metric(name) for engine in self._engines) for name in names)
        return queries, hits
