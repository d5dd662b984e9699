"""The configuration of files and batches."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

_SECRET_WORDS = ("key", "secret", "token", "password")


class BatchWorkerSettings(BaseModel):
    """How each batch worker goes about its work; see `WorkerConfig`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_concurrent: int = Field(256, gt=0, le=10_000)
    max_concurrent_per_model: int = Field(128, gt=0, le=10_000)
    attempts: int = Field(5, ge=1, le=100)
    lease_seconds: float = Field(15.0, ge=1, le=600)
    grace_seconds: float = Field(60.0, ge=0, le=600)


class BatchSettings(BaseModel):
    """The section `batch`.

    Attributes:
        storage: a folder, or the URL of an object store; None: the folder of the environment.
        storage_options: of the object store, by its library's names.
        team_bytes: what one team may keep in files.
        team_files: how many files one team may have on record.
        team_batches, team_requests: how many batches it may, and requests in them together.
        max_file_bytes: of one file.
        input_days: how long a batch's input is kept, where its upload doesn't say.
        record_days: how long a batch's record and its results stay after its end.
        workers: of the batch workers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    storage: str | None = None
    storage_options: dict[str, str] = Field(default={})
    team_bytes: int = Field(20 * 1024**3, gt=0)
    team_files: int = Field(100_000, gt=0)
    team_batches: int = Field(20_000, gt=0)
    team_requests: int = Field(10_000_000, gt=0)
    max_file_bytes: int = Field(512 * 1024**2, gt=0)
    input_days: float = Field(30.0, gt=0)
    record_days: float = Field(30.0, gt=0)
    workers: BatchWorkerSettings = BatchWorkerSettings()

    @field_validator("storage")
    @classmethod
    def _place(cls, value: str | None) -> str | None:
        if value is not None and "://" in value and "@" in urlsplit(value).netloc:
            raise ValueError("must not hold credentials; give them as `storage_options`")
        return value

    def storage_secrets(self) -> list[str]:
        """The options that are credentials."""
        options = self.storage_options.items()
        return [value for name, value in options if any(w in name.lower() for w in _SECRET_WORDS)]
