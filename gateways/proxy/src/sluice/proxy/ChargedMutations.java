package sluice.proxy;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import sluice.kafka.CounterKey;

/**
 * What the mutations of one request were charged, until its response says which of them the broker did. What it refused is
 * given back, and the job learns of the rest alone. For the event loop of the connection.
 */
final class ChargedMutations {
    static final ChargedMutations NONE = new ChargedMutations(null, null);

    private final ProxyMeters meters;
    private final CounterKey counter;
    private final Map<String, Integer> unpublished = new LinkedHashMap<>(); // partitions by topic
    private final Map<String, Integer> decided = new LinkedHashMap<>();
    private boolean isSettled;

    ChargedMutations(ProxyMeters meters, CounterKey counter) {
        this.meters = meters;
        this.counter = counter;
    }

    /** The partitions that topics are charged, in order, of all together at most so many. The job does the same. */
    static Map<String, Integer> bounded(Map<String, Integer> partitions, int most) {
        Map<String, Integer> bounded = new LinkedHashMap<>();
        int left = most;
        for (Map.Entry<String, Integer> topic : partitions.entrySet()) {
            int charged = Math.min(topic.getValue(), left);
            bounded.put(topic.getKey(), charged);
            left -= charged;
        }
        return bounded;
    }

    /** Charges all of them, and returns the wait in ms. */
    long charge(Map<String, Integer> partitions) {
        unpublished.putAll(partitions);
        return meters.chargeUnpublished(counter, sum(partitions));
    }

    /** Charges those that the share admits, and returns the others. */
    Map<String, Integer> admit(Map<String, Integer> partitions) {
        Map<String, Integer> rest = new LinkedHashMap<>(partitions);
        unpublished.putAll(meters.admit(counter, partitions));
        rest.keySet().removeAll(unpublished.keySet());
        return rest;
    }

    /** Charges those that the job has admitted, and charged. */
    void chargeDecided(Map<String, Integer> partitions) {
        decided.putAll(partitions);
        meters.chargeDecided(counter, sum(partitions));
    }

    /** Publishes what was done, and gives back what wasn't, by topic; once. */
    void settle(Set<String> undone) {
        if (isSettled || meters == null) {
            return;
        }
        isSettled = true;
        int charged = sum(unpublished);
        unpublished.keySet().retainAll(undone);
        decided.keySet().retainAll(undone);
        meters.settle(counter, charged, sum(unpublished), sum(decided));
    }

    private static int sum(Map<String, Integer> partitions) {
        return partitions.values().stream().mapToInt(Integer::intValue).sum();
    }
}
