package sluice.kafka;

import java.util.Map;
import java.util.TreeMap;

/**
 * The requests that wait for a counter, oldest first. Without an order each had to be lucky: of six connections at full speed one
 * was passed over for 15 s, while another one had 11 turns. Safe for any thread. Amounts are in units of the quota.
 */
final class Turns {
    private final TreeMap<Turn, Double> waiting = new TreeMap<>();

    synchronized void add(Turn turn, double amount) {
        waiting.put(turn, amount);
    }

    synchronized void remove(Turn turn) {
        waiting.remove(turn);
    }

    /**
     * What those before a request would be charged, so that it goes first only where there is room for all of them; no further
     * than there may be room at this share of the limit, and a second's more. One that is charged nothing takes nobody's turn.
     */
    synchronized double ahead(Turn turn, double amount, double share, Window window) {
        double enough = amount > 0 ? share * (window.spanMs() / 1_000.0 + 1.0) : -1.0;
        double sum = 0.0;
        for (Map.Entry<Turn, Double> each : (turn.hasBegun() ? waiting.headMap(turn) : waiting).entrySet()) {
            if (sum > enough) {
                break;
            }
            sum += each.getValue();
        }
        return sum;
    }
}
