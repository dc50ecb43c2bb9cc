package sluice.proxy;

import java.net.InetAddress;
import java.util.HashMap;
import java.util.Map;

/**
 * So many places that addresses share: an address gets one more while it has fewer than are free. So one alone gets
 * half, n that all want more get 1 of n + 1 parts each, and the last part is free for others.
 *
 * <p>Example: of 40 places, an address alone gets 20, and another one then 10.
 *
 * <p>Safe for any thread.
 */
final class AddressShares {
    private final int places;
    private final Map<InetAddress, Integer> taken = new HashMap<>();
    private int free;

    AddressShares(int places) {
        this.places = places;
        this.free = places;
    }

    /** Gives an address a place, unless it has its share. */
    synchronized boolean take(InetAddress address) {
        int own = taken.getOrDefault(address, 0);
        if (own >= free) {
            return false;
        }
        taken.put(address, own + 1);
        free--;
        return true;
    }

    synchronized void giveBack(InetAddress address) {
        taken.computeIfPresent(address, (key, own) -> own > 1 ? own - 1 : null);
        free++;
    }

    /** Takes all places back. */
    synchronized void clear() {
        taken.clear();
        free = places;
    }
}
