"""The broker plugin, which makes Kafka brokers gateways, and the core that it shares with the proxy (Java, `src`)."""
