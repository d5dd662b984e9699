-- Versions of one's own models. What an engine loads never changes; stages and terms do.
CREATE TABLE model_versions (
    id                  uuid PRIMARY KEY,
    name                text NOT NULL,
    version             text NOT NULL,
    stage               text CHECK (stage IN ('prod', 'canary', 'shadow')),  -- null: serves nobody
    share               double precision CHECK (share BETWEEN 0 AND 100),    -- of a trial, percent
    pool                text NOT NULL,
    weights             text NOT NULL,
    manifest            jsonb NOT NULL,  -- path -> {sha256, size}
    context_length      integer NOT NULL CHECK (context_length > 0),
    capabilities        text[] NOT NULL,
    parallelism         jsonb NOT NULL,
    engine              jsonb NOT NULL,
    sampling            jsonb NOT NULL,
    price               jsonb,           -- USD per million tokens, decimal text; null: free
    tiers               text[] NOT NULL,
    default_max_tokens  integer CHECK (default_max_tokens > 0),
    created_at          timestamptz NOT NULL DEFAULT now(),
    staged_at           timestamptz,
    revision            bigint NOT NULL,
    UNIQUE (name, version),
    CHECK ((share IS NULL) = (stage IS NULL OR stage = 'prod'))
);
-- One version a stage, and one version a pool.
CREATE UNIQUE INDEX model_versions_stage ON model_versions (name, stage) WHERE stage IS NOT NULL;
CREATE UNIQUE INDEX model_versions_pool ON model_versions (pool) WHERE stage IS NOT NULL;
CREATE INDEX model_versions_revision ON model_versions (revision);
CREATE TRIGGER model_versions_stamp BEFORE INSERT OR UPDATE ON model_versions
    FOR EACH ROW EXECUTE FUNCTION stamp_revision();
