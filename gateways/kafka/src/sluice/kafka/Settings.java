package sluice.kafka;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.config.ConfigException;

/** The plugin's part of a broker's configuration. A value that it can't use is a ConfigException, which ends the start. */
final class Settings {
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
    private static final int MAX_NAME_LENGTH = 200;

    final String node;
    final String bootstrapServers;
    final String requestsTopic;
    final String sumsTopic;
    final String limitsTopic;
    final long sumMs;

    /** The longest time for which a response mutes its connection. */
    final long maxMuteMs;

    final Set<String> exemptPrincipals;

    /** A client whose client-id is this, or begins with this and a hyphen, is exempt; null if there is no such part. */
    final String exemptClientId;

    final String gatewayName;

    /** Whether the node serves clients. A dedicated controller doesn't: it meters mutations, and their limit is whole. */
    final boolean isBroker;

    /** The broker's sampling of client quotas. */
    final Window window;

    /** Properties of the plugin's own Kafka clients. */
    final Map<String, Object> client;

    private Settings(Map<String, ?> configs) {
        checkKeys(configs);
        this.node = nodeOf(configs);
        this.bootstrapServers = text(configs, BOOTSTRAP_SERVERS, null);
        this.requestsTopic = text(configs, REQUESTS_TOPIC, "quota-requests");
        this.sumsTopic = text(configs, SUMS_TOPIC, "quota-sums");
        this.limitsTopic = text(configs, LIMITS_TOPIC, "quota-limits");
        this.sumMs = whole(configs, SUM_MS, 100, 10, 1_000);
        this.maxMuteMs = whole(configs, MAX_MUTE_MS, 5_000, 1_000, 3_600_000);
        this.exemptPrincipals = principals(text(configs, EXEMPT_PRINCIPALS, ""));
        this.exemptClientId = exemptClientId(configs);
        this.gatewayName = gatewayName(configs);
        this.isBroker = !text(configs, "process.roles", "broker").trim().equals("controller");
        this.window = new Window(
                (int) whole(configs, "quota.window.num", 11, 1, Integer.MAX_VALUE),
                1_000 * whole(configs, "quota.window.size.seconds", 1, 1, Integer.MAX_VALUE));
        this.client = client(configs);
    }

    /** The settings in a broker's properties. */
    static Settings of(Map<String, ?> configs) {
        return new Settings(configs);
    }

    /** The node that these properties are of. */
    static String nodeOf(Map<String, ?> configs) {
        Object node = configs.containsKey("node.id") ? configs.get("node.id") : configs.get("broker.id");
        return String.valueOf(node).trim();
    }

    private static void checkKeys(Map<String, ?> configs) {
        for (String key : configs.keySet()) {
            if (key.startsWith(PREFIX) && !key.startsWith(CLIENT_PREFIX) && !KEYS.contains(key)) {
                throw new ConfigException(
                        key + " is unknown; expected one of " + String.join(", ", KEYS) + " or " + CLIENT_PREFIX + "*");
            }
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
