-- Administration: archiving, admin tokens with roles, and a log of every change.

-- From then on the keys of an archived organisation or team are refused. Its rows stay, because
-- usage refers to them, and so does its name.
ALTER TABLE organisations ADD COLUMN archived_at timestamptz;
ALTER TABLE teams ADD COLUMN archived_at timestamptz;

-- The key that a rotation put in this one's place.
ALTER TABLE api_keys ADD COLUMN replaced_by uuid REFERENCES api_keys (id);

CREATE TABLE admin_tokens (
    id               uuid PRIMARY KEY,
    name             text NOT NULL,
    role             text NOT NULL CHECK (role IN ('owner', 'team_admin', 'auditor')),
    organisation_id  uuid REFERENCES organisations (id),  -- null: the whole installation
    team_id          uuid REFERENCES teams (id),          -- null: all teams of that
    scopes           text[],                              -- null: all that the role has
    hash             bytea NOT NULL UNIQUE,  -- SHA-256 of the token; the token itself is kept nowhere
    hint             text NOT NULL,          -- its recognisable beginning and end
    created_at       timestamptz NOT NULL DEFAULT now(),
    expires_at       timestamptz,
    revoked_at       timestamptz,
    revision         bigint NOT NULL,
    CHECK (team_id IS NULL OR organisation_id IS NOT NULL)
);
CREATE INDEX admin_tokens_revision ON admin_tokens (revision);
CREATE INDEX admin_tokens_organisation ON admin_tokens (organisation_id);
CREATE INDEX admin_tokens_team ON admin_tokens (team_id);
CREATE TRIGGER admin_tokens_stamp BEFORE INSERT OR UPDATE ON admin_tokens
    FOR EACH ROW EXECUTE FUNCTION stamp_revision();

INSERT INTO admin_tokens (id, name, role, hash, hint, created_at)
    SELECT id, 'admin key', 'owner', hash, hint, created_at FROM admin_keys;
DROP TABLE admin_keys;

-- Who changed what, written in the transaction of the change. Ids are UUIDv7, made under the lock
-- that orders changes.
CREATE TABLE audit_log (
    id               uuid PRIMARY KEY,
    time             timestamptz NOT NULL,
    actor            text NOT NULL,
    actor_name       text NOT NULL,
    action           text NOT NULL,
    object_type      text NOT NULL,
    object_id        uuid NOT NULL,
    organisation_id  uuid,   -- null: the installation's
    team_id          uuid,
    before           jsonb,  -- null: it was not there
    after            jsonb,
    request_id       uuid NOT NULL
);
CREATE INDEX audit_log_organisation ON audit_log (organisation_id, id);
CREATE INDEX audit_log_team ON audit_log (team_id, id);
CREATE INDEX audit_log_object ON audit_log (object_id, id);
CREATE INDEX audit_log_actor ON audit_log (actor, id);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
