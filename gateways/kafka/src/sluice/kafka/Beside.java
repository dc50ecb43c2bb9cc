package sluice.kafka;

/**
 * The numbers beside a quota, by which its limit gives way; NaN where there is none. The same rules as
 * `state/quotas/overrides.py`.
 */
final class Beside {
    static final Beside NONE = new Beside(Double.NaN, Double.NaN);
    private static final double DEFAULT_RESERVATION = 0.5;

    final double reservation;
    final double ceiling;

    private Beside(double reservation, double ceiling) {
        this.reservation = reservation;
        this.ceiling = ceiling;
    }

    /** One of the two numbers. */
    static Beside of(boolean isCeiling, double value) {
        return isCeiling ? new Beside(Double.NaN, value) : new Beside(value, Double.NaN);
    }

    /** Both numbers, where another one has the other. */
    Beside and(Beside other) {
        return new Beside(
                Double.isNaN(other.reservation) ? reservation : other.reservation,
                Double.isNaN(other.ceiling) ? ceiling : other.ceiling);
    }

    /** The limit while `lend` times the quotas are lent. */
    double limit(double quota, double lend) {
        return Double.isNaN(ceiling) ? quota : Math.max(quota, Math.min(ceiling, lend * quota));
    }

    /** The part of its share that a gateway with this factor lets through. */
    double part(double quota, double factor) {
        boolean isSet = !Double.isNaN(reservation);
        return Math.max(factor, isSet ? Math.min(1.0, reservation / quota) : DEFAULT_RESERVATION);
    }
}
