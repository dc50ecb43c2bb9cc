package sluice.telemetry;

import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.config.ConfigException;

/**
 * What the receiver needs of a broker's configuration. Its clients are configured as those of the plugin, by
 * `sluice.client.*`; its own settings have another prefix, as the plugin refuses those of `sluice.*` that it doesn't know.
 */
final class Settings {
    private static final String CLIENT_PREFIX = "sluice.client.";

    final Map<String, ?> configs;
    final String node;
    final String topic;

    /** Whether the broker has the plugin, whose clients have limits of the whole cluster. */
    final boolean hasPlugin;

    Settings(Map<String, ?> configs) {
        this.configs = configs;
        node = text("node.id", text("broker.id", "-1"));
        topic = text("sluice-telemetry.topic", "sluice.client-telemetry");
        hasPlugin = text("client.quota.callback.class", "none").endsWith("sluice.kafka.SluiceQuotaCallback");
        clientOf("");
    }

    /** Properties of a Kafka client for this purpose. */
    Map<String, Object> clientOf(String purpose) {
        Map<String, Object> client = new HashMap<>(Map.of("enable.metrics.push", "false"));
        configs.forEach((key, value) -> {
            if (key.startsWith(CLIENT_PREFIX)) {
                client.put(key.substring(CLIENT_PREFIX.length()), value);
            }
        });
        client.put("bootstrap.servers", text("sluice.bootstrap.servers", ""));
        client.put("client.id", text("sluice.exempt.client.id", "sluice") + "-" + node + "-" + purpose);
        return client;
    }

    private String text(String key, String otherwise) {
        Object value = configs.get(key);
        String text = value == null ? otherwise : value.toString().trim();
        if (text.isEmpty()) {
            throw new ConfigException(key + " is missing or empty; expected a value, such as 127.0.0.1:9092 for addresses");
        }
        return text;
    }
}
