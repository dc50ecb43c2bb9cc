package sluice.kafka;

/**
 * The bucket of a counter that several meters of a gateway are charged for: a tenant's, or that of a client whose requests
 * are in several tenants. Kafka asks one meter alone how long a client waits, so each meter charges its requests to the
 * bucket as well, and asks it.
 *
 * <p>A client waits until the bucket isn't overdrawn. So those of one tenant wait in the order of their requests, and each
 * gets through as many as any other. Safe for any thread. Amounts are in units of the quota, times epoch milliseconds.
 */
class CommonBucket {
    final CounterKey counter;

    final Window window;
    final LongestMute longestMute;

    private final Bucket bucket;
    private int meters;
    private double share = Double.NaN; // until the first look
    private double unpaced; // was charged before the share was known
    private double faded; // what was charged; it fades to 1/e in the span of a meter
    private long chargedMs;
    private boolean isCharged;
    private long heldUntilMs;

    CommonBucket(CounterKey counter, Window window, LongestMute longestMute) {
        this.counter = counter;
        this.window = window;
        this.bucket = new Bucket(counter.kind, window, Bucket.BURST);
        this.longestMute = longestMute;
    }

    /** Notes that one more meter is charged for it, or one less. Returns how many there are. */
    synchronized int join(int change) {
        meters += change;
        return meters;
    }

    /** Sets this gateway's share of the limit, per second; a tight one has a small burst. */
    synchronized void set(double ofLimit, double ofAll, boolean tight, long nowMs) {
        longestMute.noteLimit(ofAll, nowMs);
        share = ofLimit;
        bucket.set(ofLimit, ofAll, tight);
        charge(0.0, nowMs);
    }

    /** Sets the share of a bucket that has none yet. */
    synchronized void begin(double ofLimit, double whole, long nowMs) {
        if (Double.isNaN(share)) {
            set(ofLimit, whole, false, nowMs);
        }
    }

    /** Takes an amount from the bucket; one below 0 gives it back. */
    synchronized void charge(double amount, long nowMs) {
        if (amount > 0) {
            faded = faded * Math.exp(-Math.max(0, nowMs - chargedMs) / (double) window.spanMs()) + amount;
            chargedMs = Math.max(chargedMs, nowMs);
            isCharged = true;
        }
        unpaced += amount;
        if (!Double.isNaN(share)) {
            bucket.charge(unpaced, 0.0, nowMs);
            unpaced = 0.0;
        }
    }

    /** Whether it was charged since the last call. */
    synchronized boolean takeCharged() {
        boolean was = isCharged;
        isCharged = false;
        return was;
    }

    /** How long a client of it has to wait, in ms; 0 while it isn't overdrawn. One meter alone holds its own client. */
    synchronized long waitMs(long nowMs) {
        return isOfSeveral() ? Math.min(owedMs(0.0, nowMs), longestMute.ms(nowMs)) : 0;
    }

    boolean isOfSeveral() {
        return !Double.isNaN(share) && (meters > 1 || !counter.tags.tenant.isEmpty());
    }

    /** How long it would be overdrawn, in ms, if it were charged `more`. */
    long owedMs(double more, long nowMs) {
        charge(0.0, nowMs);
        return bucket.waitMs(more);
    }

    /** Notes that a client waits so long, for this bucket if it is overdrawn. A poll may have begun before, at an earlier time. */
    synchronized void noteThrottled(long waitMs, long nowMs) {
        long ofBucketMs = Math.min(waitMs, waitMs(nowMs));
        if (ofBucketMs > 0) {
            heldUntilMs = Math.max(heldUntilMs, nowMs + ofBucketMs);
        }
    }

    /** Until when a client waits for it. */
    synchronized long heldUntilMs() {
        return heldUntilMs;
    }

    /** Forgets what its clients used and owe. */
    synchronized void reset(long nowMs) {
        bucket.reset();
        unpaced = 0.0;
        heldUntilMs = Math.min(heldUntilMs, nowMs);
    }

    /** The clock was set back, to now. */
    synchronized void stepBack(long nowMs) {
        bucket.stepBack(nowMs);
        longestMute.stepBack(nowMs);
        heldUntilMs = Math.min(heldUntilMs, nowMs);
        chargedMs = Math.min(chargedMs, nowMs);
    }

    /** This gateway's share of the limit; NaN before the first. */
    synchronized double share() {
        return share;
    }

    /** The rate at which it was charged of late, per second. */
    synchronized double rate(long nowMs) {
        double spanS = window.spanMs() / 1000.0;
        return faded * Math.exp(-Math.max(0, nowMs - chargedMs) / 1000.0 / spanS) / spanS;
    }
}
