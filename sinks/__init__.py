"""Where decisions go: topics, Delta tables and the gateways that consume them."""
