"""Third-party clients, unmodified, against a gateway: see `run_clients`."""
