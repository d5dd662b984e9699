"""Several keys of one provider, taken in turn."""

from __future__ import annotations

import pytest

from sluice.router.breakers import Rest
from sluice.router.credentials import Credential, Credentials


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def credentials(clock: Clock) -> Credentials:
    return Credentials(["sk-a", "sk-b", "sk-c"], clock=clock)


def chosen(credentials: Credentials, scope: str | None = None) -> str:
    credential = credentials.choose(scope)
    assert credential is not None
    return credential.secret


def test_keys_take_turns(credentials: Credentials) -> None:
    assert [chosen(credentials) for _ in range(6)] == ["sk-a", "sk-b", "sk-c"] * 2


def test_a_resting_key_is_passed_over_and_comes_back(
    credentials: Credentials, clock: Clock
) -> None:
    credentials.rest(Credential.of("sk-b"), 5)
    assert [chosen(credentials) for _ in range(4)] == ["sk-a", "sk-c"] * 2
    clock.now += 5
    assert chosen(credentials) == "sk-b"


def test_a_limit_on_one_scope_leaves_the_others(credentials: Credentials) -> None:
    for secret in credentials.secrets():
        credentials.rest(Credential.of(secret), 5, scope="p/large")
    assert credentials.choose("p/large") is None
    assert credentials.choose("p/small") is not None
    assert credentials.resting("p/small") is None


def test_a_refused_key_rests_for_every_scope(clock: Clock) -> None:
    credentials = Credentials(["sk-a"], clock=clock)
    credentials.rest(Credential.of("sk-a"), 60, limited=False)
    assert credentials.choose("p/m") is None
    assert credentials.resting("p/m") == Rest(60, limited=False)


def test_the_soonest_key_says_when_to_come_back(credentials: Credentials) -> None:
    for secret, seconds in (("sk-a", 9), ("sk-b", 3), ("sk-c", 6)):
        assert credentials.resting() is None
        credentials.rest(Credential.of(secret), seconds, limited=secret == "sk-b")
    assert credentials.resting() == Rest(3, limited=True)


def test_case_76_a_shorter_rest_does_not_shorten_a_longer(clock: Clock) -> None:
    credentials = Credentials(["sk-a"], clock=clock)
    for seconds in (30, 40, 5):
        credentials.rest(Credential.of("sk-a"), seconds)
    assert credentials.resting() == Rest(40, limited=True)


def test_a_rest_is_capped(clock: Clock) -> None:
    credentials = Credentials(["sk-a"], max_rest=100, clock=clock)
    credentials.rest(Credential.of("sk-a"), 86_400)
    assert credentials.resting() == Rest(100, limited=True)


def test_rotation_keeps_what_is_known_of_keys_that_stay(credentials: Credentials) -> None:
    credentials.rest(Credential.of("sk-b"), 30)
    credentials.replace(["sk-b", "sk-d"])
    assert credentials.secrets() == ("sk-b", "sk-d")
    assert {chosen(credentials) for _ in range(3)} == {"sk-d"}


def test_a_call_under_way_with_a_replaced_key_hurts_nobody(credentials: Credentials) -> None:
    old = credentials.choose()
    assert old is not None
    credentials.replace(["sk-new"])
    credentials.rest(old, 60)
    assert chosen(credentials) == "sk-new"


def test_a_provider_is_never_left_without_a_key(credentials: Credentials) -> None:
    with pytest.raises(ValueError, match="at least one"):
        credentials.replace([])
    assert len(credentials) == 3


def test_equal_keys_are_one() -> None:
    assert len(Credentials(["sk-a", "sk-a"])) == 1


def test_no_repr_shows_a_key() -> None:
    secret = "sk-very-secret-indeed"
    credentials = Credentials([secret])
    credential = credentials.choose()
    assert credential is not None
    assert secret not in repr(credential) + repr(credentials) + credential.label
    assert credential.label != Credential.of("another").label
