package sluice.proxy;

import java.util.HashMap;
import java.util.Map;

/**
 * Room that owners share, in places or in bytes: one gets more while it then has no more than is free. So one alone gets half, and n
 * that all want more get 1 of n + 1 parts each. Those that come one after the other get half of what is left each, which would
 * soon be nothing: of the last eighth, an owner gets no more than a few.
 *
 * <p>Example: of 40 places, one alone gets 20, then another one 10, a third one 5, and a fourth one 3.
 *
 * <p>Safe for any thread.
 */
final class FairRoom<K> {
    private static final int FEW = 4; // so a client reaches some brokers

    private final long size;
    private final Map<K, Long> taken = new HashMap<>();
    private long free;

    FairRoom(long size) {
        this.size = size;
        this.free = size;
    }

    /** Gives an owner so much more, unless it has its share. */
    synchronized boolean take(K owner, long amount) {
        long own = taken.getOrDefault(owner, 0L) + amount;
        if (own > free - amount + 1 || own > FEW && free <= size / 8) {
            return false;
        }
        taken.put(owner, own);
        free -= amount;
        return true;
    }

    synchronized void giveBack(K owner, long amount) {
        taken.computeIfPresent(owner, (key, own) -> own > amount ? own - amount : null);
        free += amount;
    }

    /** Takes all of it back. */
    synchronized void clear() {
        taken.clear();
        free = size;
    }
}
