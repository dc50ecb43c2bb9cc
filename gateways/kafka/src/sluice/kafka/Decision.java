package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What a gateway takes out of a decision: who was charged how much, and how long their gateway held them back. */
final class Decision {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long MAX_APPLIED_MS = 3_600_000;
    private static final double MAX_VALUE = 1e30;

    final long timestampMs;
    final String api;

    /** The gateway's process; null if it didn't say. */
    final String instance;

    /** Whether the gateway charges in line. */
    final boolean isInLine;

    /** The enforced charges under a limit, by counter. */
    final Map<CounterKey, DecidedCharge> charges;

    /** All counters that are named: those that a reset is about. */
    final List<CounterKey> counters;

    private Decision(
            long timestampMs,
            String api,
            String instance,
            boolean isInLine,
            Map<CounterKey, DecidedCharge> charges,
            List<CounterKey> counters) {
        this.timestampMs = timestampMs;
        this.api = api;
        this.instance = instance;
        this.isInLine = isInLine;
        this.charges = charges;
        this.counters = counters;
    }

    /** The decision in a record. Throws IOException if it holds none. */
    static Decision read(byte[] record) throws IOException {
        JsonNode fields = JSON.readTree(record == null ? new byte[0] : record);
        if (fields == null || !fields.isObject() || !fields.path("timestamp_ms").isIntegralNumber()) {
            throw new IOException("the record is no decision");
        }
        long timestampMs = fields.get("timestamp_ms").longValue();
        String instance = fields.path("instance").textValue();
        boolean isInLine = fields.path("throttled_by").isArray();
        JsonNode amounts = fields.path("amounts");
        boolean withheld = amounts.path("withheld").asBoolean(false);
        boolean sumsUp = amounts.hasNonNull("bytes"); // of any number of requests, by a broker
        Map<CounterKey, Long> applied = isInLine ? appliedWaits(fields.get("throttled_by")) : Collections.emptyMap();
        Map<CounterKey, DecidedCharge> charges = new HashMap<>();
        List<CounterKey> counters = new ArrayList<>();
        for (JsonNode charge : fields.path("charges")) {
            CounterKey counter = counter(charge);
            if (counter == null || "shadow".equals(charge.path("mode").textValue())) {
                continue;
            }
            counters.add(counter);
            JsonNode limit = charge.path("limit");
            if (limit.isNumber()) {
                charges.put(counter, new DecidedCharge(
                        isInLine ? instance : null,
                        value(charge),
                        limit.doubleValue(),
                        timestampMs,
                        applied.getOrDefault(counter, 0L),
                        counter.kind == Kind.FETCH && !sumsUp,
                        counter.kind == Kind.FETCH && withheld));
            }
        }
        return new Decision(timestampMs, fields.path("api").asText(""), instance, isInLine, charges, counters);
    }

    private static double value(JsonNode charge) throws IOException {
        double value = charge.path("value").doubleValue();
        if (!(value >= 0 && value <= MAX_VALUE)) {
            throw new IOException("the value of a charge is " + value);
        }
        return value;
    }

    private static Map<CounterKey, Long> appliedWaits(JsonNode waits) {
        Map<CounterKey, Long> applied = new HashMap<>();
        for (JsonNode wait : waits) {
            CounterKey counter = counter(wait);
            if (counter != null) {
                applied.put(counter, Math.min(wait.path("ms").longValue(), MAX_APPLIED_MS));
            }
        }
        return applied;
    }

    /** The counter of a charge or a wait; null for one that brokers don't keep, such as a topic's. */
    private static CounterKey counter(JsonNode named) {
        Kind kind = Kind.ofKey(named.path("quota").asText());
        JsonNode entity = named.path("entity");
        if (kind == null || entity.has("topic")) {
            return null;
        }
        return new CounterKey(kind, new Tags(entity.path("user").asText(""), entity.path("client_id").asText("")));
    }
}
