package sluice.kafka;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Avg;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.common.utils.Time;

/** Kafka's part of a broker with the plugin: its sensors, charged as `ClientQuotaManager` and `ControllerMutationQuotaManager` do. */
public final class KafkaSensors {
    private static final long MAX_MUTE_MS = 5_000;

    private final BrokerGateway gateway;
    private final Window window;
    private final Time time;
    private final Metrics metrics;
    private final Map<CounterKey, Sensors> sensors = new HashMap<>();

    KafkaSensors(BrokerGateway gateway, Window window, Time time) {
        this.gateway = gateway;
        this.window = window;
        this.time = time;
        SluiceMetricsReporter reporter = new SluiceMetricsReporter();
        reporter.gateway = gateway;
        this.metrics = new Metrics(new MetricConfig(), List.of(reporter), time, false);
    }

    /** Charges an amount, and returns the wait in ms that the quota asks for. */
    public long charge(CounterKey counter, double amount) {
        return sensors(counter).charge(amount);
    }

    /** The wait in ms until a counter doesn't exceed its quota. */
    public long waitMs(CounterKey counter) {
        return sensors(counter).waitMs();
    }

    private Sensors sensors(CounterKey counter) {
        return sensors.computeIfAbsent(counter, Sensors::new);
    }

    private final class Sensors {
        private final Kind kind;
        private final Sensor quota;
        private final Sensor throttle;

        Sensors(CounterKey counter) {
            kind = counter.kind;
            String name = kind.group + ":" + String.join(":", KafkaMeters.metricTags(counter.tags).values());
            Double limit = gateway.limit(counter);
            MetricConfig bounded = config().quota(Quota.upperBound(limit == null ? Long.MAX_VALUE : limit));
            throttle = metrics.sensor(name + ":throttle", config());
            throttle.add(metricName(counter, KafkaMeters.THROTTLE_TIME), new Avg());
            quota = metrics.sensor(name, config());
            if (kind == Kind.MUTATION) {
                quota.add(metricName(counter, kind.chargedMetric), new Rate());
                quota.add(metricName(counter, kind.boundMetric), new TokenBucket(), bounded);
            } else {
                quota.add(metricName(counter, kind.chargedMetric), new Rate(), bounded);
            }
        }

        long charge(double amount) {
            long nowMs = time.milliseconds();
            if (kind == Kind.MUTATION) { // a strict request is asked for before, and a controller mutes nobody
                quota.record(amount, nowMs, false);
                return 0;
            }
            try {
                quota.record(amount, nowMs, true);
                return 0;
            } catch (QuotaViolationException violation) {
                long waitMs = Math.max(1, waitMs(violation, nowMs));
                throttle.record(Math.min(waitMs, MAX_MUTE_MS), nowMs, false);
                return waitMs;
            }
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

        private MetricConfig config() {
            return new MetricConfig().samples(window.samples).timeWindow(window.windowMs, TimeUnit.MILLISECONDS);
        }

        private MetricName metricName(CounterKey counter, String name) {
            return metrics.metricName(name, kind.group, "", KafkaMeters.metricTags(counter.tags));
        }
    }
}
