"""What is asked of Postgres for items and batches, by name.

Items move `pending -> running -> done`; from `running` back to `pending` by a retry, a release or
a lapsed lease. `native` ones are with a provider's own batches, and end the same way.
"""

from __future__ import annotations

#: Items that may run now, each batch's first ones. Those that somebody else is taking are skipped.
#: The order of `picked` is that of the new request ids.
CLAIM = """
WITH picked AS (
    SELECT one.batch_id, one.line, row_number() OVER () AS number
    FROM unnest($1::uuid[], $2::int[]) AS wanted (batch_id, most), LATERAL (
        SELECT item.batch_id, item.line FROM batch_items AS item
        JOIN batches AS batch ON batch.id = item.batch_id
        WHERE item.batch_id = wanted.batch_id AND item.state = 'pending'
            AND (item.not_before IS NULL OR item.not_before <= now())
            AND batch.status = 'in_progress' AND batch.expires_at > now()
        ORDER BY item.line LIMIT wanted.most
        FOR UPDATE OF item SKIP LOCKED
    ) AS one
)
UPDATE batch_items AS item SET
    state = 'running', worker = $3, request_id = ($4::uuid[])[picked.number],
    lease_until = now() + make_interval(secs => $5)
FROM picked, batches AS batch, files AS file
WHERE item.batch_id = picked.batch_id AND item.line = picked.line
    AND batch.id = item.batch_id AND file.id = batch.input_file
RETURNING item.batch_id, item.line, item.custom_id, item.model, item.request_id, item.attempts,
    batch.endpoint, batch.team_id, batch.key_id, batch.priority, batch.expires_at,
    file.object, item.byte_offset AS "offset", item.byte_length AS length
"""

RENEW = """
UPDATE batch_items AS item SET lease_until = now() + make_interval(secs => $4)
FROM unnest($2::uuid[], $3::int[]) AS held (batch_id, line)
WHERE item.batch_id = held.batch_id AND item.line = held.line
    AND item.worker = $1 AND item.state = 'running'
RETURNING item.batch_id, item.line
"""

RELEASE = """
UPDATE batch_items SET state = 'pending', worker = NULL, lease_until = NULL
WHERE worker = $1 AND state = 'running'
"""

#: Items whose lease is over. Those that were lost too often stay with the dead worker for another
#: lease, within which whoever found them ends them; if it dies too, they are found again.
LAPSED = """
WITH lapsed AS (
    SELECT batch_id, line FROM batch_items
    WHERE state = 'running' AND lease_until < now()
        AND pg_postmaster_start_time() < now() - make_interval(secs => $1)
    ORDER BY lease_until LIMIT 1000 FOR UPDATE SKIP LOCKED
)
UPDATE batch_items AS item SET
    losses = losses + 1,
    state = CASE WHEN losses + 1 < $2 THEN 'pending' ELSE 'running' END,
    worker = CASE WHEN losses + 1 < $2 THEN NULL ELSE worker END,
    lease_until = CASE WHEN losses + 1 < $2 THEN NULL
                  ELSE now() + make_interval(secs => $1) END
FROM lapsed WHERE item.batch_id = lapsed.batch_id AND item.line = lapsed.line
RETURNING item.batch_id, item.line, item.custom_id, item.request_id, item.losses
"""

#: First of everything that counts in batches, in this order: nobody waits in a circle.
LOCK_BATCHES = """
SELECT id FROM batches WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE
"""

FINISH = """
WITH given AS (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::bool[], $4::text[],
            $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
        AS given (batch_id, line, ok, result, cost, input, cached, output)
), ended AS (
    UPDATE batch_items AS item SET state = 'done', worker = NULL, lease_until = NULL
    FROM given
    WHERE item.batch_id = given.batch_id AND item.line = given.line AND item.state <> 'done'
    RETURNING given.*
), stored AS (
    INSERT INTO batch_results (batch_id, line, ok, result)
    SELECT batch_id, line, ok, result FROM ended
    ON CONFLICT DO NOTHING
), counted AS (
    UPDATE batches SET
        completed = batches.completed + sums.completed, failed = batches.failed + sums.failed,
        cost_nano_usd = batches.cost_nano_usd + sums.cost,
        input_tokens = batches.input_tokens + sums.input,
        cached_tokens = batches.cached_tokens + sums.cached,
        output_tokens = batches.output_tokens + sums.output
    FROM (
        SELECT batch_id, count(*) FILTER (WHERE ok) AS completed,
            count(*) FILTER (WHERE NOT ok) AS failed, sum(cost)::bigint AS cost,
            sum(input)::bigint AS input, sum(cached)::bigint AS cached,
            sum(output)::bigint AS output
        FROM ended GROUP BY batch_id
    ) AS sums
    WHERE batches.id = sums.batch_id
)
SELECT batch_id, line FROM ended
"""

RETRY = """
WITH given AS (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::float8[], $5::int[],
            $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[])
        AS given (batch_id, line, request_id, seconds, attempts, cost, input, cached, output)
), again AS (
    UPDATE batch_items AS item SET
        state = 'pending', worker = NULL, lease_until = NULL,
        attempts = item.attempts + given.attempts,
        not_before = now() + make_interval(secs => given.seconds)
    FROM given
    WHERE item.batch_id = given.batch_id AND item.line = given.line
        AND item.request_id = given.request_id AND item.state = 'running'
    RETURNING given.*
), counted AS (
    UPDATE batches SET
        cost_nano_usd = batches.cost_nano_usd + sums.cost,
        input_tokens = batches.input_tokens + sums.input,
        cached_tokens = batches.cached_tokens + sums.cached,
        output_tokens = batches.output_tokens + sums.output
    FROM (
        SELECT batch_id, sum(cost)::bigint AS cost, sum(input)::bigint AS input,
            sum(cached)::bigint AS cached, sum(output)::bigint AS output
        FROM again GROUP BY batch_id
    ) AS sums
    WHERE batches.id = sums.batch_id AND sums.cost + sums.input + sums.output > 0
)
SELECT batch_id, line FROM again
"""

CLOSING = """
SELECT line, custom_id, request_id FROM batch_items
WHERE batch_id = $1 AND state = ANY($2) ORDER BY line LIMIT 2000 FOR UPDATE
"""

#: Open batches, and how far they are. What is not done and not running waits, or is native. Of each
#: team there are its first ones, so that many batches of one team hide no other team's.
OPEN_BATCHES = """
SELECT batch.id, batch.team_id, batch.model, batch.priority, batch.live,
    extract(epoch FROM batch.expires_at - now())::float8 AS seconds_left,
    batch.total - batch.completed - batch.failed - coalesce(busy.running, 0)
        - coalesce(busy.native, 0) AS waiting,
    coalesce(busy.running, 0) AS running, coalesce(busy.native, 0) AS native,
    extract(epoch FROM now() - batch.created_at)::float8 AS age_seconds
FROM (
    SELECT *, row_number() OVER (PARTITION BY team_id ORDER BY expires_at, id) AS turn
    FROM batches WHERE status = 'in_progress' AND expires_at > now()
) AS batch
LEFT JOIN (
    SELECT batch_id, sum(running)::int AS running, sum(native)::int AS native
    FROM (  -- each by its own partial index
        SELECT batch_id, 1 AS running, 0 AS native FROM batch_items WHERE state = 'running'
        UNION ALL
        SELECT batch_id, 0, 1 FROM batch_items WHERE state = 'native'
    ) AS each GROUP BY batch_id
) AS busy ON busy.batch_id = batch.id
ORDER BY batch.turn, batch.expires_at LIMIT 1000
"""

#: Batches whose items are not begun any more, and since when, in seconds.
CLOSING_BATCHES = """
SELECT id, status, extract(epoch FROM now()
    - CASE status WHEN 'cancelling' THEN cancelling_at ELSE expires_at END)::float8 AS seconds
FROM batches
WHERE completed + failed < total
    AND (status = 'cancelling' OR (status = 'in_progress' AND expires_at <= now()))
ORDER BY expires_at LIMIT 100
"""

NOTE_EXPIRED = "UPDATE batches SET expired_at = coalesce(expired_at, now()) WHERE id = $1"

COMPLETE_BATCHES = """
UPDATE batches SET status = 'finalizing', finalizing_at = now()
WHERE status = 'in_progress' AND completed + failed >= total
"""

#: A batch that is being cancelled keeps its state until it is.
_FINALIZING = """
(status = 'finalizing' OR (status = 'cancelling' AND completed + failed >= total))
"""

FINALIZING_BATCHES = f"SELECT id FROM batches WHERE {_FINALIZING} ORDER BY expires_at LIMIT 100"

#: Until the connection is released, or its process dies.
TAKE_FINALIZING = "SELECT pg_try_advisory_lock(hashtextextended('sluice-finalize:' || $1, 0))"

FINALIZED_BATCH = f"""
SELECT id, team_id, key_id, endpoint, completed, failed,
    extract(epoch FROM output_expires)::integer AS output_seconds
FROM batches WHERE id = $1 AND {_FINALIZING}
"""

#: The next results, as many as may be held together; one at least, if there is one.
RESULTS = """
SELECT sequence, result FROM (
    SELECT sequence, result,
        sum(octet_length(result)) OVER (ORDER BY sequence) - octet_length(result) AS before
    FROM (
        SELECT sequence, result FROM batch_results
        WHERE batch_id = $1 AND ok = $2 AND sequence > $3 ORDER BY sequence LIMIT 50
    ) AS page
) AS measured
WHERE before < 8388608 ORDER BY sequence
"""

END_BATCH = f"""
UPDATE batches SET
    status = CASE WHEN cancelling_at IS NOT NULL THEN 'cancelled'
                  WHEN expired_at IS NOT NULL THEN 'expired' ELSE 'completed' END,
    output_file = $2, error_file = $3,
    cancelled_at = CASE WHEN cancelling_at IS NOT NULL THEN now() END,
    completed_at = CASE WHEN cancelling_at IS NULL AND expired_at IS NULL THEN now() END
WHERE id = $1 AND {_FINALIZING}
RETURNING status
"""
