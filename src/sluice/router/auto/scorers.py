"""Which scorer scores whose requests."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.router.complexity.scorer import Scorer


class Scorers:
    """The scorers in force. They may change while the process runs, all of them at once.

    Attributes:
        generation: grows with every change; what was derived from another one is out of date.
    """

    def __init__(self) -> None:
        self._rule = Scorer()
        self._learnt: Mapping[str, Scorer] = {}
        self.generation = 0

    def replace(self, learnt: Mapping[str, Scorer]) -> None:
        """From now on these score, and the rule for every other alias.

        Args:
            learnt: by alias.
        """
        self._learnt = dict(learnt)
        self.generation += 1

    def of(self, alias: str) -> Scorer:
        """The scorer of an alias's requests."""
        return self._learnt.get(alias, self._rule)
