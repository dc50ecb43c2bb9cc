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
 * The overrides that hold at a gateway at a time: the part of its shares that it lets through, and which clients are
 * throttled. The same rules as `state/quotas/overrides.py`.
 */
final class Overrides {
    /** The longest mute of a client under a hold, and so its longest wait after the hold. */
    static final long HELD_MS = 10_000;

    /** The reservation of a quota that has none of its own, as a part of the quota. */
    private static final double DEFAULT_RESERVATION = 0.5;

    /** The decider that holds producers because of a disk. */
    static final String DISK_GUARD = "disk_guard";

    /** Sluice's own deciders: a gateway has room for all of them, whatever others are in the topic. */
    static final Set<String> OWN_DECIDERS = Set.of(DISK_GUARD, "elastic", "operator", Quotas.STORED_BYTES);

    /** What the names of a scope are of. */
    private static final List<String> PARTS = Arrays.asList("user", "client-id", "tenant");

    /** The scope of an override without an entity. */
    static final List<String> EVERYBODY = scope(null, null, null);

    static final Overrides NONE = new Overrides(Map.of(), "", 0);

    final double factor;

    /** The number of the operator's last command that is in force; 0 for none. */
    final long command;

    private final Map<List<String>, Single> holds = new HashMap<>(); // by user, client-id and tenant; all null is everybody
    private final Map<List<String>, Single> stops = new HashMap<>(); // those of them that consumers are under, too
    private final List<Object> numbers = new ArrayList<>(); // the same as long as gateways do the same

    /** Those of `said`, by decider, that hold at gateway `instance` now. */
    Overrides(Map<String, Said> said, String instance, long nowMs) {
        double least = 1;
        long lastCommand = 0;
        for (Map.Entry<String, Said> record : said.entrySet()) {
            lastCommand = nowMs < record.getValue().untilMs ? Math.max(lastCommand, record.getValue().command) : lastCommand;
            for (Single each : record.getValue().singles) {
                if (nowMs >= Math.min(record.getValue().untilMs, each.untilMs)) {
                    continue;
                }
                numbers.add(Arrays.asList(record.getKey(), record.getValue().number, each.scope, each.gateway));
                boolean isHere = each.gateway == null || each.gateway.equals(instance);
                if (each.kind.equals("tighten")) {
                    least = isHere ? Math.min(least, each.factor) : least;
                } else if (isHere) {
                    holds.putIfAbsent(each.scope, each);
                    if (each.isOfConsumers) {
                        stops.putIfAbsent(each.scope, each);
                    }
                }
            }
        }
        command = lastCommand;
        factor = least;
    }

    /** The part of its share of a quota that the gateway lets through; the reservation is null where there is none. */
    double part(double quota, Double reservation) {
        return Math.max(factor, reservation == null ? DEFAULT_RESERVATION : Math.min(1.0, reservation / quota));
    }

    /** The hold of a client's producers or consumers, the strictest; null without one. Other requests have none. */
    Single hold(Kind kind, Tags client) {
        if (kind != Kind.PRODUCE && kind != Kind.FETCH) {
            return null;
        }
        Single stop = stop(client);
        return stop == null && kind == Kind.PRODUCE ? found(holds, client) : stop;
    }

    /** The hold under which neither producers nor consumers of a client get anything; null if there is none. */
    Single stop(Tags client) {
        return found(stops, client);
    }

    /** The same of a client by all its names, which the tags of its counter may not have. */
    Single hold(Kind kind, String user, String clientId, Tenants tenants) {
        if (holds.isEmpty()) {
            return null; // each request asks
        }
        return hold(kind, new Tags(Names.bounded(user), Names.bounded(clientId), tenants.of(user, clientId)));
    }

    private static Single found(Map<List<String>, Single> holds, Tags client) {
        if (holds.isEmpty()) {
            return null;
        }
        for (List<String> scope : List.of(
                EVERYBODY,
                scope(null, null, client.tenant),
                scope(client.user, client.clientId, null),
                scope(client.user, null, null),
                scope(null, client.clientId, null))) {
            Single found = holds.get(scope);
            if (found != null) {
                return found;
            }
        }
        return null;
    }

    /** The hold of all producers; null if there is none. */
    Single holdOfAll() {
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

    /** The last record of a decider, by the gateway's clock, and until when it is believed. */
    static final class Said {
        private static final Set<String> PARTS = Set.of("user", "client_id", "tenant");

        final long number;
        final long command;
        final List<Single> singles;
        private final byte[] record;
        private final long untilMs;

        private Said(long number, long command, byte[] record, List<Single> singles, long untilMs) {
            this.number = number;
            this.command = command;
            this.record = record;
            this.singles = singles;
            this.untilMs = untilMs;
        }

        /**
         * One that is heard now. It is just published, whatever the clocks say, unless the topic had it before the gateway began
         * to read (`isPast`): then it is as old as the clocks say, as nothing else tells. `known` is the decider's record before;
         * the same again isn't believed anew.
         */
        static Said read(String decider, byte[] value, long nowMs, boolean isPast, Said known) throws IOException {
            JsonNode record = Json.object(value);
            long number = Json.whole(record, "number");
            long atMs = Json.whole(record, "at_ms", 0, Json.MAX_TIMESTAMP_MS);
            long freshMs = Json.whole(record, "fresh_ms", 1, Integer.MAX_VALUE);
            long command = record.has("command") ? Json.whole(record, "command", 0, Json.MAX_EXACT) : 0;
            long aheadMs = isPast ? Math.min(0, nowMs - atMs) : nowMs - atMs; // this gateway's clock
            List<Single> singles = new ArrayList<>();
            for (JsonNode each : Json.list(record, "overrides")) {
                boolean isEndless = !each.hasNonNull("until_ms");
                Single single = new Single(
                        decider,
                        Json.text(each, "kind"),
                        each.has("factor") ? number(each, "factor") : 1.0,
                        scopeOf(each.path("entity")),
                        Json.textOrNull(each, "gateway"),
                        Json.textOrEmpty(each, "reason"),
                        isEndless ? Long.MAX_VALUE : Json.whole(each, "until_ms", 0, Json.MAX_TIMESTAMP_MS) + aheadMs,
                        Json.flag(each, "consumers"));
                Json.check(single.factor > 0, "the factor is not above 0");
                Json.check(single.isPossible(), single.kind + " can't have this factor or scope");
                singles.add(single);
            }
            for (JsonNode each : Json.list(record, "measured")) { // for people; a record is taken whole or not at all
                Json.text(each, "name");
                Json.textOrEmpty(each, "reason");
                Json.check(number(each, "value") >= 0 && number(each, "bound") > 0, "a figure is out of its bounds");
            }
            boolean isKnown = known != null && Arrays.equals(known.record, value);
            return isKnown ? known : new Said(number, command, value, singles, atMs + freshMs + aheadMs);
        }

        private static double number(JsonNode fields, String field) throws IOException {
            JsonNode value = fields.path(field);
            boolean isNumber = value.isNumber() && Math.abs(value.doubleValue()) <= Json.MAX_VALUE;
            Json.check(isNumber, field + " is no number up to 1e30");
            return value.doubleValue();
        }

        private static List<String> scopeOf(JsonNode entity) throws IOException {
            if (entity.isMissingNode() || entity.isNull()) {
                return EVERYBODY;
            }
            Json.check(entity.isObject(), "the entity is no object");
            for (String part : (Iterable<String>) entity::fieldNames) {
                Json.check(PARTS.contains(part), "the entity is no client");
            }
            String user = Json.textOrNull(entity, "user");
            String clientId = Json.textOrNull(entity, "client_id");
            List<String> scope = scope(
                    user == null ? null : Names.bounded(user),
                    clientId == null ? null : Names.bounded(clientId),
                    Json.textOrNull(entity, "tenant"));
            Json.check(!scope.equals(EVERYBODY), "the entity is empty");
            return scope;
        }
    }

    /** One override; a hold says why clients are throttled. */
    static final class Single {
        /** Events have that of a hold as the name of a quota. */
        final String decider;

        final String reason;
        private final String kind;
        private final double factor;
        private final List<String> scope;
        private final String gateway;
        private final long untilMs;
        private final boolean isOfConsumers;

        private Single(
                String decider,
                String kind,
                double factor,
                List<String> scope,
                String gateway,
                String reason,
                long untilMs,
                boolean isOfConsumers) {
            this.decider = decider;
            this.kind = kind;
            this.factor = factor;
            this.scope = scope;
            this.gateway = gateway;
            this.reason = reason;
            this.untilMs = untilMs;
            this.isOfConsumers = isOfConsumers;
        }

        /** The hold of all producers because of a disk of this broker. */
        static Single ofDisk(String reason) {
            return new Single(DISK_GUARD, "hold", 1, EVERYBODY, null, reason, Long.MAX_VALUE, false);
        }

        /** Whether it stops what the other one doesn't; null is none. */
        boolean isStricterThan(Single other) {
            return other == null || isOfConsumers && !other.isOfConsumers;
        }

        boolean isOfTenant() {
            return scope.get(2) != null;
        }

        boolean isOfClientId() {
            return scope.get(1) != null;
        }

        private boolean isPossible() {
            boolean isOfAll = scope.equals(EVERYBODY);
            if (isOfAll && isOfConsumers) {
                return false;
            }
            if (kind.equals("hold")) {
                boolean isClient = scope.get(2) == null || scope.get(0) == null && scope.get(1) == null;
                return factor == 1 && isClient && !scope.contains("");
            }
            return kind.equals("tighten") && factor <= 1 && isOfAll && gateway != null && !gateway.isEmpty();
        }
    }
}
