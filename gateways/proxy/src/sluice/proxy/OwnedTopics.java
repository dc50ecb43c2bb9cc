package sluice.proxy;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.message.MetadataRequestData;
import org.apache.kafka.common.message.MetadataResponseData;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.ApiError;
import sluice.kafka.CounterKey;
import sluice.kafka.Kind;

/**
 * The limits on the topics and partitions that tenants, users and client-ids own. The names of topics say whose they are,
 * so the cluster itself knows what each owns, through any proxy and after any start. Who has such a limit makes topics
 * that it owns, and no others.
 *
 * <p>Safe for any thread.
 */
final class OwnedTopics {
    private static final long ADMITTED_NS = 5_000_000_000L; // by then brokers know of a topic
    private static final long LOOK_NS = 1_000_000_000L;
    private static final int MAX_LOOKS = 20; // each has all topics
    private static final ApiError EXISTS =
            new ApiError(Errors.TOPIC_ALREADY_EXISTS, Errors.TOPIC_ALREADY_EXISTS.message());
    private static final Kind[] KINDS = {Kind.TOPICS, Kind.PARTITIONS};

    private final ProxyMeters meters;
    private final Map<String, Admitted> admitted = new HashMap<>(); // of late, which brokers may not know of
    private final Map<String, Look> looks = new HashMap<>(); // of users that were refused: who tries again costs no list

    OwnedTopics(ProxyMeters meters) {
        this.meters = meters;
    }

    /** The limits of a client, its own and its tenant's. */
    List<Limit> limits(Client client) {
        List<Limit> limits = new ArrayList<>();
        for (Kind kind : KINDS) {
            if (meters.isUsed(kind)) {
                CounterKey key = meters.counter(kind, client);
                add(limits, key, key.own(), meters.limit(key));
                if (key.ofTenant() != null) {
                    add(limits, key, key.ofTenant(), meters.tenantLimit(key));
                }
            }
        }
        return limits;
    }

    private void add(List<Limit> limits, CounterKey key, CounterKey counter, double most) {
        if (most < Double.POSITIVE_INFINITY) {
            limits.add(new Limit(key, counter, most));
        }
    }

    /** What to ask the cluster for, so that it answers with all topics. */
    static MetadataRequestData question() {
        return new MetadataRequestData().setTopics(null).setAllowAutoTopicCreation(false);
    }

    /** What the cluster has answered to the question. */
    static Look look(MetadataResponseData answer) {
        Map<String, Integer> partitions = new HashMap<>();
        answer.topics().forEach(topic -> partitions.put(topic.name(), topic.partitions().size()));
        return new Look(partitions, new HashMap<>(), System.nanoTime(), false);
    }

    /** What a client's user saw in the last second, if it was refused then; else null. It refuses, and admits nothing. */
    synchronized Look lookOf(Client client) {
        looks.values().removeIf(each -> System.nanoTime() - each.sinceNs > LOOK_NS);
        return looks.get(client.user());
    }

    /**
     * The topics that these limits of a client refuse, each with its error, of `wanted`: new ones, or those that get so
     * many more partitions. A new one that is there already is left to the broker to refuse. Null if the look is a kept
     * one, and doesn't refuse all: then the cluster has to be asked anew.
     */
    synchronized Map<String, ApiError> refused(
            Client client, List<Limit> limits, Map<String, Integer> wanted, boolean areNew, Look look) {
        Map<String, ApiError> refused = new LinkedHashMap<>();
        List<Limit> brokenLimits = new ArrayList<>();
        long nowNs = System.nanoTime();
        admitted.values().removeIf(each -> nowNs - each.sinceNs > ADMITTED_NS);
        limits.forEach(limit -> limit.used = look.used.computeIfAbsent(limit.counter, counter -> used(limit, look)));
        boolean isMore = false;
        for (Map.Entry<String, Integer> each : wanted.entrySet()) {
            String topic = each.getKey();
            int partitions = each.getValue();
            if (areNew && look.partitions.containsKey(topic)) {
                if (look.isKept) { // it may be gone since: who made it anew would have one too many
                    refused.put(topic, EXISTS);
                }
                continue;
            }
            // What was admitted counts already, though the broker may have refused it; now more may be wanted.
            Admitted before = admitted.get(topic);
            int ofCluster = look.partitions.getOrDefault(topic, 0);
            int present = before == null ? ofCluster : Math.max(ofCluster, before.partitions);
            int more = Math.max(0, ofCluster + partitions - present);
            boolean isNew = areNew && before == null;
            Limit broken = broken(limits, topic, more, isNew);
            if (broken != null) {
                refused.put(topic, new ApiError(Errors.POLICY_VIOLATION, broken.text(topic)));
                brokenLimits.add(broken);
                continue;
            }
            if (look.isKept) {
                return null;
            }
            admitted.put(topic, new Admitted(present + more, nowNs));
            limits.forEach(limit -> limit.add(topic, more, isNew));
            isMore |= isNew || more > 0;
        }
        brokenLimits.forEach(limit -> meters.noteRefused(limit.key, limit.counter, client, 0));
        if (isMore) {
            forgetLooks();
        } else if (!refused.isEmpty() && looks.size() < MAX_LOOKS) {
            looks.put(client.user(), new Look(look.partitions, look.used, look.sinceNs, true));
        }
        return refused;
    }

    /** Has the cluster asked anew, as topics were made or deleted. */
    synchronized void forgetLooks() {
        looks.clear();
    }

    /** How much of a limit is used. */
    private long used(Limit limit, Look look) {
        Map<String, Integer> present = new HashMap<>(look.partitions);
        admitted.forEach((topic, each) -> present.merge(topic, each.partitions, Integer::max));
        return present.entrySet().stream()
                .filter(each -> limit.isOn(each.getKey()))
                .mapToLong(each -> limit.amount(each.getValue(), true))
                .sum();
    }

    /** The first limit of an owner of the topic that it would break; any, if none of its owners has one. */
    private static Limit broken(List<Limit> limits, String topic, int partitions, boolean isNew) {
        boolean isOwned = false;
        for (Limit limit : limits) {
            isOwned |= limit.isOn(topic);
            if (limit.isOn(topic) && limit.used + limit.amount(partitions, isNew) > limit.most) {
                return limit;
            }
        }
        return isOwned ? null : limits.get(0);
    }

    /** What one owner may have, and how much of that it has. */
    final class Limit {
        private final CounterKey key;
        private final CounterKey counter;
        private final double most;
        private long used; // one request may ask for 2^31 - 1 partitions of each of many topics

        private Limit(CounterKey key, CounterKey counter, double most) {
            this.key = key;
            this.counter = counter;
            this.most = most;
        }

        private boolean isOn(String topic) {
            return meters.owns(counter, topic);
        }

        private int amount(int partitions, boolean isNew) {
            return counter.kind == Kind.PARTITIONS ? partitions : isNew ? 1 : 0;
        }

        private void add(String topic, int partitions, boolean isNew) {
            used += isOn(topic) ? amount(partitions, isNew) : 0;
        }

        private String text(String topic) {
            return isOn(topic)
                    ? String.format("%s is %.0f, of which %d are there", counter.kind.key, most, used)
                    : "by its name it is none of those that the " + counter.kind.key + " is of";
        }
    }

    private record Admitted(int partitions, long sinceNs) {}

    /** What a user sees in the cluster: partitions by topic, and how much owners have of what is limited. */
    record Look(Map<String, Integer> partitions, Map<CounterKey, Long> used, long sinceNs, boolean isKept) {}
}
