package sluice.kafka;

import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.management.ObjectName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Time;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The gateway of a broker or a controller. Before the limits topic could be read, the quotas that were set with
 * `kafka-configs` hold on each broker, as without the plugin.
 */
final class BrokerGateway extends Gateway<KafkaMeters> implements GatewayMXBean {
    private static final Logger LOG = LoggerFactory.getLogger(BrokerGateway.class);

    final OwnClients ownClients;
    int callbacks; // that use it, for `Nodes`
    ObjectName bean; // as which it is registered; null if it isn't

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
        this.ownClients = new OwnClients(settings.exemptPrincipals, settings.exemptClientId);
    }

    @Override
    public void start() {
        super.start();
        if (settings.exemptPrincipals.isEmpty()) {
            LOG.warn(settings.exemptClientId == null
                    ? "Neither sluice.exempt.principals nor sluice.exempt.client.id is set: quotas throttle Sluice itself, too"
                    : "sluice.exempt.client.id exempts only clients that don't log in: where Sluice's do, quotas hold them,"
                            + " too, unless sluice.exempt.principals names them");
        }
        if (settings.exemptPrincipals.contains("User:ANONYMOUS")) {
            LOG.warn("sluice.exempt.principals has User:ANONYMOUS: quotas hold no client without a login; exempt Sluice's own by"
                    + " sluice.exempt.client.id instead");
        }
        if (settings.role.servesClients()) {
            loadReader.thread.start();
        }
    }

    /** One more reporter hands over the metrics of the node. */
    void beginMetrics() {
        if (reporters.getAndIncrement() == 0) {
            LOG.info("Sluice sees the metrics of node {}", settings.node);
        }
    }

    /** A reporter is closed. Without another one nothing is known of what is charged, though known shares hold. */
    void endMetrics() {
        if (reporters.decrementAndGet() == 0 && !thread.isClosing) {
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

    /** Notes a client that seems to be Sluice's own and that quotas hold, with a line once a minute. Never waits. */
    void noteIfOwn(KafkaPrincipal principal, String clientId) {
        if (!ownClients.isOwn(clientId)) {
            return;
        }
        String name = principal.getPrincipalType() + ":" + principal.getName();
        if (ownClients.noteNotExempt(name, clientId, time.milliseconds())) {
            String limits = Stream.of(Kind.PRODUCE, Kind.FETCH, Kind.REQUEST)
                    .filter(kind -> limit(meterOf(kind, principal.getName(), clientId)) != null)
                    .map(kind -> kind.key + " " + limit(meterOf(kind, principal.getName(), clientId)))
                    .collect(Collectors.joining(", "));
            LOG.warn("Client {} of {} isn't exempt and has {}: requests, decisions and limits wait if Sluice is throttled; {}",
                    ownClients.shown(clientId),
                    Names.bounded(name),
                    limits.isEmpty() ? "no limit yet" : "here " + limits,
                    ownClients.cure(Names.bounded(name)));
        }
    }

    @Override
    List<OwnClients.NotExempt> notExempt() {
        return ownClients.notExempt(time.milliseconds());
    }

    @Override
    public String getNotExempt() {
        String names = notExempt().stream().map(client -> client.principal).sorted().collect(Collectors.joining(";"));
        return names.isEmpty() ? null : names;
    }

    @Override
    Load load() {
        return loadReader.load;
    }

    @Override
    Stream<LastingThread> threads() {
        return Stream.concat(super.threads(), Stream.of(loadReader.thread));
    }

    @Override
    public boolean isExact() {
        return Samples.isPossible();
    }

    @Override
    public long getCountersNotFollowed() {
        return meters.notFollowed.get();
    }
}
