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
     * <p>Clients without a limit share a counter with all others of their user: they choose their client-ids, and a
     * counter for each would fill the broker. One that a shadow quota limits has the counter of that: the job resolves
     * its events to the shadow quota's own.
     */
    Resolution resolve(Kind kind, String anyUser, String anyClientId) {
        PrecedenceLevels limits = enforced.get(kind);
        PrecedenceLevels trials = shadow.get(kind);
        String user = Names.bounded(anyUser);
        // the hash of a name of 32 kB takes 50 to 250 us of a request thread: once, and only where a limit may need it
        String clientId = limits.haveClientIds() || trials.haveClientIds() ? Names.bounded(anyClientId) : "";
        Resolution found = limits.resolve(user, clientId);
        if (found.limit != null) {
            return found;
        }
        Resolution trial = trials.resolve(user, clientId);
        Tags tags = trial.limit == null ? new Tags(user, "") : trial.tags;
        return new Resolution(tags, trial.level, null);
    }

    /** The limit of a counter; null is unlimited. */
    Double limitOf(CounterKey counter) {
        return resolve(counter.kind, counter.tags.user, counter.tags.clientId).limit;
    }
}
