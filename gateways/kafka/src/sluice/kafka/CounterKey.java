package sluice.kafka;

/** One counter: a quota and whom it counts. */
public final class CounterKey {
    public final Kind kind;
    public final Tags tags;

    public CounterKey(Kind kind, Tags tags) {
        this.kind = kind;
        this.tags = tags;
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
