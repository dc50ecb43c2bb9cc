package sluice.kafka;

import java.util.Arrays;
import java.util.function.LongSupplier;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;

/**
 * A broker's own meter of one counter, or of those of its requests that are in one tenant: its metrics, what they were
 * charged, and what of that is to be published.
 *
 * <p>Safe for several threads; request threads only add metrics, when Kafka makes a sensor. Times are epoch
 * milliseconds, amounts are in units of the quota unless they say otherwise.
 */
public final class Meter {
    /** The limit of a counter without one, as Kafka has it. */
    static final double UNLIMITED = Long.MAX_VALUE;

    private static final CommonBucket[] NONE = {};
    private static final double TRICKLE = 1.0; // of a counter that is held, in bytes per second
    private static final double NEAR = 0.1;
    private static final double NS_PER_POINT = 1e7; // one percent of a thread-second is 10 ms
    private static final double MAX_EXACT = 9_007_199_254_740_992.0;

    /** Its counter, with the tenant of its clients. */
    final CounterKey key;

    final CounterKey counter;

    private volatile CommonBucket[] common = NONE;
    private double promised; // charged for a fetch that was withheld
    private long promisedMs; // when it may come again
    private double withheld; // of what Kafka takes back, what stays charged
    private volatile Object metricLock;
    private volatile double borrowed; // tokens of its own bucket; written under the metrics' lock
    private final boolean isWithheld; // a fetch that breaks the quota
    private final LongestMute longestMute;
    private final LongSupplier clockMs;
    private KafkaMetric bound;
    private Samples charged;
    private Samples throttled;
    private final Pace pace;
    private double unpublished; // below 0 when more was taken back than charged
    private long unpublishedRequests;
    private double pacedCharge; // since the last pace
    private long pacedRequests;
    private long unpublishedSinceMs;
    private long publishedMs;
    private long activeMs;
    private long heldUntilMs;
    private boolean isCharged; // since the last look
    private boolean isUsed; // it was charged before the last look
    private boolean isNear; // its share, when it was last used
    private volatile long dueMs;
    private boolean isHoldUntold;
    private volatile double share = Double.NaN;
    private volatile boolean isPaced;
    private boolean isHeld;
    private volatile long owedMs;

    /** `withholds` says that a fetch that breaks its quota is answered empty, and taken back. `clockMs` is the metrics'. */
    Meter(CounterKey key, LongestMute longestMute, boolean withholds, LongSupplier clockMs) {
        this.key = key;
        this.counter = key.own();
        this.isWithheld = withholds && counter.kind == Kind.FETCH;
        this.longestMute = longestMute;
        this.clockMs = clockMs;
        this.pace = new Pace(counter.kind, withholds);
        this.publishedMs = clockMs.getAsLong();
        this.activeMs = publishedMs;
    }

    /** Charges this bucket from now on. */
    synchronized void join(CommonBucket bucket) {
        common = Arrays.copyOf(common, common.length + 1);
        common[common.length - 1] = bucket;
    }

    /** The buckets that it charges. */
    CommonBucket[] common() {
        return common;
    }

    /**
     * Charges what was recorded, and returns how long it makes clients wait for what others of a bucket used, in ms.
     *
     * <p>A fetch that is withheld for it stays charged: when it comes again after its wait, it is served. Else those that
     * wait for the same room would take it from each other.
     */
    synchronized long commonWaitMs(long nowMs) {
        double gained = read(nowMs, false);
        if (!isWithheld) {
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
        for (CommonBucket bucket : common) {
            bucket.charge(gained + stays, nowMs);
        }
    }

    private long waitOfCommon(long nowMs) {
        return Arrays.stream(common).mapToLong(bucket -> bucket.waitMs(nowMs)).max().orElse(0);
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
            bindMetric(metric.config().quota() == null ? UNLIMITED : metric.config().quota().bound(), longestMute.ms(nowMs));
        }
        if (name.equals(counter.kind.chargedMetric) && (charged == null || charged.metric() != metric)) {
            charged = new Samples(metric, nowMs);
            metricLock = charged.lock();
        }
        if (name.equals(Meters.THROTTLE_TIME) && (throttled == null || throttled.metric() != metric)) {
            throttled = new Samples(metric, nowMs);
        }
        dueMs = 0;
    }

    /** Takes leave of a metric that Kafka has removed, after a last look. */
    synchronized void remove(KafkaMetric metric, long nowMs) {
        chargeCommon(read(nowMs, false), nowMs);
        bound = bound == metric ? null : bound;
        isPaced = isPaced && bound != null; // Kafka asks for the limit of a new metric
        charged = charged != null && charged.metric() == metric ? null : charged;
        throttled = throttled != null && throttled.metric() == metric ? null : throttled;
    }

    /** The clock was set back, to now: nothing is later than that, or the meter would be silent until it is reached. */
    synchronized void stepBack(long nowMs) {
        activeMs = Math.min(activeMs, nowMs);
        dueMs = Math.min(dueMs, nowMs);
        publishedMs = Math.min(publishedMs, nowMs);
        unpublishedSinceMs = Math.min(unpublishedSinceMs, nowMs);
        heldUntilMs = Math.min(heldUntilMs, nowMs);
        promisedMs = Math.min(promisedMs, nowMs);
        pace.stepBack(nowMs);
        longestMute.stepBack(nowMs);
    }

    /** Whether it has no metric any more, and nothing to publish. */
    synchronized boolean isGone() {
        return bound == null && charged == null && throttled == null && !hasUnpublished();
    }

    /** Whether it is time for a look. */
    boolean isDue(long nowMs) {
        return nowMs >= dueMs;
    }

    /** Sets the next look: at once while its clients wait or use a tenth of the share that was set, else after `idleMs`. */
    synchronized void lookAgain(long nowMs, long idleMs) {
        if (isUsed) {
            isNear = rate() >= share * NEAR || isNearOfCommon(nowMs);
        }
        long busyMs = Math.max(isNear ? activeMs : 0, heldUntilMs);
        dueMs = nowMs - busyMs <= idleMs ? nowMs : nowMs + idleMs;
    }

    private boolean isNearOfCommon(long nowMs) {
        return Arrays.stream(common).anyMatch(bucket -> bucket.rate(nowMs) >= bucket.share() * NEAR);
    }

    /** Reads the metrics. Says whether anything was charged since the last look. */
    synchronized boolean look(long nowMs) {
        chargeCommon(read(nowMs, false), nowMs);
        isUsed = isCharged;
        isCharged = false;
        return isUsed;
    }

    /** Forgets what its clients used and owe, because an operator has reset the counter. It is published all the same. */
    synchronized void reset(long nowMs) {
        chargeCommon(read(nowMs, true), nowMs);
        pace.reset();
        pacedCharge = 0.0;
        pacedRequests = 0;
        heldUntilMs = Math.min(heldUntilMs, nowMs);
        dueMs = 0;
    }

    /** Reads the metrics, and returns what was charged. */
    private double read(long nowMs, boolean isLast) {
        if (charged == null) {
            return 0.0;
        }
        boolean isThrottled = throttled != null && bound != null && noteThrottled(nowMs);
        charged.look(nowMs, isLast);
        if (charged.gained() == 0.0 && charged.events() <= 0) {
            return 0.0;
        }
        if (!isThrottled) {
            heldUntilMs = Math.min(heldUntilMs, nowMs); // who sends doesn't wait
        }
        if (amount() <= 0) {
            unpublishedSinceMs = nowMs;
        }
        pacedCharge += charged.gained();
        pacedRequests += served();
        unpublished += charged.gained();
        unpublishedRequests += Math.max(0, charged.events());
        activeMs = nowMs;
        isCharged = true;
        return charged.gained();
    }

    /**
     * Notes that Kafka has throttled connections since the last look, and says whether it did. Their mean stands for the
     * counter. Their requests ended the wait before.
     */
    private boolean noteThrottled(long nowMs) {
        throttled.look(nowMs);
        if (throttled.gained() <= 0) {
            return false;
        }
        double throttleMs = throttled.events() > 0 ? throttled.gained() / throttled.events() : 0.0;
        isHoldUntold = true;
        for (CommonBucket bucket : common) {
            bucket.noteThrottled(Math.round(throttleMs), nowMs);
        }
        if (common.length > 0 && bound.config() instanceof Bound && !((Bound) bound.config()).isExceeded()) {
            return true; // others used it up
        }
        heldUntilMs = nowMs + Math.round(throttleMs);
        if (isWithheld && isPaced && throttleMs > 0) {
            double windowMs = charged.windowMs(nowMs);
            pace.noteThrottled(throttleMs, exceeded(), sum(windowMs), windowMs);
        }
        return true;
    }

    /** Number of requests in the last reading. A withheld Fetch is recorded twice: charged, and taken back. */
    private long served() {
        return Math.max(0, charged.events()) - (isWithheld && throttled != null ? 2 * throttled.events() : 0);
    }

    /** Until when a client waits that Kafka has throttled on this counter. */
    synchronized long heldUntilMs() {
        return heldUntilMs;
    }

    /** Notes the whole limit, per second. */
    synchronized void noteLimit(double whole, long nowMs) {
        longestMute.noteLimit(whole, nowMs);
    }

    /** Sets the limit of the metric that has one, per second. Kafka reads it with the next request. */
    synchronized void bind(double ofLimit, long nowMs) {
        noteUnpaced(ofLimit);
        bindMetric(ofLimit, longestMute.ms(nowMs));
    }

    private void noteUnpaced(double ofLimit) {
        share = ofLimit;
        isPaced = false;
        isHeld = false;
        owedMs = 0;
        pacedCharge = 0.0;
        pacedRequests = 0;
    }

    /**
     * Makes Kafka mute each connection after a request, for Overrides.HELD_MS. `ofLimit` is the limit that it has besides,
     * per second.
     */
    synchronized void hold(double ofLimit) {
        noteUnpaced(ofLimit);
        isHeld = true;
        bindMetric(TRICKLE, Overrides.HELD_MS);
    }

    /** Whether its clients are held. */
    synchronized boolean isHeld() {
        return isHeld;
    }

    /** Sets the limit so that Kafka paces the traffic by this share of the quota's limit; a tight one has a small burst. */
    synchronized void pace(double ofLimit, double limit, boolean isTight, Window window, long nowMs) {
        share = ofLimit;
        isHeld = false;
        if (charged == null || !Samples.isPossible()) {
            bindMetric(ofLimit, longestMute.ms(nowMs));
            return;
        }
        pace.charge(pacedCharge, Math.max(0, pacedRequests), ofLimit, limit, isTight, window, nowMs);
        pacedCharge = 0.0;
        pacedRequests = 0;
        double windowMs = charged.windowMs(nowMs);
        bindMetric(pace.bound(ofLimit, sum(windowMs), windowMs), longestMute.ms(nowMs));
        isPaced = bound != null;
        owedMs = pace.owedMs(ofLimit);
    }

    /** How long its clients have to be silent until shares have made up for what went through, its own as of the last pace. */
    public long owedMs() {
        return Math.max(owedMs, common.length == 0 ? 0 : commonWaitMs(nowMs()));
    }

    /** Notes an amount, in units of the quota, that the job knows already, and that is about to be recorded. */
    public synchronized void notePublished(double amount) {
        unpublished -= amount;
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

    /** The time of its metrics. */
    long nowMs() {
        return clockMs.getAsLong();
    }

    /** What the meter has recorded in so long a window. */
    private double sum(double windowMs) {
        return rate() * windowMs / 1000.0;
    }

    private void bindMetric(double ofLimit, long capMs) {
        if (bound == null) {
            return;
        }
        MetricConfig old = bound.config(); // one of Kafka's own, when a quota was set with kafka-configs
        if (old instanceof Bound && ((Bound) old).limit() == ofLimit) {
            ((Bound) old).cap(capMs);
        } else {
            bound.config(new Bound(bound, this, ofLimit, capMs));
        }
    }

    /** The bound that the request exceeded which was throttled last. */
    private double exceeded() {
        MetricConfig present = bound.config();
        return present instanceof Bound ? ((Bound) present).exceeded() : present.quota().bound();
    }

    /** The limit that was set last; NaN before the first. Never waits. */
    double share() {
        return share;
    }

    /** Whether the limit that was set last paces the traffic. Never waits. */
    boolean isPaced() {
        return isPaced;
    }

    /** The rate of the broker's own traffic, per second. */
    synchronized double rate() {
        return charged == null ? 0.0 : ((Number) charged.metric().metricValue()).doubleValue();
    }

    /** When it was last used. */
    synchronized long activeMs() {
        return activeMs;
    }

    /** Whether an amount couldn't be published for so long. */
    synchronized boolean isOverdue(long nowMs, long patienceMs) {
        return amount() > 0 && nowMs - unpublishedSinceMs > patienceMs;
    }

    /** When its last event was made. */
    synchronized long publishedMs() {
        return publishedMs;
    }

    /**
     * Whether there is anything to publish: an amount, or that a client was made to wait. A throttled Fetch is charged
     * nothing, and its client is silent then, but other gateways have to know that it wants more.
     */
    synchronized boolean hasUnpublished() {
        return amount() > 0 || isHoldUntold && !counter.kind.countsRequests; // an event counts one request at least
    }

    /** Takes what is to be published. */
    synchronized Sum takeUnpublished(long nowMs) {
        isHoldUntold = false;
        Sum sum = new Sum(Math.max(0, amount()), Math.min(unpublishedRequests, Integer.MAX_VALUE), unpublishedSinceMs);
        unpublished -= units(sum);
        unpublishedRequests -= sum.requests;
        unpublishedSinceMs = nowMs;
        publishedMs = nowMs;
        return sum;
    }

    /** Gives back a sum that could not be published. */
    synchronized void giveBack(Sum sum) {
        unpublished += units(sum);
        unpublishedRequests += sum.requests;
        unpublishedSinceMs = Math.min(unpublishedSinceMs, sum.sinceMs);
    }

    private long amount() {
        double amount = counter.kind == Kind.REQUEST ? unpublished * NS_PER_POINT : unpublished;
        return (long) Math.min(Math.floor(amount), isOfInt() ? Integer.MAX_VALUE : MAX_EXACT);
    }

    private boolean isOfInt() {
        return counter.kind == Kind.MUTATION || counter.kind.countsRequests;
    }

    private double units(Sum sum) {
        return counter.kind == Kind.REQUEST ? sum.amount / NS_PER_POINT : sum.amount;
    }

    /** What was charged over some time and becomes one event. */
    static final class Sum {
        /** Bytes, nanoseconds or mutations: the unit of the event. */
        final long amount;

        final long requests;
        final long sinceMs;

        Sum(long amount, long requests, long sinceMs) {
            this.amount = amount;
            this.requests = requests;
            this.sinceMs = sinceMs;
        }
    }
}
