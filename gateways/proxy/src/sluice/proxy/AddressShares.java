package sluice.proxy;

import java.net.InetAddress;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;

/**
 * So many places that addresses share: an address gets one more while it has fewer than are free. So one alone gets
 * half, and n that all want more get 1 of n + 1 parts each. Those that come one after the other get half of what is
 * left each, which would soon be nothing: of the last eighth, an address gets no more than a few.
 *
 * <p>All of an IPv6 network of 64 bits count as one address: a host has as many as it likes of one.
 *
 * <p>Example: of 40 places, an address alone gets 20, then another one 10, a third one 5, and a fourth one 3.
 *
 * <p>Safe for any thread.
 */
final class AddressShares {
    private static final int FEW = 4; // so a client reaches some brokers
    private static final int NETWORK_BYTES = 8;

    private final int places;
    private final Map<ByteBuffer, Integer> taken = new HashMap<>();
    private int free;

    AddressShares(int places) {
        this.places = places;
        this.free = places;
    }

    /** Gives an address a place, unless it has its share. */
    synchronized boolean take(InetAddress address) {
        ByteBuffer network = network(address);
        int own = taken.getOrDefault(network, 0);
        if (own >= free || own >= FEW && free <= places / 8) {
            return false;
        }
        taken.put(network, own + 1);
        free--;
        return true;
    }

    synchronized void giveBack(InetAddress address) {
        taken.computeIfPresent(network(address), (key, own) -> own > 1 ? own - 1 : null);
        free++;
    }

    /** Takes all places back. */
    synchronized void clear() {
        taken.clear();
        free = places;
    }

    private static ByteBuffer network(InetAddress address) {
        byte[] bytes = address.getAddress();
        return ByteBuffer.wrap(bytes, 0, Math.min(bytes.length, NETWORK_BYTES));
    }
}
