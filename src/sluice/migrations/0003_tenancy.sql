-- Organisations above teams, and limits at every level.

CREATE TABLE organisations (
    id          uuid PRIMARY KEY,
    name        text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9_.-]{0,63}$'),
    time_zone   text NOT NULL DEFAULT 'UTC',
    limits      jsonb NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL DEFAULT now(),
    revision    bigint NOT NULL
);
CREATE INDEX organisations_revision ON organisations (revision);
CREATE TRIGGER organisations_stamp BEFORE INSERT OR UPDATE ON organisations
    FOR EACH ROW EXECUTE FUNCTION stamp_revision();

-- The organisation of everything that was there before there were organisations, and of teams that
-- are made without naming one.
INSERT INTO organisations (id, name) VALUES ('01900000-0000-7000-8000-000000000001', 'default');

ALTER TABLE teams
    ADD COLUMN organisation_id uuid NOT NULL DEFAULT '01900000-0000-7000-8000-000000000001'
        REFERENCES organisations (id),
    ADD COLUMN limits jsonb NOT NULL DEFAULT '{}';
ALTER TABLE teams ALTER COLUMN organisation_id DROP DEFAULT;
UPDATE teams SET limits = jsonb_build_object('default_max_tokens', default_max_tokens)
    WHERE default_max_tokens IS NOT NULL;
ALTER TABLE teams DROP COLUMN default_max_tokens;
CREATE INDEX teams_organisation ON teams (organisation_id);

ALTER TABLE api_keys ADD COLUMN limits jsonb NOT NULL DEFAULT '{}';

-- Which gateway process served a request: what a process that died had spent is read from here.
ALTER TABLE usage_records ADD COLUMN gateway text NOT NULL DEFAULT '';

-- What was spent, by quarters of an hour: every time zone's midnight is on one. Kept in the
-- transaction that adds the rows; budgets are brought back from here.
CREATE TABLE spend_quarters (
    quarter        timestamptz NOT NULL,
    team_id        uuid NOT NULL,
    key_id         uuid NOT NULL,
    gateway        text NOT NULL,
    cost_nano_usd  bigint NOT NULL,
    PRIMARY KEY (team_id, quarter, key_id, gateway)
);
INSERT INTO spend_quarters
    SELECT date_bin('15 minutes', time, '2000-01-01 00:00+00'), team_id, key_id, gateway,
        sum(cost_nano_usd)
    FROM usage_records GROUP BY 1, 2, 3, 4;
