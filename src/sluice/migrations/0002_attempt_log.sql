-- Which deployments a request went to, and how each call ended.
ALTER TABLE usage_records ADD COLUMN attempt_log text NOT NULL DEFAULT '';
