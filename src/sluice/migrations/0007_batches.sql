-- Files that tenants keep, and the jobs made of them. Contents lie in the object store; what is
-- claimed, counted and promised lies here.
CREATE TABLE files (
    id          uuid PRIMARY KEY,
    team_id     uuid NOT NULL REFERENCES teams (id),
    key_id      uuid,
    purpose     text NOT NULL,
    filename    text NOT NULL,
    bytes       bigint NOT NULL CHECK (bytes >= 0),
    object      text NOT NULL,      -- its path in the object store
    lines       integer,            -- requests in it, where its purpose is batch
    endpoint    text,               -- of those requests
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz,
    deleted_at  timestamptz,        -- its object goes after it; set until an upload is complete
    removed_at  timestamptz         -- its object is gone
);
CREATE INDEX files_team ON files (team_id, id) WHERE deleted_at IS NULL;
CREATE INDEX files_expiry ON files (expires_at) WHERE deleted_at IS NULL;
CREATE INDEX files_unfinished ON files (team_id) WHERE purpose = 'unfinished';
CREATE INDEX files_to_remove ON files (deleted_at)
    WHERE deleted_at IS NOT NULL AND removed_at IS NULL;

CREATE TABLE batches (
    id                uuid PRIMARY KEY,
    team_id           uuid NOT NULL REFERENCES teams (id),
    key_id            uuid NOT NULL,
    endpoint          text NOT NULL,         -- `chat/completions`, …; of all its lines
    model             text NOT NULL,         -- of all its lines
    input_file        uuid NOT NULL REFERENCES files (id),
    output_file       uuid REFERENCES files (id),
    error_file        uuid REFERENCES files (id),
    status            text NOT NULL CHECK (status IN ('validating', 'failed', 'in_progress',
                          'finalizing', 'completed', 'expired', 'cancelling', 'cancelled')),
    priority          text NOT NULL DEFAULT 'normal',
    completion_window interval NOT NULL,
    output_expires    interval,
    metadata          jsonb,
    callback          jsonb,                 -- url and how its deliveries went
    errors            jsonb,                 -- why it failed
    total             integer NOT NULL DEFAULT 0,
    completed         integer NOT NULL DEFAULT 0,
    failed            integer NOT NULL DEFAULT 0,
    input_tokens      bigint NOT NULL DEFAULT 0,  -- of what is done, with its cost
    cached_tokens     bigint NOT NULL DEFAULT 0,  -- of the input tokens
    output_tokens     bigint NOT NULL DEFAULT 0,
    cost_nano_usd     bigint NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL DEFAULT now(),
    expires_at        timestamptz NOT NULL,  -- when its window closes
    in_progress_at    timestamptz,
    finalizing_at     timestamptz,
    completed_at      timestamptz,
    failed_at         timestamptz,
    expired_at        timestamptz,
    cancelling_at     timestamptz,
    cancelled_at      timestamptz,
    once_key          bytea,                 -- hash of the call's Idempotency-Key, if it had one,
    once_content      bytea                  -- and of its body
);
CREATE INDEX batches_team ON batches (team_id, id);
CREATE UNIQUE INDEX batches_once ON batches (team_id, once_key) WHERE once_key IS NOT NULL;
CREATE INDEX batches_input ON batches (input_file);
CREATE INDEX batches_output ON batches (output_file) WHERE output_file IS NOT NULL;
CREATE INDEX batches_errors ON batches (error_file) WHERE error_file IS NOT NULL;
CREATE INDEX batches_open ON batches (status, expires_at)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');

-- One request of a batch. Its text is a range of the input file.
CREATE TABLE batch_items (
    batch_id     uuid NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    line         integer NOT NULL,           -- in the input, from 1
    custom_id    text NOT NULL,
    model        text NOT NULL,
    byte_offset  bigint NOT NULL,
    byte_length  integer NOT NULL,
    state        text NOT NULL DEFAULT 'pending'
                 CHECK (state IN ('pending', 'running', 'native', 'done')),
    request_id   uuid NOT NULL,              -- of the last run, and of its usage record: each
                                             -- claim has a new one, the first outcome counts
    attempts     integer NOT NULL DEFAULT 0, -- whose outcome is known
    not_before   timestamptz,
    worker       uuid,
    lease_until  timestamptz,
    native_batch uuid,
    PRIMARY KEY (batch_id, line)
);
CREATE INDEX batch_items_pending ON batch_items (batch_id, line) WHERE state = 'pending';
CREATE INDEX batch_items_leased ON batch_items (lease_until) WHERE state = 'running';

-- What came of an item, exactly once: the primary key says so. Who adds results locks the batch's
-- row first: sequences then become visible in their order, and a reader who goes on after the last
-- one it has seen misses none.
CREATE TABLE batch_results (
    batch_id    uuid NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    line        integer NOT NULL,
    sequence    bigint GENERATED ALWAYS AS IDENTITY,  -- resuming readers go by it
    ok          boolean NOT NULL,                     -- output file, or error file
    result      text NOT NULL,                        -- the line of that file
    PRIMARY KEY (batch_id, line)
);
CREATE INDEX batch_results_sequence ON batch_results (batch_id, sequence);

-- Callbacks are looked for among the batches that have one which is not settled.
CREATE INDEX batches_callback ON batches (team_id, id)
    WHERE callback IS NOT NULL AND NOT callback ? 'ended';

-- Of the secrets that sign callbacks, which generation a team is at; none here: the first.
CREATE TABLE callback_secrets (
    team_id        uuid PRIMARY KEY REFERENCES teams (id),
    generation     integer NOT NULL,
    overlap_until  timestamptz NOT NULL     -- until then the generation before signs as well
);
INSERT INTO installation_secrets (name, value)
    VALUES ('callback_signing', decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));

-- It was decided what of a batch goes to a provider's own batches: whatever is pending is called
-- live. Until then, workers leave alone what may go natively.
ALTER TABLE batches ADD COLUMN live boolean NOT NULL DEFAULT false;

-- A batch at a provider, made of items of one of ours. The items are in state `native` until it is
-- reconciled, and refer to it.
CREATE TABLE native_batches (
    id            uuid PRIMARY KEY,
    batch_id      uuid NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    provider      text NOT NULL,
    model         text NOT NULL,             -- the catalogue's
    deployment    text NOT NULL,             -- `provider/upstream model`
    credential    text NOT NULL,             -- label of the provider's key that it was made with
    state         text NOT NULL DEFAULT 'submitting'
                  CHECK (state IN ('submitting', 'submitted', 'done')),
    upstream_id   text,                      -- the provider's id of it
    items         integer NOT NULL,          -- that it was to be made of
    need_nano_usd bigint NOT NULL DEFAULT 0, -- what they may cost; promised until it is done
    created_at    timestamptz NOT NULL DEFAULT now(),
    cancelling_at timestamptz,               -- when the provider was asked for its end
    error         text,                      -- why it came to nothing
    next_at       timestamptz NOT NULL DEFAULT now()   -- when it is looked at again, and by then
                                                       -- by another process if this one is gone
);
CREATE INDEX native_batches_open ON native_batches (next_at) WHERE state <> 'done';
CREATE INDEX native_batches_batch ON native_batches (batch_id);
CREATE INDEX batch_items_native ON batch_items (native_batch) WHERE state = 'native';

-- How often an item's worker was lost while it had the item: one that kills workers is given up.
ALTER TABLE batch_items ADD COLUMN losses integer NOT NULL DEFAULT 0;
