package sluice.kafka;

import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.utils.Sanitizer;

/**
 * The meters of a broker, found among its metrics as Kafka makes and removes them.
 *
 * <p>Safe for any thread. At most MAX_METERS are kept: clients choose their client-ids. Beyond it those share a counter
 * (`NewNames`); any other new counter is held to the share with which it began, and isn't published.
 */
public final class Meters {
    public static final String USER_TAG = "user";
    public static final String CLIENT_ID_TAG = "client-id";
    public static final String THROTTLE_TIME = "throttle-time";
    static final int MAX_METERS = 100_000;

    private static final Map<String, Kind> KINDS = new HashMap<>();

    static {
        for (Kind kind : Kind.values()) {
            KINDS.put(kind.group, kind);
        }
    }

    private final Map<CounterKey, Meter> meters = new ConcurrentHashMap<>();
    private final AtomicLong notFollowed = new AtomicLong();
    private final long maxMuteMs;
    private final boolean withholds;
    private volatile long changedMs = -1;

    /**
     * `maxMuteMs` is the longest mute under a limit that is new or was lowered. `withholds` says that a fetch that breaks
     * its quota is answered empty.
     */
    Meters(long maxMuteMs, boolean withholds) {
        this.maxMuteMs = maxMuteMs;
        this.withholds = withholds;
    }

    /** Takes over a metric that Kafka has made, if it belongs to a counter. Called by request threads: it does little. */
    public void add(KafkaMetric metric, long nowMs) {
        CounterKey counter = counterOf(metric);
        if (counter == null || !isWanted(counter.kind, metric.metricName().name())) {
            return;
        }
        if (!hasRoom() && !meters.containsKey(counter)) {
            notFollowed.incrementAndGet();
            return;
        }
        meters.compute(counter, (key, known) -> {
            Meter meter = known == null ? new Meter(key, maxMuteMs, withholds, changedMs, nowMs) : known;
            meter.add(metric, nowMs);
            return meter;
        });
    }

    /** Notes that limits have changed: that of a counter which is new after it may be a mistake. */
    void noteChange(long nowMs) {
        changedMs = nowMs;
    }

    /** Takes leave of a metric that Kafka has removed, because nobody used it for an hour. */
    public void remove(KafkaMetric metric, long nowMs) {
        CounterKey counter = counterOf(metric);
        Meter meter = counter == null ? null : meters.get(counter);
        if (meter != null) {
            meter.remove(metric, nowMs);
        }
    }

    /** Forgets what the clients of a counter owe. */
    void reset(CounterKey counter, long nowMs) {
        Meter meter = meters.get(counter);
        if (meter != null) {
            meter.reset(nowMs);
        }
    }

    /** Forgets the meter if it has no metric any more and nothing to publish. Says whether it did. */
    boolean forgetIfGone(Meter meter) {
        return meters.computeIfPresent(meter.counter, (key, known) -> known.isGone() ? null : known) == null;
    }

    Collection<Meter> all() {
        return meters.values();
    }

    /** The meter of a counter; null if no client has used it. */
    public Meter of(CounterKey counter) {
        return meters.get(counter);
    }

    /** Whether there is room for one more counter. */
    boolean hasRoom() {
        return meters.size() < MAX_METERS;
    }

    /** How many metrics there was no room for. */
    long notFollowed() {
        return notFollowed.get();
    }

    private static boolean isWanted(Kind kind, String name) {
        return name.equals(kind.chargedMetric) || name.equals(kind.boundMetric) || name.equals(THROTTLE_TIME);
    }

    /** The counter that a metric belongs to; null if it is of none. */
    public static CounterKey counterOf(KafkaMetric metric) {
        Kind kind = KINDS.get(metric.metricName().group());
        Map<String, String> tags = metric.metricName().tags();
        String user = tags.get(USER_TAG);
        String clientId = tags.get(CLIENT_ID_TAG);
        if (kind == null || user == null || clientId == null) {
            return null;
        }
        return new CounterKey(kind, new Tags(Sanitizer.desanitize(user), clientId));
    }
}
