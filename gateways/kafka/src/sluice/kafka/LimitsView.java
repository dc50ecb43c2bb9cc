package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * What a reader of the limits topic knows: feed it every record in order. Not for several threads.
 *
 * <p>The same rules as `state/quotas/limits.py`.
 */
final class LimitsView {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String VERSION_KEY = "\"version\"";
    private static final double FRACTION_TOLERANCE = 1e-6;
    private static final double LARGEST_WHOLE = 9.223372036854775807e18;

    private final Map<String, Entry> entries = new HashMap<>();
    private Quotas inForce;
    private long garbage;

    /** The quotas of the last complete version; null before the first. */
    Quotas inForce() {
        return inForce;
    }

    /** How many records were none that Sluice writes. They change nothing. */
    long garbage() {
        return garbage;
    }

    /** Takes over one record. */
    void take(byte[] key, byte[] value) {
        try {
            if (key == null) {
                throw new IllegalArgumentException("the record has no key");
            }
            take(new String(key, StandardCharsets.UTF_8), value);
        } catch (IOException | IllegalArgumentException error) {
            garbage++;
        }
    }

    private void take(String key, byte[] value) throws IOException {
        if (key.equals(VERSION_KEY)) {
            endVersion(value);
        } else if (value == null) {
            entries.remove(key);
        } else {
            entries.put(key, read(key, value));
        }
    }

    private void endVersion(byte[] value) throws IOException {
        JsonNode end = parse(value);
        // Compaction may have removed records of this version: then a later one ends further on.
        if (whole(end, "count") == entries.size()) {
            Quotas quotas = new Quotas(whole(end, "version"));
            for (Entry entry : entries.values()) {
                entry.addTo(quotas);
            }
            inForce = quotas;
        }
    }

    private static Entry read(String key, byte[] value) throws IOException {
        JsonNode record = parse(value);
        whole(record, "version");
        String quota = text(record, "quota");
        String mode = text(record, "mode");
        check(mode.equals("enforce") || mode.equals("shadow"), "the mode is " + mode);
        JsonNode names = record.get("entity");
        check(names != null && names.isObject() && names.size() > 0, "the entity is empty");
        JsonNode limit = record.get("value");
        check(limit != null && limit.isNumber(), "the value is no number");
        check(JSON.readTree(key).equals(keyOf(names, mode, quota)), "the key names another quota");
        if (names.has("topic")) {
            check(names.size() == 1, "a topic can't be combined");
            check(quota.equals("producer.byte.rate") || quota.equals("consumer.byte.rate"), "the quota is " + quota);
            name(names, "topic");
            checkLimit(limit.doubleValue(), true);
            return new Entry(null, null, 0, false);
        }
        Kind kind = Kind.ofKey(quota);
        check(kind != null, "the quota is " + quota);
        checkLimit(limit.doubleValue(), kind == Kind.PRODUCE || kind == Kind.FETCH);
        Entity entity = new Entity(name(names, "user"), name(names, "client_id"));
        int parts = (names.has("user") ? 1 : 0) + (names.has("client_id") ? 1 : 0);
        check(names.size() == parts, "the entity has an unknown part");
        return new Entry(kind, entity, limit.doubleValue(), mode.equals("shadow"));
    }

    private static void checkLimit(double limit, boolean isWhole) {
        check(limit > 0 && !Double.isInfinite(limit), "the value is not above 0");
        if (isWhole) {
            check(limit <= LARGEST_WHOLE, "the value is too large");
            check(Math.abs(limit - Math.rint(limit)) <= FRACTION_TOLERANCE, "the value is not whole");
        }
    }

    private static Object name(JsonNode names, String part) {
        JsonNode name = names.get(part);
        if (name == null) {
            return null;
        }
        if (name.isNull()) {
            return Entity.DEFAULT;
        }
        check(name.isTextual() && !name.textValue().isEmpty(), part + " is no name");
        return name.textValue();
    }

    private static JsonNode keyOf(JsonNode entity, String mode, String quota) {
        ObjectNode key = JSON.createObjectNode();
        key.set("entity", entity);
        return key.put("mode", mode).put("quota", quota);
    }

    private static JsonNode parse(byte[] value) throws IOException {
        JsonNode parsed = JSON.readTree(value == null ? new byte[0] : value);
        check(parsed != null && parsed.isObject(), "the record is no JSON object");
        return parsed;
    }

    private static String text(JsonNode record, String field) {
        JsonNode value = record.get(field);
        check(value != null && value.isTextual(), field + " is no string");
        return value.textValue();
    }

    private static long whole(JsonNode record, String field) {
        JsonNode value = record.get(field);
        check(value != null && value.isIntegralNumber(), field + " is no whole number");
        return value.longValue();
    }

    private static void check(boolean isGood, String problem) {
        if (!isGood) {
            throw new IllegalArgumentException(problem);
        }
    }

    /** A quota of the topic. `kind` is null for those on topics, which brokers don't apply. */
    private static final class Entry {
        private final Kind kind;
        private final Entity entity;
        private final double limit;
        private final boolean isShadow;

        Entry(Kind kind, Entity entity, double limit, boolean isShadow) {
            this.kind = kind;
            this.entity = entity;
            this.limit = limit;
            this.isShadow = isShadow;
        }

        void addTo(Quotas quotas) {
            if (kind != null) {
                (isShadow ? quotas.shadow(kind) : quotas.enforced(kind)).put(entity, limit);
            }
        }
    }
}
