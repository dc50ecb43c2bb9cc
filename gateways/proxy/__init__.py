"""The filter that makes a Kroxylicious proxy a gateway (Java, in `src`); it uses the core in `gateways/kafka/src`."""
