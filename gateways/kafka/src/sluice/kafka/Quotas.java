package sluice.kafka;

import java.util.EnumMap;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/** The limits of all quotas: those in force, and the shadow ones. */
final class Quotas {
    /** The budget of a tenant among the limits, and the decider that holds it. */
    static final String STORED_BYTES = "stored_bytes";

    /** Of the quotas table; -1 for quotas that Kafka itself keeps. */
    final long version;

    /** Members and their limits are added before any thread but the first asks. */
    final Tenants tenants = new Tenants();

    private final Map<Kind, OfKind> kinds = new EnumMap<>(Kind.class);
    private final Set<Object> storageBudgets = new HashSet<>(); // of tenants that have one

    Quotas(long version) {
        this.version = version;
        for (Kind kind : Kind.values()) {
            kinds.put(kind, new OfKind());
        }
    }

    PrecedenceLevels enforced(Kind kind) {
        return kinds.get(kind).enforced;
    }

    PrecedenceLevels shadow(Kind kind) {
        return kinds.get(kind).shadow;
    }

    /** Sets the limit of a tenant, or of the default one, or else of clients, enforced or shadow. */
    void put(Kind kind, Object tenant, Entity entity, double limit, boolean isShadow) {
        if (tenant == null) {
            (isShadow ? shadow(kind) : enforced(kind)).put(entity, limit);
        } else {
            (isShadow ? kinds.get(kind).shadowOfTenants : kinds.get(kind).ofTenants).put(tenant, limit);
        }
    }

    /** Sets the reservation beside the limit of a tenant, or else of clients. */
    void putReservation(Kind kind, Object tenant, Entity entity, double value) {
        if (tenant == null) {
            enforced(kind).putReservation(entity, value);
        } else {
            kinds.get(kind).reservationsOfTenants.put(tenant, value);
        }
    }

    /** Notes that a tenant, or the default one, has a storage budget, which holds its producers when it is used up. */
    void putStorageBudget(Object tenant) {
        storageBudgets.add(tenant);
    }

    private boolean isOfTenants(Kind kind) {
        boolean isBudgeted = kind == Kind.PRODUCE && !storageBudgets.isEmpty();
        return isBudgeted || !kinds.get(kind).ofTenants.isEmpty() || !kinds.get(kind).shadowOfTenants.isEmpty();
    }

    /** The tenant of a client if it has a limit of this kind, enforced or shadow, or a storage budget; else "". */
    String tenantOf(Kind kind, String user, String clientId) {
        if (!isOfTenants(kind)) {
            return "";
        }
        String tenant = tenants.of(user, clientId);
        OfKind limits = kinds.get(kind);
        boolean isLimited = limitOf(limits.ofTenants, tenant) != null || limitOf(limits.shadowOfTenants, tenant) != null;
        boolean isBudgeted = storageBudgets.contains(tenant) || storageBudgets.contains(Entity.DEFAULT);
        return isLimited || kind == Kind.PRODUCE && isBudgeted ? tenant : "";
    }

    /** The same of a client that the tags name by itself. */
    String tenantOf(Kind kind, Tags tags) {
        return tenantOf(kind, tags.user, tags.clientId);
    }

    private static Double limitOf(Map<Object, Double> limits, String tenant) {
        return tenant.isEmpty() ? null : limits.getOrDefault(tenant, limits.get(Entity.DEFAULT));
    }

    /**
     * The limit of a client, its tenant's apart, and the counter that a broker keeps for it. A topic's limit is found as
     * if it were a user.
     *
     * <p>Clients without a limit share a counter with all others of their user: they choose their client-ids, and a
     * counter for each would fill the broker. One that a shadow quota limits has the counter of that: the job resolves
     * its events to the shadow quota's own.
     */
    Resolution resolve(Kind kind, String anyUser, String anyClientId) {
        PrecedenceLevels limits = enforced(kind);
        PrecedenceLevels shadows = shadow(kind);
        String user = Names.bounded(anyUser);
        // the hash of a name of 32 kB takes 50 to 250 us of a request thread: once, and only where a limit may need it
        String clientId = limits.haveClientIds() || shadows.haveClientIds() ? Names.bounded(anyClientId) : "";
        Resolution found = limits.resolve(user, clientId);
        if (found.limit != null) {
            return found;
        }
        Resolution shadow = shadows.resolve(user, clientId);
        Tags tags = shadow.limit == null ? new Tags(user, "") : shadow.tags;
        return new Resolution(tags, shadow.level, null);
    }

    /** Whether any quota of this kind is set: without one, nothing is counted. */
    boolean isUsed(Kind kind) {
        return isOfTenants(kind) || !enforced(kind).isEmpty() || !shadow(kind).isEmpty();
    }

    /** The reservation beside the limit of a counter, which is no meter's key; null for none. */
    Double reservationOf(CounterKey counter) {
        String tenant = counter.tags.tenant;
        if (!tenant.isEmpty()) {
            OfKind of = kinds.get(counter.kind);
            return of.reservationsOfTenants.get(of.ofTenants.containsKey(tenant) ? tenant : Entity.DEFAULT);
        }
        return enforced(counter.kind).reservationOf(counter.tags.user, counter.tags.clientId);
    }

    /** The limit of a counter, which is no meter's key; null is unlimited. */
    Double limitOf(CounterKey counter) {
        if (!counter.tags.tenant.isEmpty()) {
            return limitOf(kinds.get(counter.kind).ofTenants, counter.tags.tenant);
        }
        String name = counter.kind.isOfTopics() ? counter.tags.topic : counter.tags.user;
        return resolve(counter.kind, name, counter.tags.clientId).limit;
    }

    /** The limits of one kind. Those of tenants are by their names, or DEFAULT. */
    private static final class OfKind {
        private final PrecedenceLevels enforced = new PrecedenceLevels();
        private final PrecedenceLevels shadow = new PrecedenceLevels();
        private final Map<Object, Double> ofTenants = new HashMap<>();
        private final Map<Object, Double> shadowOfTenants = new HashMap<>();
        private final Map<Object, Double> reservationsOfTenants = new HashMap<>();
    }
}
