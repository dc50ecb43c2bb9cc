package sluice.kafka;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Time;

/** A gateway without threads and brokers: its time passes when it is told so, and what it publishes is kept. */
public final class SteppedGateway {
    public final Settings settings;
    public final Gateway gateway;

    /** Kafka's part of a broker; null of a proxy. */
    public final KafkaMeters kafka;

    private final ManualTime time = new ManualTime();
    private final List<byte[]> published = new ArrayList<>();

    public SteppedGateway(Map<String, ?> configs, boolean isProxy) {
        if (isProxy) {
            ProxySettings ofProxy = new ProxySettings(configs);
            settings = ofProxy;
            gateway = new ProxyGateway(ofProxy, time, new Outbox());
            kafka = null;
        } else {
            BrokerSettings ofBroker = new BrokerSettings(configs);
            BrokerGateway ofPlugin = new BrokerGateway(ofBroker, time, new Outbox());
            settings = ofBroker;
            gateway = ofPlugin;
            kafka = new KafkaMeters(ofPlugin, settings.window, time);
        }
    }

    public Time time() {
        return time;
    }

    public static Kind kind(String key) {
        return Kind.ofKey(key);
    }

    public void takeLimit(byte[] key, byte[] value) throws Exception {
        gateway.limitsHandler.take(key, value);
    }

    /** Null is a record that can't be read. */
    public void takeSums(byte[] value) throws Exception {
        try {
            gateway.sumsHandler.take(null, value);
        } catch (IOException unreadable) {
            // the reader passes over it
        }
    }

    public void sleep(long forMs) {
        for (long untilMs = time.milliseconds() + forMs; time.milliseconds() < untilMs; ) {
            time.sleep(Math.min(settings.sumMs, untilMs - time.milliseconds()));
            gateway.tick(time.milliseconds());
        }
    }

    /** The events since the last call. */
    public List<byte[]> takePublished() {
        List<byte[]> taken = new ArrayList<>(published);
        published.clear();
        return taken;
    }

    private final class Outbox extends EventSender {
        Outbox() {
            super("", Map.of(), 0);
        }

        @Override
        boolean isReady() {
            return true;
        }

        @Override
        void send(byte[] key, byte[] value, long timestampMs, Runnable onFailure) {
            published.add(value);
        }
    }
}
