-- Secrets of the installation as such, the same for all its gateways; made here, once.
CREATE TABLE installation_secrets (
    name        text PRIMARY KEY,
    value       bytea NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- 244 random bits: what Postgres itself has of strong randomness.
INSERT INTO installation_secrets (name, value)
    VALUES ('cache_salt', decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));
