package sluice.proxy;

import io.kroxylicious.proxy.filter.FilterDispatchExecutor;
import io.netty.channel.Channel;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import sluice.kafka.CounterKey;
import sluice.kafka.ProxyGateway;

/**
 * How long a connection has to wait because of what its own requests were charged (KIP-219). Nothing is read from it
 * meanwhile. It ends sooner if a limit is raised or an operator unmutes the client. For the connection's event loop.
 *
 * <p>From its first wait until it stays away, a connection counts in the rounds of its counters.
 */
final class Mute {
    private static final long LOOK_AGAIN_MS = 1_000;
    private static final long AWAY_MS = 1_000; // after its wait, a client at full speed has sent again

    private final ProxyGateway gateway;
    private final FilterDispatchExecutor executor;
    private final Map<CounterKey, Integer> waited = new HashMap<>(); // for which counters, with their reliefs
    private Unread unread; // null while the connection isn't known
    private long untilNs = System.nanoTime();
    private boolean isCharged;
    private boolean isWatched;
    private boolean isUnread;
    private int waiting; // requests

    Mute(ProxyGateway gateway, FilterDispatchExecutor executor) {
        this.gateway = gateway;
        this.executor = executor;
    }

    /** The connection of the client; null if it can't be known. */
    void attach(Channel client) {
        if (client != null && unread == null) {
            unread = new Unread();
            client.pipeline().addFirst(unread);
            client.closeFuture().addListener(closed -> leave());
        }
    }

    /** Notes that a request was charged, for which the connection waits so long, in ms; {@link ProxyGateway#MAX_MUTE_MS} at most. */
    void note(long waitMs) {
        extend(Math.min(waitMs, ProxyGateway.MAX_MUTE_MS));
    }

    private void extend(long waitMs) {
        isCharged = true;
        long nextNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(waitMs);
        untilNs = nextNs - untilNs > 0 ? nextNs : untilNs;
    }

    /** Notes that a connection waits so long for a counter, in ms. Nothing is read from it meanwhile. */
    void note(CounterKey counter, long waitMs) {
        extend(waitMs);
        if (waitMs > 0) {
            waitFor(counter);
            isUnread = unread != null;
            if (isUnread) {
                unread.begin();
            }
        }
    }

    /** Notes that a request waits for a counter. */
    void waitFor(CounterKey counter) {
        if (unread != null && waited.put(counter, gateway.reliefs(counter)) == null) {
            gateway.joinRound(counter, 1);
        }
        watch();
    }

    /** A request begins to wait if `change` is 1, or doesn't any more if it is -1. */
    void noteWaiting(int change) {
        waiting += change;
    }

    /** Whether any request was charged, so that its wait tells of those before it. */
    boolean isCharged() {
        return isCharged;
    }

    /** What is left of the wait in ms, rounded up. */
    long leftMs() {
        return Math.max(0, (untilNs - System.nanoTime() + 999_999) / 1_000_000);
    }

    private void watch() {
        if (!isWatched && !waited.isEmpty()) {
            isWatched = true;
            long nextMs = leftMs() > 0 ? Math.min(leftMs(), LOOK_AGAIN_MS) : AWAY_MS;
            executor.schedule(this::look, nextMs, TimeUnit.MILLISECONDS);
        }
    }

    private void look() {
        isWatched = false;
        if (waited.entrySet().stream().anyMatch(each -> gateway.reliefs(each.getKey()) > each.getValue())) {
            untilNs = System.nanoTime();
            waited.replaceAll((counter, reliefs) -> gateway.reliefs(counter));
        }
        if (leftMs() == 0 && isUnread) {
            isUnread = false;
            unread.end(waiting > 0);
        } else if (leftMs() == 0 && waiting == 0) {
            leave();
        }
        watch();
    }

    private void leave() {
        waited.keySet().forEach(counter -> gateway.joinRound(counter, -1));
        waited.clear();
    }
}
