package sluice.kafka;

/**
 * Paces the traffic of one counter beside other brokers: which bound makes Kafka's meter ask for the waits of a bucket.
 *
 * <p>Kafka's meter lets through at once what its windows allow, and then nothing until they are over. On a share, for which
 * requests are large, that leaves windows unused or fills them twice, and a share that shrinks makes a long silence. So a
 * bucket of half a meter's burst says how long the next request should wait, and the bound is set to what makes Kafka find
 * that wait. With S recorded in W seconds, a request of z is throttled if (S + z) / W exceeds the bound b, for
 * (S + z) / b - W seconds. The bucket, which has t left and refills by the share, wants (z - t) / share.
 *
 * <p>A fetch that breaks its quota is answered empty and comes again. Kafka lets it have what the bound allows in S-1
 * windows, so a client that wants more is served when the meter is empty: then all that is in the bucket, which has room for
 * what comes in until that happens.
 *
 * <p>Reads no clock. Amounts are in units of the quota.
 */
final class Pace {
    private static final double SIZE_WEIGHT = 0.2;

    private final boolean isFetch;
    private double left = Double.NaN; // below 0 when more went through
    private long leftMs;
    private double size; // of the requests of late

    Pace(boolean isFetch) {
        this.isFetch = isFetch;
    }

    /** Takes what was charged since the last call from the bucket, which refills by `share`. */
    void charge(double charged, long requests, double share, Window window, long nowMs) {
        double burst = share * (isFetch ? window.spanMs() + 2 * window.windowMs : window.spanMs() / 2) / 1000.0;
        double before = Double.isNaN(left) ? burst : left + share * Math.max(0, nowMs - leftMs) / 1000.0;
        left = Math.min(burst, before) - charged;
        leftMs = nowMs;
        if (requests > 0 && charged > 0) {
            double mean = charged / requests;
            size = size == 0 ? mean : size + SIZE_WEIGHT * (mean - size);
        }
    }

    /** The bound for a meter that has recorded `sum` in `windowMs`. */
    double bound(double share, double sum, double windowMs) {
        double windowS = windowMs / 1000.0;
        if (left >= size || (isFetch && left > 0)) {
            return (sum + left) / windowS;
        }
        return (sum + size) / (windowS + (size - left) / share);
    }
}
