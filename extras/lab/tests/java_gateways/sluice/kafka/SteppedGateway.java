package sluice.kafka;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** A gateway without threads and brokers: its time passes when it is told so, and what it publishes is kept. */
public final class SteppedGateway {
    private static final double NS_PER_POINT = 1e7;

    private final Settings settings;
    public final Gateway<?> gateway;

    private final KafkaSensors kafka; // Kafka's part of a broker; null of a proxy
    private final ProxyGateway proxy; // null of a broker

    private final ManualTime time = new ManualTime();
    private final List<byte[]> published = new ArrayList<>();

    private long unreadableLimits;

    public SteppedGateway(Map<String, ?> configs, boolean isProxy) {
        if (isProxy) {
            ProxySettings ofProxy = new ProxySettings(configs);
            settings = ofProxy;
            proxy = new ProxyGateway(ofProxy, time, new Outbox());
            gateway = proxy;
            kafka = null;
        } else {
            BrokerSettings ofBroker = new BrokerSettings(configs);
            BrokerGateway ofPlugin = new BrokerGateway(ofBroker, time, new Outbox());
            settings = ofBroker;
            gateway = ofPlugin;
            proxy = null;
            kafka = new KafkaSensors(ofPlugin, settings.window, time);
        }
    }

    /** Charges an amount; a broker of request time, too, in nanoseconds. Returns the wait in ms. */
    public long charge(CounterKey counter, double amount) {
        if (counter.kind == Kind.REQUEST) {
            return Math.min(kafka.charge(counter, amount / NS_PER_POINT), settings.window.windowMs);
        }
        return proxy != null ? proxy.charge(counter, amount) : kafka.charge(counter, amount);
    }

    /** Charges the partitions of a topic that is admitted. */
    public void admit(CounterKey counter, int partitions) {
        if (proxy != null) {
            proxy.admitMutations(counter, partitions);
        } else {
            kafka.charge(counter, partitions);
        }
    }

    /** Whether a topic is admitted; if not, without a decision, its refusal is noted. */
    public boolean admits(CounterKey counter) {
        return proxy != null ? proxy.refuseMutations(counter) == 0 : kafka.waitMs(counter) == 0;
    }

    /** The wait in ms until a counter doesn't exceed its quota. */
    public long waitMs(CounterKey counter) {
        return proxy != null ? proxy.waitMs(counter) : kafka.waitMs(counter);
    }

    public static Kind kind(String key) {
        return Kind.ofKey(key);
    }

    /** How many records of the limits topic were none that Sluice writes. */
    public long unreadableLimits() {
        return unreadableLimits;
    }

    /** `isPast` if the topic had it before the gateway began to read. */
    public void takeLimit(byte[] key, byte[] value, boolean isPast) throws Exception {
        if (!isPast) {
            gateway.limitsHandler.noteRead();
        }
        try {
            gateway.limitsHandler.take(key, value);
        } catch (IOException error) {
            unreadableLimits++;
        }
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
            SteppedGateway.this.published.add(value);
        }
    }
}
