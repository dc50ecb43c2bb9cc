package sluice.kafka;

/** One counter: a quota and whom it counts. So are meters named, by their clients' own counter and tenant. */
public final class CounterKey {
    public final Kind kind;
    public final Tags tags;

    public CounterKey(Kind kind, Tags tags) {
        this.kind = kind;
        this.tags = tags;
    }

    /** The clients' own counter, of a meter's key. */
    public CounterKey own() {
        return tags.tenant.isEmpty() ? this : new CounterKey(kind, new Tags(tags.user, tags.clientId));
    }

    /** The counter of the clients' tenant, of a meter's key; null if they have none. */
    public CounterKey ofTenant() {
        return tags.tenant.isEmpty() ? null : new CounterKey(kind, new Tags("", "", tags.tenant));
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof CounterKey
                && kind == ((CounterKey) other).kind
                && tags.equals(((CounterKey) other).tags);
    }

    @Override
    public int hashCode() {
        return 31 * tags.hashCode() + kind.ordinal();
    }
}
