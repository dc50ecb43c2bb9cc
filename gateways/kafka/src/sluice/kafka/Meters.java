package sluice.kafka;

import java.util.Collection;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiFunction;

/**
 * The meters of a gateway, and the buckets that several of them are charged for.
 *
 * <p>Safe for any thread. Beyond MAX_METERS new client-ids, which clients choose, share a counter (`NewNames`).
 */
class Meters<M extends Meter> {
    static final int MAX_METERS = 100_000;
    private static final int MAX_LONG = 4_000_000; // characters of all long names together; events repeat them
    private static final int MAX_FIRST = 1_000; // more than a gateway has threads that make meters

    private final Map<CounterKey, M> meters = new ConcurrentHashMap<>();
    private final Map<CounterKey, CommonBucket> common = new ConcurrentHashMap<>();
    private final Map<CounterKey, Tags> clients = new ConcurrentHashMap<>();
    private final AtomicInteger longNames = new AtomicInteger(); // their characters in `clients`
    private final Map<CounterKey, Tags> first = new ConcurrentHashMap<>(); // callers of meters that aren't made yet
    private final long maxMuteMs;
    private final Window window;
    private final BiFunction<CounterKey, LongestMute, M> make;
    private volatile long changedMs = -1;

    /** `maxMuteMs` is the longest mute under a limit that is new or was lowered. `make` makes a meter. */
    Meters(long maxMuteMs, Window window, BiFunction<CounterKey, LongestMute, M> make) {
        this.maxMuteMs = maxMuteMs;
        this.window = window;
        this.make = make;
    }

    /** The meter of a counter, which is made if there is none. */
    synchronized M add(CounterKey key) {
        M known = meters.get(key);
        return known == null ? newMeter(key) : known;
    }

    private M newMeter(CounterKey key) {
        M meter = make.apply(key, longestMute());
        CounterKey own = key.own();
        if (key.ofTenant() != null) {
            join(meter, key.ofTenant());
            M ofOthers = common.containsKey(own) ? null : meters.get(own);
            if (ofOthers != null) {
                join(ofOthers, own);
            }
        }
        if (key.ofTenant() != null || common.containsKey(own)) {
            join(meter, own);
        }
        Tags caller = first.remove(key);
        if (caller != null) {
            meter.callers.add(caller);
        }
        meters.put(key, meter);
        return meter;
    }

    private void join(Meter meter, CounterKey counter) {
        CommonBucket bucket =
                common.computeIfAbsent(counter, key -> newBucket(key, window, longestMute()));
        bucket.join(1);
        meter.join(bucket);
    }

    CommonBucket newBucket(CounterKey counter, Window window, LongestMute longestMute) {
        return new CommonBucket(counter, window, longestMute);
    }

    private LongestMute longestMute() {
        return new LongestMute(maxMuteMs, changedMs);
    }

    /** Notes that limits have changed: that of a counter which is new after it may be a mistake. */
    void noteChange(long nowMs) {
        changedMs = nowMs;
    }

    /** Forgets what the clients of a counter owe. */
    void reset(CounterKey counter, long nowMs) {
        meters.values().stream().filter(meter -> meter.counter.equals(counter)).forEach(meter -> meter.reset(nowMs));
        CommonBucket bucket = common.get(counter);
        if (bucket != null) {
            bucket.reset(nowMs);
        }
    }

    /** Forgets the meter if nobody uses it any more. Says whether it did. */
    synchronized boolean forgetIfUnused(Meter meter, long nowMs) {
        if (!meter.endIfUnused(nowMs)) {
            return false;
        }
        meters.remove(meter.key);
        forgetClient(meter.key);
        for (CommonBucket bucket : meter.common()) {
            if (bucket.join(-1) == 0) {
                common.remove(bucket.counter);
            }
        }
        return true;
    }

    /** Notes who sends a request that a meter is charged for, which may not be made yet. */
    void noteCaller(CounterKey key, String user, String clientId) {
        M meter = meters.get(key);
        if (meter != null) {
            meter.callers.note(user, clientId);
            return;
        }
        if (first.size() >= MAX_FIRST) {
            first.clear();
        }
        first.put(key, Callers.of(user, clientId));
    }

    /** Notes a client of a meter whose own user and client-id are in no tenant, or in another. */
    void noteClient(CounterKey key, String user, String clientId) {
        if (clients.containsKey(key) || !hasRoom() && !meters.containsKey(key)) {
            return;
        }
        int length = longLength(user, clientId);
        if (length > 0 && longNames.get() + length > MAX_LONG || clients.putIfAbsent(key, new Tags(user, clientId)) != null) {
            return;
        }
        longNames.addAndGet(length);
    }

    /** Whether there is room for the names of a client, so that a meter of its own can say whose it is; half is for shared ones. */
    boolean hasRoomFor(String user, String clientId) {
        int length = longLength(user, clientId);
        return length == 0 || longNames.get() + length <= MAX_LONG / 2;
    }

    /** Characters of names that are kept whole and counted; short ones are bounded with the meters. */
    private static int longLength(String user, String clientId) {
        int longer = Math.max(user.length(), clientId.length());
        return longer > Names.MAX_LENGTH ? user.length() + clientId.length() : 0;
    }

    private void forgetClient(CounterKey key) {
        Tags client = clients.remove(key);
        if (client != null) {
            longNames.addAndGet(-longLength(client.user, client.clientId));
        }
    }

    /** Forgets the clients whose meters were never made: a request may have failed before it was charged. */
    void forgetUnmade() {
        clients.keySet().stream().filter(key -> !meters.containsKey(key)).forEach(this::forgetClient);
    }

    /** A user and a client-id that are in the tenant of a meter, and counted by it: its own, or those of a client. */
    Tags clientOf(CounterKey key) {
        return clients.getOrDefault(key, key.tags);
    }

    /** The buckets that several meters are charged for. */
    Collection<CommonBucket> common() {
        return common.values();
    }

    /** The bucket of a counter; null if no meter is charged for it with others. */
    CommonBucket common(CounterKey counter) {
        return common.get(counter);
    }

    Collection<M> all() {
        return meters.values();
    }

    /** The meter of a counter; null if no client has used it. */
    M of(CounterKey counter) {
        return meters.get(counter);
    }

    /** Whether there is room for one more counter. */
    boolean hasRoom() {
        return meters.size() < MAX_METERS;
    }
}
