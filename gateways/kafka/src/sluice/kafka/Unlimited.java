package sluice.kafka;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The clients without a limit that have meters of their own, so that the heaviest can be named. Others share the meter of
 * their user: clients invent client-ids, and a meter costs a broker some kilobytes for an hour.
 *
 * <p>There are MOST at a time, whoever comes first when one has been idle for a minute. Safe for any thread.
 */
final class Unlimited {
    static final int MOST = 100;
    private static final int SHOWN = 10;
    private static final long IDLE_MS = 60_000;

    private final Set<Tags> clients = ConcurrentHashMap.newKeySet();

    /** Whether a client that asks for such a meter has one. Never waits. */
    boolean admits(Kind kind, Tags client) {
        if (kind != Kind.PRODUCE && kind != Kind.FETCH || client.clientId.isEmpty() || isLong(client)) {
            return false;
        }
        return clients.contains(client) || clients.size() < MOST && clients.add(client);
    }

    private static boolean isLong(Tags client) {
        return client.user.length() > Names.MAX_LENGTH || client.clientId.length() > Names.MAX_LENGTH;
    }

    /** The rates of the heaviest now. Forgets those that are idle. */
    List<Rates> heaviest(Meters<?> meters, long nowMs) {
        List<Rates> found = new ArrayList<>();
        for (Tags client : clients) {
            Meter in = meters.of(new CounterKey(Kind.PRODUCE, client));
            Meter out = meters.of(new CounterKey(Kind.FETCH, client));
            Rates rates = new Rates(client, rate(in), rate(out));
            if (isIdle(in, nowMs) && isIdle(out, nowMs)) {
                clients.remove(client);
            } else if (rates.all() >= 1) {
                found.add(rates);
            }
        }
        found.sort(Comparator.comparingDouble(each -> -each.all()));
        return found.subList(0, Math.min(SHOWN, found.size()));
    }

    private static double rate(Meter meter) {
        return meter == null ? 0.0 : meter.rate();
    }

    private static boolean isIdle(Meter meter, long nowMs) {
        return meter == null || nowMs - meter.activeMs() > IDLE_MS;
    }

    /** What a client produces and fetches, in bytes per second. */
    static final class Rates {
        final Tags client;
        final double in;
        final double out;

        Rates(Tags client, double in, double out) {
            this.client = client;
            this.in = in;
            this.out = out;
        }

        private double all() {
            return in + out;
        }
    }
}
