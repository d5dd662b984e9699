"""The wire contract, item by item: official SDKs, a gateway, upstreams of every kind."""
