package sluice.kafka;

import java.util.concurrent.atomic.AtomicLong;

/**
 * A bound on new counters for client-ids that nobody has named in a quota: clients invent those, and each costs a broker
 * some kilobytes for an hour. Beyond the bound they share one counter with the limit of the same default.
 *
 * <p>A bucket of BURST, so that the clients of a broker that was started again get theirs at once, which refills by
 * PER_S. Safe for any thread.
 */
final class NewNames {
    /** The client-id in the tags of the counter that those share who come too many at a time. */
    static final String MORE = "(more)";

    static final double BURST = 5_000;
    static final double PER_S = 100;

    private final AtomicLong refused = new AtomicLong();
    private double left = BURST;
    private long leftNs;

    NewNames(long nowNs) {
        this.leftNs = nowNs;
    }

    /** Whether there may be one more counter now. */
    synchronized boolean admits(long nowNs) {
        left = Math.min(BURST, left + PER_S * (nowNs - leftNs) / 1e9);
        leftNs = nowNs;
        if (left < 1) {
            refused.incrementAndGet();
            return false;
        }
        left--;
        return true;
    }

    /** How many requests were charged to the counter of those who came too many at a time. */
    long refused() {
        return refused.get();
    }
}
