package sluice.kafka;

import java.util.Arrays;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.server.quota.ClientQuotaType;

/** A quota: its key, what events say of it, and the metrics in which a broker or a proxy keeps it. */
public enum Kind {
    PRODUCE("producer_byte_rate", "Produce", "bytes", ClientQuotaType.PRODUCE, "Produce", "byte-rate", "byte-rate"),
    FETCH("consumer_byte_rate", "Fetch", "bytes", ClientQuotaType.FETCH, "Fetch", "byte-rate", "byte-rate"),
    REQUEST("request_percentage", "Requests", "request_time_ns", ClientQuotaType.REQUEST, "Request", "request-time", "request-time"),
    MUTATION(
            "controller_mutation_rate",
            "Mutations", // not that of request time, whose next event would end the wait
            "mutations_charged",
            ClientQuotaType.CONTROLLER_MUTATION,
            "ControllerMutation",
            "mutation-rate",
            "tokens"),
    TOPIC_PRODUCE("producer.byte.rate", "Produce", "bytes"),
    TOPIC_FETCH("consumer.byte.rate", "Fetch", "bytes"),
    CONNECT("connection_rate", "Connect", "requests"),
    CONNECTIONS("connection_count", "Connect", "requests");

    private static final Map<String, Kind> BY_KEY =
            Arrays.stream(values()).collect(Collectors.toMap(kind -> kind.key, kind -> kind));
    private static final Map<ClientQuotaType, Kind> BY_TYPE = Arrays.stream(values())
            .filter(kind -> kind.type != null)
            .collect(Collectors.toMap(kind -> kind.type, kind -> kind));

    /** The key as operators write it. */
    public final String key;

    /** The `api` of its events. */
    final String api;

    /** The field of its events that has the amount. */
    final String amountField;

    /** Kafka's name for it; null for a quota that brokers don't keep. */
    final ClientQuotaType type;

    /** The group of its metrics. */
    final String group;

    /** Its metric whose samples hold what was charged. */
    final String chargedMetric;

    /** Its metric that has the limit as its bound. */
    final String boundMetric;

    /** One that brokers don't keep. */
    Kind(String key, String api, String amountField) {
        this(key, api, amountField, null, key, "rate", "rate");
    }

    Kind(
            String key,
            String api,
            String amountField,
            ClientQuotaType type,
            String group,
            String chargedMetric,
            String boundMetric) {
        this.key = key;
        this.api = api;
        this.amountField = amountField;
        this.type = type;
        this.group = group;
        this.chargedMetric = chargedMetric;
        this.boundMetric = boundMetric;
    }

    /** Whether it is charged requests, one each. */
    boolean countsRequests() {
        return this == CONNECT;
    }

    /** Whether it limits a number of things that there are, not a rate: it has no meter. */
    boolean isCount() {
        return this == CONNECTIONS;
    }

    /** Whether a broker that is overloaded lets less than the limit through. */
    boolean givesWay() {
        return this != MUTATION && !countsRequests() && !isCount();
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
        return BY_TYPE.getOrDefault(type, MUTATION);
    }
}
