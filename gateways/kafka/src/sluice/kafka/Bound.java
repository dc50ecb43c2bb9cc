package sluice.kafka;

import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;

/**
 * The limit of a meter, from which Kafka computes no wait that is longer than a broker may mute at once.
 *
 * <p>Kafka can't end a mute. With S recorded in W seconds, it mutes for S / b - W seconds under the bound b, so for an hour
 * when a quota was lowered by mistake. So b is never less than S / (W + the longest mute), computed when Kafka asks for it:
 * the request is recorded by then. What was recorded stays, and the next request waits again. A bucket of tokens asks for
 * -tokens / b seconds.
 *
 * <p>A meter may be paced by a bucket. If S is recorded with a request that waits for w seconds, b is S / (W + w), from which
 * Kafka computes w.
 *
 * <p>A meter may be charged for a bucket that it has in common with others. While that is overdrawn, for w seconds, b is
 * S / (W + w) if that is less, from which Kafka computes w. Where tokens are left, so many are borrowed as w asks for, until
 * it isn't overdrawn any more: what others used takes nothing from the meter.
 *
 * <p>A fetch of a share group is charged, but neither its bytes nor its time make it wait: Kafka would answer without the
 * records that it has acquired.
 */
final class Bound extends MetricConfig {
    /** Set while this thread reads the metric, whose bucket of tokens asks for its bound. */
    private static final ThreadLocal<Boolean> READS = ThreadLocal.withInitial(() -> false);

    private static final Quota NONE = Quota.upperBound(Meter.UNLIMITED);

    private final KafkaMetric metric;
    private final KafkaMeter meter;
    private final boolean isTokens;
    private volatile long maxMuteMs;
    private final boolean isPaced;

    /** If it paces, clients wait for the meter's bucket, which refills by the limit. */
    Bound(KafkaMetric metric, KafkaMeter meter, double limit, long maxMuteMs, boolean isPaced) {
        this.metric = metric;
        this.meter = meter;
        this.isTokens = meter.counter.kind == Kind.MUTATION;
        this.maxMuteMs = maxMuteMs;
        this.isPaced = isPaced;
        MetricConfig old = metric.config();
        timeWindow(old.timeWindowMs(), TimeUnit.MILLISECONDS).samples(old.samples()).quota(Quota.upperBound(limit));
    }

    /** Whether it is the same. */
    boolean is(double limit, boolean paced) {
        return paced == isPaced && limit == super.quota().bound();
    }

    /** Sets the longest mute. */
    void cap(long ms) {
        maxMuteMs = ms;
    }

    /** The bound for what is recorded now. Request threads ask for it after each request. */
    @Override
    public Quota quota() {
        Quota plain = super.quota();
        if (plain == null || READS.get()) {
            return plain;
        }
        boolean isLimited = isPaced || plain.bound() < Meter.UNLIMITED || meter.common().length > 0;
        if (isLimited && meter.counter.kind == Kind.FETCH && ShareFetches.isAnswered()) {
            return NONE;
        }
        Quota found = isPaced ? paced() : unpaced(plain);
        if (isTokens && isLimited) {
            noteAsked(found);
        }
        boolean isTime = isLimited && meter.counter.kind == Kind.REQUEST;
        return isTime && !found.acceptable(value()) && ShareFetches.isAnswered() ? NONE : found;
    }

    /**
     * Notes the wait that Kafka computes from this bound for who asks now. A controller asks for it, and a broker mutes: so the
     * metric of waits of this quota never says so, and what is refused is charged to none.
     */
    private void noteAsked(Quota found) {
        Object lock = meter.metricLock();
        if (lock == null || Thread.holdsLock(lock)) { // the bucket is only read
            return;
        }
        long waitMs = Math.round(-value() / found.bound() * 1000.0);
        if (waitMs > 0) {
            meter.noteAsked(waitMs, meter.nowMs());
        }
    }

    private Quota unpaced(Quota plain) {
        Quota capped = maxMuteMs == LongestMute.NO_CAP_MS || plain.bound() >= Meter.UNLIMITED ? plain : capped(plain);
        return meter.common().length == 0 ? capped : lowered(capped, plain);
    }

    private Quota paced() {
        long nowMs = meter.nowMs();
        long waitMs = meter.waitMs(maxMuteMs, nowMs);
        return waitMs > 0 ? Quota.upperBound(boundFor(waitMs, nowMs)) : NONE;
    }

    /** The bound from which Kafka computes this wait for what is recorded now. */
    private double boundFor(long waitMs, long nowMs) {
        synchronized (meter.metricLock()) {
            Rate rate = (Rate) metric.measurable();
            double windowMs = rate.windowSize(this, nowMs);
            return rate.measure(this, nowMs) * windowMs / (windowMs + waitMs);
        }
    }

    /** The bound, lowered so that it makes the client wait for what others used. */
    private Quota lowered(Quota capped, Quota plain) {
        Object lock = meter.metricLock();
        if (lock == null || Thread.holdsLock(lock)) { // a bucket of tokens is only read
            return capped;
        }
        double value = value();
        meter.noteExceeded(isTokens ? value + meter.borrowed() < 0 : !plain.acceptable(value));
        long nowMs = meter.nowMs();
        long waitMs = meter.commonWaitMs(nowMs);
        if (isTokens) {
            borrow(capped.bound() * waitMs / 1000.0, nowMs, lock);
            return capped;
        }
        if (waitMs == 0) {
            return capped;
        }
        return Quota.upperBound(Math.min(capped.bound(), boundFor(waitMs, nowMs)));
    }

    /** Borrows what is left in the bucket of tokens, and so many more; nothing if it is overdrawn. Without any it gives all back. */
    private void borrow(double tokens, long nowMs, Object lock) {
        READS.set(true);
        try {
            synchronized (lock) {
                TokenBucket bucket = (TokenBucket) metric.measurable();
                double left = bucket.measure(this, nowMs);
                if (tokens == 0 && meter.borrowed() > 0) {
                    bucket.record(this, -meter.borrowed(), nowMs);
                    meter.borrow(-meter.borrowed());
                } else if (tokens > 0 && left >= 0) {
                    bucket.record(this, left + tokens, nowMs);
                    meter.borrow(left + tokens);
                }
            }
        } finally {
            READS.set(false);
        }
    }

    private Quota capped(Quota plain) {
        double value = value();
        if (isTokens ? value >= 0 : plain.acceptable(value)) {
            return plain;
        }
        double maxMuteS = maxMuteMs / 1000.0;
        double least = isTokens ? -value / maxMuteS : value * longestS() / (longestS() + maxMuteS);
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
