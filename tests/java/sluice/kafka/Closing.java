package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import javax.management.ObjectName;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.utils.Time;

/** The plugin in a node that is broker and controller, from its start to its end. */
final class Closing {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Less than the minute for which a client of Kafka waits for an answer. */
    private static final long PATIENCE_S = 30;

    private Closing() {}

    /**
     * A node whose client is charged `bytes`, and which then ends as Kafka 4.1 and newer end plugins, and once more.
     *
     * <p>Says which threads and MBeans it leaves, and whether a node of the same id that starts then has a gateway of its own.
     */
    static JsonNode node(JsonNode asked) throws Exception {
        Map<String, Object> configs = new HashMap<>();
        configs.put("node.id", asked.get("node").textValue());
        configs.put("metric.reporters", SluiceMetricsReporter.class.getName());
        configs.put("sluice.bootstrap.servers", asked.get("servers").textValue());
        configs.put("sluice.requests.topic", asked.get("topic").textValue());
        Set<Thread> before = Thread.getAllStackTraces().keySet();
        SluiceMetricsReporter reporter = new SluiceMetricsReporter();
        reporter.configure(configs);
        List<SluiceQuotaCallback> callbacks = Arrays.asList(new SluiceQuotaCallback(), new SluiceQuotaCallback());
        callbacks.forEach(callback -> callback.configure(configs));
        BrokerGateway gateway = Nodes.of(configs);
        List<MetricsReporter> reporters = Arrays.asList(reporter);
        try (Metrics metrics = new Metrics(new MetricConfig(), reporters, Time.SYSTEM, false)) {
            Sensor sensor = metrics.sensor("produced");
            Map<String, String> tags = KafkaMeters.metricTags(new Tags("alice", ""));
            sensor.add(metrics.metricName("byte-rate", "Produce", "", tags), new Rate());
            boolean isReachable = asked.get("reachable").booleanValue();
            int admins = isReachable ? 2 : 3; // the third looks for the requests topic
            waitFor(() -> admins(before) == admins && (!isReachable || gateway.getPublished() > 0));
            sensor.record(asked.get("bytes").doubleValue());
            for (SluiceQuotaCallback callback : callbacks) {
                ((AutoCloseable) callback).close();
                callback.close();
            }
        }
        ObjectNode answer = JSON.createObjectNode();
        waitFor(() -> names(before).isEmpty());
        answer.set("left", JSON.valueToTree(names(before)));
        ObjectName name = new ObjectName("sluice:type=gateway,node=" + asked.get("node").textValue());
        answer.put("mbean", ManagementFactory.getPlatformMBeanServer().isRegistered(name));
        SluiceQuotaCallback next = new SluiceQuotaCallback();
        next.configure(configs);
        answer.put("new", Nodes.of(configs) != gateway);
        next.close();
        return answer;
    }

    /** Two nodes of one id in this process, of clusters of their own; says what each has while they end one after the other. */
    static JsonNode twins(JsonNode asked) throws Exception {
        ObjectName name = new ObjectName("sluice:type=gateway,node=" + asked.get("node").textValue());
        List<SluiceQuotaCallback> callbacks = Arrays.asList(new SluiceQuotaCallback(), new SluiceQuotaCallback());
        Set<BrokerGateway> gateways = new HashSet<>();
        for (int i = 0; i < callbacks.size(); i++) {
            Map<String, Object> configs = new HashMap<>();
            configs.put("node.id", asked.get("node").textValue());
            configs.put("log.dirs", asked.get("folders").get(i).textValue());
            configs.put("metric.reporters", SluiceMetricsReporter.class.getName());
            configs.put("sluice.bootstrap.servers", "127.0.0.1:9");
            callbacks.get(i).configure(configs);
            gateways.add(Nodes.of(configs));
        }
        ObjectNode answer = JSON.createObjectNode().put("gateways", gateways.size());
        callbacks.get(1).close();
        answer.put("first_has_mbean", ManagementFactory.getPlatformMBeanServer().isRegistered(name));
        callbacks.get(0).close();
        return answer.put("mbean", ManagementFactory.getPlatformMBeanServer().isRegistered(name));
    }

    private static void waitFor(BooleanSupplier condition) throws InterruptedException {
        long untilNs = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (System.nanoTime() - untilNs < 0 && !condition.getAsBoolean()) {
            Thread.sleep(20);
        }
    }

    /** The admin clients that are at work: one for each topic that the gateway reads. */
    private static long admins(Set<Thread> before) {
        return names(before).stream().filter(name -> name.startsWith("kafka-admin")).count();
    }

    /** The names of the threads of Sluice and of Kafka's clients that run and did not before. */
    private static Set<String> names(Set<Thread> before) {
        Set<String> names = new TreeSet<>();
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            boolean isOurs = thread.getName().startsWith("sluice") || thread.getName().startsWith("kafka-");
            if (isOurs && !before.contains(thread)) {
                names.add(thread.getName());
            }
        }
        return names;
    }
}
