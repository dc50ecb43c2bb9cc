package sluice.kafka;

import java.util.EnumMap;
import java.util.Map;

/** The limits of all quotas on clients: those in force, and which quotas are on trial as well. */
final class Quotas {
    /** Of the quotas table; -1 for quotas that Kafka itself keeps. */
    final long version;

    private final Map<Kind, PrecedenceLevels> enforced = new EnumMap<>(Kind.class);
    private final Map<Kind, PrecedenceLevels> shadow = new EnumMap<>(Kind.class);

    Quotas(long version) {
        this.version = version;
        for (Kind kind : Kind.values()) {
            enforced.put(kind, new PrecedenceLevels());
            shadow.put(kind, new PrecedenceLevels());
        }
    }

    PrecedenceLevels enforced(Kind kind) {
        return enforced.get(kind);
    }

    PrecedenceLevels shadow(Kind kind) {
        return shadow.get(kind);
    }

    /**
     * The limit of a client and the counter that a broker keeps for it.
     *
     * <p>While a shadow quota of the kind is on trial, an unlimited client is counted by user and client-id, because the
     * shadow quota may be on either of them. The job resolves the event to the counters that it keeps itself.
     */
    Resolution resolve(Kind kind, String user, String clientId) {
        Resolution found = enforced.get(kind).resolve(user, clientId);
        if (found.limit == null && !shadow.get(kind).isEmpty()) {
            return new Resolution(new Tags(user, clientId), 0, null);
        }
        return found;
    }

    /** The limit of a counter; null is unlimited. */
    Double limitOf(CounterKey counter) {
        return resolve(counter.kind, counter.tags.user, counter.tags.clientId).limit;
    }
}
