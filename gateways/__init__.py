"""What consumes decisions: a client for gateways of any kind, and an HTTP service built on it."""
