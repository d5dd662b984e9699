"""Idempotency keys: one generation a key, which every caller with the key follows; see `keyed`."""
