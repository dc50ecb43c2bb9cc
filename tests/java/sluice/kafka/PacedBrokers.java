package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.List;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Avg;
import org.apache.kafka.common.metrics.stats.Rate;

/**
 * Brokers that share the quota of one client, without brokers: Kafka's own meters, the plugin's shares and pace, and a job
 * that decides everything `latency_ms` later.
 *
 * <p>The client has connections to some brokers and sends on each as fast as it is served. `phases` says which, until
 * when: [seconds, brokers], and with a third element under which limit from then on. With `weights`, it is a producer with one queue of some seconds of the quota, whose messages go
 * to the brokers at random, so often. With `members`, so many clients are one tenant, whose limit it is; each has a limit
 * of its own if there is a `member_limit`, and the connections. With a `part`, the quota gives way; `sizes` are of
 * fetches in turn, over `size`. The answer is what was served: [ms, broker, amount, member].
 */
final class PacedBrokers {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String TENANT = "shop";
    private static final long MAX_MUTE_MS = 5_000;
    private static final long SUM_MS = 100;
    private static final long ROUND_TRIP_MS = 5;
    private static final double QUEUE_S = 32;
    private static final double BATCH_S = 0.02;
    private static final Window WINDOW = new Window(11, 1_000);

    private final ManualTime time;
    private final Kind kind;
    private double limit;
    private final double size;
    private final long latencyMs;
    private final int brokerCount;
    private final int members; // 0 is one client in no tenant
    private final Double memberLimit;
    private final Double part; // of its shares that a broker lets through, of a quota that gives way
    private final List<Double> sizes = new ArrayList<>(); // of fetches in turn, over `size`
    private final List<Broker> brokers = new ArrayList<>();
    private final Deque<DecidedRecord> underWay = new ArrayDeque<>();
    private final ArrayNode served = JSON.createArrayNode();
    private final Random random = new Random(1);
    private final List<Broker> lots = new ArrayList<>(); // each broker as often as it is to be drawn
    private double queued;
    private long batches;

    private PacedBrokers(JsonNode asked, ManualTime time) {
        this.time = time;
        this.kind = Kind.ofKey(asked.get("quota").textValue());
        this.limit = asked.get("limit").doubleValue();
        this.size = asked.get("size").doubleValue();
        this.latencyMs = asked.get("latency_ms").longValue();
        this.brokerCount = asked.get("brokers").intValue();
        this.members = asked.path("members").intValue();
        this.memberLimit = asked.has("member_limit") ? asked.get("member_limit").doubleValue() : null;
        this.part = asked.has("part") ? asked.get("part").doubleValue() : null;
        asked.path("sizes").forEach(each -> sizes.add(each.doubleValue()));
        for (int number = 0; number < brokerCount; number++) {
            brokers.add(new Broker(number, asked.get("connections").intValue()));
        }
        for (int number = 0; number < asked.path("weights").size(); number++) {
            lots.addAll(Collections.nCopies(asked.get("weights").get(number).intValue(), brokers.get(number)));
        }
    }

    static JsonNode run(JsonNode asked, ManualTime time) throws IOException {
        PacedBrokers all = new PacedBrokers(asked, time);
        all.idle(2_000 + all.latencyMs); // they get to know each other
        long beganMs = time.milliseconds();
        for (JsonNode phase : asked.get("phases")) {
            all.limit = phase.has(2) ? phase.get(2).doubleValue() : all.limit;
            while (time.milliseconds() - beganMs < phase.get(0).longValue() * 1_000) {
                for (JsonNode number : phase.get(1)) {
                    all.brokers.get(number.intValue()).serve(time.milliseconds(), beganMs);
                }
                all.step();
            }
        }
        return all.served;
    }

    /** Fills the producer's queue. */
    private void fill() {
        for (; queued < QUEUE_S * limit; queued += BATCH_S * limit) {
            lots.get(random.nextInt(lots.size())).queued += BATCH_S * limit;
        }
    }

    private void idle(long forMs) throws IOException {
        for (long untilMs = time.milliseconds() + forMs; time.milliseconds() < untilMs; ) {
            step();
        }
    }

    /** Another millisecond: decisions arrive, and each broker does in turn what the plugin does all the time. */
    private void step() throws IOException {
        time.sleep(1);
        long nowMs = time.milliseconds();
        while (!underWay.isEmpty() && underWay.peek().atMs <= nowMs) {
            Sums sums = new Sums(underWay.remove().record, "");
            for (Broker broker : brokers) {
                broker.shares.take(sums, nowMs).forEach(counter -> broker.meters.reset(counter, nowMs));
            }
        }
        for (Broker broker : brokers) {
            if (nowMs % SUM_MS == 7 * broker.number) {
                broker.tick(nowMs);
            }
        }
    }

    /** Each event is a micro-batch of its own. */
    private void decide(byte[] event, long nowMs) throws IOException {
        JsonNode fields = JSON.readTree(event);
        ObjectNode record = JSON.createObjectNode();
        String amount = kind == Kind.REQUEST ? "request_time_ns" : "bytes";
        if (fields.has(amount)) {
            double value = fields.get(amount).doubleValue() / (kind == Kind.REQUEST ? 1e7 : 1);
            record.put("batch", batches++).put("base_ms", fields.get("timestamp_ms").longValue());
            record.putArray("quotas").add(kind.key);
            record.putArray("gateways").addArray().add(fields.get("instance").textValue()).add(true).add(0);
            ArrayNode sums = record.putArray("sums");
            Double ownLimit = members == 0 ? Double.valueOf(limit) : memberLimit;
            if (ownLimit != null) {
                addSum(sums, "client_id", fields.get("client_id").textValue(), ownLimit, value, fields);
            }
            if (members > 0) {
                addSum(sums, "tenant", TENANT, limit, value, fields);
            }
        } else {
            ObjectNode heartbeat = record.putObject("heartbeat");
            for (String field : new String[] {"instance", "request_id", "timestamp_ms"}) {
                heartbeat.set(field, fields.get(field));
            }
        }
        underWay.add(new DecidedRecord(nowMs + latencyMs, JSON.writeValueAsBytes(record)));
    }

    private static void addSum(ArrayNode sums, String part, String name, double limit, double value, JsonNode fields) {
        long appliedMs = 0;
        for (JsonNode wait : fields.get("throttled_by")) {
            boolean isOfIt = name.equals(wait.get("entity").path(part).textValue());
            appliedMs = Math.max(appliedMs, isOfIt ? Math.min(wait.get("ms").longValue(), 3_600_000) : 0);
        }
        ArrayNode entity = sums.addArray();
        entity.addObject().put(part, name);
        ArrayNode sum = entity.addArray().addArray().add(0).add(limit).add(0).add(0);
        sum.addArray().addArray().add(0).add(value).add(appliedMs);
    }

    private static final class DecidedRecord {
        private final long atMs;
        private final byte[] record;

        DecidedRecord(long atMs, byte[] record) {
            this.atMs = atMs;
            this.record = record;
        }
    }

    private final class Broker {
        private final int number;
        private final KafkaMeters meters = new KafkaMeters(MAX_MUTE_MS, WINDOW, time::milliseconds);
        private final List<Client> clients = new ArrayList<>();
        private final Events events;
        private final Shares shares;
        private double queued;
        private long heartbeatMs;

        Broker(int number, int connections) {
            this.number = number;
            this.events = new Events("broker-" + number, "instance-" + number);
            this.shares = new Shares("instance-" + number, events.idStem, WINDOW);
            Metrics metrics = new Metrics(new MetricConfig(), Collections.singletonList(new Cases.Feed(meters)), time, false);
            for (int member = 0; member < Math.max(1, members); member++) {
                clients.add(new Client(this, member, connections, metrics));
            }
        }

        /** Serves what the connections ask for that aren't muted, each client's first in turn. */
        void serve(long nowMs, long beganMs) {
            clients.forEach(client -> client.serve(nowMs, beganMs));
        }

        /** Does what `Gateway` does at each look. */
        void tick(long nowMs) throws IOException {
            for (CommonBucket bucket : meters.common()) {
                if (!bucket.counter.tags.tenant.isEmpty()) {
                    boolean isCharged = bucket.takeCharged();
                    bucket.set(shares.share(bucket.counter, limit, isCharged, bucket.heldUntilMs(), nowMs), limit, false, nowMs);
                }
            }
            for (Client client : clients) {
                tick(client.meter, members == 0 ? Double.valueOf(limit) : memberLimit, nowMs);
            }
            if (nowMs - heartbeatMs >= AliveGateways.HEARTBEAT_MS) {
                heartbeatMs = nowMs;
                byte[] beat = events.heartbeat(
                        0, 1, 0, true, Collections.emptyList(), Collections.emptyList(), Collections.emptyList(), "1", null, 0, nowMs);
                decide(beat, nowMs);
            }
        }

        private void tick(Meter meter, Double ownLimit, long nowMs) throws IOException {
            boolean isCharged = meter.look(nowMs);
            if (ownLimit == null) {
                meter.bind(Meter.UNLIMITED, nowMs);
            } else {
                meter.noteLimit(ownLimit, nowMs);
                double share = shares.share(meter.counter, ownLimit, isCharged, meter.heldUntilMs(), nowMs);
                if (part != null) {
                    meter.pace(share * part, ownLimit, part < 1, nowMs);
                } else if (shares.gateways(nowMs) > 1) {
                    meter.pace(share, ownLimit, false, nowMs);
                } else {
                    meter.bind(share, nowMs);
                }
            }
            if (meter.hasUnpublished()) {
                Map<CounterKey, Long> heldMs = new LinkedHashMap<>();
                heldMs.put(meter.counter, meter.heldUntilMs() - nowMs);
                for (CommonBucket bucket : meter.common()) {
                    heldMs.merge(bucket.counter, bucket.heldUntilMs() - nowMs, Math::max);
                }
                decide(events.sum(kind, meter.key.tags, meter.takeUnpublished(nowMs), heldMs, null, nowMs), nowMs);
            }
        }
    }

    /** A client's connections to a broker, and its sensors there. */
    private final class Client {
        private final Broker broker;
        private final int member;
        private final Meter meter;
        private final Sensor charged;
        private final Sensor throttled;
        private final long[] nextMs;
        private int fetches;

        Client(Broker broker, int member, int connections, Metrics metrics) {
            this.broker = broker;
            this.member = member;
            this.nextMs = new long[connections];
            Tags tags = members == 0 ? new Tags("", "app") : new Tags("", "app-" + member, TENANT);
            Map<String, String> metricTags = KafkaMeters.metricTags(tags);
            MetricConfig config = new MetricConfig()
                    .samples(WINDOW.samples)
                    .timeWindow(WINDOW.windowMs, TimeUnit.MILLISECONDS)
                    .quota(Quota.upperBound(limit / brokerCount));
            this.charged = metrics.sensor("charged-" + member);
            this.charged.add(metrics.metricName(kind.chargedMetric, kind.group, "", metricTags), new Rate(), config);
            this.throttled = metrics.sensor("throttled-" + member);
            this.throttled.add(metrics.metricName(KafkaMeters.THROTTLE_TIME, kind.group, "", metricTags), new Avg());
            this.meter = broker.meters.of(new CounterKey(kind, tags));
        }

        void serve(long nowMs, long beganMs) {
            for (int connection = 0; connection < nextMs.length; connection++) {
                if (nowMs >= nextMs[connection]) {
                    nextMs[connection] = nowMs + ROUND_TRIP_MS + request(nowMs, beganMs);
                }
            }
        }

        /** Charges a request as Kafka does, and returns its wait. */
        private long request(long nowMs, long beganMs) {
            double amount = size;
            double share = members == 0 ? meter.share() : meter.common()[0].share();
            if (kind == Kind.FETCH && (meter.isPaced() || members > 0)) { // `size` is a batch; a client asks for four
                amount = Math.max(size, Math.min(4 * size, Gateway.fetchLimit(share) * WINDOW.spanMs() / 1000));
            }
            if (!sizes.isEmpty()) {
                amount = size * sizes.get(fetches % sizes.size());
            }
            if (!lots.isEmpty()) {
                fill();
                amount = Math.min(size, broker.queued);
                if (amount < BATCH_S * limit) {
                    return 0;
                }
                broker.queued -= amount;
                PacedBrokers.this.queued -= amount;
            }
            long waitMs = 0;
            try {
                charged.record(amount, nowMs, true);
            } catch (QuotaViolationException error) {
                double windowMs = ((Rate) error.metric().measurable()).windowSize(error.metric().config(), nowMs);
                waitMs = Math.round((error.value() - error.bound()) / error.bound() * windowMs);
                waitMs = Math.min(waitMs, Integer.MAX_VALUE);
                waitMs = kind == Kind.REQUEST ? Math.min(waitMs, WINDOW.windowMs) : waitMs;
            }
            if (waitMs > 0) {
                throttled.record(waitMs, nowMs, false);
            }
            if (kind == Kind.FETCH && waitMs > 0) {
                charged.record(-amount, nowMs, false);
            } else {
                fetches++;
                served.addArray().add(nowMs - beganMs).add(broker.number).add(amount).add(member);
            }
            return waitMs;
        }
    }
}
