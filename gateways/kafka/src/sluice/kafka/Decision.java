package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What a gateway takes out of a decision: who was charged how much, and how long their gateway held them back. */
final class Decision {
    private static final long MAX_APPLIED_MS = 3_600_000;
    private static final long MAX_TIMESTAMP_MS = 253_402_300_799_999L; // the last one of the year 9999
    private static final int MAX_APPLIED_WAITS = 64;
    private static final double MAX_VALUE = 1e30;

    /** Of the event: it begins with what its gateway begins them with. */
    final String requestId;

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
            String requestId,
            long timestampMs,
            String api,
            String instance,
            boolean isInLine,
            Map<CounterKey, DecidedCharge> charges,
            List<CounterKey> counters) {
        this.requestId = requestId;
        this.timestampMs = timestampMs;
        this.api = api;
        this.instance = instance;
        this.isInLine = isInLine;
        this.charges = charges;
        this.counters = counters;
    }

    /** Whether an operator has reset the counters. */
    boolean isReset() {
        return api.equals("Unmute");
    }

    /** The decision in a record. Throws IOException if it holds none. */
    static Decision read(byte[] record) throws IOException {
        JsonNode fields = Json.object(record);
        long timestampMs = Json.whole(fields, "timestamp_ms");
        Json.check(timestampMs >= 0 && timestampMs <= MAX_TIMESTAMP_MS, "timestamp_ms is " + timestampMs);
        String requestId = Json.text(fields, "request_id");
        String instance = Json.textOrNull(fields, "instance");
        String api = Json.textOrEmpty(fields, "api");
        boolean isInLine = fields.hasNonNull("throttled_by");
        Map<CounterKey, Long> applied = isInLine ? appliedWaits(fields.get("throttled_by")) : Collections.emptyMap();
        JsonNode amounts = fields.path("amounts");
        Json.check(amounts.isObject() || amounts.isNull() || amounts.isMissingNode(), "amounts is no object");
        boolean withheld = Json.flag(amounts, "withheld");
        boolean sumsUp = amounts.hasNonNull("bytes"); // of any number of requests, by a broker
        Json.check(!sumsUp || amounts.get("bytes").isIntegralNumber(), "bytes is no whole number");
        Map<CounterKey, DecidedCharge> charges = new HashMap<>();
        List<CounterKey> counters = new ArrayList<>();
        Json.check(!fields.has("charges") || fields.get("charges").isArray(), "charges is no list");
        for (JsonNode charge : fields.path("charges")) {
            CounterKey counter = counter(charge);
            double value = charge.has("value") ? number(charge.get("value")) : 0.0;
            Json.check(value <= MAX_VALUE, "the value of a charge is " + value);
            double limit = charge.hasNonNull("limit") ? number(charge.get("limit")) : Double.NaN;
            Json.check(limit != 0.0, "the limit of a charge is 0");
            boolean isShadow = "shadow".equals(Json.textOrNull(charge, "mode"));
            if (counter == null || isShadow) {
                continue;
            }
            counters.add(counter);
            if (!Double.isNaN(limit)) {
                charges.put(counter, new DecidedCharge(
                        isInLine ? instance : null,
                        value,
                        limit,
                        timestampMs,
                        applied.getOrDefault(counter, 0L),
                        counter.kind == Kind.FETCH && !sumsUp,
                        counter.kind == Kind.FETCH && withheld));
            }
        }
        return new Decision(requestId, timestampMs, api, instance, isInLine, charges, counters);
    }

    private static double number(JsonNode value) throws IOException {
        double number = value.doubleValue();
        Json.check(value.isNumber() && number >= 0 && !Double.isInfinite(number), "an amount is " + value);
        return number;
    }

    private static Map<CounterKey, Long> appliedWaits(JsonNode waits) throws IOException {
        Json.check(waits.isArray() && waits.size() <= MAX_APPLIED_WAITS, "throttled_by is no list of waits");
        Map<CounterKey, Long> applied = new HashMap<>();
        for (JsonNode wait : waits) {
            CounterKey counter = counter(wait);
            long ms = Json.whole(wait, "ms");
            Json.check(ms >= 0 && wait.has("entity"), "a wait of throttled_by is incomplete");
            if (counter != null) {
                applied.put(counter, Math.min(ms, MAX_APPLIED_MS));
            }
        }
        return applied;
    }

    /** The counter of a charge or a wait; null for one that brokers don't keep, such as a topic's. */
    private static CounterKey counter(JsonNode named) throws IOException {
        Kind kind = Kind.ofKey(Json.text(named, "quota"));
        JsonNode entity = named.path("entity");
        Json.check(entity.isObject() || entity.isMissingNode(), "an entity is no object");
        Tags tags = new Tags(Json.textOrEmpty(entity, "user"), Json.textOrEmpty(entity, "client_id"));
        boolean isTopic = Json.textOrNull(entity, "topic") != null;
        return kind == null || isTopic ? null : new CounterKey(kind, tags);
    }
}
