-- Routing documents: where the requests of an alias go. A change is a new version; what was in
-- force before stays, so that it can be again.
CREATE TABLE routing_documents (
    id          uuid PRIMARY KEY,
    alias       text NOT NULL,
    team_id     uuid REFERENCES teams (id),  -- null: of all teams that have none of their own
    version     integer NOT NULL CHECK (version > 0),
    document    jsonb,                       -- null: removed, the configuration's is in force
    created_at  timestamptz NOT NULL DEFAULT now(),
    changed_at  timestamptz NOT NULL DEFAULT now(),
    revision    bigint NOT NULL,
    UNIQUE NULLS NOT DISTINCT (alias, team_id)
);
CREATE INDEX routing_documents_revision ON routing_documents (revision);
CREATE INDEX routing_documents_team ON routing_documents (team_id);
CREATE TRIGGER routing_documents_stamp BEFORE INSERT OR UPDATE ON routing_documents
    FOR EACH ROW EXECUTE FUNCTION stamp_revision();

CREATE TABLE routing_versions (
    routing_id  uuid NOT NULL REFERENCES routing_documents (id),
    version     integer NOT NULL,
    document    jsonb,
    created_at  timestamptz NOT NULL DEFAULT now(),
    actor       text NOT NULL,
    PRIMARY KEY (routing_id, version)
);

-- Why a request to an `auto` alias went where it went. One row for each such usage record, with
-- its id and its time, written in the same transaction; partitioned alike. No text of prompts.
CREATE TABLE route_decisions (
    request_id            uuid NOT NULL,
    time                  timestamptz NOT NULL,
    team_id               uuid NOT NULL,
    key_id                uuid NOT NULL,
    alias                 text NOT NULL,
    mode                  text NOT NULL,             -- `score`, or the word that overrode it
    tier                  text NOT NULL,             -- that was decided on
    model                 text NOT NULL,             -- that was asked first
    model_used            text NOT NULL,             -- that answered
    tier_used             text NOT NULL,             -- of the one that answered
    score                 double precision NOT NULL, -- of the request, or its conversation's highest
    threshold             double precision,          -- of the tier; null: it has none
    reasons               text[] NOT NULL,
    scorer                text NOT NULL,
    features              bytea NOT NULL,            -- what was scored, hashed
    needs                 text[] NOT NULL,           -- capabilities that the request needs
    tokens                bigint NOT NULL,           -- context that it needs, estimated
    conversation          bytea NOT NULL,            -- hash of what stands for its conversation
    strong_model          text NOT NULL,             -- what would have answered without `auto`
    strong_cost_nano_usd  bigint NOT NULL,           -- what the same tokens would have cost there
    PRIMARY KEY (time, request_id)
) PARTITION BY RANGE (time);
-- An alias's own last rows are found by time: nearly all rows are of a few aliases.
CREATE INDEX route_decisions_team ON route_decisions (team_id, alias, time DESC);
CREATE INDEX route_decisions_request ON route_decisions (request_id);

-- The daily sums of them, kept in the transaction that adds the rows.
CREATE TABLE routing_daily (
    date                  date NOT NULL,
    team_id               uuid NOT NULL,
    alias                 text NOT NULL,
    tier_used             text NOT NULL,
    model_used            text NOT NULL,
    requests              bigint NOT NULL,
    cost_nano_usd         bigint NOT NULL,
    strong_cost_nano_usd  bigint NOT NULL,
    PRIMARY KEY (team_id, date, alias, tier_used, model_used)
);
