package sluice.kafka;

import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Avg;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.SampledStat;

/**
 * Reads what a metric of a broker was charged since the last look, out of the samples that its Rate or Avg keeps.
 *
 * <p>A sample only grows until it is started anew, and is not started anew for S-1 windows. So with a look at least that
 * often, what the samples gained is what was recorded, exactly. The samples are read under the metric's own lock, as
 * Kafka reads them. Kafka gives no access to them, so {@link #isPossible} checks at the start whether it can be done with
 * this version; where it can't, an estimate takes the rate times the time since the last look.
 *
 * <p>Not for several threads.
 */
final class Samples {
    private static final Access ACCESS = Access.find();

    /** The metric that is read. */
    final KafkaMetric metric;

    /** The lock under which Kafka records and reads its metrics; null if it can't be known. */
    final Object lock;

    private final SampledStat stat;
    private double[] values = new double[0];
    private long[] starts = new long[0];
    private long[] counts = new long[0];
    private long lookedMs;
    private double gained;
    private long events;

    Samples(KafkaMetric metric, long nowMs) {
        this(metric, ACCESS, nowMs);
    }

    /** Without access to the samples it estimates. */
    Samples(KafkaMetric metric, Access access, long nowMs) {
        this.metric = metric;
        this.lookedMs = nowMs;
        try {
            this.lock = access == null ? null : access.lock.get(metric);
            this.stat = access == null ? null : access.stat(metric);
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Whether samples can be read with this version of Kafka, tried out on a sensor of our own. */
    static boolean isPossible() {
        return ACCESS != null;
    }

    /** Reads the metric. Afterwards {@link #gained} and {@link #events} are what has come since the look before. */
    void look(long nowMs) {
        look(nowMs, false);
    }

    /** Does the same, and if it is the last look at what was recorded, makes all samples empty where it can. */
    void look(long nowMs, boolean isLast) {
        gained = 0.0;
        events = 0;
        if (lock != null) {
            read(isLast);
        } else {
            estimate(nowMs);
        }
        lookedMs = nowMs;
    }

    /** The sum of what was recorded between the last two looks; below 0 if more was taken back than recorded. */
    double gained() {
        return gained;
    }

    /** How often something was recorded between the last two looks; -1 if that isn't known. */
    long events() {
        return events;
    }

    private void read(boolean isLast) {
        synchronized (lock) {
            try {
                ACCESS.read(this);
                if (isLast) {
                    ACCESS.empty(this);
                }
            } catch (IllegalAccessException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private void estimate(long nowMs) {
        gained = ((Number) metric.metricValue()).doubleValue() * Math.max(0, nowMs - lookedMs) / 1000.0;
        events = -1;
    }

    /** Whether nothing was recorded since the last look: a record goes into the current sample, and counts there. */
    private boolean isUnchanged(int index, long start, long count) {
        return index < starts.length && starts[index] == start && counts[index] == count;
    }

    private void take(int index, double value, long start, long count) {
        boolean isSame = starts[index] == start && counts[index] <= count;
        gained += isSame ? value - values[index] : value;
        events += isSame ? count - counts[index] : count;
        values[index] = value;
        starts[index] = start;
        counts[index] = count;
    }

    private void makeRoom(int size) {
        if (size > values.length) {
            values = Arrays.copyOf(values, size);
            starts = Arrays.copyOf(starts, size);
            counts = Arrays.copyOf(counts, size);
        }
    }

    /** The fields of Kafka's classes that hold the samples. */
    static final class Access {
        private final Field lock;
        private final Field rateStat;
        private final Field samples;
        private final Field current;
        private final Field value;
        private final Field start;
        private final Field count;

        private Access() throws ReflectiveOperationException {
            lock = opened(KafkaMetric.class, "lock");
            rateStat = opened(Rate.class, "stat");
            samples = opened(SampledStat.class, "samples");
            current = opened(SampledStat.class, "current");
            Class<?> sample = Class.forName(SampledStat.class.getName() + "$Sample");
            value = opened(sample, "value");
            start = opened(sample, "startTimeMs");
            count = opened(sample, "eventCount");
        }

        static Access find() {
            try {
                Access access = new Access();
                return access.tryOut() ? access : null;
            } catch (ReflectiveOperationException | RuntimeException error) {
                return null;
            }
        }

        private static Field opened(Class<?> owner, String name) throws ReflectiveOperationException {
            Field field = owner.getDeclaredField(name);
            field.setAccessible(true);
            return field;
        }

        private SampledStat stat(KafkaMetric metric) throws IllegalAccessException {
            Object measured = metric.measurable();
            return (SampledStat) (measured instanceof Rate ? rateStat.get(measured) : measured);
        }

        private void read(Samples into) throws IllegalAccessException {
            List<?> present = (List<?>) samples.get(into.stat);
            int newest = current.getInt(into.stat);
            if (newest < present.size()
                    && into.isUnchanged(newest, start.getLong(present.get(newest)), count.getLong(present.get(newest)))) {
                return;
            }
            into.makeRoom(present.size());
            for (int index = 0; index < present.size(); index++) {
                Object sample = present.get(index);
                into.take(index, value.getDouble(sample), start.getLong(sample), count.getLong(sample));
            }
        }

        private void empty(Samples known) throws IllegalAccessException {
            List<?> present = (List<?>) samples.get(known.stat);
            for (int index = 0; index < present.size(); index++) {
                value.setDouble(present.get(index), 0.0);
                known.values[index] = 0.0;
            }
        }

        /** Whether what is recorded in a sensor of our own is found again: in a sample, in the next one, and in an Avg. */
        private boolean tryOut() throws IllegalAccessException {
            try (Metrics metrics = new Metrics()) {
                MetricConfig config = new MetricConfig()
                        .samples(2)
                        .timeWindow(1, TimeUnit.SECONDS)
                        .quota(Quota.upperBound(1e9));
                Sensor sensor = metrics.sensor("sluice");
                sensor.add(metrics.metricName("rate", "sluice"), new Rate(), config);
                sensor.add(metrics.metricName("average", "sluice"), new Avg(), config);
                Samples rate = new Samples(metrics.metric(metrics.metricName("rate", "sluice")), this, 0);
                Samples average = new Samples(metrics.metric(metrics.metricName("average", "sluice")), this, 0);
                for (long timeMs = 0; timeMs < 10_000; timeMs += 700) {
                    sensor.record(100.0 + timeMs, timeMs, false);
                    sensor.record(11.0, timeMs + 100, false);
                    for (Samples each : new Samples[] {rate, average}) {
                        each.gained = 0.0;
                        each.events = 0;
                        read(each);
                        if (each.gained != 111.0 + timeMs || each.events != 2) {
                            return false;
                        }
                    }
                }
                return true;
            }
        }
    }
}
