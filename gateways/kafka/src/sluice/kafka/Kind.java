package sluice.kafka;

import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.server.quota.ClientQuotaType;

/** A quota on clients: its key, what events say of it, and the metrics in which a broker keeps it. */
public enum Kind {
    PRODUCE("producer_byte_rate", "Produce", ClientQuotaType.PRODUCE, "Produce", "byte-rate", "byte-rate"),
    FETCH("consumer_byte_rate", "Fetch", ClientQuotaType.FETCH, "Fetch", "byte-rate", "byte-rate"),
    REQUEST("request_percentage", "Requests", ClientQuotaType.REQUEST, "Request", "request-time", "request-time"),
    MUTATION(
            "controller_mutation_rate",
            "Requests",
            ClientQuotaType.CONTROLLER_MUTATION,
            "ControllerMutation",
            "mutation-rate",
            "tokens");

    private static final Map<String, Kind> BY_KEY = new HashMap<>();

    static {
        for (Kind kind : values()) {
            BY_KEY.put(kind.key, kind);
        }
    }

    /** The key as operators write it. */
    final String key;

    /** The `api` of its events. */
    final String api;

    /** Kafka's name for it. */
    final ClientQuotaType type;

    /** The group of its metrics. */
    public final String group;

    /** Its metric whose samples hold what was charged. */
    public final String chargedMetric;

    /** Its metric that has the limit as its bound. */
    public final String boundMetric;

    Kind(String key, String api, ClientQuotaType type, String group, String chargedMetric, String boundMetric) {
        this.key = key;
        this.api = api;
        this.type = type;
        this.group = group;
        this.chargedMetric = chargedMetric;
        this.boundMetric = boundMetric;
    }

    /** Whether a broker beside others paces it; mutations have a bucket already. */
    boolean isPaced() {
        return this != MUTATION;
    }

    /** The kind of a key; null if it isn't one on clients. */
    static Kind ofKey(String key) {
        return BY_KEY.get(key);
    }

    /** The kind of one of Kafka's types. */
    static Kind of(ClientQuotaType type) {
        switch (type) {
            case PRODUCE:
                return PRODUCE;
            case FETCH:
                return FETCH;
            case REQUEST:
                return REQUEST;
            default:
                return MUTATION;
        }
    }
}
