"""Postgres and Valkey from PyPI wheels, so that one machine needs nothing installed."""
