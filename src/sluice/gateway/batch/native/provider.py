"""The seam to a provider's batches.

ProviderError
├── ProviderRefused   it said no; nothing has begun
│   └── Unknown       it knows no such batch, or file of one
└── ProviderAway      it can't be asked now; what was asked for may have been done
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol
from uuid import UUID

from sluice.backends.base import Endpoint
from sluice.gateway.batch.native.results import Outcome
from sluice.gateway.batch.native.rules import NativePolicy
from sluice.router.credentials import Credential, Credentials

#: For one call, in seconds; a batch's requests may be of many megabytes.
CALL_SECONDS = 300.0

#: How far a provider's clock may be behind ours.
CLOCK_SKEW = timedelta(minutes=10)

#: Refusals, by their status, that asking again later may mend.
_PASSING = frozenset({408, 409, 425, 429})


class ProviderError(Exception):
    """A provider did not do what it was asked; the message holds no credential."""


class ProviderRefused(ProviderError):
    """It said no; nothing has begun."""


class Unknown(ProviderRefused):
    """It knows no such batch, or file of one."""


class ProviderAway(ProviderError):
    """It can't be asked now; what was asked for may have been done."""


def error_of(status: int, reason: str) -> ProviderError:
    """What a provider's status means.

    Args:
        status: an HTTP status of an error.
        reason: a word for it that holds neither keys nor parts of requests.
    """
    if status >= 500 or status in _PASSING:
        return ProviderAway(f"status {status}")
    kind = Unknown if status == 404 else ProviderRefused
    return kind(f"status {status}: {reason}")


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """One request, as the provider takes it.

    Attributes:
        name: its `custom_id` there; letters, digits and `-` only, 64 at most.
        body: a JSON object.
    """

    name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Submission:
    """A batch for a provider.

    Attributes:
        id: ours.
        endpoint: the provider's operation.
        made_at: when it was first thought of; it can't be at the provider any earlier.
    """

    id: UUID
    endpoint: Endpoint
    made_at: datetime
    requests: Sequence[NativeRequest]


@dataclass(frozen=True, slots=True)
class Progress:
    """How a batch at a provider is doing.

    Attributes:
        state: `failed` ones were not begun; `ended` ones have results of what was done.
        error: why it failed.
        files: of its results, where the provider has them as files.
    """

    state: Literal["running", "ended", "failed"]
    error: str | None = None
    files: tuple[str, ...] = ()


class ProviderBatches(Protocol):
    """The batches of one provider. Every method takes the provider's key, and raises
    `ProviderRefused` and `ProviderAway`."""

    async def submit(self, submission: Submission, key: str) -> str:
        """Hand a batch over; the provider's id of it."""
        ...

    async def find(self, submission: Submission, known: Sequence[str], key: str) -> str | None:
        """The provider's id of a batch that may have been handed over; None: it was not.

        Args:
            known: the provider's ids of other batches of ours.
        """
        ...

    async def progress(self, upstream_id: str, key: str) -> Progress:
        """How a batch is doing."""
        ...

    def results(
        self, upstream_id: str, progress: Progress, key: str
    ) -> AsyncIterator[Outcome | None]:
        """What came of its requests, in any order; None for what can't be read."""
        ...

    async def cancel(self, upstream_id: str, key: str) -> None:
        """Ask for its end; what is done stays done. Harmless where it has ended."""
        ...

    async def remove(self, upstream_id: str, progress: Progress, key: str) -> None:
        """Remove what it leaves at the provider, as far as the provider lets one."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


@dataclass(frozen=True, slots=True)
class NativeProvider:
    """A provider whose batches are used."""

    batches: ProviderBatches
    policy: NativePolicy
    credentials: Credentials

    def choose(self, deployment: str) -> Credential:
        """The key for a new batch: one that rests, if all do."""
        chosen = self.credentials.choose(deployment)
        return chosen or Credential.of(self.credentials.secrets()[0])

    def key(self, label: str) -> str:
        """The key that a batch was made with; another one where it was rotated away."""
        secrets = self.credentials.secrets()
        return next((each for each in secrets if Credential.of(each).label == label), secrets[0])
