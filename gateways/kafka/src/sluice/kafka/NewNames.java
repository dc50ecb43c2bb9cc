package sluice.kafka;

import java.util.concurrent.atomic.AtomicLong;

/**
 * A bound on new counters for client-ids that nobody has named in a quota: clients invent those, and each costs a broker
 * some kilobytes for an hour, and pauses of its garbage collector. Beyond the bound they share one counter with the limit
 * of the same default.
 *
 * <p>A bucket of BURST that refills by PER_S. It begins with FIRST, for the clients of a broker that was started again; what
 * is left of those after FIRST_NS is lost. Safe for any thread.
 */
final class NewNames {
    /** The client-id in the tags of the counter that those share who come too many at a time. */
    static final String MORE = "(more)";

    static final double FIRST = 5_000;
    static final double BURST = 1_000;
    static final double PER_S = 100;
    static final long FIRST_NS = 60_000_000_000L;

    /** How many requests were charged to the counter of those who came too many at a time. */
    final AtomicLong refused = new AtomicLong();
    private final long startNs;
    private double left = FIRST;
    private long leftNs;

    NewNames(long nowNs) {
        this.startNs = nowNs;
        this.leftNs = nowNs;
    }

    /** Whether there may be one more counter now. */
    synchronized boolean admits(long nowNs) {
        double most = nowNs - startNs < FIRST_NS ? FIRST : BURST;
        left = Math.min(most, left + PER_S * (nowNs - leftNs) / 1e9);
        leftNs = nowNs;
        if (left < 1) {
            refused.incrementAndGet();
            return false;
        }
        left--;
        return true;
    }
}
