package sluice.kafka;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;
import java.util.stream.Collectors;
import org.apache.kafka.common.metrics.KafkaMetric;

/**
 * The meters of a broker, found among its metrics as Kafka makes and removes them.
 *
 * <p>A new counter for which there is no room keeps to the share with which it began, and isn't published.
 */
final class KafkaMeters extends Meters<KafkaMeter> {
    private static final String TENANT_TAG = "tenant";
    private static final String TENANT_MARK = "~"; // no name that is encoded has it
    private static final String USER_TAG = "user";
    private static final String CLIENT_ID_TAG = "client-id";
    static final String THROTTLE_TIME = "throttle-time";

    private static final Map<String, Kind> BY_GROUP =
            Arrays.stream(Kind.values()).collect(Collectors.toMap(kind -> kind.group, kind -> kind));

    /** How many metrics there was no room for. */
    final AtomicLong notFollowed = new AtomicLong();

    /** `maxMuteMs` is the longest mute under a limit that is new or was lowered. `clockMs` is that of the metrics. */
    KafkaMeters(long maxMuteMs, Window window, LongSupplier clockMs) {
        super(maxMuteMs, window, (key, longestMute) -> new KafkaMeter(key, window, longestMute, clockMs));
    }

    /**
     * Takes over a metric that Kafka has made, if it belongs to a counter. Returns its meter, else null. Called by request
     * threads: it does little.
     */
    synchronized KafkaMeter add(KafkaMetric metric, long nowMs) {
        CounterKey counter = counterOf(metric);
        if (counter == null || !isWanted(counter.kind, metric.metricName().name())) {
            return null;
        }
        if (!hasRoom() && of(counter) == null) {
            notFollowed.incrementAndGet();
            return null;
        }
        KafkaMeter meter = add(counter);
        meter.add(metric, nowMs);
        return meter;
    }

    /** Takes leave of a metric that Kafka has removed, because nobody used it for an hour. */
    void remove(KafkaMetric metric, long nowMs) {
        CounterKey counter = counterOf(metric);
        KafkaMeter meter = counter == null ? null : of(counter);
        if (meter != null) {
            meter.remove(metric, nowMs);
        }
    }

    private static boolean isWanted(Kind kind, String name) {
        return name.equals(kind.chargedMetric) || name.equals(kind.boundMetric) || name.equals(THROTTLE_TIME);
    }

    /** The tags of a meter's metrics. */
    static Map<String, String> metricTags(Tags tags) {
        Map<String, String> metricTags = new LinkedHashMap<>(4); // Kafka makes the sensor's name of them, in order
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
    static CounterKey counterOf(KafkaMetric metric) {
        Kind kind = BY_GROUP.get(metric.metricName().group());
        Tags tags = tagsOf(metric.metricName().tags());
        return kind == null || tags == null ? null : new CounterKey(kind, tags);
    }
}
