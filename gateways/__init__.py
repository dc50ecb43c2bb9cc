"""Consumers of decisions: a client for gateways of any kind, and the plugin that makes brokers gateways."""
