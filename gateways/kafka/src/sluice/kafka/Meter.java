package sluice.kafka;

import java.util.Arrays;
import java.util.function.LongSupplier;

/**
 * The meter of one counter, or of those of its requests that are in one tenant: what they were charged, what of that is to
 * be published, and how long they wait.
 *
 * <p>Safe for several threads. Times are epoch milliseconds, amounts are in units of the quota unless they say otherwise.
 */
public abstract class Meter {
    /** The limit of a counter without one, as Kafka has it. */
    static final double UNLIMITED = Long.MAX_VALUE;

    private static final CommonBucket[] NONE = {};
    private static final double NEAR = 0.1;
    private static final double NS_PER_POINT = 1e7; // one percent of a thread-second is 10 ms

    /** Its counter, with the tenant of its clients. */
    final CounterKey key;

    final CounterKey counter;
    final Window window;
    final LongestMute longestMute;
    final Callers callers = new Callers();

    private final LongSupplier clockMs;
    private volatile CommonBucket[] common = NONE;
    private double unpublished; // below 0 when more was taken back than charged
    private long unpublishedRequests;
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

    Meter(CounterKey key, Window window, LongestMute longestMute, LongSupplier clockMs) {
        this.key = key;
        this.counter = key.own();
        this.window = window;
        this.longestMute = longestMute;
        this.clockMs = clockMs;
        this.publishedMs = nowMs();
        this.activeMs = publishedMs;
    }

    /** Takes over what was charged and isn't noted yet. */
    abstract void read(long nowMs);

    /** The rate of the gateway's own traffic, per second. */
    abstract double rate();

    /** Whether nobody uses it any more, and it has nothing to publish: then it is charged no more. */
    abstract boolean endIfUnused(long nowMs);

    /** Lets this limit through, per second. */
    abstract void bind(double ofLimit, long nowMs);

    /** Paces the traffic by this share of the quota's limit, per second; a tight one has a small burst. */
    abstract void pace(double ofLimit, double limit, boolean isTight, long nowMs);

    /** Makes each client wait after a request, for Overrides.HELD_MS. `ofLimit` is the limit that it has besides, per second. */
    abstract void hold(double ofLimit);

    /** Notes which limit was set. */
    void note(double ofLimit, boolean paced, boolean held) {
        share = ofLimit;
        isPaced = paced;
        isHeld = held;
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

    /** How long these make its clients wait, in ms. */
    long waitOfCommon(long nowMs) {
        return Arrays.stream(common).mapToLong(bucket -> bucket.waitMs(nowMs)).max().orElse(0);
    }

    /** The time of what is charged. */
    long nowMs() {
        return clockMs.getAsLong();
    }

    /** The clock was set back, to now: nothing is later than that, or the meter would be silent until it is reached. */
    synchronized void stepBack(long nowMs) {
        activeMs = Math.min(activeMs, nowMs);
        dueMs = Math.min(dueMs, nowMs);
        publishedMs = Math.min(publishedMs, nowMs);
        unpublishedSinceMs = Math.min(unpublishedSinceMs, nowMs);
        heldUntilMs = Math.min(heldUntilMs, nowMs);
        longestMute.stepBack(nowMs);
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

    /** Sets the next look to the next one of all. */
    void lookSoon() {
        dueMs = 0;
    }

    private boolean isNearOfCommon(long nowMs) {
        return Arrays.stream(common).anyMatch(bucket -> bucket.rate(nowMs) >= bucket.share() * NEAR);
    }

    /** Says whether anything was charged since the last look. */
    synchronized boolean look(long nowMs) {
        read(nowMs);
        isUsed = isCharged;
        isCharged = false;
        return isUsed;
    }

    /** Forgets what its clients used and owe, because an operator has reset the counter. It is published all the same. */
    synchronized void reset(long nowMs) {
        heldUntilMs = Math.min(heldUntilMs, nowMs);
        lookSoon();
    }

    /** Notes what so many requests were charged. */
    void noteCharged(double amount, long requests, long nowMs) {
        notePublished(-amount, nowMs);
        unpublishedRequests += requests;
        activeMs = nowMs;
        isCharged = true;
    }

    /** Notes an amount that the job knows already. */
    void notePublished(double amount, long nowMs) {
        if (amount() <= 0) {
            unpublishedSinceMs = nowMs;
        }
        unpublished -= amount;
    }

    /** Notes that its clients don't wait any more, as one has sent. */
    void noteServed(long nowMs) {
        heldUntilMs = Math.min(heldUntilMs, nowMs);
    }

    /** Notes that a client was made to wait so long; because of its counter if `isOwn`, else because of a bucket in common. */
    void noteThrottled(long waitMs, boolean isOwn, long nowMs) {
        isHoldUntold = true;
        for (CommonBucket bucket : common) {
            bucket.noteThrottled(waitMs, nowMs);
        }
        if (isOwn) {
            heldUntilMs = nowMs + waitMs;
        }
    }

    /** Until when a client waits for its counter. */
    synchronized long heldUntilMs() {
        return heldUntilMs;
    }

    /** Notes the whole limit, per second. */
    synchronized void noteLimit(double whole, long nowMs) {
        longestMute.noteLimit(whole, nowMs);
    }

    /** The limit that was set last; NaN before the first. Never waits. */
    double share() {
        return share;
    }

    /** Whether the limit that was set last paces the traffic. Never waits. */
    boolean isPaced() {
        return isPaced;
    }

    /** Whether its clients are throttled. */
    synchronized boolean isHeld() {
        return isHeld;
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
        return amount() > 0 || isHoldUntold && !counter.kind.countsRequests(); // an event counts one request at least
    }

    /** Takes what is to be published. */
    synchronized Sum takeUnpublished(long nowMs) {
        isHoldUntold = false;
        long requests = Math.min(unpublishedRequests, Integer.MAX_VALUE);
        Sum sum = new Sum(Math.max(0, amount()), requests, unpublishedSinceMs, callers.take());
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
        callers.add(sum.callers);
    }

    private long amount() {
        double amount = counter.kind == Kind.REQUEST ? unpublished * NS_PER_POINT : unpublished;
        return (long) Math.min(Math.floor(amount), isOfInt() ? Integer.MAX_VALUE : Json.MAX_EXACT);
    }

    private boolean isOfInt() {
        return counter.kind == Kind.MUTATION || counter.kind.countsRequests();
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

        /** Null if they aren't known. */
        final Tags callers;

        Sum(long amount, long requests, long sinceMs, Tags callers) {
            this.amount = amount;
            this.requests = requests;
            this.sinceMs = sinceMs;
            this.callers = callers;
        }
    }
}
