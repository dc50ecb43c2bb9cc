package sluice.proxy;

import io.kroxylicious.proxy.filter.FilterDispatchExecutor;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletionStage;
import java.util.function.Function;
import org.apache.kafka.common.protocol.ApiKeys;
import sluice.kafka.CounterKey;
import sluice.kafka.Mutations;
import sluice.kafka.ProxyGateway;

/**
 * What the mutations of one request were charged, until its response says which of them the broker did. What it refused is
 * given back, and the job learns of the rest alone. For the event loop of the connection.
 */
final class ChargedMutations {
    static final ChargedMutations NONE = new ChargedMutations(null, null, null, null, (short) 0);

    private final ProxyGateway gateway;
    private final Client client;
    private final CounterKey counter;
    private final ApiKeys api;
    private final short version;
    private final Map<String, Integer> unpublished = new LinkedHashMap<>(); // partitions by topic
    private final Map<String, Integer> decided = new LinkedHashMap<>();
    private boolean isSettled;

    /** `api` and its version are those of the request of `client`. */
    ChargedMutations(ProxyGateway gateway, Client client, CounterKey counter, ApiKeys api, short version) {
        this.gateway = gateway;
        this.client = client;
        this.counter = counter;
        this.api = api;
        this.version = version;
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

    /**
     * Charges the partitions of topics, and goes on with the topics that are refused: none of a version that doesn't understand
     * a refusal. Else what the share admits goes on at once, and the decision on the rest is awaited: a connection's requests
     * come one after the other, and a decision takes longer than a broker. Metadata doesn't wait, as its client asks again.
     */
    <R> CompletionStage<R> decide(
            Map<String, Integer> partitions,
            TopicRequest topics,
            Mute mute,
            FilterDispatchExecutor executor,
            Function<Set<String>, CompletionStage<R>> then) {
        if (version < topics.strictSince || !gateway.isLimited(counter)) {
            unpublished.putAll(partitions);
            mute.note(gateway.chargeMutations(counter, sum(partitions)));
            return then.apply(Set.of());
        }
        Map<String, Integer> rest = charge(partitions);
        if (rest.isEmpty() || topics.isAutomatic) {
            return then.apply(rest.keySet());
        }
        Mutations undecided = new Mutations(counter, client.user(), client.clientId(), api.name, version, rest);
        gateway.ask(undecided);
        return executor.completeOnFilterDispatchThread(undecided.answer())
                .handle((answer, error) -> refused(rest, answer, mute))
                .thenCompose(then);
    }

    /** Charges the share one by one in order, while the bucket isn't overdrawn, as Kafka does. Returns what it doesn't admit. */
    private Map<String, Integer> charge(Map<String, Integer> partitions) {
        Map<String, Integer> rest = new LinkedHashMap<>();
        partitions.forEach((topic, count) -> {
            if (gateway.waitMs(counter) == 0) {
                gateway.admitMutations(counter, count);
                unpublished.put(topic, count);
            } else {
                rest.put(topic, count);
            }
        });
        return rest;
    }

    /** The topics of the rest that are refused; without an answer all. What the job has admitted it has charged. */
    private Set<String> refused(Map<String, Integer> rest, Mutations.Answer answer, Mute mute) {
        Set<String> refused = new LinkedHashSet<>(rest.keySet());
        if (answer == null) {
            mute.note(gateway.refuseMutations(counter));
            return refused;
        }
        refused.removeIf(topic -> !answer.refuses(topic));
        decided.putAll(rest);
        decided.keySet().removeAll(refused);
        gateway.admitMutations(counter, sum(decided));
        mute.note(answer.throttleMs());
        return refused;
    }

    /** Publishes what was done, and gives back what wasn't, by topic; once. */
    void settle(Set<String> undone) {
        if (isSettled || gateway == null) {
            return;
        }
        isSettled = true;
        int charged = sum(unpublished);
        unpublished.keySet().retainAll(undone);
        decided.keySet().retainAll(undone);
        gateway.settle(counter, charged, sum(unpublished) + sum(decided));
    }

    private static int sum(Map<String, Integer> partitions) {
        return partitions.values().stream().mapToInt(Integer::intValue).sum();
    }
}
