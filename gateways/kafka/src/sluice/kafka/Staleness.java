package sluice.kafka;

/** Since when an event may be without a decision. Safe for several threads; times are epoch milliseconds. */
final class Staleness {
    private long unansweredSinceMs = -1;
    private long lastPublishedMs;

    /** Age of the oldest event that may be without a decision; 0 if there is none. */
    synchronized long staleMs(long nowMs) {
        return unansweredSinceMs < 0 ? 0 : Math.max(0, nowMs - unansweredSinceMs);
    }

    /** Notes that an event of this time is on its way. */
    synchronized void notePublished(long timestampMs) {
        lastPublishedMs = Math.max(lastPublishedMs, timestampMs);
        if (unansweredSinceMs < 0) {
            unansweredSinceMs = timestampMs;
        }
    }

    /** Notes that an own event of this time is decided: those before it are, too. */
    synchronized void noteDecided(long timestampMs, long nowMs) {
        if (unansweredSinceMs >= 0) {
            boolean allAnswered = timestampMs >= lastPublishedMs;
            unansweredSinceMs = allAnswered ? -1 : Math.max(unansweredSinceMs, Math.min(timestampMs, nowMs));
        }
    }

    /** The clock was set back, to now: nothing was published later than that. */
    synchronized void stepBack(long nowMs) {
        unansweredSinceMs = Math.min(unansweredSinceMs, nowMs);
        lastPublishedMs = Math.min(lastPublishedMs, nowMs);
    }
}
