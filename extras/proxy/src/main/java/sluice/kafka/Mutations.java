package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** Topics whose creation, growth or deletion a gateway's share doesn't admit, and whose decision it awaits. */
public final class Mutations {
    /** Most topics of one event: 20 times the default of `enforce.max_charges_per_event`. */
    static final int MAX_TOPICS = 1_000;

    final CounterKey counter;
    final Tags caller;
    final String api;
    final int apiVersion;
    final Map<String, Integer> partitions;

    private final CompletableFuture<Answer> answer = new CompletableFuture<>();

    /** `partitions` by topic are charged in this order, to the counter of this user and client-id. */
    public Mutations(
            CounterKey counter,
            String user,
            String clientId,
            String api,
            int apiVersion,
            Map<String, Integer> partitions) {
        this.counter = counter;
        this.caller = Callers.of(user, clientId);
        this.api = api;
        this.apiVersion = apiVersion;
        this.partitions = new LinkedHashMap<>(partitions);
    }

    /** Completed by the decision, exceptionally if there is none in time. */
    public CompletableFuture<Answer> answer() {
        return answer;
    }

    /** Characters of the names of its topics, which a client may have made up. */
    int characters() {
        return partitions.keySet().stream().mapToInt(String::length).sum();
    }

    /** The answer of a decision. Throws IOException for what the job wouldn't write. */
    static Answer answer(JsonNode decision) throws IOException {
        Map<String, Boolean> refused = new HashMap<>();
        for (JsonNode topic : Json.list(decision, "topic_results")) {
            refused.put(Json.text(topic, "topic"), Json.whole(topic, "error_code") != 0);
        }
        return new Answer(Math.max(0, Json.whole(decision, "throttle_time_ms")), refused);
    }

    /** What is decided: the wait, and which topics are refused. */
    public record Answer(long throttleMs, Map<String, Boolean> refused) {
        public boolean refuses(String topic) {
            return refused.getOrDefault(topic, false);
        }
    }
}
