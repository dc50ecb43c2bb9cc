"""Telemetry of clients and brokers: a receiver in brokers (Java, in `src`), and readers of its topic."""
