package sluice.proxy;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Avg;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.common.utils.Time;
import sluice.kafka.CounterKey;
import sluice.kafka.Kind;
import sluice.kafka.Meter;
import sluice.kafka.Meters;
import sluice.kafka.ProxyGateway;
import sluice.kafka.Settings;

/**
 * The meters of a proxy: the sensors that a broker makes for its clients, with the same metrics, charged as Kafka's
 * `ClientQuotaManager` and `ControllerMutationQuotaManager` do. The gateway finds them as it finds a broker's.
 *
 * <p>Safe for any thread, and never waits. A sensor that nobody has used for an hour is removed, as in Kafka.
 */
final class ProxyMeters implements AutoCloseable {
    private static final long UNUSED_S = 3_600;
    private static final double NS_PER_POINT = 1e7; // one percent of a thread-second is 10 ms

    private final ProxyGateway gateway;
    private final Settings settings;
    private final Time time;
    private final Metrics metrics;
    private final Map<CounterKey, Sensors> sensors = new ConcurrentHashMap<>();
    private final ReentrantLock creation = new ReentrantLock();

    ProxyMeters(ProxyGateway gateway, Settings settings, Time time) {
        this.gateway = gateway;
        this.settings = settings;
        this.time = time;
        this.metrics = new Metrics(new MetricConfig(), List.of(new Reporter()), time, true);
    }

    /** The counter of a client, with its tenant. */
    CounterKey counter(Kind kind, Client client) {
        return gateway.meterOf(kind, client.user(), client.clientId());
    }

    /** The counter of a topic-partition; null if no quota meters it. */
    CounterKey counterOfPartition(Kind kind, String topic, int partition) {
        return gateway.counterOfPartition(kind, topic, partition);
    }

    /** Charges an amount, and returns the wait in ms that the quota asks for. */
    long charge(CounterKey counter, double amount) {
        gateway.count(counter.kind, amount);
        return sensors(counter).charge(amount);
    }

    /** Charges time of a request, and returns the wait in ms. */
    long chargeTime(Client client, long requestNs) {
        long waitMs = charge(counter(Kind.REQUEST, client), requestNs / NS_PER_POINT);
        return Math.min(waitMs, settings.window.windowMs); // as Kafka caps it
    }

    /** How long a counter's clients have to be silent until its share has made up for what went through. */
    long owedMs(CounterKey counter) {
        Meter meter = gateway.meters().of(counter);
        return meter == null ? 0 : meter.owedMs();
    }

    /** The same, and not less than until the quota isn't exceeded: what is owed is known some time after it was charged. */
    long overdrawnMs(CounterKey counter) {
        return Math.max(owedMs(counter), waitMs(counter));
    }

    /** Whether any quota of a kind is set. */
    boolean isUsed(Kind kind) {
        return gateway.isUsed(kind);
    }

    /** Whether a counter has a limit. */
    boolean isLimited(CounterKey counter) {
        return gateway.isLimited(counter);
    }

    /** What this proxy may let through on a counter. */
    double limit(CounterKey counter) {
        return numberOf(gateway.limit(counter));
    }

    /** The same on the counter of its clients' tenant. */
    double tenantLimit(CounterKey counter) {
        return numberOf(gateway.tenantLimit(counter));
    }

    private static double numberOf(Double limit) {
        return limit == null ? Double.POSITIVE_INFINITY : limit;
    }

    /** Whether a counter is overdrawn, so that what a client sends now is refused and not charged. It counts as a wait. */
    boolean refuses(CounterKey counter, Client client) {
        long waitMs = Math.min(overdrawnMs(counter), QuotaFilter.MAX_MUTE_MS);
        if (waitMs > 0) {
            sensors(counter).noteThrottled(waitMs, time.milliseconds());
            noteRefused(counter, gateway.holding(counter), client, waitMs);
        }
        return waitMs > 0;
    }

    /** Notes that the limit `by`, of a client's own counter or its tenant's, has refused a request: decisions tell of it. */
    void noteRefused(CounterKey counter, CounterKey by, Client client, long waitMs) {
        gateway.noteRefused(counter, by, client.user(), client.clientId(), waitMs);
    }

    /** The most bytes that the response to a fetch that asks for so many may have, as Kafka bounds it. No counter bounds nothing. */
    int fetchBytes(CounterKey counter, int asked) {
        Double limit = counter == null ? null : gateway.fetchLimit(counter);
        return limit == null ? asked : (int) Math.max(1, Math.min(asked, limit * settings.window.spanMs() / 1_000.0));
    }

    /**
     * Charges the mutations of topics one by one, in order, while the bucket isn't overdrawn, as Kafka does for requests
     * that understand a refusal. Returns those that are admitted.
     */
    Map<String, Integer> admit(CounterKey counter, Map<String, Integer> partitions) {
        Map<String, Integer> admitted = new LinkedHashMap<>();
        Sensors found = sensors(counter);
        partitions.forEach((topic, count) -> {
            if (found.hasTokens()) {
                chargeUnpublished(counter, count);
                admitted.put(topic, count);
            }
        });
        return admitted;
    }

    /** Charges mutations that the job has admitted, and charged. */
    void chargeDecided(CounterKey counter, int partitions) {
        chargeUnpublished(counter, partitions);
    }

    /** Charges mutations of which the job isn't told before they are settled. Returns the wait in ms. */
    long chargeUnpublished(CounterKey counter, int partitions) {
        Sensors found = sensors(counter);
        notePublished(counter, partitions);
        return found.charge(partitions);
    }

    /**
     * Tells the job of `charged` partitions, but for those of them that a broker refused: these are given back, as are the
     * `decided` ones, which the job has charged already; it takes them off what comes next.
     */
    void settle(CounterKey counter, int charged, int refused, int decided) {
        if (refused + decided > 0) {
            sensors(counter).giveBack(refused + decided);
        }
        notePublished(counter, -(double) charged);
    }

    private void notePublished(CounterKey counter, double partitions) {
        Meter meter = gateway.meters().of(counter);
        if (meter != null) {
            meter.notePublished(partitions);
        }
    }

    /** The wait in ms until a counter doesn't exceed its quota. */
    long waitMs(CounterKey counter) {
        return sensors(counter).waitMs();
    }

    @Override
    public void close() {
        metrics.close();
    }

    private Sensors sensors(CounterKey counter) {
        Sensors found = sensors.get(counter);
        if (found != null && !found.quota.hasExpired()) {
            return found;
        }
        creation.lock();
        try {
            found = sensors.get(counter);
            if (found == null || found.quota.hasExpired()) {
                found = new Sensors(counter);
                sensors.put(counter, found);
            }
            return found;
        } finally {
            creation.unlock();
        }
    }

    /** The two sensors of a counter. */
    private final class Sensors {
        private final Kind kind;
        private final Sensor quota;
        private final Sensor throttle;

        Sensors(CounterKey counter) {
            kind = counter.kind;
            String name = kind.group + ":" + String.join(":", Meters.metricTags(counter.tags).values());
            Double limit = gateway.limit(counter);
            MetricConfig config = new MetricConfig()
                    .samples(settings.window.samples)
                    .timeWindow(settings.window.windowMs, TimeUnit.MILLISECONDS);
            MetricConfig bounded = new MetricConfig()
                    .samples(settings.window.samples)
                    .timeWindow(settings.window.windowMs, TimeUnit.MILLISECONDS)
                    .quota(Quota.upperBound(limit == null ? Long.MAX_VALUE : limit));
            throttle = metrics.sensor(name + ":throttle", config, UNUSED_S, Sensor.RecordingLevel.INFO);
            throttle.add(metricName(counter, Meters.THROTTLE_TIME), new Avg());
            quota = metrics.sensor(name, config, UNUSED_S, Sensor.RecordingLevel.INFO);
            if (kind == Kind.MUTATION) {
                quota.add(metricName(counter, kind.chargedMetric), new Rate());
                quota.add(metricName(counter, kind.boundMetric), new TokenBucket(), bounded);
            } else {
                quota.add(metricName(counter, kind.chargedMetric), new Rate(), bounded);
            }
        }

        /** Records an amount, and returns the wait in ms. */
        long charge(double amount) {
            long nowMs = time.milliseconds();
            try {
                quota.record(amount, nowMs, true);
                return 0;
            } catch (QuotaViolationException violation) {
                long waitMs = Math.max(1, waitMs(violation, nowMs));
                noteThrottled(waitMs, nowMs);
                return waitMs;
            }
        }

        void giveBack(double amount) {
            quota.record(-amount, time.milliseconds(), false);
        }

        void noteThrottled(long waitMs, long nowMs) {
            throttle.record(Math.min(waitMs, QuotaFilter.MAX_MUTE_MS), nowMs, false);
        }

        boolean hasTokens() {
            return waitMs() == 0;
        }

        long waitMs() {
            long nowMs = time.milliseconds();
            try {
                quota.checkQuotas(nowMs);
                return 0;
            } catch (QuotaViolationException violation) {
                return Math.max(1, waitMs(violation, nowMs));
            }
        }

        /** Kafka's `QuotaUtils.throttleTime`, and that of a bucket of tokens. */
        private long waitMs(QuotaViolationException violation, long nowMs) {
            if (kind == Kind.MUTATION) {
                return Math.round(-violation.value() / violation.bound() * 1_000.0);
            }
            KafkaMetric metric = violation.metric();
            double windowMs = ((Rate) metric.measurable()).windowSize(metric.config(), nowMs);
            return Math.round((violation.value() - violation.bound()) / violation.bound() * windowMs);
        }

        private MetricName metricName(CounterKey counter, String name) {
            return metrics.metricName(name, kind.group, "", Meters.metricTags(counter.tags));
        }
    }

    /** Hands the metrics to the gateway, as `SluiceMetricsReporter` does in a broker. */
    private final class Reporter implements MetricsReporter {
        @Override
        public void init(List<KafkaMetric> present) {}

        @Override
        public void metricChange(KafkaMetric metric) {
            gateway.add(metric);
        }

        @Override
        public void metricRemoval(KafkaMetric metric) {
            gateway.remove(metric);
            CounterKey counter = Meters.counterOf(metric);
            if (counter != null) {
                sensors.computeIfPresent(counter, (key, found) -> found.quota.hasExpired() ? null : found);
            }
        }

        @Override
        public void close() {}

        @Override
        public void configure(Map<String, ?> configs) {}
    }
}
