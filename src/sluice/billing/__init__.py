"""Prices, usage events, and the ledger they end in."""
