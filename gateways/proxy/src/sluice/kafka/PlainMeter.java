package sluice.kafka;

import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;

/**
 * A proxy's meter of one counter, which is charged request by request: a bucket that refills by the proxy's share and holds
 * half of what a meter of Kafka lets through at once, as `state/shares/counter_share.py` has it. Mutations have Kafka's own bucket.
 *
 * <p>Until the first look a new one asks for the waits of Kafka's meter: a fresh counter lets ten seconds through, as on a
 * broker. A client waits for its counter, and for the buckets that this meter has in common with others.
 */
final class PlainMeter extends Meter {
    private static final double BURST = 0.5;
    private static final long UNUSED_MS = 3_600_000; // as long as Kafka keeps a sensor

    private final boolean isMutation;
    private final Bucket bucket;
    private final MetricConfig config;
    private Rate rate = new Rate();
    private TokenBucket tokens = new TokenBucket();
    private double limit = UNLIMITED; // the share that is let through
    private long usedMs;
    private boolean isEnded;

    PlainMeter(CounterKey key, Window window, LongestMute longestMute, LongSupplier clockMs) {
        super(key, window, longestMute, clockMs);
        this.isMutation = counter.kind == Kind.MUTATION;
        this.bucket = new Bucket(counter.kind, window, BURST);
        this.config = new MetricConfig().samples(window.samples).timeWindow(window.windowMs, TimeUnit.MILLISECONDS);
        this.usedMs = nowMs();
        set(UNLIMITED, UNLIMITED, false);
    }

    /** Charges an amount, of which the job knows already or is told later if `isKnown`. Returns the wait in ms. */
    synchronized long charge(double amount, boolean isKnown, long nowMs) {
        noteCharged(isKnown ? 0.0 : amount, 1, nowMs);
        record(amount, nowMs);
        long ownMs = ownWaitMs(nowMs);
        long waitMs = Math.max(ownMs, waitOfCommon(nowMs));
        if (waitMs > 0) {
            noteThrottled(Math.min(waitMs, longestMuteMs()), ownMs > 0, nowMs);
        } else {
            noteServed(nowMs);
        }
        return waitMs;
    }

    /** The longest wait that one response asks for. */
    synchronized long longestMuteMs() {
        return isHeld() ? Overrides.HELD_MS : ProxyGateway.MAX_MUTE_MS;
    }

    /** Gives back what was charged and not done, and tells the job of `told`, less that. */
    synchronized void settle(double told, double undone, long nowMs) {
        record(-undone, nowMs);
        notePublished(undone - told, nowMs);
    }

    private void record(double amount, long nowMs) {
        rate.record(config, amount, nowMs);
        if (isMutation) {
            tokens.record(config, amount, nowMs);
        } else {
            bucket.charge(amount, 0.0, nowMs);
        }
        for (CommonBucket each : common()) {
            each.charge(amount, nowMs);
        }
    }

    /** How long a client that sends now has to wait, in ms; while it is held, as long as those that have sent. */
    synchronized long waitMs(long nowMs) {
        return isHeld() ? Math.max(0, heldUntilMs() - nowMs) : Math.max(ownWaitMs(nowMs), waitOfCommon(nowMs));
    }

    /** The same of a client that has waited as its own responses said: what others used since, in ms. */
    synchronized long owedMs(long nowMs) {
        return isHeld() ? waitOfCommon(nowMs) : waitMs(nowMs);
    }

    /** Notes that a client which sends now is refused, and waits so long. */
    synchronized void noteRefused(long waitMs, long nowMs) {
        noteThrottled(Math.min(waitMs, ProxyGateway.MAX_MUTE_MS), ownWaitMs(nowMs) > 0, nowMs);
    }

    /** Notes that a client which sends now is stopped. */
    synchronized void noteStopped(long nowMs) {
        noteThrottled(Overrides.HELD_MS, true, nowMs);
    }

    private long ownWaitMs(long nowMs) {
        if (isHeld()) {
            return Overrides.HELD_MS;
        }
        return limit >= UNLIMITED ? 0 : Math.min(longestMute.ms(nowMs), overdrawnMs(nowMs));
    }

    private long overdrawnMs(long nowMs) {
        if (isMutation) {
            double left = tokens.measure(config, nowMs);
            return left < 0 ? Math.max(1, Math.round(-left / limit * 1_000.0)) : 0;
        }
        if (isPaced()) {
            bucket.charge(0.0, 0.0, nowMs);
            return bucket.owedMs();
        }
        double observed = rate.measure(config, nowMs); // Kafka's `QuotaUtils.throttleTime`
        double over = (observed - limit) / limit * rate.windowSize(config, nowMs);
        return observed > limit ? Math.max(1, Math.round(over)) : 0;
    }

    @Override
    synchronized void bind(double ofLimit, long nowMs) {
        note(ofLimit, false, false);
        set(ofLimit, ofLimit, false);
    }

    @Override
    synchronized void pace(double ofLimit, double whole, boolean isTight, long nowMs) {
        note(ofLimit, true, false);
        set(ofLimit, whole, isTight);
    }

    @Override
    synchronized void hold(double ofLimit) {
        note(ofLimit, false, true);
        set(ofLimit, ofLimit, false);
    }

    private void set(double ofLimit, double whole, boolean isTight) {
        limit = ofLimit;
        bucket.set(ofLimit, whole, isTight);
        if (isMutation) {
            config.quota(Quota.upperBound(ofLimit));
        }
    }

    @Override
    void read(long nowMs) {} // what is charged is noted at once

    @Override
    synchronized double rate() {
        return rate.measure(config, nowMs());
    }

    @Override
    synchronized void reset(long nowMs) {
        super.reset(nowMs);
        rate = new Rate();
        tokens = new TokenBucket();
        bucket.reset();
    }

    @Override
    synchronized void stepBack(long nowMs) {
        super.stepBack(nowMs);
        usedMs = Math.min(usedMs, nowMs);
        bucket.stepBack(nowMs);
    }

    /** Notes a use; says whether it may be charged still. */
    synchronized boolean isUsable(long nowMs) {
        usedMs = nowMs;
        return !isEnded;
    }

    @Override
    synchronized boolean endIfUnused(long nowMs) {
        isEnded = nowMs - usedMs > UNUSED_MS && !hasUnpublished();
        return isEnded;
    }
}
