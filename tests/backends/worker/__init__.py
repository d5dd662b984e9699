"""The worker, with a fake engine, a real Valkey and real files."""
