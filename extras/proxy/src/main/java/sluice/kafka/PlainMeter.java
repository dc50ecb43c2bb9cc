package sluice.kafka;

import java.util.Arrays;
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
    private final Round round = new Round();
    private Rate rate = new Rate();
    private TokenBucket tokens = new TokenBucket();
    private double limit = UNLIMITED; // the share that is let through
    private double whole = UNLIMITED;
    private final Turns turns = new Turns();
    private double promised; // to requests that were let through and aren't charged yet
    private int reliefs;
    private volatile QueuedBucket[] queued = {};
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

    @Override
    synchronized void join(CommonBucket bucket) {
        super.join(bucket);
        queued = Arrays.copyOf(common(), common().length, QueuedBucket[].class);
    }

    /**
     * Charges an amount, of which the job knows already or is told later if `isKnown`. Returns the wait in ms. One for bytes has
     * no cap, as in Kafka, and lasts until the connection's turn if many use the counter.
     */
    synchronized long charge(double amount, boolean isKnown, long nowMs) {
        noteCharged(isKnown ? 0.0 : amount, 1, nowMs);
        record(amount, nowMs);
        long ownMs = ownWaitMs(nowMs);
        long waitMs = Math.max(ownMs, waitOfCommon(nowMs));
        long roundMs = roundMs(amount, nowMs);
        if (waitMs > 0) {
            waitMs = isOfBytes() ? Math.max(waitMs, roundMs) : Math.min(waitMs, longestMuteMs());
            noteThrottled(waitMs, ownMs > 0, nowMs);
        } else {
            noteServed(nowMs);
        }
        return waitMs;
    }

    /** Whether it is charged bytes: its waits have no cap. */
    private boolean isOfBytes() {
        return counter.kind == Kind.PRODUCE || counter.kind == Kind.FETCH || counter.kind.isOfTopics();
    }

    /** Charges what a limit has admitted, of which the job is told later: no wait comes of it, whatever is overdrawn now. */
    synchronized void admit(double amount, long nowMs) {
        noteCharged(0.0, 1, nowMs);
        record(amount, nowMs);
        noteServed(nowMs);
    }

    /** The longest wait that one response asks for, but for bytes. */
    private long longestMuteMs() {
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

    /** How long a client that sends now for the first time waits because it is held. */
    synchronized long heldMs(long nowMs) {
        return isHeld() ? Math.max(0, heldUntilMs() - nowMs) : 0;
    }

    /**
     * Promises an amount to a request, unless something that it is charged to is overdrawn: then returns how long that lasts
     * still, in ms, with the turns of those that have waited for it longer. What is promised counts as charged, so of two requests
     * at once one alone goes through.
     */
    synchronized long promise(double amount, Turn turn, long nowMs) {
        double before = isHeld() || limit >= UNLIMITED ? 0.0 : turns.ahead(turn, amount, limit, window);
        long waitMs = isHeld() || limit >= UNLIMITED ? 0 : overdrawnMs(promised + before, nowMs);
        if (waitMs > 0) {
            turn.join(turns, amount);
        }
        QueuedBucket[] all = queued;
        int count = 0;
        for (; waitMs == 0 && count < all.length; count++) {
            waitMs = all[count].promise(amount, turn, nowMs);
        }
        if (waitMs == 0) {
            promised += amount;
            return 0;
        }
        for (int number = 0; number < count - 1; number++) {
            all[number].endPromise(amount);
        }
        return waitMs;
    }

    /** The request is charged, or won't be. */
    synchronized void endPromise(double amount) {
        promised = Math.max(0.0, promised - amount);
        for (QueuedBucket each : queued) {
            each.endPromise(amount);
        }
    }

    /** What a request is charged in the mean. */
    synchronized double size() {
        return round.size();
    }

    /** So many more connections want to use it, or fewer. */
    synchronized void joinRound(int change) {
        round.join(change);
        for (QueuedBucket each : queued) {
            each.joinRound(change);
        }
    }

    private long roundMs(double amount, long nowMs) {
        round.note(amount);
        long waitMs = isHeld() || limit >= UNLIMITED ? 0 : Math.min(round.ms(limit), longestMute.ms(nowMs));
        for (QueuedBucket each : queued) {
            waitMs = Math.max(waitMs, each.roundMs(amount, nowMs));
        }
        return waitMs;
    }

    /** How often it was reset, its limit raised, or a hold ended: nobody need wait as he was told before. */
    synchronized int reliefs() {
        return reliefs + Arrays.stream(queued).mapToInt(QueuedBucket::reliefs).sum();
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
        return limit >= UNLIMITED ? 0 : Math.min(longestMute.ms(nowMs), overdrawnMs(0.0, nowMs));
    }

    /** How long it is overdrawn, in ms, if it were charged `more`. */
    private long overdrawnMs(double more, long nowMs) {
        if (isMutation) {
            double left = tokens.measure(config, nowMs);
            return left < 0 ? Math.max(1, Math.round(-left / limit * 1_000.0)) : 0;
        }
        if (isPaced()) {
            bucket.charge(0.0, 0.0, nowMs);
            return bucket.waitMs(more);
        }
        double windowMs = rate.windowSize(config, nowMs);
        double observed = rate.measure(config, nowMs) + more * 1_000.0 / windowMs; // Kafka's `QuotaUtils.throttleTime`
        double over = (observed - limit) / limit * windowMs;
        return observed > limit ? Math.max(1, Math.round(over)) : 0;
    }

    @Override
    synchronized void bind(double ofLimit, long nowMs) {
        noteRelief();
        note(ofLimit, false, false);
        set(ofLimit, ofLimit, false);
    }

    @Override
    synchronized void pace(double ofLimit, double whole, boolean isTight, long nowMs) {
        noteRelief();
        note(ofLimit, true, false);
        set(ofLimit, whole, isTight);
    }

    @Override
    synchronized void hold(double ofLimit) {
        note(ofLimit, false, true);
        set(ofLimit, ofLimit, false);
    }

    private void noteRelief() {
        reliefs += isHeld() ? 1 : 0;
    }

    private void set(double ofLimit, double ofAll, boolean isTight) {
        reliefs += ofAll > whole ? 1 : 0;
        limit = ofLimit;
        whole = ofAll;
        bucket.set(ofLimit, ofAll, isTight);
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
        reliefs++;
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
