package sluice.kafka;

import java.util.EnumMap;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/** The limits of all quotas: those in force, and which quotas are on trial as well. */
final class Quotas {
    /** The budget of a tenant among the limits, and the decider that holds it. */
    static final String STORED_BYTES = "stored_bytes";

    /** Of the quotas table; -1 for quotas that Kafka itself keeps. */
    final long version;

    private final Map<Kind, PrecedenceLevels> enforced = new EnumMap<>(Kind.class);
    private final Map<Kind, PrecedenceLevels> shadow = new EnumMap<>(Kind.class);
    private final Map<Kind, Map<Object, Double>> ofTenants = new EnumMap<>(Kind.class);
    private final Map<Kind, Map<Object, Double>> trialsOfTenants = new EnumMap<>(Kind.class);
    private final Map<Kind, Map<Object, Double>> reservationsOfTenants = new EnumMap<>(Kind.class);
    private final Set<Object> storageBudgets = new HashSet<>(); // of tenants that have one
    private final Tenants tenants = new Tenants();

    Quotas(long version) {
        this.version = version;
        for (Kind kind : Kind.values()) {
            enforced.put(kind, new PrecedenceLevels());
            shadow.put(kind, new PrecedenceLevels());
        }
    }

    PrecedenceLevels enforced(Kind kind) {
        return enforced.get(kind);
    }

    PrecedenceLevels shadow(Kind kind) {
        return shadow.get(kind);
    }

    /** The tenants. Members and their limits are added before any thread but the first asks. */
    Tenants tenants() {
        return tenants;
    }

    /** Sets the limit of a tenant, or of the default one, enforced or on trial. */
    void putTenant(Kind kind, Object tenant, double limit, boolean isShadow) {
        (isShadow ? trialsOfTenants : ofTenants).computeIfAbsent(kind, key -> new HashMap<>()).put(tenant, limit);
    }

    /** Sets the reservation beside the limit of a tenant, or else of clients. */
    void putReservation(Kind kind, Object tenant, Entity entity, double value) {
        if (tenant == null) {
            enforced.get(kind).putReservation(entity, value);
        } else {
            reservationsOfTenants.computeIfAbsent(kind, key -> new HashMap<>()).put(tenant, value);
        }
    }

    /** Notes that a tenant, or the default one, has a storage budget, which holds its producers when it is used up. */
    void putStorageBudget(Object tenant) {
        storageBudgets.add(tenant);
    }

    private boolean isOfTenants(Kind kind) {
        boolean isBudgeted = kind == Kind.PRODUCE && !storageBudgets.isEmpty();
        return isBudgeted || ofTenants.containsKey(kind) || trialsOfTenants.containsKey(kind);
    }

    /** The tenant of a client if it has a limit of this kind, enforced or on trial, or a storage budget; else "". */
    String tenantOf(Kind kind, String user, String clientId) {
        if (!isOfTenants(kind)) {
            return "";
        }
        String tenant = tenants.of(user, clientId);
        boolean isLimited = limitOf(ofTenants, kind, tenant) != null || limitOf(trialsOfTenants, kind, tenant) != null;
        boolean isBudgeted = storageBudgets.contains(tenant) || storageBudgets.contains(Entity.DEFAULT);
        return isLimited || kind == Kind.PRODUCE && isBudgeted ? tenant : "";
    }

    /** The same of a client that the tags name by itself. */
    String tenantOf(Kind kind, Tags tags) {
        return tenantOf(kind, tags.user, tags.clientId);
    }

    private static Double limitOf(Map<Kind, Map<Object, Double>> limits, Kind kind, String tenant) {
        Map<Object, Double> known = limits.get(kind);
        if (known == null || tenant.isEmpty()) {
            return null;
        }
        Double own = known.get(tenant);
        return own == null ? known.get(Entity.DEFAULT) : own;
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
        PrecedenceLevels limits = enforced.get(kind);
        PrecedenceLevels trials = shadow.get(kind);
        String user = Names.bounded(anyUser);
        // the hash of a name of 32 kB takes 50 to 250 us of a request thread: once, and only where a limit may need it
        String clientId = limits.haveClientIds() || trials.haveClientIds() ? Names.bounded(anyClientId) : "";
        Resolution found = limits.resolve(user, clientId);
        if (found.limit != null) {
            return found;
        }
        Resolution trial = trials.resolve(user, clientId);
        Tags tags = trial.limit == null ? new Tags(user, "") : trial.tags;
        return new Resolution(tags, trial.level, null);
    }

    /** Whether any quota of this kind is set: without one, nothing is counted. */
    boolean isUsed(Kind kind) {
        return isOfTenants(kind) || !enforced(kind).isEmpty() || !shadow(kind).isEmpty();
    }

    /** The reservation beside the limit of a counter, which is no meter's key; null for none. */
    Double reservationOf(CounterKey counter) {
        String tenant = counter.tags.tenant;
        if (!tenant.isEmpty()) {
            boolean isOwn = ofTenants.getOrDefault(counter.kind, Map.of()).containsKey(tenant);
            return reservationsOfTenants.getOrDefault(counter.kind, Map.of()).get(isOwn ? tenant : Entity.DEFAULT);
        }
        return enforced.get(counter.kind).reservationOf(counter.tags.user, counter.tags.clientId);
    }

    /** The limit of a counter, which is no meter's key; null is unlimited. */
    Double limitOf(CounterKey counter) {
        if (!counter.tags.tenant.isEmpty()) {
            return limitOf(ofTenants, counter.kind, counter.tags.tenant);
        }
        String name = counter.kind.isOfTopics() ? counter.tags.topic : counter.tags.user;
        return resolve(counter.kind, name, counter.tags.clientId).limit;
    }
}
