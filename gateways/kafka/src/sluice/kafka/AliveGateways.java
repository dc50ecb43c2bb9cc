package sluice.kafka;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The gateways that are alive, oneself included, told by their heartbeats as the job decided them. Reads no clock.
 *
 * <p>A gateway is alive while its heartbeats are at most MISSED_MS behind this gateway's newest that counts, by the time of
 * its newest or by the order in which both were decided. One's own counts SETTLE_MS after it arrived: a slow job decides
 * many seconds at once, and those of a gateway that is alive may arrive last. While no heartbeat of this gateway is decided,
 * nobody becomes alive or dead. The same rules as `state/shares/alive.py`. Not for several threads.
 */
final class AliveGateways {
    static final long HEARTBEAT_MS = 1_000;
    static final long MISSED_MS = 3_000;
    static final long SETTLE_MS = 1_000;
    static final long FRESH_MS = 5_000;
    /** A heartbeat so far behind its gateway's newest is of a clock that was set back; less is the order of decisions. */
    static final long SET_BACK_MS = 60_000;

    private static final long TOGETHER_MS = 100;

    /**
     * Most other gateways that are remembered. A new one takes the place of one that is gone; if none is, it isn't
     * counted: forged heartbeats don't push those out that are known already.
     */
    static final int MAX_GATEWAYS = 1_000;

    private final String instance;
    private final Map<String, Heard> heard = new LinkedHashMap<>(); // who was heard of longest ago comes first
    private int expected = 1;
    private long ownMs;
    private long ownHeardMs;
    private final Deque<long[]> arrived = new ArrayDeque<>(); // when, and how far the own ones were decided: don't count yet
    private long settledMs; // the own newest that counts
    private int count = expected;

    AliveGateways(String instance) {
        this.instance = instance;
    }

    /** How many gateways are alive, oneself included; as many as are expected before the first own heartbeat counts. */
    int count() {
        return count;
    }

    /** The time, by the own clock, up to which everything is decided. */
    long decidedMs() {
        return ownMs;
    }

    /** Sets how many gateways there are to expect before the first own heartbeat is decided. */
    void expect(int gateways) {
        expected = Math.max(1, gateways);
        recount();
    }

    boolean isOwn(String other) {
        return instance.equals(other);
    }

    boolean isAlive(String other) {
        Heard known = heard.get(other);
        return known != null && isRecent(known);
    }

    /** Until when what the decisions say may be taken for the present: now, unless none has arrived for FRESH_MS. */
    long knownUntilMs(long nowMs) {
        return Math.min(nowMs, ownHeardMs + FRESH_MS);
    }

    /** Takes over a decided heartbeat that a gateway, perhaps oneself, sent at `heartbeatMs` by its own clock. */
    void takeHeartbeat(String from, long heartbeatMs, long nowMs) {
        settle(nowMs);
        if (isOwn(from)) {
            ownMs = Math.max(ownMs, Math.min(heartbeatMs, nowMs));
            ownHeardMs = nowMs;
            noteArrival(nowMs);
        } else {
            hear(from, heartbeatMs);
        }
        recount();
    }

    private void hear(String from, long heartbeatMs) {
        Heard known = heard.remove(from);
        if (known == null && heard.size() >= MAX_GATEWAYS && !makesRoom()) {
            return;
        }
        boolean isAnew = known == null || heartbeatMs <= known.heartbeatMs - SET_BACK_MS;
        heard.put(from, new Heard(isAnew ? heartbeatMs : Math.max(heartbeatMs, known.heartbeatMs), ownMs));
    }

    /** One's own clock was set back, to now: nothing was heard later than that. */
    void stepBack(long nowMs) {
        ownMs = Math.min(ownMs, nowMs);
        ownHeardMs = Math.min(ownHeardMs, nowMs);
        settledMs = Math.min(settledMs, nowMs);
        arrived.clear();
        heard.replaceAll((from, known) -> new Heard(known.heartbeatMs, Math.min(known.ownMs, nowMs)));
        recount();
    }

    private void noteArrival(long nowMs) {
        boolean isTogether = !arrived.isEmpty() && nowMs - arrived.getLast()[0] < TOGETHER_MS;
        arrived.addLast(new long[] {isTogether ? arrived.removeLast()[0] : nowMs, ownMs});
    }

    /** Lets the own heartbeats count that arrived long enough ago. */
    void settle(long nowMs) {
        long before = settledMs;
        while (!arrived.isEmpty() && nowMs - arrived.getFirst()[0] >= SETTLE_MS) {
            settledMs = arrived.removeFirst()[1];
        }
        if (settledMs != before) {
            recount();
        }
    }

    /** Forgets who was heard of longest ago, unless it is alive. */
    private boolean makesRoom() {
        Iterator<Heard> longestAgo = heard.values().iterator();
        if (isRecent(longestAgo.next())) {
            return false;
        }
        longestAgo.remove();
        return true;
    }

    private void recount() {
        int alive = 1 + (int) heard.values().stream().filter(this::isRecent).count();
        count = settledMs != 0 ? alive : Math.max(alive, expected);
    }

    private boolean isRecent(Heard known) {
        return settledMs - known.ownMs <= MISSED_MS || Math.abs(settledMs - known.heartbeatMs) <= MISSED_MS;
    }

    /** Another gateway: the time of its newest decided heartbeat, and how far the own ones were decided at the last. */
    private static final class Heard {
        private final long heartbeatMs;
        private final long ownMs;

        Heard(long heartbeatMs, long ownMs) {
            this.heartbeatMs = heartbeatMs;
            this.ownMs = ownMs;
        }
    }
}
