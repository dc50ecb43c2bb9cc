package sluice.kafka;

import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Consumer;

/**
 * What a reader of the limits topic knows: feed it every record in order. Not for several threads.
 *
 * <p>The same rules as `state/quotas/limits.py`.
 */
class LimitsView {
    private static final ObjectMapper JSON =
            JsonMapper.builder().disable(JsonWriteFeature.WRITE_HEX_UPPER_CASE).build(); // as the job writes
    private static final List<String> PARTS = Arrays.asList("client_id", "tenant", "topic", "user");
    private static final String RESERVATION = "_reservation";
    private static final String MEMBER = "member";
    private static final int MAX_TENANT_CHARACTERS = 256;
    private static final String VERSION_KEY = "\"version\"";
    private static final String OVERRIDES = "\"overrides:";
    private static final int MAX_DECIDERS = 16; // of which any may have another name than Sluice's own
    private static final int MAX_OTHER_BYTES = 65_536;
    private static final int MAX_UNREADABLE_BYTES = 10_000_000;
    private static final int KEY_BYTES = 100; // that a key takes beside its text
    private static final double FRACTION_TOLERANCE = 1e-6;
    private static final double LARGEST_WHOLE = 9.223372036854775807e18;

    private final Map<String, Consumer<Quotas>> entries = new HashMap<>(); // what each record adds to the quotas
    private final Set<String> unreadable = new HashSet<>(); // keys of limits that aren't known, but may be
    private int unreadableBytes;
    private boolean isPast = true; // what is read was there before
    private volatile Quotas inForce;
    private volatile Map<String, Overrides.Said> overrides = Map.of(); // by decider; each record makes another one
    private boolean hasGaps;

    /** The topic is read from its beginning again. The limits in force stay until a version is complete, and what deciders said. */
    public void restart() {
        entries.clear();
        unreadable.clear();
        unreadableBytes = 0;
        hasGaps = false;
    }

    /** The topic has been read to its end: a record that comes now is just published. */
    public void noteRead() {
        isPast = false;
    }

    /** The quotas of the last complete version; null before the first. Safe for any thread. */
    Quotas inForce() {
        return inForce;
    }

    /** What all deciders have said last. Safe for any thread. */
    Map<String, Overrides.Said> overrides() {
        return overrides;
    }

    /**
     * Whether the last version to end had fewer quotas than are known: this reader was away for longer than the topic keeps
     * removals, and no version will be complete until it reads the topic from its beginning.
     */
    public boolean hasGaps() {
        return hasGaps;
    }

    /**
     * Takes over one record that was heard now. One that Sluice doesn't write throws an IOException and changes nothing, and no
     * other limit waits for it to come into force.
     */
    void take(byte[] keyBytes, byte[] value, long nowMs) throws IOException {
        String key = Json.utf8(keyBytes);
        if (key.equals(VERSION_KEY)) {
            endVersion(value);
        } else if (key.startsWith(OVERRIDES)) {
            String decider = Json.string(key).substring(OVERRIDES.length() - 1);
            String written = JSON.writeValueAsString("overrides:" + decider);
            Json.check(written.equals(key), "the key isn't written as Sluice does");
            override(decider, keyBytes.length, value, nowMs);
        } else if (value == null) {
            forgetUnreadable(key, keyBytes.length);
            entries.remove(key);
        } else {
            noteUnreadable(key, keyBytes.length);
            entries.put(key, read(key, value));
            forgetUnreadable(key, keyBytes.length);
        }
    }

    /** Notes that a limit may have this key. Of very many, which no job writes, the first are known: the last limits hold then. */
    private void noteUnreadable(String key, int keyBytes) {
        int bytes = keyBytes + KEY_BYTES;
        boolean hasRoom = unreadableBytes + bytes <= MAX_UNREADABLE_BYTES;
        if (hasRoom && key.startsWith("{") && !entries.containsKey(key) && unreadable.add(key)) {
            unreadableBytes += bytes;
        }
    }

    private void forgetUnreadable(String key, int keyBytes) {
        unreadableBytes -= unreadable.remove(key) ? keyBytes + KEY_BYTES : 0;
    }

    private void override(String decider, int keyBytes, byte[] value, long nowMs) throws IOException {
        Map<String, Overrides.Said> said = new TreeMap<>(overrides);
        said.remove(decider);
        if (value != null) {
            boolean hasRoom = said.size() < MAX_DECIDERS && keyBytes + value.length <= MAX_OTHER_BYTES;
            Json.check(hasRoom || Overrides.OWN_DECIDERS.contains(decider), "no room for other deciders is left");
            said.put(decider, Overrides.Said.read(decider, value, nowMs, isPast, overrides.get(decider)));
        }
        overrides = said;
    }

    private void endVersion(byte[] value) throws IOException {
        JsonNode end = Json.object(value);
        long version = Json.whole(end, "version");
        long count = Json.whole(end, "count");
        hasGaps = count < entries.size();
        // Compaction may have removed records of this version: then a later one ends further on.
        if (count >= entries.size() && count <= entries.size() + unreadable.size()) {
            Quotas quotas = new Quotas(version);
            entries.values().forEach(entry -> entry.accept(quotas));
            inForce = quotas;
        }
    }

    /** What a record adds to the quotas. */
    private static Consumer<Quotas> read(String key, byte[] value) throws IOException {
        JsonNode record = Json.object(value);
        Json.whole(record, "version");
        String quota = Json.text(record, "quota");
        String mode = Json.text(record, "mode");
        Json.check(mode.equals("enforce") || mode.equals("shadow"), "the mode is " + mode);
        JsonNode names = record.path("entity");
        Json.check(names.isObject() && names.size() > 0, "the entity is empty");
        Json.check(record.path("value").isNumber(), "the value is no number");
        double limit = record.get("value").doubleValue();
        Object user = name(names, "user");
        Object clientId = name(names, "client_id");
        Object topic = name(names, "topic");
        Object tenant = name(names, "tenant");
        int parts = (user == null ? 0 : 1) + (clientId == null ? 0 : 1) + (topic == null ? 0 : 1) + (tenant == null ? 0 : 1);
        Json.check(names.size() == parts, "the entity has an unknown part");
        Json.check(isKeyOf(key, names, mode, quota), "the key names another quota");
        Json.check(topic == null || user == null && clientId == null, "a topic can't be combined");
        checkTenant(tenant);
        boolean isShadow = mode.equals("shadow");
        if (tenant != null && parts > 1) {
            Json.check(quota.equals(MEMBER) && limit == 1, "a member is of quota " + quota);
            boolean isDefault = tenant == Entity.DEFAULT || user == Entity.DEFAULT || clientId == Entity.DEFAULT;
            Json.check(!isDefault && topic != Entity.DEFAULT, "it is <default>");
            return topic != null // the job alone looks for topics
                    ? quotas -> {}
                    : quotas -> quotas.tenants.add((String) tenant, glob(user), glob(clientId));
        }
        if (tenant != null && quota.equals(Quotas.STORED_BYTES)) {
            checkLimit(limit, true);
            return isShadow ? quotas -> {} : quotas -> quotas.putStorageBudget(tenant);
        }
        Kind reserved = topic == null ? reservedOf(quota) : null;
        if (reserved != null) {
            checkLimit(limit, reserved != Kind.REQUEST);
            return quotas -> quotas.putReservation(reserved, tenant, new Entity(user, clientId), limit);
        }
        Kind kind = Kind.ofKey(quota);
        Json.check(kind != null && kind.isOfTopics() == (topic != null), "the quota is " + quota);
        checkLimit(limit, kind != Kind.REQUEST && kind != Kind.MUTATION && !kind.countsRequests());
        Entity entity = new Entity(topic == null ? user : topic, clientId);
        return quotas -> quotas.put(kind, tenant, entity, limit, isShadow);
    }

    private static String glob(Object part) {
        return part == null ? "" : (String) part;
    }

    private static void checkTenant(Object tenant) throws IOException {
        boolean isNamed = tenant instanceof String;
        Json.check(!isNamed || ((String) tenant).codePoints().count() <= MAX_TENANT_CHARACTERS, "the tenant is too long");
    }

    /** The quota that a reservation stands beside; null for another key. */
    private static Kind reservedOf(String quota) {
        if (!quota.endsWith(RESERVATION)) {
            return null;
        }
        Kind kind = Kind.ofKey(quota.substring(0, quota.length() - RESERVATION.length()));
        return kind != null && kind.givesWay() && !kind.isOfTopics() ? kind : null;
    }

    private static void checkLimit(double limit, boolean isWhole) throws IOException {
        Json.check(limit > 0 && !Double.isInfinite(limit), "the value is not above 0");
        if (isWhole) {
            Json.check(limit <= LARGEST_WHOLE, "the value is too large");
            Json.check(Math.abs(limit - Math.rint(limit)) <= FRACTION_TOLERANCE, "the value is not whole");
        }
    }

    /** The name of a part of an entity; null if it doesn't have it. */
    private static Object name(JsonNode names, String part) throws IOException {
        if (!names.has(part)) {
            return null;
        }
        String name = Json.textOrNull(names, part);
        Json.check(name == null || !name.isEmpty(), part + " is empty");
        return name == null ? Entity.DEFAULT : name;
    }

    /** Whether this is the one key of a quota: without spaces, in the order of the alphabet. */
    private static boolean isKeyOf(String key, JsonNode names, String mode, String quota) throws IOException {
        ObjectNode wanted = JSON.createObjectNode();
        ObjectNode entity = wanted.putObject("entity");
        for (String part : PARTS) {
            if (names.has(part)) {
                entity.set(part, names.get(part));
            }
        }
        wanted.put("mode", mode).put("quota", quota);
        return JSON.writeValueAsString(wanted).equals(key);
    }
}
