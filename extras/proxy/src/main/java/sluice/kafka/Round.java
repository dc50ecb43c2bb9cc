package sluice.kafka;

/**
 * How long it takes until each connection that wants to use a counter has sent one request: then the one that was served last
 * has its turn. Not for several threads. Amounts are in units of the quota.
 */
final class Round {
    private static final double WEIGHT = 0.1;
    private static final double EARLY_MS = 5_000; // before its turn a connection is back, so that there is always a next one

    private int connections;
    private double size = Double.NaN; // of a request, in the mean

    /** So many more connections want to use it, or fewer. */
    void join(int change) {
        connections = Math.max(0, connections + change); // of a counter that is younger than a connection's wait
    }

    /** Notes what a request was charged. */
    void note(double amount) {
        size = Double.isNaN(size) ? amount : size + WEIGHT * (amount - size);
    }

    /** What a request is charged in the mean. */
    double size() {
        return Double.isNaN(size) ? 0.0 : size;
    }

    /** For how long one that was served should stay away, in ms, at this share of the limit per second. */
    long ms(double share) {
        double roundMs = connections * size() / share * 1_000.0 - EARLY_MS;
        return Math.round(Math.max(0.0, Math.min(roundMs, Bucket.MAX_WAIT_S * 1_000.0)));
    }
}
