package sluice.proxy;

/**
 * How long a request is delayed, by the clock: a busy event loop is late at each turn, and short waits in a row take longer
 * than was asked for.
 */
record Hold(long sinceNs) {
    /** The longest time for which a request is delayed because its connection is muted, or its client stopped. */
    static final long MAX_MS = 10_000;

    /**
     * The same because it is owed something: then it is refused. Of Kafka's usual clients the first give up after 30 s: one that was
     * served just before would be stored, and sent again.
     */
    static final long MAX_OWED_MS = 15_000;

    /** The longest time for which a produce is kept that was read with the one that mutes it: as a broker keeps an idle connection. */
    static final long MAX_MUTED_MS = 600_000;

    /** The time after which the last of Kafka's usual clients give up, by their defaults: librdkafka's. */
    static final long MAX_RESPONSE_MS = 60_000;

    private static final long LOOK_AGAIN_MS = 1_000; // limits may be raised meanwhile

    /** The time until the next look at a request that should wait so long, `mostMs` at most, in ms; 0 when that is over. */
    long nextMs(long waitMs, long mostMs, long nowNs) {
        long leftMs = mostMs - (nowNs - sinceNs) / 1_000_000;
        return Math.max(0, Math.min(waitMs, Math.min(leftMs, LOOK_AGAIN_MS)));
    }
}
