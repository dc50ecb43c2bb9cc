package sluice.kafka;

import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;
import org.apache.kafka.common.metrics.KafkaMetric;

/**
 * The meters of a broker, found among its metrics as Kafka makes and removes them.
 *
 * <p>Safe for any thread. At most MAX_METERS are kept: clients choose their client-ids. Beyond it those share a counter
 * (`NewNames`); any other new counter is held to the share with which it began, and isn't published.
 */
public final class Meters {
    private static final String TENANT_TAG = "tenant";
    private static final String TENANT_MARK = "~"; // no name that is encoded has it
    private static final String USER_TAG = "user";
    private static final String CLIENT_ID_TAG = "client-id";
    private static final String TOPIC_TAG = "topic";
    private static final String PARTITION_TAG = "partition";
    public static final String THROTTLE_TIME = "throttle-time";
    static final int MAX_METERS = 100_000;

    private static final Map<String, Kind> KINDS = new HashMap<>();

    static {
        for (Kind kind : Kind.values()) {
            KINDS.put(kind.group, kind);
        }
    }

    private final Map<CounterKey, Meter> meters = new ConcurrentHashMap<>();
    private final Map<CounterKey, CommonBucket> common = new ConcurrentHashMap<>();
    private final Map<CounterKey, Tags> clients = new ConcurrentHashMap<>();
    private final AtomicLong notFollowed = new AtomicLong();
    private final long maxMuteMs;
    private final boolean withholds;
    private final Window window;
    private final LongSupplier clockMs;
    private volatile long changedMs = -1;

    /**
     * `maxMuteMs` is the longest mute under a limit that is new or was lowered. `withholds` says that a fetch that breaks
     * its quota is answered empty. `clockMs` is that of the metrics.
     */
    Meters(long maxMuteMs, boolean withholds, Window window, LongSupplier clockMs) {
        this.maxMuteMs = maxMuteMs;
        this.withholds = withholds;
        this.window = window;
        this.clockMs = clockMs;
    }

    /**
     * Takes over a metric that Kafka has made, if it belongs to a counter. Returns its meter, else null. Called by request
     * threads: it does little.
     */
    public synchronized Meter add(KafkaMetric metric, long nowMs) {
        CounterKey counter = counterOf(metric);
        if (counter == null || !isWanted(counter.kind, metric.metricName().name())) {
            return null;
        }
        if (!hasRoom() && !meters.containsKey(counter)) {
            notFollowed.incrementAndGet();
            return null;
        }
        Meter known = meters.get(counter);
        Meter meter = known == null ? newMeter(counter) : known;
        meter.add(metric, nowMs);
        return meter;
    }

    private Meter newMeter(CounterKey key) {
        Meter meter = new Meter(key, longestMute(), withholds, clockMs);
        CounterKey own = key.own();
        if (key.ofTenant() != null) {
            join(meter, key.ofTenant());
            Meter ofOthers = common.containsKey(own) ? null : meters.get(own);
            if (ofOthers != null) {
                join(ofOthers, own);
            }
        }
        if (key.ofTenant() != null || common.containsKey(own)) {
            join(meter, own);
        }
        meters.put(key, meter);
        return meter;
    }

    private void join(Meter meter, CounterKey counter) {
        CommonBucket bucket =
                common.computeIfAbsent(counter, key -> new CommonBucket(key, window, longestMute()));
        bucket.join(1);
        meter.join(bucket);
    }

    private LongestMute longestMute() {
        return new LongestMute(maxMuteMs, changedMs);
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
        meters.values().stream().filter(meter -> meter.counter.equals(counter)).forEach(meter -> meter.reset(nowMs));
        CommonBucket bucket = common.get(counter);
        if (bucket != null) {
            bucket.reset(nowMs);
        }
    }

    /** Forgets the meter if it has no metric any more and nothing to publish. Says whether it did. */
    synchronized boolean forgetIfGone(Meter meter) {
        if (!meter.isGone()) {
            return false;
        }
        meters.remove(meter.key);
        clients.remove(meter.key);
        for (CommonBucket bucket : meter.common()) {
            if (bucket.join(-1) == 0) {
                common.remove(bucket.counter);
            }
        }
        return true;
    }

    /** Notes a client of a meter whose own user and client-id are in no tenant, or in another. */
    void noteClient(CounterKey key, String user, String clientId) {
        if (hasRoom() || meters.containsKey(key)) {
            clients.putIfAbsent(key, new Tags(user, clientId));
        }
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

    /** The tags of a meter's metrics. */
    public static Map<String, String> metricTags(Tags tags) {
        Map<String, String> metricTags = new LinkedHashMap<>(4); // Kafka makes the sensor's name of them, in order
        if (tags.topic != null) {
            metricTags.put(TOPIC_TAG, tags.topic);
            metricTags.put(PARTITION_TAG, Integer.toString(tags.partition));
            return metricTags;
        }
        if (!tags.tenant.isEmpty()) { // first, as a client-id, which isn't encoded, could end like it
            metricTags.put(TENANT_TAG, TENANT_MARK + Names.sanitize(tags.tenant));
        }
        metricTags.put(USER_TAG, Names.sanitize(tags.user));
        metricTags.put(CLIENT_ID_TAG, tags.clientId);
        return metricTags;
    }

    /** The tags whose metrics have these; null if they are of no meter. */
    static Tags tagsOf(Map<String, String> metricTags) {
        String user = metricTags.get(USER_TAG);
        String clientId = metricTags.get(CLIENT_ID_TAG);
        if (user == null || clientId == null) {
            return null;
        }
        String tenant = metricTags.getOrDefault(TENANT_TAG, TENANT_MARK).substring(TENANT_MARK.length());
        return new Tags(Names.desanitize(user), clientId, Names.desanitize(tenant));
    }

    /** The counter that a metric belongs to, with its tenant; null if it is of none. */
    public static CounterKey counterOf(KafkaMetric metric) {
        Kind kind = KINDS.get(metric.metricName().group());
        Map<String, String> metricTags = metric.metricName().tags();
        if (kind != null && kind.isOfTopics()) {
            int partition = Integer.parseInt(metricTags.get(PARTITION_TAG));
            return new CounterKey(kind, Tags.ofPartition(metricTags.get(TOPIC_TAG), partition));
        }
        Tags tags = tagsOf(metricTags);
        return kind == null || tags == null ? null : new CounterKey(kind, tags);
    }
}
