package sluice.kafka;

import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Quota;

/**
 * The limit of a meter, from which Kafka computes no wait that is longer than a broker may mute at once.
 *
 * <p>Kafka can't end a mute. With S recorded in W seconds, it mutes for S / b - W seconds under the bound b, so for an hour
 * when a quota was lowered by mistake. So b is never less than S / (W + the longest mute), computed when Kafka asks for it:
 * the request is recorded by then. What was recorded stays, and the next request waits again. A bucket of tokens asks for
 * -tokens / b seconds.
 */
final class Bound extends MetricConfig {
    static final long NO_CAP_MS = Long.MAX_VALUE;

    /** Set while this thread reads the metric, whose bucket of tokens asks for its bound. */
    private static final ThreadLocal<Boolean> READS = ThreadLocal.withInitial(() -> false);

    private final KafkaMetric metric;
    private final boolean isTokens;
    private volatile long maxMuteMs;
    private volatile double exceeded;

    Bound(KafkaMetric metric, Kind kind, double limit, long maxMuteMs) {
        this.metric = metric;
        this.isTokens = kind == Kind.MUTATION;
        this.maxMuteMs = maxMuteMs;
        this.exceeded = limit;
        MetricConfig old = metric.config();
        timeWindow(old.timeWindowMs(), TimeUnit.MILLISECONDS).samples(old.samples()).quota(Quota.upperBound(limit));
    }

    /** The limit by itself, per second. */
    double limit() {
        return super.quota().bound();
    }

    /** Sets the longest mute. */
    void cap(long ms) {
        maxMuteMs = ms;
    }

    /** The bound that the request exceeded which was capped last; the limit if none was. */
    double exceeded() {
        return exceeded;
    }

    /** The bound for what is recorded now. Request threads ask for it after each request. */
    @Override
    public Quota quota() {
        Quota plain = super.quota();
        if (maxMuteMs == NO_CAP_MS || plain == null || plain.bound() >= Meter.UNLIMITED || READS.get()) {
            return plain;
        }
        double value = value();
        if (isTokens ? value >= 0 : plain.acceptable(value)) {
            return plain;
        }
        double maxMuteS = maxMuteMs / 1000.0;
        double least = isTokens ? -value / maxMuteS : value * longestS() / (longestS() + maxMuteS);
        exceeded = Math.max(least, plain.bound());
        return least > plain.bound() ? Quota.upperBound(least) : plain;
    }

    private double value() {
        READS.set(true);
        try {
            return ((Number) metric.metricValue()).doubleValue();
        } finally {
            READS.set(false);
        }
    }

    /** The longest time in seconds that a rate covers: a sample ends as many windows after its last record as there are. */
    private double longestS() {
        return (samples() + 1) * timeWindowMs() / 1000.0;
    }
}
