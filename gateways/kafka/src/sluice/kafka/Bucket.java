package sluice.kafka;

/**
 * A bucket of tokens that refills by a gateway's share of a limit: what a counter may use at once. Reads no clock. Amounts
 * are in units of the quota. Not for several threads.
 */
final class Bucket {
    /** The part of what a meter lets through at once that a broker's bucket holds: no minute has more than a twentieth too much. */
    static final double BURST = 0.3;

    /** The longest wait that a gateway applies. */
    static final double MAX_WAIT_S = 3_600.0;

    private static final double TIGHT_BURST_MS = 500; // of a gateway that is tightened
    private static final double MAX_REQUEST_DEBT_S = 10.0; // of the limit; Kafka forgets what hung for long in a window

    private final Kind kind;
    private final double burstMs;
    private double share;
    private double limit;
    private boolean isTight;
    private double left = Double.NaN; // below 0 when more went through
    private long leftMs;

    /** It holds the part `burst` of what a meter lets through at once; one of mutations all windows, as Kafka's does. */
    Bucket(Kind kind, Window window, double burst) {
        this.kind = kind;
        this.burstMs = kind == Kind.MUTATION ? window.samples * window.windowMs : window.spanMs() * burst;
    }

    /** Sets the share of the limit by which it refills, per second; a tight one has a small burst. */
    void set(double ofLimit, double whole, boolean tight) {
        share = ofLimit;
        limit = whole;
        isTight = tight;
    }

    /** Takes an amount; one below 0 is given back. It has room for `more` besides. */
    void charge(double amount, double more, long nowMs) {
        double burst = share * (isTight ? TIGHT_BURST_MS : burstMs) / 1000.0 + more;
        double before = Double.isNaN(left) ? burst : left + share * Math.max(0, nowMs - leftMs) / 1000.0;
        double most = share * MAX_WAIT_S;
        most = kind == Kind.REQUEST ? Math.min(most, limit * MAX_REQUEST_DEBT_S) : most;
        left = Math.max(Math.min(burst, before) - amount, -most);
        leftMs = Math.max(leftMs, nowMs); // threads come in any order
    }

    /** How long it took then until there was room for an amount, in ms; 0 if there was. */
    long waitMs(double amount) {
        return left < amount ? Math.round(Math.min((amount - left) / share, MAX_WAIT_S) * 1000.0) : 0;
    }

    /** Forgets what was charged: the bucket is full. */
    void reset() {
        left = Double.NaN;
    }

    /** The clock was set back, to now. */
    void stepBack(long nowMs) {
        leftMs = Math.min(leftMs, nowMs);
    }
}
