package sluice.kafka;

/** The limit that applies to a client, and the counter that is charged. */
public final class Resolution {
    public final Tags tags;

    /** The level that gave the limit, 1 to 8; 0 if none did. */
    final int level;

    /** In units of the quota per second; null is unlimited. */
    public final Double limit;

    /** Whether the client-id has a limit only because every client-id has one: it may be invented. */
    boolean isAnyClientId() {
        return level == 2 || level == 5 || level == 8;
    }

    Resolution(Tags tags, int level, Double limit) {
        this.tags = tags;
        this.level = level;
        this.limit = limit;
    }
}
