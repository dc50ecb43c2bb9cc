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
 * The overrides that hold at a gateway at a time: what is lent, the part of its shares that it lets through, and whose
 * producers are throttled. The same rules as `state/quotas/overrides.py`.
 */
final class Overrides {
    /** The longest mute of a producer under a hold, and so its longest wait after the hold. */
    static final long HELD_MS = 10_000;

    /** The decider that holds producers because of a disk. */
    static final String DISK_GUARD = "disk_guard";

    /** The scope of an override without an entity. */
    static final List<String> EVERYBODY = scope(null, null, null);

    static final Overrides NONE = new Overrides(Map.of(), "", 0);

    final double lend;
    final double factor;
    private final Map<List<String>, Hold> holds = new HashMap<>(); // by user, client-id and tenant; all null is everybody
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
                    holds.putIfAbsent(each.scope, new Hold(record.getKey(), each.scope.get(2) != null, each.reason));
                }
            }
        }
        factor = least;
        lend = Double.isNaN(leastLend) ? 1 : leastLend;
    }

    /** The hold of a client's producers; null without one. */
    Hold hold(Tags client) {
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
        return holds.keySet().equals(other.holds.keySet());
    }

    /** The throttled producers and the reason, in words. */
    String held() {
        List<String> held = new ArrayList<>();
        holds.forEach((scope, hold) -> {
            String whose = scope.equals(EVERYBODY) ? "all" : "user " + scope.get(0) + ", client-id " + scope.get(1);
            held.add((hold.isOfTenant ? "tenant " + scope.get(2) : whose) + " (" + hold.decider + ": " + hold.reason + ")");
        });
        return held.isEmpty() ? "none" : String.join(", ", held);
    }

    /** Whether gateways do the same by both. */
    boolean isLike(Overrides other) {
        return numbers.equals(other.numbers);
    }

    private static List<String> scope(String user, String clientId, String tenant) {
        return Arrays.asList(user, clientId, tenant);
    }

    /** Why producers are throttled. */
    static final class Hold {
        /** Events have it as the name of a quota. */
        final String decider;

        final boolean isOfTenant;
        final String reason;

        Hold(String decider, boolean isOfTenant, String reason) {
            this.decider = decider;
            this.isOfTenant = isOfTenant;
            this.reason = reason;
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
                        each.has("until_ms") ? Json.whole(each, "until_ms") : Long.MAX_VALUE));
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

        Single(String kind, double factor, List<String> scope, String gateway, String reason, long untilMs)
                throws IOException {
            this.kind = kind;
            this.factor = factor;
            this.scope = scope;
            this.gateway = gateway;
            this.reason = reason;
            this.untilMs = untilMs;
            Json.check(isPossible(), kind + " can't have this factor or scope");
        }

        private boolean isPossible() {
            boolean isOfAll = scope.equals(EVERYBODY);
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
