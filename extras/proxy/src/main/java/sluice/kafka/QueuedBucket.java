package sluice.kafka;

/**
 * A bucket that several meters of a proxy are charged for, whose requests wait for it in turn. Safe for any thread. Amounts are
 * in units of the quota, times epoch milliseconds.
 */
final class QueuedBucket extends CommonBucket {
    private final Turns turns = new Turns();
    private final Round round = new Round();
    private double promised; // to requests that were let through and aren't charged yet
    private double whole = Double.NaN;
    private int reliefs;

    QueuedBucket(CounterKey counter, Window window, LongestMute longestMute) {
        super(counter, window, longestMute);
    }

    @Override
    synchronized void set(double ofLimit, double ofAll, boolean tight, long nowMs) {
        reliefs += ofAll > whole ? 1 : 0; // not NaN
        whole = ofAll;
        super.set(ofLimit, ofAll, tight, nowMs);
    }

    @Override
    synchronized void reset(long nowMs) {
        super.reset(nowMs);
        reliefs++;
    }

    /** How often it was reset or its limit raised: nobody need wait as he was told before. */
    synchronized int reliefs() {
        return reliefs;
    }

    /** Promises an amount to a request, unless it is overdrawn: returns how long that lasts still, and others' turns, in ms. */
    synchronized long promise(double amount, Turn turn, long nowMs) {
        long owedMs = isOfSeveral() ? owedMs(promised + turns.ahead(turn, amount, share(), window), nowMs) : 0;
        if (owedMs > 0) {
            turn.join(turns, amount);
        } else {
            promised += amount;
        }
        return owedMs;
    }

    /** The request is charged, or won't be. */
    synchronized void endPromise(double amount) {
        promised = Math.max(0.0, promised - amount); // it may be younger than the promise
    }

    /** So many more connections want to use it, or fewer. */
    synchronized void joinRound(int change) {
        round.join(change);
    }

    /** For how long a connection that was charged this should stay away, in ms. */
    synchronized long roundMs(double amount, long nowMs) {
        round.note(amount);
        return isOfSeveral() ? Math.min(round.ms(share()), longestMute.ms(nowMs)) : 0;
    }
}
