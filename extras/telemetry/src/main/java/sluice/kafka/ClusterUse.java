package sluice.kafka;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.Measurable;
import org.apache.kafka.common.metrics.Metrics;

/**
 * What each client with a limit uses of it in the whole cluster, in percent: KIP-1373's `quota-utilization`, which on a broker
 * is of that broker's bound alone. It is read from the topic of sums, by the plugin's own reader, and needs nothing of the rest.
 */
public final class ClusterUse implements AutoCloseable, TopicReader.Handler {
    private static final Set<Kind> SHOWN = Set.of(Kind.PRODUCE, Kind.FETCH, Kind.REQUEST); // as the KIP has it
    private static final int MAX_COUNTERS = 1_000;
    private static final long LOOKBACK_MS = 20_000;
    private static final long FORGET_MS = 300_000;
    private static final long STALE_MS = 30_000;
    private static final long SETTLED_MS = 2_000; // a span that ended with the newest charge would have one too many
    private static final long CLOSE_NS = 1_500_000_000;

    private final Window window;
    private final Metrics metrics;
    private final Map<CounterKey, Use> uses = new HashMap<>();
    private final TopicReader reader;
    private long knownMs; // all that was charged until then is known
    private long heardMs;

    /** `configs` are those of a broker with the plugin, `client` are properties of a consumer. */
    public ClusterUse(Map<String, ?> configs, Map<String, Object> client, Metrics metrics) {
        BrokerSettings settings = new BrokerSettings(configs);
        this.window = settings.window;
        this.metrics = metrics;
        this.reader = new TopicReader(settings.sumsTopic, LOOKBACK_MS, client, this);
        reader.thread.start();
    }

    @Override
    public void close() {
        reader.thread.close();
        reader.thread.join(System.nanoTime() + CLOSE_NS);
    }

    @Override
    public void take(byte[] key, byte[] value) throws IOException {
        take(new Sums(value, ""), System.currentTimeMillis());
    }

    @Override
    public void restart() {}

    synchronized void take(Sums read, long nowMs) {
        heardMs = nowMs;
        knownMs = Math.max(knownMs, Math.min(nowMs, read.heartbeatMs));
        for (Sums.CounterSum sum : read.counters) {
            boolean isShown = SHOWN.contains(sum.counter.kind) && !Double.isNaN(sum.limit);
            if (isShown && (uses.containsKey(sum.counter) || uses.size() < MAX_COUNTERS)) {
                Use use = uses.computeIfAbsent(sum.counter, this::begin);
                if (use.seen.isNew(read.jobId, read.batch, read.decidedAtMs)) {
                    use.take(sum, Math.min(sum.untilMs, nowMs));
                    knownMs = Math.max(knownMs, Math.min(nowMs, sum.untilMs));
                }
            }
        }
        uses.entrySet().removeIf(each -> {
            boolean isOver = nowMs - each.getValue().newestMs > FORGET_MS;
            if (isOver) {
                metrics.removeMetric(nameOf(each.getKey()));
            }
            return isOver;
        });
    }

    /** The rate of the last span of a meter over the limit, in percent; NaN while nothing is decided. */
    synchronized double percent(CounterKey counter, long nowMs) {
        Use use = uses.get(counter);
        long untilMs = Math.min(knownMs, nowMs - SETTLED_MS);
        return use == null || nowMs - heardMs > STALE_MS ? Double.NaN : use.percent(untilMs, window.spanMs());
    }

    private Use begin(CounterKey counter) {
        metrics.addMetric(nameOf(counter), (Measurable) (config, nowMs) -> percent(counter, nowMs));
        return new Use();
    }

    private static MetricName nameOf(CounterKey counter) {
        return new MetricName("quota-utilization", counter.kind.group, "", KafkaMeters.metricTags(counter.tags));
    }

    /** What one counter was charged: each sum evenly from its oldest request to its newest. Times are epoch milliseconds. */
    private static final class Use {
        private final CounterShare seen = new CounterShare();
        private final ArrayDeque<double[]> sums = new ArrayDeque<>(); // from, until, amount
        private double limit;
        private long newestMs;

        void take(Sums.CounterSum sum, long untilMs) {
            limit = sum.limit;
            newestMs = Math.max(newestMs, untilMs);
            double amount = sum.byGateway.stream().mapToDouble(each -> each.value).sum();
            sums.add(new double[] {Math.min(sum.fromMs, untilMs - 1), untilMs, amount});
        }

        double percent(long untilMs, long spanMs) {
            sums.removeIf(sum -> sum[1] <= untilMs - spanMs);
            double charged = 0.0;
            for (double[] sum : sums) {
                double withinMs = Math.min(sum[1], untilMs) - Math.max(sum[0], untilMs - spanMs);
                charged += sum[2] * Math.max(0.0, withinMs) / (sum[1] - sum[0]);
            }
            return 100 * charged / (spanMs / 1000.0) / limit;
        }
    }
}
