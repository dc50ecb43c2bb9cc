package sluice.kafka;

/** What a decision says of one counter. `value` is in units of the quota. */
final class DecidedCharge {
    /** Null for a gateway that doesn't charge in line. */
    final String instance;

    final double value;
    final double limit;
    final long eventMs;

    /** The wait that the gateway had applied in line. */
    final long heldMs;

    /** Whether the value is the size of one Fetch. */
    final boolean isFetch;

    final boolean withheld;

    DecidedCharge(
            String instance,
            double value,
            double limit,
            long eventMs,
            long heldMs,
            boolean isFetch,
            boolean withheld) {
        this.instance = instance;
        this.value = value;
        this.limit = limit;
        this.eventMs = eventMs;
        this.heldMs = heldMs;
        this.isFetch = isFetch;
        this.withheld = withheld;
    }
}
