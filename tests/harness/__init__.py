"""What tests are made of: a gateway process, an upstream that follows a script, clients."""
