"""Outstanding work: one's own, and what others say."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sluice.router.pool.load import Hint, Load, LoadBook


def figures(load: Load) -> tuple[int, int, int]:
    return load.queued_prefill_tokens, load.running, load.context_tokens


def book(name: str = "g1", *replicas: str) -> LoadBook:
    made = LoadBook(name)
    for replica in replicas or ("a", "b"):
        made.add(replica)
    return made


def test_a_request_counts_until_its_end() -> None:
    loads = book()
    loads.dispatched("a", 100, 150)
    assert figures(loads["a"]) == (100, 1, 150)
    loads.first_token("a", 100)
    assert figures(loads["a"]) == (0, 1, 150)
    loads.ended("a", 0, 150)
    assert figures(loads["a"]) == (0, 0, 0)


def test_a_replica_that_left_takes_its_requests_along() -> None:
    loads = book()
    loads.dispatched("a", 100, 150)
    loads.remove("a")
    loads.ended("a", 100, 150)
    loads.add("a")
    assert figures(loads["a"]) == (0, 0, 0)


def test_others_count_as_they_say() -> None:
    loads, other = book(), book("g2")
    other.dispatched("a", 100, 150)
    assert loads.receive(other.hint("a", (1, 2)), 0.0)
    assert figures(loads["a"]) == (100, 1, 150)
    assert list(loads.peers) == ["g2"]
    other.first_token("a", 100)
    other.ended("a", 0, 150)
    loads.receive(other.hint("a"), 0.1)
    assert figures(loads["a"]) == (0, 0, 0)


def test_ones_own_hints_are_no_news() -> None:
    loads = book()
    loads.dispatched("a", 100, 150)
    assert not loads.receive(loads.hint("a"), 0.0)
    assert figures(loads["a"]) == (100, 1, 150)


def test_who_is_silent_is_forgotten() -> None:
    loads, other = book(), book("g2")
    other.dispatched("a", 100, 150)
    loads.receive(other.hint("a"), 0.0)
    loads.expire(5.0)
    assert figures(loads["a"]) == (100, 1, 150)
    loads.expire(5.1)
    assert figures(loads["a"]) == (0, 0, 0)
    assert not loads.peers


def test_what_was_said_of_a_replica_counts_when_it_joins() -> None:
    loads, other = book("g1", "a"), book("g2", "a", "b")
    other.dispatched("b", 100, 150)
    loads.receive(other.hint("b"), 0.0)
    loads.add("b")
    assert figures(loads["b"]) == (100, 1, 150)


def test_rivals_are_those_who_have_a_queue() -> None:
    loads, other = book(), book("g2")
    loads.receive(other.hint("a"), 0.0)
    assert loads.rivals == 0
    other.waiting = 3
    loads.receive(other.hint("b"), 0.0)
    assert loads.rivals == 1


@dataclass
class _Sender:
    loads: LoadBook
    random: Random

    def hints(self, count: int) -> list[Hint]:
        """What it says while requests come and go."""
        said: list[Hint] = []
        open_requests: list[tuple[str, int]] = []
        for number in range(count):
            if open_requests and self.random.random() < 0.5:
                replica, tokens = open_requests.pop()
                self.loads.ended(replica, tokens, 2 * tokens)
            else:
                replica, tokens = self.random.choice("ab"), number + 1
                self.loads.dispatched(replica, tokens, 2 * tokens)
                open_requests.append((replica, tokens))
            said.append(self.loads.hint(replica))
        return said


@given(st.integers(0, 10_000), st.data())
def test_lost_repeated_and_late_hints_do_no_lasting_harm(seed: int, data: st.DataObject) -> None:
    sender = _Sender(book("g2"), Random(seed))
    hints = sender.hints(12)
    arrived = data.draw(st.lists(st.sampled_from(hints), max_size=24))
    loads = book()
    for hint in arrived:
        loads.receive(hint, 0.0)
    for replica in "ab":
        loads.receive(sender.loads.hint(replica), 1.0)
        assert figures(loads[replica]) == figures(sender.loads[replica])


def test_hints_are_numbered() -> None:
    hints = _Sender(book("g2"), Random(1)).hints(5)
    assert all(one.number < next_one.number for one, next_one in pairwise(hints))
