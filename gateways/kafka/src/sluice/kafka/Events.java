package sluice.kafka;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** Writes the request events of one gateway (docs/reference.md). For one thread. */
final class Events {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String RELEASE = "0.2.0"; // as RELEASE in state/contract/records.py
    static final long MAX_APPLIED_MS = 3_600_000;

    private final String gateway;
    private final String instance;

    /** What the id of each of its events begins with, and of nobody else's. */
    final String idStem;

    private long number;

    Events(String gateway, String instance) {
        this.gateway = gateway;
        this.instance = instance;
        this.idStem = gateway + "-" + UUID.randomUUID().toString().substring(0, 8) + "-";
    }

    /** The key of a client's events: user and client-id, URL-encoded; of a partition's: topic and partition. */
    static byte[] key(Tags tags) {
        String key = tags.topic == null
                ? Names.sanitize(tags.user) + "|" + Names.sanitize(tags.clientId)
                : Names.sanitize(tags.topic) + "|" + tags.partition;
        return key.getBytes(StandardCharsets.UTF_8);
    }

    /**
     * A sum of requests of a user and a client-id, which the job resolves to the counters that they were charged to.
     * `heldMs` is what is left of waits that were applied in line, by counter, and `heldBy` what asked for them; null if
     * the counters' quotas did.
     */
    byte[] sum(Kind kind, Tags client, Meter.Sum sum, Map<CounterKey, Long> heldMs, String heldBy, long nowMs) {
        ObjectNode event = event(newId(), kind.api, nowMs);
        if (client.topic == null) {
            event.put("user", client.user).put("client_id", client.clientId);
        }
        if (kind == Kind.PRODUCE) {
            event.put("requests", Math.max(1, sum.requests));
        }
        event.put(kind.amountField, kind.isOfTopics() ? 0 : sum.amount); // those of a topic's client are in another event
        if (kind.isOfTopics()) {
            event.putArray("topic_partitions")
                    .addObject()
                    .put("topic", client.topic)
                    .put("partition", client.partition)
                    .put("bytes", sum.amount);
        }
        ArrayNode throttledBy = event.putArray("throttled_by");
        heldMs.forEach((counter, ms) -> {
            if (ms > 0) {
                String quota = heldBy == null ? counter.kind.key : heldBy;
                throttledBy.add(named(counter).put("quota", quota).put("ms", Math.min(ms, MAX_APPLIED_MS)));
            }
        });
        return bytes(event);
    }

    /** An id that no other event has. */
    String newId() {
        return idStem + number++;
    }

    /**
     * A heartbeat, with the shares of the busiest counters, the heaviest clients without a limit, those of Sluice that aren't
     * exempt, and the load, null if it isn't known. `broker` is the number of the broker, null of a proxy. `command` is the
     * operator's last one in force.
     */
    byte[] heartbeat(
            long stalenessMs,
            int counters,
            int threadsDown,
            boolean isMetricsSeen,
            List<ObjectNode> shares,
            List<Unlimited.Rates> unlimited,
            List<OwnClients.NotExempt> notExempt,
            String broker,
            Load load,
            long command,
            long nowMs) {
        ObjectNode event = event(newId(), "GatewayHeartbeat", nowMs);
        ObjectNode heartbeat = event.putObject("heartbeat");
        heartbeat.put("staleness_ms", stalenessMs).put("counters", counters).put("threads_down", threadsDown);
        heartbeat.put("metrics_seen", isMetricsSeen).put("release", RELEASE);
        if (command > 0) {
            heartbeat.put("command", command);
        }
        heartbeat.putArray("shares").addAll(shares);
        if (!unlimited.isEmpty()) {
            ArrayNode heaviest = heartbeat.putArray("unlimited");
            for (Unlimited.Rates each : unlimited) {
                heaviest.addObject()
                        .put("user", each.client.user)
                        .put("client_id", each.client.clientId)
                        .put("bytes_in_per_s", each.in)
                        .put("bytes_out_per_s", each.out);
            }
        }
        if (!notExempt.isEmpty()) {
            ArrayNode clients = heartbeat.putArray("not_exempt");
            for (OwnClients.NotExempt each : notExempt) {
                clients.addObject().put("principal", each.principal).put("client_id", each.clientId);
            }
        }
        if (load != null) {
            ObjectNode fields = heartbeat.putObject("load");
            if (broker != null) {
                fields.put("broker_id", Integer.parseInt(broker));
            }
            addLoad(fields, load);
        }
        return bytes(event);
    }

    /** What a heartbeat says of one counter; rate, share and limit are in units of the quota per second. */
    static ObjectNode share(CounterKey counter, double limit, double share, double rate, long heldMs) {
        return named(counter)
                .put("limit", limit)
                .put("share", Math.min(share, Double.MAX_VALUE)) // JSON has no infinity
                .put("charged", rate)
                .put("throttle_ms", Math.min(heldMs, MAX_APPLIED_MS));
    }

    private static void addLoad(ObjectNode fields, Load load) {
        load.figures.forEach((name, figure) -> {
            if (Double.isFinite(figure)) {
                fields.put(name, figure);
            }
        });
        ArrayNode logDirs = fields.putArray("log_dirs");
        for (Load.LogDir dir : load.logDirs) {
            logDirs.addObject()
                    .put("path", dir.path)
                    .put("free_bytes", dir.freeBytes)
                    .put("total_bytes", dir.totalBytes);
        }
    }

    ObjectNode event(String id, String api, long nowMs) {
        return JSON.createObjectNode()
                .put("request_id", id)
                .put("timestamp_ms", nowMs)
                .put("api", api)
                .put("gateway", gateway)
                .put("instance", instance);
    }

    static ObjectNode named(CounterKey counter) {
        ObjectNode named = JSON.createObjectNode().put("quota", counter.kind.key);
        ObjectNode entity = named.putObject("entity");
        if (!counter.tags.tenant.isEmpty()) {
            entity.put("tenant", counter.tags.tenant);
            return named;
        }
        if (counter.tags.topic != null) {
            entity.put("topic", counter.tags.topic).put("partition", counter.tags.partition);
            return named;
        }
        if (!counter.tags.user.isEmpty()) {
            entity.put("user", counter.tags.user);
        }
        if (!counter.tags.clientId.isEmpty() || counter.tags.user.isEmpty()) {
            entity.put("client_id", counter.tags.clientId);
        }
        return named;
    }

    static byte[] bytes(ObjectNode event) {
        try {
            return JSON.writeValueAsBytes(event);
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }
}
