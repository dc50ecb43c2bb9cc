package sluice.kafka;

import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;

/**
 * A broker's own meter of one counter: its metrics, what they were charged, and what of that is to be published.
 *
 * <p>Safe for several threads; request threads only add metrics, when Kafka makes a sensor. Times are epoch
 * milliseconds, amounts are in units of the quota unless they say otherwise.
 */
public final class Meter {
    /** The limit of a counter without one, as Kafka has it. */
    static final double UNLIMITED = Long.MAX_VALUE;

    private static final double NEAR = 0.1;
    private static final double NS_PER_POINT = 1e7; // one percent of a thread-second is 10 ms
    private static final long PROOF = 60; // of the time for which a limit has stood, a mute may take this part
    private static final double MAX_EXACT = 9_007_199_254_740_992.0;

    final CounterKey counter;

    private final long maxMuteMs;
    private final boolean isWithheld; // a fetch that breaks the quota
    private long loweredMs; // below 0 for a limit that has stood since the broker's start
    private double limit = Double.NaN;
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
    private boolean isNear; // its share, when it was last used
    private volatile long dueMs;
    private boolean isHoldUntold;
    private volatile double share = Double.NaN;
    private volatile boolean isPaced;
    private volatile long owedMs;

    /**
     * `changedMs` is when limits changed last, below 0 for never. Under a limit that is new or was lowered since, which may
     * be a mistake, no mute is longer than `maxMuteMs`, or a sixtieth of the time for which it has stood. `withholds` says
     * that a fetch that breaks its quota is answered empty, and taken back.
     */
    Meter(CounterKey counter, long maxMuteMs, boolean withholds, long changedMs, long nowMs) {
        this.counter = counter;
        this.maxMuteMs = maxMuteMs;
        this.isWithheld = withholds && counter.kind == Kind.FETCH;
        this.loweredMs = changedMs;
        this.pace = new Pace(counter.kind, withholds);
        this.publishedMs = nowMs;
        this.activeMs = nowMs;
    }

    /**
     * Takes over one of its metrics. The same one may come twice: a node that is broker and controller has two
     * reporters for one set of metrics.
     */
    synchronized void add(KafkaMetric metric, long nowMs) {
        String name = metric.metricName().name();
        if (name.equals(counter.kind.boundMetric)) {
            bound = metric;
            bindMetric(metric.config().quota() == null ? UNLIMITED : metric.config().quota().bound(), nowMs);
        }
        if (name.equals(counter.kind.chargedMetric) && (charged == null || charged.metric() != metric)) {
            charged = new Samples(metric, nowMs);
        }
        if (name.equals(Meters.THROTTLE_TIME) && (throttled == null || throttled.metric() != metric)) {
            throttled = new Samples(metric, nowMs);
        }
        dueMs = 0;
    }

    /** Takes leave of a metric that Kafka has removed, after a last look. */
    synchronized void remove(KafkaMetric metric, long nowMs) {
        look(nowMs);
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
        loweredMs = Math.min(loweredMs, nowMs);
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
        if (activeMs == nowMs) {
            isNear = rate() >= share * NEAR;
        }
        long busyMs = Math.max(isNear ? activeMs : 0, heldUntilMs);
        dueMs = nowMs - busyMs <= idleMs ? nowMs : nowMs + idleMs;
    }

    /** Reads the metrics. Says whether anything was charged since the last look. */
    synchronized boolean look(long nowMs) {
        return look(nowMs, false);
    }

    /** Forgets what its clients used and owe, because an operator has reset the counter. It is published all the same. */
    synchronized void reset(long nowMs) {
        look(nowMs, true);
        pace.reset();
        pacedCharge = 0.0;
        pacedRequests = 0;
        heldUntilMs = Math.min(heldUntilMs, nowMs);
        dueMs = 0;
    }

    private boolean look(long nowMs, boolean isLast) {
        boolean isThrottled = throttled != null && noteThrottled(nowMs);
        if (charged == null) {
            return false;
        }
        charged.look(nowMs, isLast);
        if (charged.gained() == 0.0 && charged.events() <= 0) {
            return false;
        }
        if (!isThrottled) {
            heldUntilMs = Math.min(heldUntilMs, nowMs); // who sends doesn't wait
        }
        if (amount() <= 0) {
            unpublishedSinceMs = nowMs;
        }
        pacedCharge += charged.gained();
        pacedRequests += Math.max(0, served());
        unpublished += charged.gained();
        unpublishedRequests += Math.max(0, charged.events());
        activeMs = nowMs;
        return true;
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
        heldUntilMs = nowMs + Math.round(throttleMs);
        isHoldUntold = true;
        if (isWithheld && isPaced && throttleMs > 0) {
            double windowMs = charged.windowMs(nowMs);
            pace.noteThrottled(throttleMs, exceeded(), sum(windowMs), windowMs);
        }
        return true;
    }

    /** Number of requests since the last look. A withheld Fetch is recorded twice: charged, and taken back. */
    private long served() {
        return charged.events() - (isWithheld && throttled != null ? 2 * throttled.events() : 0);
    }

    /** Until when a client waits that Kafka has throttled on this counter. */
    synchronized long heldUntilMs() {
        return heldUntilMs;
    }

    /** Notes the whole limit, per second. */
    synchronized void noteLimit(double whole, long nowMs) {
        if (whole < limit) { // not NaN
            loweredMs = nowMs;
        }
        limit = whole;
    }

    /** Sets the limit of the metric that has one, per second. Kafka reads it with the next request. */
    synchronized void bind(double ofLimit, long nowMs) {
        share = ofLimit;
        isPaced = false;
        owedMs = 0;
        pacedCharge = 0.0;
        pacedRequests = 0;
        bindMetric(ofLimit, nowMs);
    }

    /** Sets the limit so that Kafka paces the traffic by this share of the quota's limit. */
    synchronized void pace(double ofLimit, double limit, Window window, long nowMs) {
        share = ofLimit;
        if (charged == null || !Samples.isPossible()) {
            bindMetric(ofLimit, nowMs);
            return;
        }
        pace.charge(pacedCharge, pacedRequests, ofLimit, limit, window, nowMs);
        pacedCharge = 0.0;
        pacedRequests = 0;
        double windowMs = charged.windowMs(nowMs);
        bindMetric(pace.bound(ofLimit, sum(windowMs), windowMs), nowMs);
        isPaced = bound != null;
        owedMs = pace.owedMs(ofLimit);
    }

    /** How long its clients have to be silent until the share has made up for what went through, as of the last pace. */
    public long owedMs() {
        return owedMs;
    }

    /** Notes an amount, in units of the quota, that the job knows already, and that is about to be recorded. */
    public synchronized void notePublished(double amount) {
        unpublished -= amount;
    }

    /** What the meter has recorded in so long a window. */
    private double sum(double windowMs) {
        return rate() * windowMs / 1000.0;
    }

    private void bindMetric(double ofLimit, long nowMs) {
        if (bound == null) {
            return;
        }
        long capMs = loweredMs < 0 ? Bound.NO_CAP_MS : Math.max(maxMuteMs, (nowMs - loweredMs) / PROOF);
        MetricConfig old = bound.config(); // one of Kafka's own, when a quota was set with kafka-configs
        if (old instanceof Bound && ((Bound) old).limit() == ofLimit) {
            ((Bound) old).cap(capMs);
        } else {
            bound.config(new Bound(bound, counter.kind, ofLimit, capMs));
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
        return amount() > 0 || isHoldUntold;
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
        return (long) Math.min(Math.floor(amount), counter.kind == Kind.MUTATION ? Integer.MAX_VALUE : MAX_EXACT);
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
