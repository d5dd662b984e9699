-- A file whose upload had an `Idempotency-Key`: the same call again finds it. The key is free when
-- the file is deleted.
ALTER TABLE files
    ADD COLUMN once_key bytea,      -- hash of the key
    ADD COLUMN once_content bytea;  -- and of what was uploaded
CREATE UNIQUE INDEX files_once ON files (team_id, once_key)
    WHERE once_key IS NOT NULL AND deleted_at IS NULL;

-- How many files a team has on record, deleted ones among them.
CREATE INDEX files_held ON files (team_id);
