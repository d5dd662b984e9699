from sluice.router.complexity.model import Model
from sluice.router.complexity.scored import Scored
from sluice.router.complexity.view import RequestView
from sluice.wire.objects import RawObject

class Compiled:
    def __init__(
        self, model: Model, telling: list[list[str]], least_reason: float, extreme: float
    ) -> None: ...
    def read(self, members: RawObject) -> tuple[RequestView, Scored]: ...
    def score(self, view: RequestView) -> Scored: ...
