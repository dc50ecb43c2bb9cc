"""The broker plugin: it makes every Kafka broker a gateway (Java, in `src`), and `build` compiles it."""
