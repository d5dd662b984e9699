"""The front doors of files and batches, joined."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import asyncpg
from litestar import Router

from sluice.gateway.batch.batches import Batches, BatchQuota
from sluice.gateway.batch.files import Files
from sluice.gateway.batch.settings import BatchSettings
from sluice.gateway.batch.storage import Storage
from sluice.gateway.batch.submissions import AliasOf, SubmissionLimits, Submissions
from sluice.gateway.batch.sweeper import FileSweeper
from sluice.gateway.batch.uploads import Uploads
from sluice.gateway.egress import Egress
from sluice.gateway.routes.access import Access
from sluice.gateway.routes.batches import TeamBatches, batches_routes
from sluice.gateway.routes.counted_calls import CountedCalls
from sluice.gateway.routes.files import FileLimits, TeamFiles, file_routes
from sluice.gateway.routes.jobs import job_routes
from sluice.gateway.settings import Config
from sluice.gateway.startup_errors import ConfigError
from sluice.router.catalog import Catalog

_DAY = 86_400


@dataclass(frozen=True, slots=True)
class BatchDoors:
    """What a gateway serves of files and batches, and what runs beside."""

    routes: list[Router]
    sweeper: FileSweeper


def create_storage(settings: BatchSettings, folder: Path) -> Storage:
    """Where files lie.

    Args:
        folder: where the settings name no place.

    Raises:
        ConfigError: the place that they name can't be used.
    """
    place: Path | str = folder
    if settings.storage is not None:
        is_url = "://" in settings.storage
        place = settings.storage if is_url else Path(settings.storage)
    try:
        return Storage(place, settings.storage_options)
    except (ValueError, OSError) as error:
        raise ConfigError(f"batch.storage: {error}") from None


def create_batch_doors(
    config: Config,
    storage: Storage,
    pool: asyncpg.Pool,
    catalog: Catalog,
    alias_of: AliasOf,
    access: Access,
    counted: CountedCalls,
) -> BatchDoors:
    """Join them; nothing runs until the sweeper is started."""
    settings = config.batch
    files = Files(pool, settings.team_bytes, settings.team_files)
    uploads = Uploads(storage, files)
    batches = Batches(pool, BatchQuota(settings.team_batches, settings.team_requests))
    input_seconds = int(settings.input_days * _DAY)
    submissions = Submissions(
        storage,
        uploads,
        batches,
        catalog,
        alias_of,
        Egress(config.egress.policy()),
        SubmissionLimits(config.server.max_body_bytes, input_seconds),
    )
    team = TeamBatches(batches, access)
    team_files = TeamFiles(
        files,
        storage,
        uploads,
        lambda: submissions.scan(keep=False),
        FileLimits(settings.max_file_bytes, input_seconds),
        access,
    )
    routes = [
        *file_routes(team_files),
        *batches_routes(team, files, submissions),
        *job_routes(team, batches, submissions, config.server.max_body_bytes),
    ]
    return BatchDoors(
        [Router("/", route_handlers=routes, middleware=[counted])],
        FileSweeper(pool, storage, timedelta(days=settings.record_days)),
    )
