"""What is measured: the interface that every gateway under test fills in."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from bench.wrk import Endpoint


@dataclass(frozen=True)
class UsageCheck:
    """Durable usage records beside what the load saw finish.

    The load stops in mid-flight, so up to one more record a connection is right.
    """

    finished: int
    in_flight_at_most: int
    recorded: int
    errors: int
    seconds_to_arrive: float

    @property
    def exact(self) -> bool:
        """Whether no record is missing, doubled, or marked as an error."""
        most = self.finished + self.in_flight_at_most
        return self.finished <= self.recorded <= most and not self.errors


@dataclass(frozen=True)
class Lane:
    """One way through a gateway, a row of the table."""

    label: str
    endpoint: Endpoint


@dataclass(frozen=True)
class Notes:
    """What a reader must know about a row."""

    version: str
    state: str = "none"


class Subject(ABC):
    """A gateway (or the mock itself), started afresh for each round."""

    #: As in `--only`.
    name: str
    #: Whether the held-stream test makes sense; a gateway that opens fifteen
    #: streams a second can't hold four thousand.
    holds = True
    #: How many lanes `start` returns.
    lanes = 1
    #: Whether its lanes are compared with each other: they take turns of seconds then.
    paired = False

    @abstractmethod
    def notes(self) -> Notes:
        """Version, and what state it keeps while measured. Valid before the start."""

    @abstractmethod
    def start(self, upstream: str) -> list[Lane]:
        """Start in front of a mock at `upstream`, and return once it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Stop what `start` started; do nothing if it hasn't been."""

    def close(self) -> None:  # noqa: B027 - most have nothing that does
        """Stop what outlives a round."""

    def resident_bytes(self) -> int | None:
        """Resident memory of the gateway's processes, where it has any."""
        return None

    def check_usage(self, finished: int, in_flight_at_most: int) -> UsageCheck | None:
        """Wait for the usage records of a load, where the gateway keeps any."""
        return None
