package sluice.proxy;

import io.netty.channel.Channel;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import sluice.kafka.CounterKey;
import sluice.kafka.Kind;
import sluice.kafka.ProxyGateway;

/**
 * The connections of clients that quotas limit: how many are open, and how fast they come. One that a quota refuses isn't
 * charged, as in Kafka (KIP-612), and is closed a little later: who is told at once comes again at once.
 *
 * <p>Safe for any thread.
 */
final class Connections {
    private static final long CLOSE_AFTER_MS = 1_000;
    private static final int MAX_WAITING = 1_000; // connections that wait to be closed; further ones are closed at once

    private final ProxyGateway gateway;
    private final Map<CounterKey, Integer> open = new ConcurrentHashMap<>();
    private final AtomicInteger waiting = new AtomicInteger();

    Connections(ProxyGateway gateway) {
        this.gateway = gateway;
    }

    /** Takes in a new connection of a client, unless a quota refuses it. `channel` is null if it can't be known. */
    boolean admits(Client client, Channel channel) {
        CounterKey rate = gateway.isUsed(Kind.CONNECT) ? client.counter(Kind.CONNECT, gateway) : null;
        if (rate != null && gateway.refuses(rate, client.user(), client.clientId())) {
            return false;
        }
        if (channel != null && gateway.isUsed(Kind.CONNECTIONS) && !opens(client, channel)) {
            return false;
        }
        if (rate != null) {
            gateway.charge(rate, 1);
        }
        return true;
    }

    /** The client's own quota and that of its tenant admit a connection, or neither counts it. */
    private boolean opens(Client client, Channel channel) {
        CounterKey key = client.counter(Kind.CONNECTIONS, gateway);
        CounterKey own = key.own();
        if (!opens(own, gateway.limit(key))) {
            gateway.noteRefused(key, own, client.user(), client.clientId(), CLOSE_AFTER_MS);
            return false;
        }
        CounterKey tenant = key.ofTenant();
        if (tenant != null && !opens(tenant, gateway.tenantLimit(key))) {
            close(own);
            gateway.noteRefused(key, tenant, client.user(), client.clientId(), CLOSE_AFTER_MS);
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

    /** No limit admits any number. */
    private boolean opens(CounterKey counter, Double most) {
        if (open.merge(counter, 1, Integer::sum) > (most == null ? Integer.MAX_VALUE : Math.max(1, most))) {
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
