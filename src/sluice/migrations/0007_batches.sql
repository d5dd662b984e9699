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
    deleted_at  timestamptz         -- its object goes after it
);
CREATE INDEX files_team ON files (team_id, id) WHERE deleted_at IS NULL;
CREATE INDEX files_expiry ON files (expires_at) WHERE deleted_at IS NULL;

CREATE TABLE batches (
    id                uuid PRIMARY KEY,
    team_id           uuid NOT NULL REFERENCES teams (id),
    key_id            uuid NOT NULL,
    endpoint          text NOT NULL,         -- `chat/completions`, …; of all its lines
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
    cost_nano_usd     bigint NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL DEFAULT now(),
    expires_at        timestamptz NOT NULL,  -- when its window closes
    in_progress_at    timestamptz,
    finalizing_at     timestamptz,
    completed_at      timestamptz,
    failed_at         timestamptz,
    expired_at        timestamptz,
    cancelling_at     timestamptz,
    cancelled_at      timestamptz
);
CREATE INDEX batches_team ON batches (team_id, id);
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
    request_id   uuid NOT NULL,              -- of the next attempt, and of its usage record: one
                                             -- that runs again after a crash is charged once
    attempts     integer NOT NULL DEFAULT 0, -- whose outcome is known
    not_before   timestamptz,
    worker       uuid,
    lease_until  timestamptz,
    native_batch uuid,
    PRIMARY KEY (batch_id, line)
);
CREATE INDEX batch_items_pending ON batch_items (batch_id, line) WHERE state = 'pending';
CREATE INDEX batch_items_leased ON batch_items (lease_until) WHERE state = 'running';

-- What came of an item, exactly once: the primary key says so.
CREATE TABLE batch_results (
    batch_id    uuid NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    line        integer NOT NULL,
    sequence    bigint GENERATED ALWAYS AS IDENTITY,  -- resuming readers go by it
    ok          boolean NOT NULL,                     -- output file, or error file
    result      text NOT NULL,                        -- the line of that file
    PRIMARY KEY (batch_id, line)
);
CREATE INDEX batch_results_sequence ON batch_results (batch_id, sequence);
