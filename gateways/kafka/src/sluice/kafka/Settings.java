package sluice.kafka;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.config.ConfigException;

/**
 * The plugin's part of a broker's configuration, or a proxy's configuration. A value that can't be used is a
 * ConfigException, which ends the start.
 */
public final class Settings {
    private static final String PREFIX = "sluice.";
    private static final String CLIENT_PREFIX = "sluice.client.";
    private static final String BOOTSTRAP_SERVERS = "sluice.bootstrap.servers";
    private static final String REQUESTS_TOPIC = "sluice.requests.topic";
    private static final String SUMS_TOPIC = "sluice.sums.topic";
    private static final String LIMITS_TOPIC = "sluice.limits.topic";
    private static final String SUM_MS = "sluice.sum.ms";
    private static final String MAX_MUTE_MS = "sluice.max.mute.ms";
    private static final String EXEMPT_PRINCIPALS = "sluice.exempt.principals";
    private static final String EXEMPT_CLIENT_ID = "sluice.exempt.client.id";
    private static final String GATEWAY_NAME = "sluice.gateway.name";
    private static final String DISK_MIN_FREE_BYTES = "sluice.disk.min.free.bytes";
    private static final String DISK_MIN_FREE_PERCENT = "sluice.disk.min.free.percent";
    private static final List<String> KEYS = Arrays.asList(
            BOOTSTRAP_SERVERS,
            REQUESTS_TOPIC,
            SUMS_TOPIC,
            LIMITS_TOPIC,
            SUM_MS,
            MAX_MUTE_MS,
            EXEMPT_PRINCIPALS,
            EXEMPT_CLIENT_ID,
            GATEWAY_NAME);
    private static final List<String> BROKER_KEYS = Arrays.asList(DISK_MIN_FREE_BYTES, DISK_MIN_FREE_PERCENT);
    private static final String REQUEST_TIME = "sluice.request.time";
    private static final String DECIDE_TIMEOUT_MS = "sluice.decide.timeout.ms";
    private static final String EXPECTED_GATEWAYS = "sluice.expected.gateways";
    private static final String PRINCIPAL_RULES = "sluice.ssl.principal.mapping.rules";
    private static final String MAX_PARTITIONS = "sluice.max.partitions.per.request";
    private static final String WINDOWS = "quota.window.num";
    private static final String WINDOW_SECONDS = "quota.window.size.seconds";
    private static final List<String> PROXY_KEYS = Arrays.asList(
            REQUEST_TIME,
            DECIDE_TIMEOUT_MS,
            EXPECTED_GATEWAYS,
            PRINCIPAL_RULES,
            MAX_PARTITIONS,
            WINDOWS,
            WINDOW_SECONDS);
    private static final int MAX_NAME_LENGTH = 200;

    /** Whether this is a proxy, which meters and throttles by itself; else Kafka's broker does. */
    final boolean isProxy;

    final String node;
    final String bootstrapServers;
    final String requestsTopic;
    final String sumsTopic;
    final String limitsTopic;
    final long sumMs;

    /** The longest time for which a response mutes its connection. */
    public final long maxMuteMs;

    final Set<String> exemptPrincipals;

    /**
     * A client without a login whose client-id is this, or begins with this and a hyphen, is exempt; null if there is no
     * such part.
     */
    final String exemptClientId;

    public final String gatewayName;

    /** Whether a proxy charges the time until a broker's answer as request time. */
    public final boolean chargesUpstreamTime;

    /** How long a proxy waits for the decision on mutations. */
    public final long decideTimeoutMs;

    /** The most partitions that a proxy charges one request. */
    public final int maxPartitionsPerRequest;

    /** How many proxies share until the first own heartbeat is decided. */
    final int expectedGateways;

    /** How brokers name the user of a certificate, as their `ssl.principal.mapping.rules`. */
    public final String principalRules;

    /** Whether it serves clients. A dedicated controller doesn't: it meters mutations, and their limit is whole. */
    final boolean servesClients;

    /** Whether the node is broker and controller. */
    final boolean isCombined;

    /** The listeners of the node's controller, in capitals. */
    final Set<String> controllerListeners;

    final long queuedMaxRequests;
    final List<String> logDirs;

    /** The free bytes of a volume with a log directory below which producers are held; 0 is no floor. */
    final long diskMinFreeBytes;

    /** The same in percent of the volume. */
    final long diskMinFreePercent;

    /** The sampling of client quotas. */
    public final Window window;

    /** Properties of the plugin's own Kafka clients. */
    final Map<String, Object> client;

    private Settings(Map<String, ?> configs, boolean isProxy) {
        checkKeys(configs, isProxy);
        this.isProxy = isProxy;
        this.node = isProxy ? "proxy" : nodeOf(configs);
        this.bootstrapServers = text(configs, BOOTSTRAP_SERVERS, null);
        this.requestsTopic = text(configs, REQUESTS_TOPIC, "quota-requests");
        this.sumsTopic = text(configs, SUMS_TOPIC, "quota-sums");
        this.limitsTopic = text(configs, LIMITS_TOPIC, "quota-limits");
        this.sumMs = whole(configs, SUM_MS, 100, 10, 1_000);
        this.maxMuteMs = whole(configs, MAX_MUTE_MS, 5_000, 1_000, 3_600_000);
        this.exemptPrincipals = principals(text(configs, EXEMPT_PRINCIPALS, ""));
        this.exemptClientId = exemptClientId(configs);
        this.gatewayName = gatewayName(configs);
        this.chargesUpstreamTime = isProxy && choice(configs, REQUEST_TIME, "off", "upstream");
        this.decideTimeoutMs = whole(configs, DECIDE_TIMEOUT_MS, 5_000, 1, 5_000); // a proxy holds a request for 20 s
        this.expectedGateways = (int) whole(configs, EXPECTED_GATEWAYS, 1, 1, AliveGateways.MAX_GATEWAYS);
        this.principalRules = text(configs, PRINCIPAL_RULES, "DEFAULT");
        this.maxPartitionsPerRequest = (int) whole(configs, MAX_PARTITIONS, 10_000, 1, Integer.MAX_VALUE);
        List<String> roles = list(configs, "process.roles", "broker");
        this.servesClients = roles.contains("broker");
        this.isCombined = roles.contains("broker") && roles.contains("controller");
        this.controllerListeners = new LinkedHashSet<>(list(configs, "controller.listener.names", ""));
        this.queuedMaxRequests = whole(configs, "queued.max.requests", 500, 1, Integer.MAX_VALUE);
        this.logDirs = list(configs, configs.get("log.dirs") == null ? "log.dir" : "log.dirs", "/tmp/kafka-logs");
        this.diskMinFreeBytes = whole(configs, DISK_MIN_FREE_BYTES, 0, 0, Long.MAX_VALUE);
        this.diskMinFreePercent = whole(configs, DISK_MIN_FREE_PERCENT, 0, 0, 100);
        this.window = new Window(
                (int) whole(configs, WINDOWS, 11, 1, Integer.MAX_VALUE),
                1_000 * whole(configs, WINDOW_SECONDS, 1, 1, Integer.MAX_VALUE));
        this.client = client(configs);
    }

    /** The settings in a broker's properties. */
    static Settings of(Map<String, ?> configs) {
        return new Settings(configs, false);
    }

    /** The settings of a proxy: the same properties, and its own. */
    public static Settings ofProxy(Map<String, ?> configs) {
        return new Settings(configs, true);
    }

    /** The node that these properties are of. */
    static String nodeOf(Map<String, ?> configs) {
        Object node = configs.containsKey("node.id") ? configs.get("node.id") : configs.get("broker.id");
        return String.valueOf(node).trim();
    }

    private static void checkKeys(Map<String, ?> configs, boolean isProxy) {
        List<String> keys = new ArrayList<>(KEYS);
        keys.addAll(isProxy ? PROXY_KEYS : BROKER_KEYS);
        for (String key : configs.keySet()) {
            boolean isOurs = isProxy || key.startsWith(PREFIX);
            if (isOurs && !key.startsWith(CLIENT_PREFIX) && !keys.contains(key)) {
                throw new ConfigException(
                        key + " is unknown; expected one of " + String.join(", ", keys) + " or " + CLIENT_PREFIX + "*");
            }
        }
        if (isProxy) {
            return;
        }
        String reporters = String.valueOf(configs.get("metric.reporters"));
        if (!reporters.contains(SluiceMetricsReporter.class.getName())) {
            throw new ConfigException("metric.reporters is " + reporters + "; expected "
                    + SluiceMetricsReporter.class.getName() + " among them, from which Sluice learns what is charged");
        }
    }

    private static String text(Map<String, ?> configs, String key, String otherwise) {
        Object value = configs.get(key);
        if (value == null && otherwise == null) {
            throw new ConfigException(key + " is missing; expected the addresses of brokers, such as 127.0.0.1:9092");
        }
        String text = value == null ? otherwise : value.toString().trim();
        if (text.isEmpty() && !"".equals(otherwise)) {
            throw new ConfigException(key + " is empty; expected " + (otherwise == null ? "addresses" : "a name"));
        }
        return text;
    }

    /** What stands between commas; lists of Kafka come as text, or as a list if they are a default. */
    private static List<String> list(Map<String, ?> configs, String key, String otherwise) {
        Object value = configs.get(key);
        String text = value instanceof List ? String.join(",", texts((List<?>) value)) : text(configs, key, otherwise);
        List<String> parts = new ArrayList<>();
        for (String part : text.split(",")) {
            if (!part.trim().isEmpty()) {
                parts.add(part.trim());
            }
        }
        return parts;
    }

    private static List<String> texts(List<?> values) {
        List<String> texts = new ArrayList<>();
        values.forEach(value -> texts.add(String.valueOf(value)));
        return texts;
    }

    private static long whole(Map<String, ?> configs, String key, long otherwise, long least, long most) {
        String text = text(configs, key, Long.toString(otherwise));
        String expected = "; expected a whole number from " + least + " to " + most;
        try {
            long value = Long.parseLong(text);
            if (value < least || value > most) {
                throw new ConfigException(key + " is " + text + expected);
            }
            return value;
        } catch (NumberFormatException error) {
            throw new ConfigException(key + " is " + text + expected);
        }
    }

    /** Whether the second of two values is set; the first is the default. */
    private static boolean choice(Map<String, ?> configs, String key, String first, String second) {
        String text = text(configs, key, first);
        if (!text.equals(first) && !text.equals(second)) {
            throw new ConfigException(key + " is " + text + "; expected " + first + " or " + second);
        }
        return text.equals(second);
    }

    private static Set<String> principals(String text) {
        Set<String> principals = new LinkedHashSet<>();
        for (String principal : text.split(";")) {
            String name = principal.trim();
            if (!name.isEmpty() && !(name.indexOf(':') > 0 && name.indexOf(':') < name.length() - 1)) {
                throw new ConfigException(EXEMPT_PRINCIPALS + " has " + name
                        + "; expected principals such as User:sluice, separated by semicolons as in super.users");
            }
            if (!name.isEmpty()) {
                principals.add(name);
            }
        }
        return Collections.unmodifiableSet(principals);
    }

    private static String exemptClientId(Map<String, ?> configs) {
        String text = text(configs, EXEMPT_CLIENT_ID, "");
        if (!text.isEmpty() && text.length() < 8) {
            throw new ConfigException(EXEMPT_CLIENT_ID + " has " + text.length()
                    + " characters; expected at least 8, because who knows it has no quota");
        }
        return text.isEmpty() ? null : text;
    }

    private static String gatewayName(Map<String, ?> configs) {
        String name = text(configs, GATEWAY_NAME, "");
        if (name.isEmpty()) {
            try {
                name = InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException error) {
                name = "broker";
            }
        }
        return name.length() <= MAX_NAME_LENGTH ? name : name.substring(0, MAX_NAME_LENGTH);
    }

    private static Map<String, Object> client(Map<String, ?> configs) {
        Map<String, Object> client = new HashMap<>();
        configs.forEach((key, value) -> {
            if (key.startsWith(CLIENT_PREFIX)) {
                client.put(key.substring(CLIENT_PREFIX.length()), value);
            }
        });
        return client;
    }
}
