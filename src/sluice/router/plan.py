"""The plan of one request: which deployment is called next, after what has happened so far.

Pure but for what it remembers of its own request: who rests, randomness and the time left come
in, and each `next` gives a value. The order is

1. the model's deployments, drawn by weight among those that take calls;
2. where only one of them could be asked, that one again after a wait;
3. the models of the fallback chain, each in the same way;
4. whatever was asked and may do better after a wait, while the budget lasts.

A request that is too long, or goes against a provider's policy, leaves this order for the chain
made for such requests, and ends where there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from sluice.router.breakers import Rest
from sluice.router.catalog import Deployment, Model
from sluice.router.retries import (
    MAX_WAIT_SECONDS,
    Failure,
    FallbackClass,
    fallback_class,
    judge,
    wait_before,
)

#: Upstream calls that one request may cost.
ATTEMPT_BUDGET = 3

#: How far fallbacks of fallbacks are followed.
MAX_CHAIN_DEPTH = 3

#: Calls to one model before its fallbacks have their turn, if it has just one deployment to ask.
_CALLS_BEFORE_FALLBACK = 2

#: The longest wait that the model asked for is worth while another would answer at once.
_PATIENCE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Fallbacks:
    """The models to turn to when a model fails, by name and in order.

    Attributes:
        general: when its deployments fail.
        context_overflow: when a request does not fit its context.
        content_policy: when its provider refuses a request's content.
    """

    general: tuple[str, ...] = ()
    context_overflow: tuple[str, ...] = ()
    content_policy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """The models that a request may reach: the one that it names, and chains of others."""

    model: Model
    general: tuple[Model, ...] = ()
    context_overflow: tuple[Model, ...] = ()
    content_policy: tuple[Model, ...] = ()

    def chain(self, reason: FallbackClass) -> tuple[Model, ...]:
        """The chain for one kind of refusal."""
        return self.context_overflow if reason == "context_overflow" else self.content_policy

    def models(self) -> tuple[Model, ...]:
        """Every model that it may reach."""
        return (self.model, *self.general, *self.context_overflow, *self.content_policy)

    def only(self, allowed: Callable[[str], bool]) -> Route:
        """The same without the fallbacks that a caller may not use."""
        if all(allowed(model.name) for model in self.models()):
            return self
        return Route(
            self.model,
            *(
                tuple(model for model in chain if allowed(model.name))
                for chain in (self.general, self.context_overflow, self.content_policy)
            ),
        )


class Step(msgspec.Struct, frozen=True):
    """Call this deployment.

    Attributes:
        model: the model that it belongs to, which is then the model used.
        deployment: to be called.
        number: of the upstream call, from 1.
        wait: seconds to wait before.
    """

    model: Model
    deployment: Deployment
    number: int
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class AllResting:
    """Nothing was called, since everything rests.

    Attributes:
        seconds: until the first may be called.
        limited: all of them rest because of limits.
    """

    seconds: float
    limited: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further call; the last failure stands.

    Attributes:
        resting: where all that could have been called rests by now: until when.
    """

    resting: AllResting | None = None


Rests = Callable[[Deployment], Rest | None]
Draw = Callable[[], float]


def expand(
    model: Model,
    find: Callable[[str], Model | None],
    fallbacks: Mapping[str, Fallbacks],
    fits: Callable[[Model], bool],
) -> Route:
    """Follow a model's fallbacks, breadth first: its own before its fallbacks' own.

    Args:
        model: that the request names.
        find: a model by its name.
        fallbacks: by model name.
        fits: whether a model may serve this request at all (endpoint, capabilities, tier, what the
            team may use).
    """

    def chain(names: Callable[[Fallbacks], Sequence[str]]) -> tuple[Model, ...]:
        seen, found, layer = {model.name}, list[Model](), [model.name]
        for _ in range(MAX_CHAIN_DEPTH):
            linked = [name for link in layer for name in names(fallbacks.get(link, _NO_FALLBACKS))]
            layer = [name for name in dict.fromkeys(linked) if name not in seen]
            seen.update(layer)
            reached = (find(name) for name in layer)
            found += [each for each in reached if each is not None and fits(each)]
        return tuple(found)

    return Route(
        model,
        chain(lambda links: links.general),
        chain(lambda links: links.context_overflow),
        chain(lambda links: links.content_policy),
    )


_NO_FALLBACKS = Fallbacks()


@dataclass(slots=True)
class _Tried:
    """A deployment that was called, and may be called again."""

    model: Model
    deployment: Deployment
    calls: int = 0
    again: bool = False


@dataclass(slots=True)
class _Stage:
    """The model whose turn it is."""

    model: Model
    untried: list[Deployment] = field(default_factory=list)
    calls: int = 0


class Plan:
    """The steps of one request; see the module."""

    __slots__ = (
        "_budget",
        "_calls",
        "_considered",
        "_draw",
        "_entered",
        "_last",
        "_queue",
        "_rests",
        "_route",
        "_stage",
        "_tried",
    )

    def __init__(
        self,
        route: Route,
        rests: Rests,
        draw: Draw,
        budget: int = ATTEMPT_BUDGET,
        disable_fallbacks: bool = False,
    ) -> None:
        """Args:
        route: models that may be reached.
        rests: how long a deployment rests, None where it takes calls. Asked when `next` is, so
            that what follows from a failure must be done first.
        draw: gives a number in [0, 1).
        budget: upstream calls at most.
        disable_fallbacks: the caller wants the first failure, as it is.
        """
        self._route = route
        self._rests = rests
        self._draw = draw
        self._budget = 1 if disable_fallbacks else budget
        self._queue = deque(() if disable_fallbacks else route.general)
        self._tried: list[_Tried] = []
        self._considered: list[Deployment] = []
        self._entered: set[str] = set()
        self._calls = 0
        self._last: _Tried | None = None
        self._stage = self._enter(route.model)

    @property
    def calls(self) -> int:
        """Upstream calls so far."""
        return self._calls

    def next(
        self, failure: Failure | None = None, remaining: float | None = None
    ) -> Step | AllResting | GiveUp:
        """What to do now.

        Args:
            failure: of the last step; None at first, and where the last step could not be taken
                because its target came to rest meanwhile.
            remaining: seconds until the request's deadline, if it has one.
        """
        if failure is None:
            self._untake()
        elif not self._goes_on(failure):
            return GiveUp()
        if self._calls >= self._budget or (remaining is not None and remaining <= 0):
            return GiveUp(self._resting())
        return self._choose(remaining) or self._nothing()

    def _untake(self) -> None:
        """The last step was no call. Its target isn't offered again: it might rest for ever."""
        if self._last is not None:
            self._calls -= 1
            self._last.calls -= 1
            self._stage.calls -= self._stage.model is self._last.model
            self._last = None

    def _goes_on(self, failure: Failure) -> bool:
        """Take in how the last step ended; False where no other can mend it."""
        last, self._last = self._last, None
        verdict = judge(failure)
        if last is not None:
            last.again = verdict.next == "same"
        if verdict.next != "stop":
            return True
        reason = None if failure.where == "stream" else fallback_class(failure)
        return reason is not None and self._divert(self._route.chain(reason))

    def _divert(self, chain: Iterable[Model]) -> bool:
        """Go on with another chain only; False where it leads nowhere new."""
        if self._budget <= 1:
            return False
        self._queue = deque(model for model in chain if model.name not in self._entered)
        self._stage.untried = []
        for tried in self._tried:
            tried.again = False
        self._considered = []
        return bool(self._queue)

    def _choose(self, remaining: float | None) -> Step | None:
        step = self._fresh()
        if step is None and self._stage.calls < _CALLS_BEFORE_FALLBACK:
            step = self._again(remaining, self._stage.model)
        while step is None and self._queue:
            self._stage = self._enter(self._queue.popleft())
            step = self._fresh()
        return step or self._again(remaining, None)

    def _enter(self, model: Model) -> _Stage:
        self._entered.add(model.name)
        usable = [deployment for deployment in model.deployments if deployment.weight > 0]
        self._considered += usable
        return _Stage(model, usable)

    def _fresh(self) -> Step | None:
        """One of the model's deployments that was not called yet."""
        stage = self._stage
        awake = [each for each in stage.untried if self._rests(each) is None]
        if not awake:
            return None
        chosen = draw_by_weight(awake, self._draw)
        stage.untried.remove(chosen)
        tried = _Tried(stage.model, chosen)
        self._tried.append(tried)
        return self._take(tried, 0.0)

    def _again(self, remaining: float | None, model: Model | None) -> Step | None:
        """One that was called and may do better now: the first to be free, of one model or any."""
        longest = _PATIENCE_SECONDS if self._queue else MAX_WAIT_SECONDS
        candidates = [
            (rest.seconds if rest else 0.0, tried)
            for tried in self._tried
            if tried.again and (model is None or tried.model is model)
            for rest in (self._rests(tried.deployment),)
        ]
        if not candidates:
            return None
        seconds, tried = min(candidates, key=lambda each: (each[0], each[1].calls))
        if seconds > longest:
            return None
        wait = wait_before(tried.calls, seconds, self._draw, remaining)
        return None if wait is None else self._take(tried, wait)

    def _take(self, tried: _Tried, wait: float) -> Step:
        tried.calls += 1
        tried.again = False
        self._calls += 1
        self._stage.calls += tried.model is self._stage.model
        self._last = tried
        return Step(tried.model, tried.deployment, self._calls, wait)

    def _nothing(self) -> AllResting | GiveUp:
        resting = self._resting()
        return resting if self._calls == 0 and resting is not None else GiveUp(resting)

    def _resting(self) -> AllResting | None:
        """When the first target is back, if no target at all takes calls."""
        if self._queue:
            return None
        rests = [self._rests(deployment) for deployment in self._considered]
        known = [rest for rest in rests if rest is not None]
        if not known or len(known) < len(rests):
            return None
        return AllResting(min(rest.seconds for rest in known), all(rest.limited for rest in known))


def draw_by_weight(deployments: Sequence[Deployment], draw: Draw) -> Deployment:
    """One of several deployments of weights above 0, each by its share of the weights."""
    mark = draw() * sum(deployment.weight for deployment in deployments)
    for deployment in deployments:
        mark -= deployment.weight
        if mark < 0:
            return deployment
    return deployments[-1]
