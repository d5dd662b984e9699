-- Teams, keys and the usage ledger.

-- Every change of the control plane takes the next revision, under a lock that is held until its
-- commit: revisions become visible in order, so that a reader who asks for "newer than n" misses
-- nothing.
CREATE SEQUENCE control_revision;

CREATE FUNCTION stamp_revision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7363621);
    NEW.revision := nextval('control_revision');
    RETURN NEW;
END $$;

CREATE TABLE teams (
    id                  uuid PRIMARY KEY,
    name                text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9_.-]{0,63}$'),
    default_max_tokens  integer CHECK (default_max_tokens > 0),
    created_at          timestamptz NOT NULL DEFAULT now(),
    revision            bigint NOT NULL
);
CREATE INDEX teams_revision ON teams (revision);
CREATE TRIGGER teams_stamp BEFORE INSERT OR UPDATE ON teams
    FOR EACH ROW EXECUTE FUNCTION stamp_revision();

CREATE TABLE api_keys (
    id          uuid PRIMARY KEY,
    team_id     uuid NOT NULL REFERENCES teams (id),
    name        text NOT NULL DEFAULT '',
    hash        bytea NOT NULL UNIQUE,       -- SHA-256 of the key; the key itself is kept nowhere
    hint        text NOT NULL,               -- its recognisable beginning and end
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz,
    revoked_at  timestamptz,                 -- may lie ahead, for a rotation with overlap
    revision    bigint NOT NULL
);
CREATE INDEX api_keys_revision ON api_keys (revision);
CREATE INDEX api_keys_team ON api_keys (team_id);
CREATE TRIGGER api_keys_stamp BEFORE INSERT OR UPDATE ON api_keys
    FOR EACH ROW EXECUTE FUNCTION stamp_revision();

CREATE TABLE admin_keys (
    id          uuid PRIMARY KEY,
    hash        bytea NOT NULL UNIQUE,
    hint        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- One row a request, partitioned by UTC day. Ids are UUIDv7 and `time` is a function of the
-- event, so the same event always meets the same primary key.
CREATE TABLE usage_records (
    request_id           uuid NOT NULL,
    time                 timestamptz NOT NULL,
    team_id              uuid NOT NULL,
    key_id               uuid NOT NULL,
    endpoint             text NOT NULL,
    model                text NOT NULL,
    model_used           text NOT NULL,
    deployment           text NOT NULL,
    tier                 text NOT NULL,
    status               text NOT NULL,
    error_code           text,
    input_tokens         bigint NOT NULL,
    cached_input_tokens  bigint NOT NULL,
    cache_write_tokens   bigint NOT NULL,
    output_tokens        bigint NOT NULL,
    estimated            boolean NOT NULL,
    cost_nano_usd        bigint NOT NULL,
    latency_us           bigint NOT NULL,
    ttft_us              bigint,
    attempts             integer NOT NULL,
    PRIMARY KEY (time, request_id)
) PARTITION BY RANGE (time);
CREATE INDEX usage_records_team ON usage_records (team_id, time DESC, request_id DESC);
CREATE INDEX usage_records_request ON usage_records (request_id);

-- The daily sums that reports read, kept in the transaction that adds the rows.
CREATE TABLE usage_daily (
    date                 date NOT NULL,
    team_id              uuid NOT NULL,
    key_id               uuid NOT NULL,
    model_used           text NOT NULL,
    tier                 text NOT NULL,
    requests             bigint NOT NULL,
    errors               bigint NOT NULL,
    cancelled            bigint NOT NULL,
    estimated            bigint NOT NULL,
    input_tokens         bigint NOT NULL,
    cached_input_tokens  bigint NOT NULL,
    cache_write_tokens   bigint NOT NULL,
    output_tokens        bigint NOT NULL,
    cost_nano_usd        bigint NOT NULL,
    PRIMARY KEY (team_id, date, key_id, model_used, tier)
);

-- Events that the ledger could not take, kept for a person to look at.
CREATE TABLE usage_rejected (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    time        timestamptz NOT NULL DEFAULT now(),
    event       text NOT NULL,
    reason      text NOT NULL
);
