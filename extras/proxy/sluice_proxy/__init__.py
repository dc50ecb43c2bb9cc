"""The Kafka proxy: Kroxylicious with a filter of Sluice (Java, in `src`), and the command that runs it."""
