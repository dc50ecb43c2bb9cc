package sluice.kafka;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.FileStore;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import javax.management.InstanceNotFoundException;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.apache.kafka.common.metrics.KafkaMetric;

/**
 * Reads the load of this broker, once a second: Kafka's own MBeans, and the volumes of its log directories.
 *
 * <p>The rates that Kafka shows are means of a minute, and its mean times those since its start. So this takes the counts and
 * sums behind them, and divides what has come since the look before by the time since.
 *
 * <p>In a node that is broker and controller both have a request queue under one name, that of the controller, and before
 * Kafka 4.3 (KIP-1207) one meter for the idle time of both's request handlers: these aren't read.
 */
final class LoadReader {
    private static final long LOOK_MS = 1_000;
    private static final double NS_PER_S = 1e9;
    private static final int MAX_LOG_DIRS = 100;
    private static final String PROCESSORS = "socket-server-metrics";
    private static final String WAITED_NS = "io-wait-time-ns-total";
    private static final String TOPICS = "kafka.server:type=BrokerTopicMetrics,name=";
    private static final String HANDLERS = "kafka.server:type=KafkaRequestHandlerPool,name=";
    private static final String TIMES = "kafka.network:type=RequestMetrics,name=";
    private static final List<String> OF_CLIENTS = Arrays.asList("Produce", "FetchConsumer");

    final LastingThread thread = new LastingThread("sluice-load", this::round, () -> {});

    /** The load as of the last look; null before the second one. */
    volatile Load load;

    private final BrokerSettings settings;
    private final MBeanServer server = ManagementFactory.getPlatformMBeanServer();
    private final Map<String, FileStore> volumes = new HashMap<>();
    private final Map<Object, Double> before = new HashMap<>();
    private final Set<KafkaMetric> processors = ConcurrentHashMap.newKeySet();
    private long lookedNs = System.nanoTime();

    LoadReader(BrokerSettings settings) {
        this.settings = settings;
    }

    /** Notes a metric that Kafka has made: each of its network threads has one that says how long it had nothing to do. */
    void add(KafkaMetric metric) {
        if (metric.metricName().name().equals(WAITED_NS)
                && metric.metricName().group().equals(PROCESSORS)
                && !settings.controllerListeners.contains(metric.metricName().tags().get("listener"))) {
            processors.add(metric);
        }
    }

    /** Takes leave of a metric that Kafka has removed. */
    void remove(KafkaMetric metric) {
        processors.remove(metric);
    }

    private void round() throws Exception {
        Thread.sleep(LOOK_MS);
        look(System.nanoTime());
    }

    private void look(long nowNs) throws JMException {
        boolean isFirst = before.isEmpty();
        double seconds = (nowNs - lookedNs) / NS_PER_S;
        lookedNs = nowNs;
        Map<String, Double> figures = Map.of(
                "bytes_in_per_s", gained(TOPICS + "BytesInPerSec") / seconds,
                "bytes_out_per_s", gained(TOPICS + "BytesOutPerSec") / seconds,
                "handler_idle", part(handlersIdleNs() / NS_PER_S / seconds),
                "network_idle", part(networkIdleNs() / NS_PER_S / seconds),
                "queue_used", settings.isCombined ? Double.NaN : part(queued() / settings.queuedMaxRequests),
                "queue_wait_ms", queueWaitMs());
        Load read = new Load(figures, logDirs());
        load = isFirst ? null : read;
    }

    /** The time for which a request handler was idle, in nanoseconds: the mean over all of them. */
    private double handlersIdleNs() throws JMException {
        double ofBroker = gained(HANDLERS + "BrokerRequestHandlerAvgIdlePercent");
        boolean isOneMeter = Double.isNaN(ofBroker) && !settings.isCombined;
        return isOneMeter ? gained(HANDLERS + "RequestHandlerAvgIdlePercent") : ofBroker;
    }

    private double networkIdleNs() {
        double total = 0.0;
        int count = 0;
        for (KafkaMetric processor : processors) {
            double waitedNs = gained(processor, ((Number) processor.metricValue()).doubleValue());
            if (!Double.isNaN(waitedNs)) {
                total += waitedNs;
                count++;
            }
        }
        return count == 0 ? Double.NaN : total / count;
    }

    private double queued() throws JMException {
        return attribute("kafka.network:type=RequestChannel,name=RequestQueueSize", "Value");
    }

    /** The mean time that requests of clients have waited for a handler, and their responses for a network thread. */
    private double queueWaitMs() throws JMException {
        double waitedMs = 0.0;
        double requests = 0.0;
        for (String api : OF_CLIENTS) {
            for (String queue : Arrays.asList("RequestQueueTimeMs", "ResponseQueueTimeMs")) {
                String name = TIMES + queue + ",request=" + api;
                double count = attribute(name, "Count");
                double ofQueueMs = gained(name + " sum", count == 0.0 ? 0.0 : count * attribute(name, "Mean"));
                double gained = gained(name, count);
                waitedMs += Double.isNaN(ofQueueMs) ? 0.0 : ofQueueMs;
                requests += queue.startsWith("Request") && !Double.isNaN(gained) ? gained : 0.0;
            }
        }
        return requests == 0.0 ? Double.NaN : waitedMs / requests;
    }

    private List<Load.LogDir> logDirs() {
        List<Load.LogDir> found = new ArrayList<>();
        for (String path : settings.logDirs) {
            try {
                FileStore volume = volumes.get(path);
                if (volume == null) {
                    volume = Files.getFileStore(Paths.get(path)); // reads all mounts, which may be many
                    volumes.put(path, volume);
                }
                long totalBytes = Math.min(volume.getTotalSpace(), Json.MAX_EXACT); // some file systems are endless
                if (totalBytes > 0 && found.size() < MAX_LOG_DIRS) {
                    found.add(new Load.LogDir(path, Math.min(volume.getUsableSpace(), totalBytes), totalBytes));
                }
            } catch (IOException | InvalidPathException error) {
                volumes.remove(path); // Kafka itself takes a directory that has failed offline
            }
        }
        return found;
    }

    /** By how much the count of a meter has grown since the look before; NaN if there is none, or there was none. */
    private double gained(String meter) throws JMException {
        return gained(meter, attribute(meter, "Count"));
    }

    private double gained(Object what, double now) {
        Double then = Double.isNaN(now) ? before.remove(what) : before.put(what, now);
        return then == null ? Double.NaN : Math.max(0.0, now - then);
    }

    /** NaN without such an MBean: Kafka makes some when they are used first. */
    private double attribute(String bean, String attribute) throws JMException {
        try {
            return ((Number) server.getAttribute(new ObjectName(bean), attribute)).doubleValue();
        } catch (InstanceNotFoundException error) {
            return Double.NaN;
        }
    }

    /** A part from 0 to 1; a thread that waited over the look before may have waited a little longer than the time since. */
    private static double part(double part) {
        return Math.max(0.0, Math.min(1.0, part));
    }
}
