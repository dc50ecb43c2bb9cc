package sluice.kafka;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** A request that creates, adds or deletes partitions, whose decision a gateway awaits before it executes any of it. */
public final class Mutations {
    /** Most topics of one event: 20 times the default of `enforce.max_charges_per_event`. */
    static final int MAX_TOPICS = 1_000;

    final CounterKey counter;
    final String api;
    final int apiVersion;

    private final Map<String, Integer> partitions;
    private final CompletableFuture<Answer> answer = new CompletableFuture<>();
    private Map<String, Integer> executed = Map.of(); // before it was decided
    private boolean isLost;

    /** `partitions` by topic are charged in this order. */
    public Mutations(CounterKey counter, String api, int apiVersion, Map<String, Integer> partitions) {
        this.counter = counter;
        this.api = api;
        this.apiVersion = apiVersion;
        this.partitions = new LinkedHashMap<>(partitions);
    }

    /** Completed by the decision, exceptionally if there is none in time. */
    public CompletableFuture<Answer> answer() {
        return answer;
    }

    Map<String, Integer> partitions() {
        return partitions;
    }

    /** Notes what was executed without a decision. Says whether the job still may decide the request, and charge it. */
    public synchronized boolean execute(Map<String, Integer> undecided) {
        executed = isLost ? Map.of() : undecided;
        return !isLost;
    }

    /** Takes over the decision. Returns how many partitions were executed before it, although it refuses them. */
    synchronized int decide(Answer decided) {
        answer.complete(decided);
        return executed.entrySet().stream()
                .filter(each -> decided.refuses(each.getKey()))
                .mapToInt(Map.Entry::getValue)
                .sum();
    }

    /** Notes that the job will never see the request. Returns how many partitions were executed and aren't charged. */
    synchronized int lose(Exception error) {
        isLost = true;
        answer.completeExceptionally(error);
        return executed.values().stream().mapToInt(Integer::intValue).sum();
    }

    /** What is decided: the wait, and which topics are refused. */
    public static final class Answer {
        public final long throttleMs;
        private final Map<String, Boolean> refused;

        Answer(long throttleMs, Map<String, Boolean> refused) {
            this.throttleMs = throttleMs;
            this.refused = refused;
        }

        public boolean refuses(String topic) {
            return refused.getOrDefault(topic, false);
        }
    }
}
