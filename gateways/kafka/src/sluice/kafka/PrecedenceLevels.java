package sluice.kafka;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicIntegerArray;

/**
 * The limits of one quota: each client finds its own among the eight levels of KIP-124, most specific first.
 *
 * <p>Safe for any thread. A client that looks its limit up while one is being changed finds the old or the new one.
 * The same rules as `state/quotas/resolution.py`.
 *
 * <p>The tags of a counter resolve to that counter again, so an event that names them as user and client-id is charged to
 * the same counter. That is so because no entity has an empty name: with an empty part, only levels match that have the
 * default entity there or no such part, and those would have matched the client itself, whatever its name.
 */
final class PrecedenceLevels {
    private static final int LEVELS = 8;

    private final Map<Entity, Double> limits = new ConcurrentHashMap<>();
    private final Map<Entity, Double> reservations = new ConcurrentHashMap<>();
    private final AtomicIntegerArray limitsAtLevel = new AtomicIntegerArray(LEVELS + 1);

    /** Sets a limit, in units of the quota per second. */
    void put(Entity entity, double limit) {
        if (limits.put(bounded(entity), limit) == null) {
            limitsAtLevel.incrementAndGet(levelOf(entity));
        }
    }

    /** Sets the reservation beside a limit. */
    void putReservation(Entity entity, double value) {
        reservations.put(bounded(entity), value);
    }

    /** The reservation beside the limit of the first configured level, null for none; the names are bounded. */
    Double reservationOf(String user, String clientId) {
        int level = reservations.isEmpty() ? 0 : resolve(user, clientId).level;
        return level == 0 ? null : reservations.get(entityAt(level, user, clientId));
    }

    /** Removes a limit, if there is one. */
    void remove(Entity entity) {
        if (limits.remove(bounded(entity)) != null) {
            limitsAtLevel.decrementAndGet(levelOf(entity));
        }
    }

    boolean isEmpty() {
        return limits.isEmpty();
    }

    /** Whether limits or counters depend on client-ids. */
    boolean haveClientIds() {
        return isUsed(1) || isUsed(2) || isUsed(4) || isUsed(5) || isUsed(7) || isUsed(8);
    }

    /** The first configured level, and the tags of the counter; the names are bounded. */
    Resolution resolve(String user, String clientId) {
        for (int level = 1; level <= LEVELS; level++) {
            Double limit = limitsAtLevel.get(level) == 0 ? null : limits.get(entityAt(level, user, clientId));
            if (limit != null) {
                boolean noUser = level >= 7;
                boolean noClientId = level == 3 || level == 6;
                return new Resolution(new Tags(noUser ? "" : user, noClientId ? "" : clientId), level, limit);
            }
        }
        return new Resolution(unmatched(user, clientId), 0, null);
    }

    /** The tags of a client that no limit matches: the parts that all entities have, or the client-id (Kafka's rule). */
    private Tags unmatched(String user, String clientId) {
        boolean pairs = isUsed(1) || isUsed(2) || isUsed(4) || isUsed(5);
        boolean users = isUsed(3) || isUsed(6);
        boolean clientIds = isUsed(7) || isUsed(8);
        if (pairs && !users && !clientIds) {
            return new Tags(user, clientId);
        }
        return users && !pairs && !clientIds ? new Tags(user, "") : new Tags("", clientId);
    }

    private boolean isUsed(int level) {
        return limitsAtLevel.get(level) > 0;
    }

    private static Entity bounded(Entity entity) {
        return new Entity(bounded(entity.user), bounded(entity.clientId));
    }

    private static Object bounded(Object name) {
        return name instanceof String ? Names.bounded((String) name) : name;
    }

    private static Entity entityAt(int level, Object user, Object clientId) {
        switch (level) {
            case 1:
                return new Entity(user, clientId);
            case 2:
                return new Entity(user, Entity.DEFAULT);
            case 3:
                return new Entity(user, null);
            case 4:
                return new Entity(Entity.DEFAULT, clientId);
            case 5:
                return new Entity(Entity.DEFAULT, Entity.DEFAULT);
            case 6:
                return new Entity(Entity.DEFAULT, null);
            case 7:
                return new Entity(null, clientId);
            default:
                return new Entity(null, Entity.DEFAULT);
        }
    }

    /** The level of an entity: the last that has it, as a default may stand for a name. */
    private static int levelOf(Entity entity) {
        int level = LEVELS;
        while (!entityAt(level, entity.user, entity.clientId).equals(entity)) {
            level--;
        }
        return level;
    }
}
