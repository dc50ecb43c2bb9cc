package sluice.kafka;

import java.util.List;
import java.util.Map;

/** A proxy's configuration. */
public final class ProxySettings extends Settings {
    private static final String DECIDE_TIMEOUT_MS = "sluice.decide.timeout.ms";
    private static final String EXPECTED_GATEWAYS = "sluice.expected.gateways";
    private static final String PRINCIPAL_RULES = "sluice.ssl.principal.mapping.rules";
    private static final String MAX_PARTITIONS = "sluice.max.partitions.per.request";
    private static final List<String> KEYS = List.of(
            DECIDE_TIMEOUT_MS,
            EXPECTED_GATEWAYS,
            PRINCIPAL_RULES,
            MAX_PARTITIONS,
            WINDOWS,
            WINDOW_SECONDS);

    /** How long mutations wait for their decision. */
    final long decideTimeoutMs;

    /** The most partitions that one request is charged. */
    public final int maxPartitionsPerRequest;

    /** How many proxies share until the first own heartbeat is decided. */
    final int expectedGateways;

    /** How brokers name the user of a certificate, as their `ssl.principal.mapping.rules`. */
    public final String principalRules;

    public ProxySettings(Map<String, ?> configs) {
        super(configs, configs.keySet(), KEYS, Role.PROXY, null);
        this.decideTimeoutMs = whole(configs, DECIDE_TIMEOUT_MS, 5_000, 1, 5_000); // a proxy holds a request for 20 s
        this.expectedGateways = (int) whole(configs, EXPECTED_GATEWAYS, 1, 1, AliveGateways.MAX_GATEWAYS);
        this.principalRules = text(configs, PRINCIPAL_RULES, "DEFAULT");
        this.maxPartitionsPerRequest = (int) whole(configs, MAX_PARTITIONS, 10_000, 1, Integer.MAX_VALUE);
    }
}
