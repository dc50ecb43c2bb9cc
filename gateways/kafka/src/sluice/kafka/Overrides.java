package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The overrides that hold at a gateway at a time: what is lent, the part of its shares that it lets through, and which
 * clients are throttled. The same rules as `state/quotas/overrides.py`.
 */
final class Overrides {
    /** The longest mute of a client under a hold, and so its longest wait after the hold. */
    static final long HELD_MS = 10_000;

    /** The decider that holds producers because of a disk. */
    static final String DISK_GUARD = "disk_guard";

    /** What the names of a scope are of. */
    private static final List<String> PARTS = Arrays.asList("user", "client-id", "tenant");

    /** The scope of an override without an entity. */
    static final List<String> EVERYBODY = scope(null, null, null);

    static final Overrides NONE = new Overrides(Map.of(), "", 0);

    final double lend;
    final double factor;
    private final Map<List<String>, Hold> holds = new HashMap<>(); // by user, client-id and tenant; all null is everybody
    private final Map<List<String>, Hold> stops = new HashMap<>(); // those of them that consumers are under, too
    private final List<Object> numbers = new ArrayList<>(); // the same as long as gateways do the same

    /** Those of `said`, by decider, that hold at gateway `instance` now. */
    Overrides(Map<String, Said> said, String instance, long nowMs) {
        double least = 1;
        double leastLend = Double.NaN;
        for (Map.Entry<String, Said> record : said.entrySet()) {
            for (Single each : record.getValue().singles) {
                if (nowMs >= Math.min(record.getValue().untilMs, each.untilMs)) {
                    continue;
                }
                numbers.add(Arrays.asList(record.getKey(), record.getValue().number, each.scope, each.gateway));
                boolean isHere = each.gateway == null || each.gateway.equals(instance);
                if (each.kind.equals("lend")) {
                    leastLend = Double.isNaN(leastLend) ? each.factor : Math.min(leastLend, each.factor);
                } else if (each.kind.equals("tighten")) {
                    least = isHere ? Math.min(least, each.factor) : least;
                } else if (isHere) {
                    Hold hold = new Hold(record.getKey(), each.scope, each.reason);
                    holds.putIfAbsent(each.scope, hold);
                    if (each.isOfConsumers) {
                        stops.putIfAbsent(each.scope, hold);
                    }
                }
            }
        }
        factor = least;
        lend = Double.isNaN(leastLend) ? 1 : leastLend;
    }

    /** The hold of a client's producers or consumers; null without one. Other requests have none. */
    Hold hold(Kind kind, Tags client) {
        return kind == Kind.PRODUCE ? found(holds, client) : kind == Kind.FETCH ? stop(client) : null;
    }

    /** The hold under which neither producers nor consumers of a client get anything; null if there is none. */
    Hold stop(Tags client) {
        return found(stops, client);
    }

    /** The same of a client by all its names, which the tags of its counter may not have. */
    Hold hold(Kind kind, String user, String clientId, Tenants tenants) {
        if (holds.isEmpty()) {
            return null; // each request asks
        }
        return hold(kind, new Tags(Names.bounded(user), Names.bounded(clientId), tenants.of(user, clientId)));
    }

    private static Hold found(Map<List<String>, Hold> holds, Tags client) {
        if (holds.isEmpty()) {
            return null;
        }
        for (List<String> scope : List.of(
                EVERYBODY,
                scope(null, null, client.tenant),
                scope(client.user, client.clientId, null),
                scope(client.user, null, null),
                scope(null, client.clientId, null))) {
            Hold found = holds.get(scope);
            if (found != null) {
                return found;
            }
        }
        return null;
    }

    /** The hold of all producers; null if there is none. */
    Hold holdOfAll() {
        return holds.get(EVERYBODY);
    }

    /** Whether both throttle the same clients. */
    boolean holdsAs(Overrides other) {
        return holds.keySet().equals(other.holds.keySet()) && stops.keySet().equals(other.stops.keySet());
    }

    /** The throttled clients and the reason, in words. */
    String held() {
        List<String> held = new ArrayList<>();
        holds.forEach((scope, hold) -> {
            List<String> words = new ArrayList<>();
            for (int place = 0; place < scope.size(); place++) {
                if (scope.get(place) != null) {
                    words.add(PARTS.get(place) + " " + scope.get(place));
                }
            }
            if (words.isEmpty()) {
                words.add("all");
            }
            if (stops.containsKey(scope)) {
                words.add("consumers too");
            }
            held.add(String.join(", ", words) + " (" + hold.decider + ": " + hold.reason + ")");
        });
        return held.isEmpty() ? "none" : Names.printable(String.join(", ", held));
    }

    /** Whether gateways do the same by both. */
    boolean isLike(Overrides other) {
        return numbers.equals(other.numbers);
    }

    private static List<String> scope(String user, String clientId, String tenant) {
        return Arrays.asList(user, clientId, tenant);
    }

    /** Why clients are throttled. */
    static final class Hold {
        /** Events have it as the name of a quota. */
        final String decider;

        final String reason;
        private final List<String> scope;

        Hold(String decider, List<String> scope, String reason) {
            this.decider = decider;
            this.scope = scope;
            this.reason = reason;
        }

        boolean isOfTenant() {
            return scope.get(2) != null;
        }

        boolean isOfClientId() {
            return scope.get(1) != null;
        }
    }

    /** The last record of a decider, and until when it is believed. */
    static final class Said {
        private static final Set<String> PARTS = Set.of("user", "client_id", "tenant");

        final long number;
        final List<Single> singles;
        private final long untilMs;

        /** One that was heard now. If it was in the topic before it is old. */
        Said(long number, long atMs, long freshMs, List<Single> singles, long nowMs) {
            this.number = number;
            this.singles = singles;
            this.untilMs = Math.min(nowMs, atMs + freshMs) + freshMs;
        }

        static Said read(byte[] value, long nowMs) throws IOException {
            JsonNode record = Json.object(value);
            long atMs = Json.whole(record, "at_ms");
            long freshMs = Json.whole(record, "fresh_ms");
            Json.check(atMs >= 0 && freshMs > 0 && freshMs <= Integer.MAX_VALUE, "a time is out of its bounds");
            List<Single> singles = new ArrayList<>();
            for (JsonNode each : record.path("overrides")) {
                JsonNode factor = each.path("factor");
                Json.check(factor.isMissingNode() || factor.isNumber() && factor.doubleValue() > 0, "the factor is not above 0");
                singles.add(new Single(
                        Json.text(each, "kind"),
                        factor.asDouble(1.0),
                        scopeOf(each.path("entity")),
                        Json.textOrNull(each, "gateway"),
                        Json.textOrEmpty(each, "reason"),
                        each.has("until_ms") ? Json.whole(each, "until_ms") : Long.MAX_VALUE,
                        each.path("consumers")));
            }
            return new Said(Json.whole(record, "number"), atMs, freshMs, singles, nowMs);
        }

        private static List<String> scopeOf(JsonNode entity) throws IOException {
            if (entity.isMissingNode() || entity.isNull()) {
                return EVERYBODY;
            }
            for (String part : (Iterable<String>) entity::fieldNames) {
                Json.check(PARTS.contains(part), "the entity is no client");
            }
            List<String> scope = scope(
                    Json.textOrNull(entity, "user"), Json.textOrNull(entity, "client_id"), Json.textOrNull(entity, "tenant"));
            Json.check(!scope.equals(EVERYBODY), "the entity is empty");
            return scope;
        }
    }

    /** One override. */
    static final class Single {
        private final String kind;
        private final double factor;
        private final List<String> scope;
        private final String gateway;
        private final String reason;
        private final long untilMs;
        private final boolean isOfConsumers;

        Single(
                String kind,
                double factor,
                List<String> scope,
                String gateway,
                String reason,
                long untilMs,
                JsonNode consumers)
                throws IOException {
            this.kind = kind;
            this.factor = factor;
            this.scope = scope;
            this.gateway = gateway;
            this.reason = reason;
            this.untilMs = untilMs;
            this.isOfConsumers = consumers.asBoolean();
            Json.check(consumers.isMissingNode() || consumers.isBoolean(), "consumers is neither true nor false");
            Json.check(isPossible(), kind + " can't have this factor or scope");
        }

        private boolean isPossible() {
            boolean isOfAll = scope.equals(EVERYBODY);
            if (isOfAll && isOfConsumers) {
                return false;
            }
            switch (kind) {
                case "hold":
                    boolean isClient = scope.get(2) == null || scope.get(0) == null && scope.get(1) == null;
                    return factor == 1 && isClient && !scope.contains("");
                case "lend":
                    return factor >= 1 && isOfAll && gateway == null;
                default:
                    return kind.equals("tighten") && factor <= 1 && isOfAll && gateway != null && !gateway.isEmpty();
            }
        }
    }
}
