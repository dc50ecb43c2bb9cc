package sluice.kafka;

/** What a gateway stands for: which limits it shares with others, and what holds before it knows any. */
enum Role {
    /** It serves no clients, and shares nothing with those who do: it meters mutations, whose limit is whole. */
    CONTROLLER,

    /** It shares all limits but those of mutations, which the active controller alone meters. Alone it is as Kafka. */
    BROKER,

    /**
     * It shares all limits. It paces its clients while it is alone, too: it can't withhold a fetch, and one of ten seconds of a
     * quota would make ten seconds of silence.
     */
    PROXY;

    boolean servesClients() {
        return this != CONTROLLER;
    }

    boolean shares(Kind kind) {
        return this == PROXY || this == BROKER && kind != Kind.MUTATION;
    }

    boolean pacesAlone() {
        return this == PROXY;
    }

    /** What holds before the limits topic has been read. */
    String withoutLimits() {
        return this == PROXY ? "no limit is known" : "the quotas set with kafka-configs hold on each broker";
    }
}
