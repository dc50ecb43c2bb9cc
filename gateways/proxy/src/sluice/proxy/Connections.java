package sluice.proxy;

import io.netty.channel.Channel;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import sluice.kafka.CounterKey;
import sluice.kafka.Kind;

/**
 * The connections of clients that quotas limit: how many are open, and how fast they come. One that a quota refuses isn't
 * charged, as in Kafka (KIP-612), and is closed a little later: who is told at once comes again at once.
 *
 * <p>Safe for any thread.
 */
final class Connections {
    private static final long CLOSE_AFTER_MS = 1_000;
    private static final int MAX_WAITING = 1_000; // connections that wait to be closed; further ones are closed at once

    private final ProxyMeters meters;
    private final Map<CounterKey, Integer> open = new ConcurrentHashMap<>();
    private final AtomicInteger waiting = new AtomicInteger();

    Connections(ProxyMeters meters) {
        this.meters = meters;
    }

    /** Takes in a new connection of a client, unless a quota refuses it. `channel` is null if it can't be known. */
    boolean admits(Client client, Channel channel) {
        CounterKey rate = meters.isUsed(Kind.CONNECT) ? meters.counter(Kind.CONNECT, client) : null;
        if (rate != null && meters.refuses(rate, client)) {
            return false;
        }
        if (channel != null && meters.isUsed(Kind.CONNECTIONS) && !opens(client, channel)) {
            return false;
        }
        if (rate != null) {
            meters.charge(rate, 1);
        }
        return true;
    }

    /** The client's own quota and that of its tenant admit a connection, or neither counts it. */
    private boolean opens(Client client, Channel channel) {
        CounterKey key = meters.counter(Kind.CONNECTIONS, client);
        CounterKey own = key.own();
        if (!opens(own, meters.limit(key))) {
            meters.noteRefused(key, own, client, CLOSE_AFTER_MS);
            return false;
        }
        CounterKey tenant = key.ofTenant();
        if (tenant != null && !opens(tenant, meters.tenantLimit(key))) {
            close(own);
            meters.noteRefused(key, tenant, client, CLOSE_AFTER_MS);
            return false;
        }
        channel.closeFuture().addListener(closed -> {
            close(own);
            if (tenant != null) {
                close(tenant);
            }
        });
        return true;
    }

    private boolean opens(CounterKey counter, double most) {
        if (open.merge(counter, 1, Integer::sum) > Math.max(1, most)) {
            close(counter);
            return false;
        }
        return true;
    }

    private void close(CounterKey counter) {
        open.computeIfPresent(counter, (key, count) -> count > 1 ? count - 1 : null);
    }

    /** How long a refused connection waits until {@link #endWait} and its close. */
    long beginWait() {
        return waiting.incrementAndGet() > MAX_WAITING ? 0 : CLOSE_AFTER_MS;
    }

    void endWait() {
        waiting.decrementAndGet();
    }
}
