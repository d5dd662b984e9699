"""The believed caches, against a model that is too simple to be wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.router.pool.index import PrefixIndex

REPLICAS = ("a", "b", "c")


class NaiveCache:
    """A list, oldest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: list[int] = []

    def insert(self, hashes: Sequence[int]) -> None:
        for block in reversed(hashes):
            if block in self.blocks:
                self.blocks.remove(block)
            self.blocks.append(block)
        self.blocks = self.blocks[-self.capacity :]

    def forget(self, hashes: Sequence[int]) -> None:
        self.blocks = [block for block in self.blocks if block not in hashes]

    def depth(self, hashes: Sequence[int]) -> int:
        for depth, block in enumerate(hashes):
            if block not in self.blocks:
                return depth
        return len(hashes)


prompts = st.lists(st.integers(0, 12), max_size=6, unique=True).map(tuple)
operations = st.lists(
    st.tuples(
        st.sampled_from(["insert", "forget", "clear", "rejoin"]), st.sampled_from(REPLICAS), prompts
    ),
    max_size=40,
)


@given(operations, st.lists(prompts, min_size=1, max_size=5))
@settings(max_examples=300)
def test_it_equals_a_naive_model(
    done: list[tuple[str, str, tuple[int, ...]]], asked: list[tuple[int, ...]]
) -> None:
    index = PrefixIndex()
    naive = {replica: NaiveCache(5) for replica in REPLICAS}
    for replica in REPLICAS:
        index.add(replica, 5)
    for operation, replica, hashes in done:
        if operation == "insert":
            index.insert(replica, hashes)
            naive[replica].insert(hashes)
        elif operation == "forget":
            index.forget(replica, hashes)
            naive[replica].forget(hashes)
        else:
            naive[replica].blocks.clear()
            if operation == "clear":
                index.clear(replica)
            else:
                index.remove(replica)
                index.add(replica, 5)
        for prompt in asked:
            expected = {name: cache.depth(prompt) for name, cache in naive.items()}
            assert index.match(prompt) == {name: deep for name, deep in expected.items() if deep}
            assert {name: index.depth(name, prompt) for name in REPLICAS} == expected
    for replica in REPLICAS:
        assert index.size(replica) == len(naive[replica].blocks) <= 5


def test_a_chain_goes_from_its_tail() -> None:
    index = PrefixIndex()
    index.add("a", 4)
    index.insert("a", (1, 2, 3, 4))
    index.insert("a", (9,))
    assert index.depth("a", (1, 2, 3, 4)) == 3


def test_who_left_is_not_found_and_its_place_is_used_again() -> None:
    index = PrefixIndex()
    index.add("a", 4)
    index.add("b", 4)
    index.insert("a", (1, 2))
    index.insert("b", (1,))
    index.remove("a")
    index.remove("a")
    assert index.match((1, 2)) == {"b": 1}
    index.add("c", 4)
    assert index.match((1, 2)) == {"b": 1}
    index.insert("c", (1, 2))
    assert index.match((1, 2)) == {"b": 1, "c": 2}


def test_unknown_replicas_are_ignored() -> None:
    index = PrefixIndex()
    index.insert("a", (1,))
    index.forget("a", (1,))
    index.clear("a")
    index.correct("a", (1,), 1, 0)
    assert "a" not in index
    assert index.match((1,)) == {}


def test_a_replica_is_added_once_and_has_room() -> None:
    index = PrefixIndex()
    index.add("a", 1)
    with pytest.raises(ValueError, match="already"):
        index.add("a", 1)
    with pytest.raises(ValueError, match="at least one block"):
        index.add("b", 0)


def test_too_much_believed_shrinks_it_and_drops_the_oldest() -> None:
    index = PrefixIndex()
    index.add("a", 100)
    for start in range(0, 100, 2):
        index.insert("a", (start, start + 1))
    index.correct("a", (0, 1), believed=2, cached=0)
    assert index.capacity("a") == 97
    assert index.size("a") == 97
    assert index.depth("a", (0, 1)) == 2
    assert index.depth("a", (2, 3)) == 0


def test_too_little_believed_lets_it_grow_to_what_was_declared() -> None:
    index = PrefixIndex()
    index.add("a", 100)
    index.insert("a", range(100))
    for _ in range(100):
        index.correct("a", (1, 2), believed=2, cached=0)
    assert index.capacity("a") == 25
    for _ in range(100):
        index.correct("a", (1, 2), believed=0, cached=2)
    assert index.capacity("a") == 100
    index.correct("a", (1, 2), believed=2, cached=2)
    assert index.capacity("a") == 100


def test_who_evicts_has_no_room_to_spare() -> None:
    index = PrefixIndex()
    index.add("a", 100)
    index.insert("a", (1, 2, 3))
    assert index.free("a") == 97
    index.evicted("a", (3, 9))
    assert (index.depth("a", (1, 2, 3)), index.free("a")) == (2, 0)
    index.evicted("b", (1,))
    index.clear("a")
    assert index.free("a") == 100
