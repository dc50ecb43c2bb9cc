package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;

/**
 * How far limits give way, as the job has published it. The same rules as `state/quotas/elastic.py`.
 *
 * <p>A limit with a ceiling is `lend` times its quota, at most the ceiling. A gateway with a factor lets that part of its
 * shares through, but of each at least the reservation's part.
 */
final class ElasticState {
    static final long FRESH_MS = 5_000;
    static final ElasticState NEUTRAL = new ElasticState(0, 0, 1.0, Map.of());
    private static final double DEFAULT_RESERVATION = 0.5;

    final long number;
    final double lend;
    private final long atMs;
    private final Map<String, Double> factors;

    private ElasticState(long number, long atMs, double lend, Map<String, Double> factors) {
        this.number = number;
        this.atMs = atMs;
        this.lend = lend;
        this.factors = factors;
    }

    static ElasticState read(byte[] value) throws IOException {
        JsonNode record = Json.object(value);
        JsonNode lend = record.path("lend");
        Json.check(lend.isMissingNode() || lend.isNumber() && lend.doubleValue() >= 1, "lend is not from 1");
        Map<String, Double> factors = new HashMap<>();
        for (JsonNode broker : record.path("brokers")) {
            double factor = broker.path("factor").doubleValue();
            Json.check(factor > 0 && factor <= 1, "a factor is not from 0 to 1");
            factors.put(Json.text(broker, "instance"), factor);
        }
        return new ElasticState(Json.whole(record, "number"), Json.whole(record, "at_ms"), lend.asDouble(1.0), factors);
    }

    /** Until when it holds if it was heard now. */
    long holdsUntilMs(long heardMs) {
        return holdsUntilMs(atMs, heardMs, FRESH_MS);
    }

    /** Until when a state of the job's holds that was heard now. One that was in the topic before is old. */
    static long holdsUntilMs(long atMs, long heardMs, long freshMs) {
        return Math.min(heardMs, atMs + freshMs) + freshMs;
    }

    /** The factor of a gateway. */
    double factorOf(String instance) {
        return factors.getOrDefault(instance, 1.0);
    }

    /** The limit of a quota with these numbers beside it. */
    double limit(double quota, Beside beside) {
        return Double.isNaN(beside.ceiling) ? quota : Math.max(quota, Math.min(beside.ceiling, lend * quota));
    }

    /** The part of its share that a gateway with this factor lets through. */
    static double part(double factor, double quota, Beside beside) {
        boolean isSet = !Double.isNaN(beside.reservation);
        return Math.max(factor, isSet ? Math.min(1.0, beside.reservation / quota) : DEFAULT_RESERVATION);
    }

    /** The numbers beside a quota; NaN where there is none. */
    static final class Beside {
        static final Beside NONE = new Beside(Double.NaN, Double.NaN);

        final double reservation;
        final double ceiling;

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

        Beside(double reservation, double ceiling) {
            this.reservation = reservation;
            this.ceiling = ceiling;
        }
    }
}
