package sluice.kafka;

/**
 * The longest mute under a limit. One that is new or was lowered may be a mistake, and a mute can't be ended: then it is
 * `maxMuteMs`, or a sixtieth of the time for which the limit has stood. Not for several threads. Times are epoch
 * milliseconds.
 */
final class LongestMute {
    static final long NO_CAP_MS = Long.MAX_VALUE;

    private static final long PROOF = 60; // of the time for which a limit has stood, a mute may take this part

    private final long maxMuteMs;
    private long loweredMs; // below 0 for a limit that has stood since the gateway's start
    private double limit = Double.NaN;

    /** `changedMs` is when limits changed last, below 0 for never. */
    LongestMute(long maxMuteMs, long changedMs) {
        this.maxMuteMs = maxMuteMs;
        this.loweredMs = changedMs;
    }

    /** Notes the whole limit, per second. */
    void noteLimit(double whole, long nowMs) {
        if (whole < limit) { // not NaN
            loweredMs = nowMs;
        }
        limit = whole;
    }

    /** The clock was set back, to now. */
    void stepBack(long nowMs) {
        loweredMs = Math.min(loweredMs, nowMs);
    }

    /** The longest mute in ms. */
    long ms(long nowMs) {
        return loweredMs < 0 ? NO_CAP_MS : Math.max(maxMuteMs, (nowMs - loweredMs) / PROOF);
    }
}
