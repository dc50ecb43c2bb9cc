package sluice.kafka;

import java.util.concurrent.atomic.AtomicLong;

/**
 * The turn of one request that waits until its quotas aren't overdrawn: those that began to wait before it have theirs first.
 * It keeps its age where it waits for one counter after the other. For one thread at a time.
 */
public final class Turn implements Comparable<Turn> {
    private static final AtomicLong LAST = new AtomicLong();

    private long number; // 0 before it waits
    private long sinceNs;
    private Turns in; // null while it doesn't wait

    /** Waits in these, with what it would be charged; in no others any more. */
    void join(Turns turns, double amount) {
        leave();
        if (number == 0) {
            number = LAST.incrementAndGet();
            sinceNs = System.nanoTime();
        }
        if (amount > 0) { // nobody waits for one that is charged nothing
            in = turns;
            turns.add(this, amount);
        }
    }

    /** It doesn't wait any more. */
    public void leave() {
        if (in != null) {
            in.remove(this);
            in = null;
        }
    }

    /** When it began to wait. */
    public long sinceNs() {
        return sinceNs;
    }

    /** Whether this request has begun to wait, so that others may be behind it. */
    public boolean hasBegun() {
        return number > 0;
    }

    @Override
    public int compareTo(Turn other) {
        return Long.compare(number, other.number);
    }
}
