package sluice.kafka;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.config.ConfigException;

/**
 * What brokers and proxies have in common of their configurations. A value that can't be used is a ConfigException, which
 * ends the start.
 */
public abstract class Settings {
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
    static final String DISK_MIN_FREE_BYTES = "sluice.disk.min.free.bytes";
    static final String DISK_MIN_FREE_PERCENT = "sluice.disk.min.free.percent";
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
    static final String WINDOWS = "quota.window.num";
    static final String WINDOW_SECONDS = "quota.window.size.seconds";
    private static final int MAX_NAME_LENGTH = 200;

    final Role role;
    final String brokerId;
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

    /** The free bytes of a volume with a log directory below which producers are throttled; 0 is no floor, as on a proxy. */
    final long diskMinFreeBytes;

    /** The same in percent of the volume. */
    final long diskMinFreePercent;

    /** The sampling of client quotas. */
    public final Window window;

    /** Properties of the plugin's own Kafka clients. */
    final Map<String, Object> client;

    /** `ours` are those keys of `configs` that have to be known, and `own` those that others don't have; `brokerId` is null of a proxy. */
    Settings(Map<String, ?> configs, Collection<String> ours, List<String> own, Role role, String brokerId) {
        checkKeys(ours, own);
        this.role = role;
        this.brokerId = brokerId;
        this.node = brokerId == null ? "proxy" : brokerId;
        this.bootstrapServers = text(configs, BOOTSTRAP_SERVERS, null);
        this.requestsTopic = text(configs, REQUESTS_TOPIC, "quota-requests");
        this.sumsTopic = text(configs, SUMS_TOPIC, "quota-sums");
        this.limitsTopic = text(configs, LIMITS_TOPIC, "quota-limits");
        this.sumMs = whole(configs, SUM_MS, 100, 10, 1_000);
        this.maxMuteMs = whole(configs, MAX_MUTE_MS, 5_000, 1_000, 3_600_000);
        this.exemptPrincipals = principals(text(configs, EXEMPT_PRINCIPALS, ""));
        this.exemptClientId = exemptClientId(configs);
        this.gatewayName = gatewayName(configs);
        this.diskMinFreeBytes = whole(configs, DISK_MIN_FREE_BYTES, 0, 0, Long.MAX_VALUE);
        this.diskMinFreePercent = whole(configs, DISK_MIN_FREE_PERCENT, 0, 0, 100);
        this.window = new Window(
                (int) whole(configs, WINDOWS, 11, 1, Integer.MAX_VALUE),
                1_000 * whole(configs, WINDOW_SECONDS, 1, 1, Integer.MAX_VALUE));
        this.client = client(configs);
    }

    private static void checkKeys(Collection<String> ours, List<String> own) {
        List<String> known = new ArrayList<>(KEYS);
        known.addAll(own);
        for (String key : ours) {
            if (!key.startsWith(CLIENT_PREFIX) && !known.contains(key)) {
                throw new ConfigException(
                        key + " is unknown; expected one of " + String.join(", ", known) + " or " + CLIENT_PREFIX + "*");
            }
        }
    }

    static String text(Map<String, ?> configs, String key, String otherwise) {
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

    static long whole(Map<String, ?> configs, String key, long otherwise, long least, long most) {
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
