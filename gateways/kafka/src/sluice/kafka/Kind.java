package sluice.kafka;

import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.server.quota.ClientQuotaType;

/** A quota: its key, what events say of it, and the metrics in which a broker or a proxy keeps it. */
public enum Kind {
    PRODUCE("producer_byte_rate", "Produce", ClientQuotaType.PRODUCE, "Produce", "byte-rate", "byte-rate"),
    FETCH("consumer_byte_rate", "Fetch", ClientQuotaType.FETCH, "Fetch", "byte-rate", "byte-rate"),
    REQUEST("request_percentage", "Requests", ClientQuotaType.REQUEST, "Request", "request-time", "request-time"),
    MUTATION(
            "controller_mutation_rate",
            "Mutations", // not that of request time, whose next event would end the wait
            ClientQuotaType.CONTROLLER_MUTATION,
            "ControllerMutation",
            "mutation-rate",
            "tokens"),
    TOPIC_PRODUCE("producer.byte.rate", "Produce", false),
    TOPIC_FETCH("consumer.byte.rate", "Fetch", false),
    CONNECT("connection_rate", "Connect", true),
    CONNECTIONS("connection_count", "Connect", false);

    private static final Map<String, Kind> BY_KEY = new HashMap<>();

    static {
        for (Kind kind : values()) {
            BY_KEY.put(kind.key, kind);
        }
    }

    /** The key as operators write it. */
    public final String key;

    /** The `api` of its events. */
    final String api;

    /** Kafka's name for it; null for a quota that brokers don't keep. */
    final ClientQuotaType type;

    /** The group of its metrics. */
    public final String group;

    /** Its metric whose samples hold what was charged. */
    public final String chargedMetric;

    /** Its metric that has the limit as its bound. */
    public final String boundMetric;

    /** Whether it is charged requests, one each. */
    final boolean countsRequests;

    /** One that brokers don't keep. */
    Kind(String key, String api, boolean countsRequests) {
        this(key, api, null, key, "rate", "rate", countsRequests);
    }

    Kind(String key, String api, ClientQuotaType type, String group, String chargedMetric, String boundMetric) {
        this(key, api, type, group, chargedMetric, boundMetric, false);
    }

    Kind(
            String key,
            String api,
            ClientQuotaType type,
            String group,
            String chargedMetric,
            String boundMetric,
            boolean countsRequests) {
        this.countsRequests = countsRequests;
        this.key = key;
        this.api = api;
        this.type = type;
        this.group = group;
        this.chargedMetric = chargedMetric;
        this.boundMetric = boundMetric;
    }

    /** Whether it limits a number of things that there are, not a rate: it has no meter. */
    boolean isCount() {
        return this == CONNECTIONS;
    }

    /** Whether a broker beside others paces it; mutations have a bucket already. */
    boolean isPaced() {
        return this != MUTATION;
    }

    /** Whether a broker that is overloaded lets less than the limit through. */
    boolean givesWay() {
        return this != MUTATION && !countsRequests && !isCount();
    }

    /** Whether it limits bytes: its waits have no cap. */
    boolean isOfBytes() {
        return this == PRODUCE || this == FETCH || isOfTopics();
    }

    /** Whether its amount is known with the response alone. */
    public boolean isOfResponses() {
        return this == FETCH || this == TOPIC_FETCH;
    }

    /** Whether it is set on topics, and metered for each partition (KIP-1010). */
    boolean isOfTopics() {
        return this == TOPIC_PRODUCE || this == TOPIC_FETCH;
    }

    /** The kind of a key; null if no gateway in Java meters it. */
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
