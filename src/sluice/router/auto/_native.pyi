from collections.abc import Callable, Hashable, Sequence
from typing import Any

from sluice.backends.base import Endpoint
from sluice.router.auto.alias import Alias
from sluice.router.auto.calibration import Cut
from sluice.router.auto.choice import AutoChoice
from sluice.router.auto.standings import Standings
from sluice.router.catalog import Tier
from sluice.router.complexity._native import Compiled
from sluice.wire.request import Request

class Choosing:
    def __init__(
        self,
        alias: Alias,
        scorer: Compiled,
        standings: Standings,
        capabilities: dict[Any, Any],
        make: Callable[..., AutoChoice],
    ) -> None: ...
    def follow(self, cuts: Sequence[Cut], left: int) -> None: ...
    def take(self) -> list[float]: ...
    def choose(
        self,
        request: Request,
        endpoint: Endpoint,
        tier: Tier,
        session: bytes | None,
        conversation: bytes | None,
        rights: Hashable,
    ) -> AutoChoice | None: ...
