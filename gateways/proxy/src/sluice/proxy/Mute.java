package sluice.proxy;

import java.util.concurrent.TimeUnit;
import sluice.kafka.ProxyGateway;

/** How long a connection has to wait because of what its own requests were charged (KIP-219). For its event loop. */
final class Mute {
    private long untilNs = System.nanoTime();
    private boolean isCharged;

    /** Notes that a request was charged, for which the connection waits so long, in ms. */
    void note(long waitMs) {
        note(waitMs, ProxyGateway.MAX_MUTE_MS);
    }

    /** The same, of so many ms at most. */
    void note(long waitMs, long mostMs) {
        isCharged = true;
        if (waitMs > 0) {
            long nextNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Math.min(waitMs, mostMs));
            untilNs = nextNs - untilNs > 0 ? nextNs : untilNs;
        }
    }

    /** Whether any request was charged, so that its wait tells of those before it. */
    boolean isCharged() {
        return isCharged;
    }

    /** What is left of the wait in ms, rounded up. */
    long leftMs() {
        return Math.max(0, (untilNs - System.nanoTime() + 999_999) / 1_000_000);
    }
}
