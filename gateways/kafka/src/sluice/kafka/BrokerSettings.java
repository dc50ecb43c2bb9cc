package sluice.kafka;

import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.common.config.ConfigException;

/** The plugin's part of a broker's configuration, and what it needs to know of the rest. */
final class BrokerSettings extends Settings {
    private static final String PREFIX = "sluice.";
    private static final String REPORTERS = "metric.reporters";
    private static final String REPORTER = "sluice.kafka.SluiceMetricsReporter";

    /** Whether the node is broker and controller. */
    final boolean isCombined;

    /** The listeners of the node's controller, in capitals. */
    final Set<String> controllerListeners;

    final long queuedMaxRequests;
    final List<String> logDirs;

    BrokerSettings(Map<String, ?> configs) {
        super(
                configs,
                configs.keySet().stream().filter(key -> key.startsWith(PREFIX)).collect(Collectors.toList()),
                Arrays.asList(DISK_MIN_FREE_BYTES, DISK_MIN_FREE_PERCENT),
                roles(configs).contains("broker") ? Role.BROKER : Role.CONTROLLER,
                nodeOf(configs));
        String reporters = String.valueOf(configs.get(REPORTERS));
        if (!reporters.contains(REPORTER)) {
            throw new ConfigException(REPORTERS + " is " + reporters + "; expected " + REPORTER
                    + " among them, from which Sluice learns what is charged");
        }
        this.isCombined = roles(configs).containsAll(List.of("broker", "controller"));
        this.controllerListeners = new LinkedHashSet<>(list(configs, "controller.listener.names", ""));
        this.queuedMaxRequests = whole(configs, "queued.max.requests", 500, 1, Integer.MAX_VALUE);
        this.logDirs = logDirsOf(configs);
    }

    /** The node that these properties are of. */
    static String nodeOf(Map<String, ?> configs) {
        Object node = configs.containsKey("node.id") ? configs.get("node.id") : configs.get("broker.id");
        return String.valueOf(node).trim();
    }

    /** The log directories of these properties, which a broker hands over as they were written, or as it has read them. */
    static List<String> logDirsOf(Map<String, ?> configs) {
        return list(configs, configs.get("log.dirs") == null ? "log.dir" : "log.dirs", "/tmp/kafka-logs");
    }

    private static List<String> roles(Map<String, ?> configs) {
        return list(configs, "process.roles", "broker");
    }

    /** What stands between commas; lists of Kafka come as text, or as a list if they are a default. */
    private static List<String> list(Map<String, ?> configs, String key, String otherwise) {
        Object value = configs.get(key);
        String text = value instanceof List
                ? ((List<?>) value).stream().map(String::valueOf).collect(Collectors.joining(","))
                : text(configs, key, otherwise);
        return Arrays.stream(text.split(",")).map(String::trim).filter(part -> !part.isEmpty()).collect(Collectors.toList());
    }
}
