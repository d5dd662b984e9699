"""The counters: positions told to Redis and requests admitted there, in one command at a time.

Group commit, as with usage events: while one command is on its way, whatever else comes gathers,
and the next takes it together. A command whose reply is lost is not repeated: positions are
absolute, and the next command tells them anyway.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from redis.exceptions import RedisError

from sluice.billing.redis_link import RedisLink
from sluice.gateway.quotas.accounts import Account, Pot
from sluice.gateway.quotas.needs import Need

Dimension = Literal["requests", "tokens", "concurrency", "budget", "unready"]

#: What the script says of a wait that has no end.
_NEVER_MS = 1e11


#: A clock that differs by more than this, in milliseconds, was set.
_SET_MS = 2_000

#: The offset of Redis's clock is taken from the replies of so many seconds, and those before them.
_SPAN_SECONDS = 15.0


class _Heard(NamedTuple):
    """One answer: how long it took (seconds), and the offset of Redis's clock that it tells."""

    took: float
    offset_ms: float


class CountersAway(Exception):
    """Redis can't be reached, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One limit that does not allow a request.

    Attributes:
        account: whose limit it is.
        dimension: what is limited; `unready`: a budget that can't be judged yet.
        seconds: until the request would be let in; None where no wait helps, or none is known.
        pot: the budget, for `budget` and `unready`.
    """

    account: Account
    dimension: Dimension
    seconds: float | None = None
    pot: Pot | None = None


class CountersObserver(Protocol):
    """What the counters tell about themselves."""

    def told(self, requests: int, seconds: float) -> None:
        """A command with so many requests was answered."""
        ...

    def alert(self, account: Account, pot: Pot) -> None:
        """A budget's alert was crossed, at whichever process."""
        ...


class Script:
    """A Lua script, sent by its digest once Redis knows it."""

    def __init__(self, name: str) -> None:
        self._text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
        self._digest = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, link: RedisLink, *arguments: bytes | str) -> Any:
        """Run it.

        Raises:
            RedisError: it failed, or the connection did.
        """
        try:
            return await self.begin(link, *arguments)
        except RedisError as error:
            if not is_unknown(error):
                raise
            return await self.teach(link, *arguments)

    def begin(self, link: RedisLink, *arguments: bytes | str) -> asyncio.Future[Any]:
        """Send it by its digest; fails, see `is_unknown`, where Redis does not know it."""
        return link.send("EVALSHA", self._digest, "0", *arguments)

    def teach(self, link: RedisLink, *arguments: bytes | str) -> asyncio.Future[Any]:
        """Send its text."""
        return link.send("EVAL", self._text, "0", *arguments)


def is_unknown(error: BaseException | None) -> bool:
    """Whether Redis has not heard of a script yet, or has forgotten it."""
    return isinstance(error, RedisError) and str(error).startswith("NOSCRIPT")


#: Of a request that was let in: the sub-window that it was counted in, at each of its accounts.
Windows = tuple[int, ...]


@dataclass(slots=True)
class _Asked:
    """A request that waits for its answer."""

    accounts: tuple[Account, ...]
    need: Need
    answer: asyncio.Future[Refused | Windows]


@dataclass(slots=True)
class _Flight:
    """A command on its way."""

    accounts: list[Account]
    pots: list[list[Pot]]
    asked: list[_Asked]
    blob: bytes
    started: float
    timer: asyncio.TimerHandle | None = None
    taught: bool = False


class Counters:
    """One process's exchange with the sums in Redis."""

    def __init__(
        self,
        link: RedisLink,
        process: str,
        observer: CountersObserver,
        *,
        leases: bool = True,
        timeout: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Args:
        link: kept connected by somebody else.
        process: this process's id.
        leases: take capacity ahead for hot scopes.
        timeout: seconds within which Redis must answer.
        """
        self._link = link
        self._process = process
        self._observer = observer
        self._leases = leases
        self._timeout = timeout
        self._clock = clock
        self._script = Script("admit.lua")
        self._dirty: dict[str, Account] = {}
        self._urgent = False
        self._gathering: list[_Asked] = []
        self._flight: _Flight | None = None
        self._soon: asyncio.Handle | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._offset_ms = wall() * 1000 - clock() * 1000
        self._before = self._quickest = _Heard(float("inf"), self._offset_ms)
        self._span_began = clock()

    @property
    def away(self) -> bool:
        """Whether Redis can't be asked now."""
        return not self._link.up

    def now_ms(self) -> float:
        """Redis's time, milliseconds since the epoch, by this process's monotonic clock: a wall
        clock that is set does not move budgets' periods."""
        return self._clock() * 1000 + self._offset_ms

    def set_time(self, ms: float, asked_at: float) -> None:
        """Redis's time, as just heard.

        It was so in the middle between question and answer, give or take half of the time between
        the two: the quickest answer of late tells best (as in NTP). A clock that was set is
        followed at once.

        Args:
            ms: milliseconds since the epoch.
            asked_at: when it was asked for, on the monotonic clock.
        """
        now = self._clock()
        heard = _Heard(max(0.0, now - asked_at), ms - (now + asked_at) / 2 * 1000)
        if abs(heard.offset_ms - self._offset_ms) > _SET_MS + heard.took * 1000:
            self._before = self._quickest = heard
        elif now - self._span_began >= _SPAN_SECONDS:
            self._before, self._quickest, self._span_began = self._quickest, heard, now
        else:
            self._quickest = min(self._quickest, heard)
        self._offset_ms = min(self._before, self._quickest).offset_ms

    async def ask(self, accounts: tuple[Account, ...], need: Need) -> Refused | Windows:
        """Admit a request to all of its accounts, or to none.

        Raises:
            CountersAway: see there; the request was not let in.
        """
        if self.away:
            raise CountersAway
        answer: asyncio.Future[Refused | Windows] = asyncio.get_running_loop().create_future()
        self._gathering.append(_Asked(accounts, need, answer))
        self._launch()
        try:
            return await answer
        except asyncio.CancelledError:
            if (windows := _let_in(answer)) is not None:
                self._undo(accounts, need, windows)
            raise

    def tell(self, accounts: Iterable[Account], at_once: bool) -> None:
        """Positions of accounts have changed.

        Args:
            at_once: others wait for what has become free; otherwise the next command takes it.
        """
        for account in accounts:
            self._dirty[account.key] = account
        self._urgent = self._urgent or at_once
        if at_once and self._soon is None and self._flight is None:
            # after what else happens in this turn of the loop: it then goes along
            self._soon = asyncio.get_running_loop().call_soon(self._launch)

    async def flush(self) -> None:
        """Tell everything that has not been told, and wait until it is.

        Raises:
            CountersAway: it can't be told now.
        """
        while self._dirty or self._flight is not None:
            if self.away:
                raise CountersAway
            self._urgent = True
            self._launch()
            await self._idle.wait()

    def _launch(self) -> None:
        """Send what has gathered, unless something is on its way."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        waiting = self._gathering or (self._urgent and self._dirty)
        if self._flight is not None or not waiting or self.away:
            return
        self._urgent = False
        flight = self._flight = self._prepare()
        self._idle.clear()
        self._send(flight)

    def _prepare(self) -> _Flight:
        asked, self._gathering = self._gathering, []
        callers = {id(each.accounts): each.accounts for each in asked}
        involved = self._dirty.copy()
        for called in callers.values():
            involved.update({account.key: account for account in called})
        for account in involved.values():
            if account.shares:
                account.recall()  # after which more may have to be told
        accounts, self._dirty = involved | self._dirty, {}
        now = self._clock()
        short = {
            id(account)
            for each in asked
            for account in each.accounts
            if account.leasing and not account.covers(each.need, now)
        }
        numbers: dict[int, int] = {}
        listed: list[Account] = []
        pots: list[list[Pot]] = []
        scopes: list[Any] = []
        for account in accounts.values():
            listed.append(account)
            numbers[id(account)] = len(listed)
            pots.append(account.all_pots)
            scopes.append(account.message(now, self._leases, id(account) not in short))
        places = {key: [numbers[id(each)] for each in called] for key, called in callers.items()}
        requests = [
            [need.tokens, need.nano_usd, need.slots, *places[id(each.accounts)]]
            for each in asked
            for need in (each.need,)
        ]
        blob = msgspec.msgpack.encode((self._process, scopes, requests))
        return _Flight(listed, pots, asked, blob, now)

    def _send(self, flight: _Flight) -> None:
        send = self._script.teach if flight.taught else self._script.begin
        reply = send(self._link, flight.blob)
        flight.timer = asyncio.get_running_loop().call_later(self._timeout, self._link.drop)
        reply.add_done_callback(partial(self._answered, flight))

    def _answered(self, flight: _Flight, reply: asyncio.Future[Any]) -> None:
        if flight.timer is not None:
            flight.timer.cancel()
        error = reply.exception()
        if is_unknown(error) and not flight.taught:
            flight.taught = True
            self._send(flight)
            return
        self._flight = None
        if error is None:
            self._landed(flight, reply.result())
            self._serve_gathered()
        else:
            self._lost(flight, error)
        self._launch()
        if self._flight is None:
            self._idle.set()

    def _landed(self, flight: _Flight, reply: bytes) -> None:
        ms, results, told = msgspec.msgpack.decode(reply)
        now = self._clock()
        self.set_time(ms, flight.started)
        for account, pots, sums in zip(flight.accounts, flight.pots, told, strict=True):
            for pot in account.heard(sums, pots, flight.started):
                self._observer.alert(account, pot)
            if (account.has_ahead or account.renewing) and not account.leasing:
                account.give_back()
                self._dirty[account.key] = account
                self._urgent = True
        for asked, result in zip(flight.asked, results, strict=True):
            if result:
                if not asked.answer.done():
                    asked.answer.set_result(_refusal(flight, result))
                continue
            windows = tuple([account.window for account in asked.accounts])
            for account in asked.accounts:
                account.begin(asked.need)
            if not asked.answer.done():
                asked.answer.set_result(windows)
            else:  # its client left meanwhile
                self._undo(asked.accounts, asked.need, windows)
        for pots in flight.pots:
            for pot in pots:
                pot.told = pot.spent + pot.held + pot.ahead
        self._observer.told(len(flight.asked), now - flight.started)

    def _serve_gathered(self) -> None:
        """Let in those who came meanwhile, as far as what was taken ahead covers them now."""
        now, waiting = self._clock(), []
        for asked in self._gathering:
            if asked.answer.done():
                continue
            if covered(asked.accounts, asked.need, now):
                for account in asked.accounts:
                    account.take(asked.need)
                asked.answer.set_result(tuple([each.ahead_window for each in asked.accounts]))
            else:
                waiting.append(asked)
        self._gathering = waiting

    def _lost(self, flight: _Flight, error: BaseException) -> None:
        for account, pots in zip(flight.accounts, flight.pots, strict=True):
            account.not_told(pots)
            self._dirty[account.key] = account
        self._urgent = True
        gathered, self._gathering = self._gathering, []
        for asked in (*flight.asked, *gathered):
            if not asked.answer.done():
                asked.answer.set_exception(CountersAway(str(error)))

    def _undo(self, accounts: tuple[Account, ...], need: Need, windows: Windows) -> None:
        """A request that was let in will not be made after all."""
        for account, window in zip(accounts, windows, strict=True):
            account.end(need, account.pots, window, 0, 0)
        self.tell(accounts, at_once=True)


def covered(accounts: Iterable[Account], need: Need, now: float) -> bool:
    """Whether what was taken ahead covers a need at every level."""
    for account in accounts:  # noqa: SIM110 - a generator costs more than the rest of this
        if not account.covers(need, now):
            return False
    return True


def _let_in(answer: asyncio.Future[Refused | Windows]) -> Windows | None:
    """Where it was counted, if the answer came, and nobody was there any more to hear it."""
    if not answer.done() or answer.cancelled() or answer.exception() is not None:
        return None
    result = answer.result()
    return None if isinstance(result, Refused) else result


def _refusal(flight: _Flight, result: list[Any]) -> Refused:
    number, dimension, wait_ms = result
    account, pots = flight.accounts[number - 1], flight.pots[number - 1]
    if dimension > 20:
        return Refused(account, "unready", None, pots[dimension - 21])
    if dimension > 10:
        return Refused(account, "budget", None, pots[dimension - 11])
    if dimension == 3:
        return Refused(account, "concurrency")
    seconds = None if wait_ms > _NEVER_MS else wait_ms / 1000
    return Refused(account, "requests" if dimension == 1 else "tokens", seconds)
