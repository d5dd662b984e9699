"""The open batches, as workers see them."""

from __future__ import annotations

from datetime import timedelta

from sluice.gateway.batch.jobs import Jobs
from tests.gateway.batch.jobs_site import JobsSite, chat_lines


async def test_many_batches_of_one_team_hide_no_other_teams(emptied_site: JobsSite) -> None:
    team_id, _ = owner = await emptied_site.team()
    first = await emptied_site.submit(chat_lines(1), owner, timedelta(hours=1))
    await emptied_site.pool.execute(
        "INSERT INTO batches SELECT (jsonb_populate_record(b, jsonb_build_object("
        "'id', gen_random_uuid()))).* FROM batches b, generate_series(1, 1200) WHERE id = $1",
        first.id,
    )
    other = await emptied_site.submit(chat_lines(1), await emptied_site.other_team("other"))
    seen = await Jobs(emptied_site.pool).open()
    assert len(seen) == 1000
    assert [job.id for job in seen if job.team_id != team_id] == [other.id]
