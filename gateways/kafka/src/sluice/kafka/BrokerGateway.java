package sluice.kafka;

import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.utils.Time;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The gateway of a broker or a controller. Before the limits topic could be read, the quotas that were set with
 * `kafka-configs` hold on each broker, as without the plugin.
 */
final class BrokerGateway extends Gateway<KafkaMeters> implements GatewayMXBean {
    private static final Logger LOG = LoggerFactory.getLogger(BrokerGateway.class);

    private final BrokerSettings settings;
    private final LoadReader loadReader;
    private final AtomicInteger reporters = new AtomicInteger();

    BrokerGateway(BrokerSettings settings) {
        this(settings, Time.SYSTEM, sender(settings));
    }

    /** A gateway whose clock and whose way to the requests topic are given. */
    BrokerGateway(BrokerSettings settings, Time time, EventSender sender) {
        super(settings, time, sender, new KafkaMeters(settings.maxMuteMs, settings.window, time::milliseconds));
        this.settings = settings;
        this.loadReader = new LoadReader(settings);
    }

    @Override
    public void start() {
        super.start();
        if (settings.exemptPrincipals.isEmpty()) {
            LOG.warn(settings.exemptClientId == null
                    ? "Neither sluice.exempt.principals nor sluice.exempt.client.id is set: quotas hold Sluice itself, too"
                    : "sluice.exempt.client.id exempts only clients that don't log in: where Sluice's do, quotas hold them,"
                            + " too, unless sluice.exempt.principals names them");
        }
        if (settings.role.servesClients()) {
            loadReader.start();
        }
    }

    /** The quotas that Kafka itself keeps. */
    Quotas kafkaQuotas() {
        return first;
    }

    /** One more reporter hands over the metrics of the node. */
    void beginMetrics() {
        if (reporters.getAndIncrement() == 0) {
            LOG.info("Sluice sees the metrics of node {}", settings.node);
        }
    }

    /** A reporter is closed. Without another one nothing is known of what is charged, though known shares hold. */
    void endMetrics() {
        if (reporters.decrementAndGet() == 0 && !isClosing()) {
            LOG.error("Sluice no longer sees the metrics of node {}, as metric.reporters has changed: it publishes no"
                    + " charge, and no share of this node moves, until {} is among them again",
                    settings.node, SluiceMetricsReporter.class.getName());
        }
    }

    @Override
    public boolean isMetricsSeen() {
        return reporters.get() > 0;
    }

    /** Takes over a metric that Kafka has made. */
    void add(KafkaMetric metric) {
        long nowMs = time.milliseconds();
        loadReader.add(metric);
        KafkaMeter meter = meters.add(metric, nowMs);
        if (meter != null) {
            begin(meter, nowMs);
        }
    }

    /** Takes leave of a metric that Kafka has removed. */
    void remove(KafkaMetric metric) {
        loadReader.remove(metric);
        meters.remove(metric, time.milliseconds());
    }

    @Override
    Load load() {
        return loadReader.load();
    }

    @Override
    Stream<LastingThread> threads() {
        return Stream.concat(super.threads(), Stream.of(loadReader.thread()));
    }

    @Override
    public boolean isExact() {
        return Samples.isPossible();
    }

    @Override
    public long getCountersNotFollowed() {
        return meters.notFollowed();
    }
}
