package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** A record of the sums topic: what a micro-batch decided, by counter and gateway, or a decided heartbeat or request. */
final class Sums {
    private static final int MAX_INSTANCE_CHARACTERS = 250;

    /** The job that decided; null if the record doesn't say. */
    final String jobId;

    /** The number of the micro-batch; 0 if the record doesn't say. */
    final long batch;

    /** When the micro-batch was begun for the first time; 0 if the record doesn't say. */
    final long decidedAtMs;

    /** What was decided on each counter that gateways in Java keep. */
    final List<CounterSum> counters;

    /** How many entities the record has sums of. */
    final int entities;

    /** The time of this gateway's newest request; -1 if it has none here. */
    final long ownUntilMs;

    /** The gateway whose heartbeat was decided; null if the record is none. */
    final String heartbeatOf;

    final String heartbeatId;
    final long heartbeatMs;

    /** The decision on a request of this gateway for mutations; null if the record has none. */
    final JsonNode answer;

    /** The content of a record, for the gateway `own`. Throws IOException for what Sluice wouldn't write. */
    Sums(byte[] record, String own) throws IOException {
        JsonNode fields = Json.object(record);
        jobId = Json.textOrNull(fields, "job_id");
        batch = fields.hasNonNull("batch") ? Json.whole(fields, "batch", 0, Long.MAX_VALUE) : 0;
        decidedAtMs = fields.has("decided_at_ms") ? Json.whole(fields, "decided_at_ms", 0, Json.MAX_TIMESTAMP_MS) : 0;
        Json.check(!fields.has("quota_version") || fields.get("quota_version").canConvertToLong()
                && fields.get("quota_version").isIntegralNumber(), "quota_version is no whole number");
        long baseMs = fields.has("base_ms") ? Json.whole(fields, "base_ms", 0, Json.MAX_TIMESTAMP_MS) : 0;
        List<Kind> kinds = new ArrayList<>();
        for (JsonNode quota : Json.list(fields, "quotas")) {
            Json.check(quota.isTextual(), "a quota is no text");
            kinds.add(Kind.ofKey(Json.whole(quota.textValue(), "a quota")));
        }
        List<SummedGateway> gateways = new ArrayList<>();
        long untilMs = -1;
        for (JsonNode gateway : Json.list(fields, "gateways")) {
            SummedGateway read = new SummedGateway(gateway);
            gateways.add(read);
            if (own.equals(read.instance)) {
                untilMs = Math.max(untilMs, baseMs + read.untilMs);
            }
        }
        ownUntilMs = untilMs;
        counters = new ArrayList<>();
        JsonNode sums = Json.list(fields, "sums");
        entities = sums.size();
        for (JsonNode sum : sums) {
            readEntity(sum, baseMs, kinds, gateways);
        }
        JsonNode heartbeat = fields.path("heartbeat");
        boolean isHeartbeat = fields.hasNonNull("heartbeat");
        Json.check(!isHeartbeat || heartbeat.isObject(), "heartbeat is no object");
        heartbeatOf = isHeartbeat ? Json.text(heartbeat, "instance") : null;
        heartbeatId = isHeartbeat ? Json.text(heartbeat, "request_id") : null;
        heartbeatMs = isHeartbeat ? Json.whole(heartbeat, "timestamp_ms", 0, Json.MAX_TIMESTAMP_MS) : 0;
        JsonNode decision = fields.path("answer");
        boolean isOwnAnswer = decision.isObject() && own.equals(Json.textOrNull(decision, "instance"));
        answer = isOwnAnswer ? decision : null;
    }

    private void readEntity(JsonNode sum, long baseMs, List<Kind> kinds, List<SummedGateway> gateways)
            throws IOException {
        Json.check(sum.isArray() && sum.size() >= 2 && sum.get(0).isObject(), "a sum is no list of entity and counters");
        Json.check(sum.size() < 3 || sum.get(2).isBoolean(), "a flag is neither true nor false");
        JsonNode entity = sum.get(0);
        String topic = Json.textOrNull(entity, "topic");
        Tags tags = topic == null
                ? new Tags(textOf(entity, "user"), textOf(entity, "client_id"), textOf(entity, "tenant"))
                : Tags.ofPartition(topic, entity.hasNonNull("partition") ? (int) Json.whole(entity, "partition") : -1);
        Json.check(sum.get(1).isArray(), "counters is no list");
        for (JsonNode counter : sum.get(1)) {
            CounterSum read = new CounterSum(counter, baseMs, kinds, gateways, tags);
            Kind kind = read.counter.kind;
            if (kind != null && kind.isOfTopics() == (topic != null)) {
                counters.add(read);
            }
        }
    }

    private static String textOf(JsonNode entity, String field) throws IOException {
        String text = Json.textOrNull(entity, field);
        return text == null ? "" : text;
    }

    private static long whole(JsonNode list, int place, long most) throws IOException {
        JsonNode value = list.path(place);
        Json.check(value.isIntegralNumber() && value.canConvertToLong(), "an element is no whole number");
        long whole = value.longValue();
        Json.check(whole >= 0 && whole <= most, "an element is " + whole);
        return whole;
    }

    private static double number(JsonNode list, int place) throws IOException {
        JsonNode value = list.path(place);
        Json.check(value.isNumber(), "an element is no number");
        double number = value.doubleValue();
        Json.check(number >= 0 && number <= Json.MAX_VALUE, "an element is " + number);
        return number;
    }

    /** A gateway that sums are of. */
    static final class SummedGateway {
        /** Null for all that give none. */
        final String instance;

        final boolean chargesInLine;
        final long untilMs;

        SummedGateway(JsonNode gateway) throws IOException {
            Json.check(gateway.isArray() && gateway.size() >= 3, "a gateway is incomplete");
            JsonNode named = gateway.get(0);
            Json.check(named.isTextual() || named.isNull(), "an instance is no text");
            instance = Json.whole(named.textValue(), "an instance");
            Json.check(instance == null || instance.codePointCount(0, instance.length()) <= MAX_INSTANCE_CHARACTERS,
                    "an instance is too long");
            Json.check(gateway.get(1).isBoolean(), "a flag is neither true nor false");
            chargesInLine = gateway.get(1).booleanValue();
            untilMs = whole(gateway, 2, 2 * Json.MAX_TIMESTAMP_MS);
        }
    }

    /** What one gateway was charged on one counter. */
    static final class GatewaySum {
        final SummedGateway gateway;
        final double value;

        /** The longest wait that it had applied in line. */
        final long appliedMs;

        final long untilMs;

        /** The value at that time, if each charge fades to 1/e in the span of a meter. */
        final double faded;

        GatewaySum(JsonNode sum, long untilMs, List<SummedGateway> gateways) throws IOException {
            Json.check(sum.isArray() && sum.size() >= 2, "a sum is incomplete");
            long place = whole(sum, 0, Long.MAX_VALUE);
            Json.check(place < gateways.size(), "a sum is of gateway " + place);
            gateway = gateways.get((int) place);
            value = number(sum, 1);
            appliedMs = sum.size() > 2 ? whole(sum, 2, Events.MAX_APPLIED_MS) : 0;
            this.untilMs = untilMs - (sum.size() > 3 ? whole(sum, 3, 2 * Json.MAX_TIMESTAMP_MS) : 0);
            faded = sum.hasNonNull(4) ? number(sum, 4) : value;
        }
    }

    /** What was decided on one counter. Times are epoch milliseconds. */
    static final class CounterSum {
        final CounterKey counter;

        /** NaN after a reset without any charge. */
        final double limit;

        final long fromMs;
        final long untilMs;
        final List<GatewaySum> byGateway = new ArrayList<>();
        final long fetches;
        final double fetchBytes;

        /** Whether an operator has reset the counter before these charges. */
        final boolean isReset;

        CounterSum(JsonNode sum, long baseMs, List<Kind> kinds, List<SummedGateway> gateways, Tags tags)
                throws IOException {
            Json.check(sum.isArray() && sum.size() >= 5 && sum.get(4).isArray(), "a sum is incomplete");
            long quota = whole(sum, 0, Long.MAX_VALUE);
            Json.check(quota < kinds.size(), "a sum is of quota " + quota);
            counter = new CounterKey(kinds.get((int) quota), tags);
            Json.check(sum.get(1).isNull() || sum.get(1).isNumber() && sum.get(1).doubleValue() > 0
                    && sum.get(1).doubleValue() <= Double.MAX_VALUE, "a limit is " + sum.get(1));
            limit = sum.get(1).isNull() ? Double.NaN : sum.get(1).doubleValue();
            fromMs = baseMs + whole(sum, 2, 2 * Json.MAX_TIMESTAMP_MS);
            untilMs = baseMs + whole(sum, 3, 2 * Json.MAX_TIMESTAMP_MS);
            for (JsonNode each : sum.get(4)) {
                byGateway.add(new GatewaySum(each, untilMs, gateways));
            }
            checkWait(sum.path(5));
            JsonNode sizes = sum.path(6);
            boolean hasFetches = sum.hasNonNull(6);
            Json.check(!hasFetches || sizes.isArray() && sizes.size() >= 2, "fetches are incomplete");
            fetches = hasFetches ? whole(sizes, 0, Long.MAX_VALUE) : 0;
            Json.check(!hasFetches || fetches > 0, "there are no fetches");
            fetchBytes = hasFetches ? number(sizes, 1) : 0.0;
            Json.check(sum.size() < 8 || sum.get(7).isBoolean(), "a flag is neither true nor false");
            isReset = sum.path(7).booleanValue();
        }

        /** Brokers throttle by their own meters, and a wait that isn't one makes the record unreadable all the same. */
        private static void checkWait(JsonNode wait) throws IOException {
            if (wait.isMissingNode() || wait.isNull()) {
                return;
            }
            Json.check(wait.isArray() && wait.size() >= 6, "a wait is incomplete");
            whole(wait, 0, Integer.MAX_VALUE);
            whole(wait, 1, 2 * Json.MAX_TIMESTAMP_MS);
            Json.check(wait.get(2).isNull() || wait.get(2).isNumber() && Double.isFinite(wait.get(2).doubleValue()),
                    "a rate is no number");
            whole(wait, 3, 2 * Json.MAX_TIMESTAMP_MS);
            whole(wait, 4, Long.MAX_VALUE);
            Json.check(wait.get(5).isBoolean(), "a flag is neither true nor false");
        }
    }
}
