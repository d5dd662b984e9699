"""Which model, which deployment, which replica: decided on values, then dispatched."""
