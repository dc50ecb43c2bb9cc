package sluice.kafka;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** What limits have refused and no event has told of yet, by counter. Safe for any thread, and bounded. */
final class Refusals {
    private static final int MAX_COUNTERS = 1_000; // metrics alone tell of further ones

    private final Map<CounterKey, Refusal> untold = new ConcurrentHashMap<>();

    /** Notes a refusal; those of a client's counter, or of its part in a tenant, become one. */
    void add(Refusal refusal) {
        if (untold.size() < MAX_COUNTERS || untold.containsKey(refusal.key)) {
            untold.merge(refusal.key, refusal, Refusal::and);
        }
    }

    /** Takes what no event has told of. One thread alone does. */
    List<Refusal> take() {
        List<Refusal> taken = new ArrayList<>();
        untold.keySet().forEach(key -> taken.add(untold.remove(key)));
        return taken;
    }

    /**
     * So many requests of a client that one limit refused, that of `counter`: the client's own or its tenant's. `key` is the
     * client's, with its tenant; the last request was refused at `atMs`, in epoch milliseconds, and waits for `waitMs`.
     */
    record Refusal(CounterKey key, CounterKey counter, Tags client, int requests, long atMs, long waitMs) {
        Refusal and(Refusal later) {
            int sum = (int) Math.min(Integer.MAX_VALUE, (long) requests + later.requests);
            return new Refusal(key, later.counter, Callers.both(client, later.client), sum, later.atMs, later.waitMs);
        }
    }
}
