package sluice.kafka;

/**
 * Paces the traffic of one counter beside other brokers: which bound makes Kafka's meter ask for the waits of a bucket.
 *
 * <p>Kafka's meter lets through at once what its windows allow, and then nothing until they are over. On a share, for which
 * requests are large, that leaves windows unused or fills them twice, and a share that shrinks makes a long silence. So a
 * bucket says how long the next request should wait, and the bound is set to what makes Kafka find that wait. With S
 * recorded in W seconds, a request of z is throttled if (S + z) / W exceeds the bound b, for (S + z) / b - W seconds. The
 * bucket, which has t left and refills by the share, wants (z - t) / share.
 *
 * <p>The bucket holds BURST of what a meter lets through at once, so that no minute has more than a twentieth too much.
 *
 * <p>A fetch that breaks its quota is answered empty and comes again. It is served when there is room for all of it, so
 * the bucket has room for one fetch at least; how large one is that was only throttled follows from its wait.
 *
 * <p>After a silence, S is 0 and such a bound is far below the share: a second request, before the next look at the meter,
 * would wait for a multiple of its time. So a bucket that isn't used up makes no bound below half of the share.
 *
 * <p>Reads no clock. Amounts are in units of the quota.
 */
final class Pace {
    /** The part of what a meter lets through at once that its bucket holds. */
    static final double BURST = 0.3;

    private static final double FETCH = 0.025;
    private static final double LEAST = 0.5;
    private static final double SIZE_WEIGHT = 0.2;

    private final boolean isFetch;
    private final Bucket bucket;
    private double size; // of the requests of late

    Pace(Kind kind, Window window) {
        this.isFetch = kind == Kind.FETCH;
        this.bucket = new Bucket(kind, window, BURST);
    }

    /** Takes what was charged since the last call from the bucket, which refills by this share of the limit. */
    void charge(double charged, long requests, double share, double limit, boolean isTight, long nowMs) {
        bucket.set(share, limit, isTight);
        bucket.charge(charged, isFetch ? size : 0.0, nowMs);
        if (requests > 0 && charged > 0) {
            double mean = charged / requests;
            size = size == 0 ? mean : size + SIZE_WEIGHT * (mean - size);
        }
    }

    /** The clock was set back, to now. */
    void stepBack(long nowMs) {
        bucket.stepBack(nowMs);
    }

    /** Forgets what was charged: the bucket is full. */
    void reset() {
        bucket.reset();
    }

    /** Notes how large a fetch was that Kafka made wait so long under a bound, with `sum` recorded in `windowMs`. */
    void noteThrottled(double waitMs, double bound, double sum, double windowMs) {
        size = Math.max(0.0, (windowMs + waitMs) / 1000.0 * bound - sum);
    }

    /** The bound for a meter that has recorded `sum` in `windowMs`. */
    double bound(double share, double sum, double windowMs) {
        double windowS = windowMs / 1000.0;
        double left = bucket.left();
        if (left >= size) {
            return Math.max((sum + left) / windowS, share * LEAST);
        }
        double waitS = Math.min((size - left) / share, Bucket.MAX_WAIT_S);
        return (sum + size) / (windowS + waitS);
    }

    /**
     * The limit by which Kafka bounds what a fetch may hold, S-1 windows of it: so little that fetches come often. A
     * fetch holds one batch at least, however large.
     */
    static double fetchLimit(double share) {
        return share * FETCH;
    }
}
