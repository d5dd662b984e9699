"""The routing documents in force, by alias and team."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sluice.router.auto.documents import AutoPolicy, RoutingDocument
from sluice.router.catalog import Model

#: An alias, and the id of the team that a document is of; None: of all teams.
Key = tuple[str, str | None]


class RoutingTable:
    """Says what holds for an alias and a team: the team's document, else everybody's, else the
    configuration's.

    Attributes:
        generation: grows with every change; what was derived from another one is out of date.
    """

    def __init__(self, configured: Mapping[str, RoutingDocument] | None = None) -> None:
        """Args:
        configured: the configuration's documents, by alias.
        """
        self._configured = dict(configured or {})
        self._documents: dict[Key, RoutingDocument] = {}
        self._teams: frozenset[str] = frozenset()
        self.generation = 0

    def replace(self, documents: Mapping[Key, RoutingDocument]) -> None:
        """From now on these are the documents beside the configuration's."""
        self._documents = dict(documents)
        self._teams = frozenset(team for _, team in documents if team is not None)
        self.generation += 1

    def get(self, alias: str, team: str | None) -> RoutingDocument | None:
        """What holds for an alias and a team; None: nothing was said."""
        return (
            self._documents.get((alias, team))
            or self._documents.get((alias, None))
            or self._configured.get(alias)
        )

    def configured(self, alias: str) -> RoutingDocument | None:
        """What the configuration says."""
        return self._configured.get(alias)

    def auto(self, alias: str, team: str | None) -> AutoPolicy | None:
        """The tiers of an alias; None where it is no `auto`."""
        document = self.get(alias, team)
        return None if document is None else document.auto

    def autos(self, team: str | None) -> dict[str, AutoPolicy]:
        """Every `auto` alias that there is for a team, by name."""
        aliases = dict.fromkeys(
            [*self._configured, *(name for name, of in self._documents if of in (None, team))]
        )
        found = ((alias, self.auto(alias, team)) for alias in aliases)
        return {alias: policy for alias, policy in found if policy is not None}

    def distinct(self, team: str) -> str | None:
        """The team, if any document is its own; else None: it is as all others are."""
        return team if team in self._teams else None

    def weighted(self, model: Model, team: str | None) -> Model:
        """A model with the weights that its deployments were given.

        Deployments that the weights don't name get nothing; weights that would leave no
        deployment at all are of another time's deployments, and not followed.
        """
        document = self.get(model.name, team)
        if document is None or document.weights is None:
            return model
        weights = document.weights
        deployments = tuple(
            replace(each, weight=weights.get(each.name, 0)) for each in model.deployments
        )
        if not any(each.weight for each in deployments):
            return model
        return replace(model, deployments=deployments)
