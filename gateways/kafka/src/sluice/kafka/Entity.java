package sluice.kafka;

import java.util.Objects;

/** Whom a quota is set on: a user, a client-id or both. Each part is a name, {@link #DEFAULT}, or null if absent. */
final class Entity {
    /** The default entity, as opposed to a real one whose name is `<default>`. */
    static final Object DEFAULT = new Object();

    final Object user;
    final Object clientId;

    Entity(Object user, Object clientId) {
        this.user = user;
        this.clientId = clientId;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Entity
                && Objects.equals(user, ((Entity) other).user)
                && Objects.equals(clientId, ((Entity) other).clientId);
    }

    @Override
    public int hashCode() {
        return 31 * Objects.hashCode(user) + Objects.hashCode(clientId);
    }
}
