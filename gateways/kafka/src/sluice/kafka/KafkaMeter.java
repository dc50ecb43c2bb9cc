package sluice.kafka;

import java.util.function.LongSupplier;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;

/**
 * A broker's own meter: Kafka charges its metrics, and makes clients wait by the bound that is set here.
 *
 * <p>Request threads only add metrics, when Kafka makes a sensor, and ask for the bound.
 */
final class KafkaMeter extends Meter {
    private static final double TRICKLE = 1.0; // of a counter that is held, in bytes per second

    private final boolean isFetch; // one that breaks the quota is answered empty, and taken back
    private final Bucket bucket;
    private double promised; // charged for a fetch that was withheld
    private long promisedMs; // when it may come again
    private double withheld; // of what Kafka takes back, what stays charged
    private volatile Object metricLock;
    private volatile double borrowed; // tokens of its own bucket; written under the metrics' lock
    private KafkaMetric bound;
    private Samples charged;
    private Samples throttled;
    private double paced; // what the bucket isn't charged yet, such as a fetch that Kafka will take back
    private double fetchSize; // of the one that was withheld last
    private volatile boolean isExceeded = true; // by the last request, not only a bucket in common

    /** `clockMs` is that of the metrics. */
    KafkaMeter(CounterKey key, Window window, LongestMute longestMute, LongSupplier clockMs) {
        super(key, window, longestMute, clockMs);
        this.isFetch = counter.kind == Kind.FETCH;
        this.bucket = new Bucket(counter.kind, window, Bucket.BURST);
    }

    /**
     * Takes over one of its metrics. The same one may come twice: a node that is broker and controller has two
     * reporters for one set of metrics.
     */
    synchronized void add(KafkaMetric metric, long nowMs) {
        String name = metric.metricName().name();
        if (name.equals(counter.kind.boundMetric)) {
            borrowed = bound == metric ? borrowed : 0.0;
            bound = metric;
            bindMetric(metric.config().quota() == null ? UNLIMITED : metric.config().quota().bound(), longestMute.ms(nowMs), false);
        }
        if (name.equals(counter.kind.chargedMetric) && (charged == null || charged.metric != metric)) {
            charged = new Samples(metric, nowMs);
            metricLock = charged.lock;
        }
        if (name.equals(KafkaMeters.THROTTLE_TIME) && (throttled == null || throttled.metric != metric)) {
            throttled = new Samples(metric, nowMs);
        }
        lookSoon();
    }

    /** Takes leave of a metric that Kafka has removed, after a last look. */
    synchronized void remove(KafkaMetric metric, long nowMs) {
        read(nowMs);
        bound = bound == metric ? null : bound;
        note(share(), isPaced() && bound != null, isHeld()); // Kafka asks for the limit of a new metric
        charged = charged != null && charged.metric == metric ? null : charged;
        throttled = throttled != null && throttled.metric == metric ? null : throttled;
    }

    @Override
    synchronized boolean endIfUnused(long nowMs) {
        return bound == null && charged == null && throttled == null && !hasUnpublished();
    }

    @Override
    synchronized void stepBack(long nowMs) {
        super.stepBack(nowMs);
        promisedMs = Math.min(promisedMs, nowMs);
        bucket.stepBack(nowMs);
    }

    @Override
    synchronized void reset(long nowMs) {
        chargeCommon(readMetrics(nowMs, true), nowMs);
        bucket.reset();
        paced = 0.0;
        super.reset(nowMs);
    }

    @Override
    synchronized void read(long nowMs) {
        chargeCommon(readMetrics(nowMs, false), nowMs);
    }

    /** Reads the metrics, and returns what was charged. */
    private double readMetrics(long nowMs, boolean isLast) {
        if (charged == null) {
            return 0.0;
        }
        boolean isThrottled = throttled != null && bound != null && readThrottled(nowMs);
        charged.look(nowMs, isLast);
        if (charged.gained() == 0.0 && charged.events() <= 0) {
            return 0.0;
        }
        if (!isThrottled) {
            noteServed(nowMs);
        }
        paced += charged.gained();
        noteCharged(charged.gained(), Math.max(0, charged.events()), nowMs);
        return charged.gained();
    }

    /**
     * Notes that Kafka has throttled connections since the last look, and says whether it did. Their mean stands for the
     * counter. Their requests ended the wait before.
     */
    private boolean readThrottled(long nowMs) {
        throttled.look(nowMs);
        if (throttled.gained() <= 0) {
            return false;
        }
        double throttleMs = throttled.events() > 0 ? throttled.gained() / throttled.events() : 0.0;
        noteThrottled(Math.round(throttleMs), isOwnWait(), nowMs);
        return true;
    }

    private boolean isOwnWait() {
        return common().length == 0 || bound == null || !(bound.config() instanceof Bound) || isExceeded;
    }

    /** Notes a wait that a controller asks a client for. What was charged until now ended the wait before. */
    synchronized void noteAsked(long waitMs, long nowMs) {
        read(nowMs);
        noteThrottled(waitMs, isOwnWait(), nowMs);
        lookSoon();
    }

    /** Notes whether the last request exceeded the limit itself. */
    void noteExceeded(boolean exceeded) {
        isExceeded = exceeded;
    }

    /** Charges what was recorded, and returns how long its client waits, in ms: for its own pace so long at most. */
    synchronized long waitMs(long mostMs, long nowMs) {
        double gained = readMetrics(nowMs, false);
        long ownMs = Math.min(ownWaitMs(nowMs), mostMs);
        isExceeded = ownMs > 0;
        return Math.max(ownMs, commonWaitMs(gained, nowMs));
    }

    /**
     * Charges its bucket, and returns how long it makes clients wait, in ms. A fetch that breaks its quota is answered
     * empty and comes again. It is charged when there is room for all of it, so the bucket has room for one fetch besides:
     * what comes in while the client is on its way isn't lost.
     */
    private long ownWaitMs(long nowMs) {
        bucket.charge(0.0, fetchSize, nowMs);
        long waitMs = bucket.waitMs(paced);
        if (isFetch && waitMs > 0) {
            fetchSize = Math.max(0.0, paced);
        } else {
            chargeBucket(nowMs);
        }
        return waitMs;
    }

    private void chargeBucket(long nowMs) {
        bucket.charge(paced, fetchSize, nowMs);
        paced = 0.0;
    }

    /** Charges what was recorded, and returns how long it makes clients wait for what others of a bucket used, in ms. */
    synchronized long commonWaitMs(long nowMs) {
        return commonWaitMs(readMetrics(nowMs, false), nowMs);
    }

    /**
     * The same, of so much that was recorded.
     *
     * <p>A fetch that is withheld for it stays charged: when it comes again after its wait, it is served. Else those that
     * wait for the same room would take it from each other.
     */
    private long commonWaitMs(double gained, long nowMs) {
        if (!isFetch) {
            chargeCommon(gained, nowMs);
            return waitOfCommon(nowMs);
        }
        if (gained <= 0) {
            chargeCommon(gained, nowMs);
            return 0;
        }
        if (promised > 0 && nowMs >= promisedMs) {
            chargeCommon(gained - promised, nowMs);
            promised = 0.0;
            return 0;
        }
        if (promised == 0) {
            chargeCommon(gained, nowMs);
            promisedMs = nowMs + waitOfCommon(nowMs);
            promised = promisedMs > nowMs ? gained : 0.0;
        }
        withheld += promised > 0 ? gained : 0.0;
        return promisedMs - nowMs;
    }

    private void chargeCommon(double gained, long nowMs) {
        double stays = Math.min(withheld, Math.max(0.0, -gained));
        withheld -= stays;
        for (CommonBucket bucket : common()) {
            bucket.charge(gained + stays, nowMs);
        }
    }

    @Override
    synchronized void bind(double ofLimit, long nowMs) {
        note(ofLimit, false, false);
        paced = 0.0;
        bindMetric(ofLimit, longestMute.ms(nowMs), false);
    }

    @Override
    synchronized void hold(double ofLimit) {
        note(ofLimit, false, true);
        paced = 0.0;
        bindMetric(TRICKLE, Overrides.HELD_MS, false);
    }

    @Override
    synchronized void pace(double ofLimit, double limit, boolean isTight, long nowMs) {
        boolean isPaced = charged != null && Samples.isPossible();
        if (isPaced) {
            bucket.set(ofLimit, limit, isTight);
            chargeBucket(nowMs);
        }
        bindMetric(ofLimit, longestMute.ms(nowMs), isPaced);
        note(ofLimit, isPaced ? bound != null : isPaced(), false);
    }

    /** Sets the limit of the metric that has one. Kafka reads it with the next request. */
    private void bindMetric(double ofLimit, long capMs, boolean isPaced) {
        if (bound == null) {
            return;
        }
        MetricConfig old = bound.config(); // one of Kafka's own, when a quota was set with kafka-configs
        if (old instanceof Bound && ((Bound) old).is(ofLimit, isPaced)) {
            ((Bound) old).cap(capMs);
        } else {
            bound.config(new Bound(bound, this, ofLimit, capMs, isPaced));
        }
    }

    @Override
    synchronized double rate() {
        return charged == null ? 0.0 : ((Number) charged.metric.metricValue()).doubleValue();
    }

    /** The tokens that its own bucket is short of because one that it has in common with others is overdrawn. */
    double borrowed() {
        return borrowed;
    }

    /** Notes that so many tokens more are borrowed. */
    void borrow(double tokens) {
        borrowed += tokens;
    }

    /** The lock under which Kafka records and reads its metrics; null if it isn't known. */
    Object metricLock() {
        return metricLock;
    }
}
