package sluice.proxy;

import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.FunctionCounter;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.Meter;
import io.micrometer.core.instrument.Metrics;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.ToDoubleFunction;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import sluice.kafka.ProxyGateway;
import sluice.kafka.ProxySettings;

/** What the connections of a proxy share: the gateway, and metrics at the proxy's management port. */
final class Proxy implements AutoCloseable {
    private static final String PREFIX = "sluice_gateway_";
    private static final String TAG = "gateway";
    private static final Logger LOG = LoggerFactory.getLogger(Proxy.class);
    private static final long UNREADABLE_NS = 60_000_000_000L;

    final ProxySettings settings;
    final SslPrincipalMapper principalRules;

    private final ProxyGateway gateway;
    private final TopicNames names = new TopicNames();
    private final FairRoom<Client> waiting = new FairRoom<>(Runtime.getRuntime().maxMemory() / 4);
    private final AtomicLong unreadableNs = new AtomicLong(System.nanoTime() - UNREADABLE_NS - 1);
    private final Connections connections;
    private final List<Meter> published = new ArrayList<>();
    private final Counter throttled;
    private final Counter held;
    private final Counter heldSeconds;
    private final Counter refused;
    private final Counter refusedConnections;

    Proxy(ProxySettings settings) {
        this.settings = settings;
        this.principalRules = SslPrincipalMapper.fromRules(settings.principalRules);
        this.gateway = new ProxyGateway(settings);
        this.connections = new Connections(gateway);
        throttled = counter("throttled_inline", "Responses that asked their client to wait");
        held = counter("held_requests", "Requests held because their connection or their quota was throttled");
        heldSeconds = counter("held_seconds", "Time for which requests were held");
        refused = counter("refused_topics", "Topics whose creation or deletion was refused");
        refusedConnections = counter("refused_connections", "Connections that a quota refused");
        published.add(FunctionCounter.builder(PREFIX + "reset_connections", AcceptLimit.RESET, AtomicLong::get)
                .description("Connections that were too many of their address, in a second or open")
                .tag(TAG, settings.gatewayName)
                .register(Metrics.globalRegistry));
        gauge("limits_version", "Version of the limits in force; -1 before one is complete", ProxyGateway::getLimitsVersion);
        gauge("gateways", "Gateways that are alive, this one included", ProxyGateway::getGateways);
        gauge("counters", "Counters of own clients that are kept", ProxyGateway::getCounters);
        gauge("stale_seconds", "Age of the oldest event that may be without a decision", of -> of.getStalenessMs() / 1e3);
        gauge("sums", "Sums of entities that were read", ProxyGateway::getSums);
        gauge("published_events", "Events in the requests topic", ProxyGateway::getPublished);
        gauge("failed_events", "Events that have to be sent again", ProxyGateway::getPublishFailures);
        gauge("given_up_sums", "Sums given up after a minute", ProxyGateway::getSumsGivenUp);
        gauge("fenced_records", "Records of a driver of the job that had been replaced", ProxyGateway::getFencedRecords);
        gauge("unreadable_records", "Records of limits and sums that were passed over", ProxyGateway::getUnreadableRecords);
        gauge("more_names", "Requests of new client-ids that shared a counter", ProxyGateway::getRequestsOfMoreNames);
        gauge("threads_down", "Threads that should work and don't", ProxyGateway::getThreadsDown);
        gateway.start();
    }

    ProxyGateway gateway() {
        return gateway;
    }

    Connections connections() {
        return connections;
    }

    TopicNames names() {
        return names;
    }

    /** The bytes of large requests that wait. */
    FairRoom<Client> waiting() {
        return waiting;
    }

    void noteThrottled() {
        throttled.increment();
    }

    void noteHeld(long ns, boolean isNew) {
        held.increment(isNew ? 1 : 0);
        heldSeconds.increment(ns / 1e9);
    }

    void noteRefusedConnection() {
        refusedConnections.increment();
    }

    /** Says that a connection is closed because nobody could say whose it is; at most once a minute: some try for ever. */
    void noteUnreadable(String connection, String fault) {
        long nowNs = System.nanoTime();
        long saidNs = unreadableNs.get();
        if (nowNs - saidNs > UNREADABLE_NS && unreadableNs.compareAndSet(saidNs, nowNs)) {
            LOG.warn("{} is closed: {}; others aren't logged for a minute", connection, fault);
        }
    }

    void noteRefused(int topics) {
        refused.increment(topics);
    }

    @Override
    public void close() {
        gateway.close();
        published.forEach(Metrics.globalRegistry::remove);
    }

    private Counter counter(String name, String text) {
        Counter counter = Counter.builder(PREFIX + name)
                .description(text)
                .tag(TAG, settings.gatewayName)
                .register(Metrics.globalRegistry);
        published.add(counter);
        return counter;
    }

    private void gauge(String name, String text, ToDoubleFunction<ProxyGateway> value) {
        published.add(Gauge.builder(PREFIX + name, gateway, value)
                .description(text)
                .tag(TAG, settings.gatewayName)
                .register(Metrics.globalRegistry));
    }
}
