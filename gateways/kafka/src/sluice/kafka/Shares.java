package sluice.kafka;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The shares of one gateway, fed with the sums of what is decided. Safe for several threads; no request thread ever comes here.
 *
 * <p>It keeps the counters that its own clients touch for as long as they are in use. Those that it knows from sums alone
 * it keeps for HEARD_MS after the last one, up to twice that, as a gateway in Python does: by then others' use has faded.
 */
final class Shares {
    static final int MAX_HEARD = 50_000;
    static final long HEARD_MS = 10_000;
    private static final String NAMESAKE = "namesake";

    private final AliveGateways gateways;
    private final String idStem;
    private final Window window;
    private final Map<CounterKey, CounterShare> touched = new LinkedHashMap<>();
    private Map<CounterKey, CounterShare> heard = new HashMap<>(); // since heardSinceMs
    private Map<CounterKey, CounterShare> heardBefore = new HashMap<>();
    private long heardSinceMs;

    /** `idStem` begins the id of each event of this gateway, and of no other. */
    Shares(String instance, String idStem, Window window) {
        this.gateways = new AliveGateways(instance);
        this.idStem = idStem;
        this.window = window;
    }

    /** How many gateways are alive now, oneself included. */
    synchronized int gateways(long nowMs) {
        gateways.settle(nowMs);
        return gateways.count();
    }

    /** Sets how many gateways to expect before the first own heartbeat is decided. */
    synchronized void expect(int count) {
        gateways.expect(count);
    }

    /** The share of a counter that own clients touch, which they were charged or made to wait on. */
    synchronized double share(CounterKey counter, double limit, boolean isCharged, long heldUntilMs, long nowMs) {
        CounterShare share = touched.computeIfAbsent(counter, this::takeHeard);
        share.held(heldUntilMs);
        return share.share(limit, isCharged, gateways, window, nowMs);
    }

    /** Notes that no own client touches the counter any more. */
    synchronized void release(CounterKey counter) {
        CounterShare share = touched.remove(counter);
        if (share != null) {
            heard.put(counter, share);
        }
    }

    /** Takes over a record that has arrived now. Returns the counters that it resets; a repeated micro-batch resets none. */
    synchronized List<CounterKey> take(Sums sums, long nowMs) {
        List<CounterKey> resets = new ArrayList<>();
        if (sums.heartbeatOf != null) {
            gateways.takeHeartbeat(senderOf(sums), sums.heartbeatMs, nowMs);
        }
        for (Sums.CounterSum sum : sums.counters) {
            forgetHeard(nowMs);
            CounterShare share = known(sum.counter);
            if (!share.isNew(sums.jobId, sums.batch, sums.decidedAtMs)) {
                continue;
            }
            if (sum.isReset) {
                resets.add(sum.counter);
                share = share.reset();
                (touched.containsKey(sum.counter) ? touched : heard).put(sum.counter, share);
            }
            share.takeSum(sum, gateways, window, nowMs);
        }
        return resets;
    }

    /** Whether a heartbeat in a record is this gateway's own. */
    boolean isOwnHeartbeat(Sums sums) {
        return sums.heartbeatOf != null && gateways.isOwn(senderOf(sums));
    }

    /** Forgets what was decided, because the sums are read from their beginning again. */
    synchronized void clear() {
        heard.clear();
        heardBefore.clear();
        heardSinceMs = 0;
        touched.replaceAll((counter, share) -> new CounterShare());
    }

    /** One's own clock was set back, to now. Counters hold times that would come again only much later. */
    synchronized void stepBack(long nowMs) {
        clear();
        gateways.stepBack(nowMs);
    }

    /** Whose heartbeat it is: one of this instance that this gateway didn't send is that of another one. */
    private String senderOf(Sums sums) {
        boolean isForeign = gateways.isOwn(sums.heartbeatOf) && !sums.heartbeatId.startsWith(idStem);
        return isForeign ? NAMESAKE : sums.heartbeatOf;
    }

    private CounterShare known(CounterKey counter) {
        CounterShare share = touched.get(counter);
        return share != null ? share : heard.computeIfAbsent(counter, this::takeHeardBefore);
    }

    private CounterShare takeHeard(CounterKey counter) {
        CounterShare share = heard.remove(counter);
        return share != null ? share : takeHeardBefore(counter);
    }

    private CounterShare takeHeardBefore(CounterKey counter) {
        CounterShare share = heardBefore.remove(counter);
        return share != null ? share : new CounterShare();
    }

    private void forgetHeard(long nowMs) {
        if (nowMs - heardSinceMs >= HEARD_MS || heard.size() >= MAX_HEARD) {
            heardBefore = heard;
            heard = new HashMap<>();
            heardSinceMs = nowMs;
        }
    }
}
