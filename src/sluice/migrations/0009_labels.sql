-- What is known of how good routed answers were, and the models that were learnt from it.

-- One opinion about one request: of a caller, of the judge, or of a cheap signal. Scores are 0 to 1.
-- Prompts are here of teams only that have `keep_prompts`; features suffice for training.
CREATE TABLE route_labels (
    request_id    uuid NOT NULL,
    source        text NOT NULL,      -- `feedback:<name>`, `judge`, `signal:<name>`
    team_id       uuid NOT NULL,
    time          timestamptz NOT NULL DEFAULT now(),
    score         double precision CHECK (score BETWEEN 0 AND 1),         -- of the answer given
    strong_score  double precision CHECK (strong_score BETWEEN 0 AND 1),  -- of a comparison
    weak_score    double precision CHECK (weak_score BETWEEN 0 AND 1),
    prompt        text,
    PRIMARY KEY (request_id, source),
    CHECK (score IS NOT NULL OR (strong_score IS NOT NULL AND weak_score IS NOT NULL))
);
CREATE INDEX route_labels_time ON route_labels (time);

-- What comparisons cost, by day (UTC), so that all gateways together keep to the budget.
CREATE TABLE comparison_spend (
    day            date PRIMARY KEY,
    cost_nano_usd  bigint NOT NULL CHECK (cost_nano_usd >= 0)
);

-- Models that score requests, by the alias whose traffic they were learnt from.
CREATE TABLE router_models (
    id           uuid PRIMARY KEY,
    alias        text NOT NULL,
    version      integer NOT NULL,
    state        text NOT NULL CHECK (state IN ('candidate', 'active', 'retired')),
    origin       text NOT NULL CHECK (origin IN ('training', 'upload')),
    file         bytea NOT NULL CHECK (octet_length(file) <= 16777216),
    sha256       text NOT NULL,
    report       jsonb NOT NULL,      -- what training measured; scores that drift is told by
    created_at   timestamptz NOT NULL DEFAULT now(),
    promoted_at  timestamptz,
    revision     bigint NOT NULL,
    UNIQUE (alias, version)
);
CREATE UNIQUE INDEX router_models_active ON router_models (alias) WHERE state = 'active';
CREATE INDEX router_models_revision ON router_models (revision);
CREATE TRIGGER router_models_stamp BEFORE INSERT OR UPDATE ON router_models
    FOR EACH ROW EXECUTE FUNCTION stamp_revision();

-- How the loop last found each alias; gateways show it as metrics.
CREATE TABLE router_health (
    alias         text PRIMARY KEY,
    time          timestamptz NOT NULL,
    trained_at    timestamptz,        -- when a candidate was last made
    labels        bigint NOT NULL,
    score_psi     double precision,   -- the scores of now against those at the model's birth
    outcome_drop  double precision    -- by how much answers are surely worse than they were
);
