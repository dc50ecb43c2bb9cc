package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.common.utils.Time;

/** Answers cases, one JSON object a line, with what the plugin makes of them: tests compare it with `state/`. */
public final class Cases {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long MAX_MUTE_MS = 5_000;
    private static final CounterKey ALICE = new CounterKey(Kind.PRODUCE, new Tags("alice", ""));
    private static final JsonNode WINDOW = JSON.createObjectNode().put("samples", 11).put("window_ms", 1_000);

    private Cases() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err); // Kafka's log goes there
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
    }

    private static JsonNode answer(JsonNode asked) throws Exception {
        switch (asked.get("case").textValue()) {
            case "resolution":
                return resolution(asked);
            case "shares":
                return shares(asked);
            case "amounts":
                return amounts(asked);
            case "estimate":
                return estimate(asked);
            case "debt":
                return debt(asked);
            case "sums":
                return sums(asked);
            case "brokers":
                return PacedBrokers.run(asked, new ManualTime());
            case "rest":
                return rest(asked);
            case "fence":
                return fence(asked);
            case "reset":
                return reset(asked);
            case "removed":
                return removed();
            case "mutations":
                return mutations(asked);
            case "shared-wait":
                return sharedWait(asked);
            case "borrowed":
                return borrowed(asked);
            case "clock":
                return clock();
            case "names":
                return names(asked);
            case "invented":
                return invented(asked);
            case "new-names":
                return newNames(asked);
            case "heartbeat":
                return heartbeat(asked);
            case "thread":
                return Failing.thread();
            case "reader":
                return Failing.reader(asked);
            case "gaps":
                return Failing.gaps(asked);
            case "sender":
                return Failing.sender(asked);
            case "closing":
                return Closing.node(asked);
            case "held":
                return JSON.valueToTree(new Overrides(view(asked).overrides(), "b", 0).held());
            case "twins":
                return Closing.twins(asked);
            default:
                return settings(asked);
        }
    }

    /** Which of `records` (partition, header "epoch" in base64, whether it has a value) count; null is one too far. */
    private static JsonNode fence(JsonNode asked) throws IOException {
        Fence fence = new Fence();
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode passes = answer.putArray("passes");
        for (JsonNode record : asked.get("records")) {
            byte[] value = record.get(2).booleanValue() ? new byte[] {'{', '}'} : null;
            ConsumerRecord<byte[], byte[]> read = new ConsumerRecord<>("t", record.get(0).intValue(), 0, null, value);
            if (!record.get(1).isNull()) {
                read.headers().add("epoch", record.get(1).binaryValue());
            }
            try {
                passes.add(fence.passes(read));
            } catch (IOException error) {
                passes.addNull();
            }
        }
        return answer.put("fenced", fence.fenced);
    }

    /**
     * The limits of `records`, and what each of `clients` (quota, user, client-id) finds among them, also while limits give
     * way: its limit then, and the part of its share that gateway "b" lets through.
     */
    private static JsonNode resolution(JsonNode asked) throws IOException {
        LimitsView view = new LimitsView();
        ObjectNode answer = JSON.createObjectNode().put("garbage", read(asked, view));
        ArrayNode held = answer.putArray("held");
        Overrides overrides = new Overrides(view.overrides(), "b", 0);
        for (JsonNode tenant : asked.get("tenants")) {
            for (Kind kind : List.of(Kind.PRODUCE, Kind.FETCH)) {
                Overrides.Single hold = overrides.hold(kind, new Tags("u", "c", tenant.textValue()));
                held.add(hold == null ? null : hold.decider);
            }
        }
        answer.put("missed", view.hasGaps());
        Quotas quotas = view.inForce();
        if (quotas == null) {
            return answer.putNull("version");
        }
        ArrayNode found = answer.put("version", quotas.version).putArray("found");
        for (JsonNode client : asked.get("clients")) {
            Kind kind = Kind.ofKey(client.get(0).textValue());
            PrecedenceLevels levels = client.get(3).booleanValue() ? quotas.shadow(kind) : quotas.enforced(kind);
            String user = Names.bounded(client.get(1).textValue());
            String clientId = Names.bounded(client.get(2).textValue());
            Resolution resolution = levels.resolve(user, clientId);
            String tenant = quotas.tenants.of(client.get(1).textValue(), client.get(2).textValue());
            ArrayNode one = found.addArray()
                    .add(resolution.tags.user)
                    .add(resolution.tags.clientId)
                    .add(resolution.level)
                    .add(resolution.limit)
                    .add(tenant)
                    .add(tenant.isEmpty() ? null : quotas.limitOf(new CounterKey(kind, new Tags("", "", tenant))));
            if (resolution.limit != null) {
                one.add(overrides.part(resolution.limit, levels.reservationOf(user, clientId)));
            }
        }
        return answer;
    }

    /** How long a request of `size` waits, in seconds, `after_s` after requests of `charged` in all. */
    private static JsonNode debt(JsonNode asked) {
        Bucket bucket = new Bucket(Kind.ofKey(asked.get("quota").textValue()), new Window(11, 1_000), Bucket.BURST);
        bucket.set(asked.get("share").doubleValue(), asked.get("limit").doubleValue(), false);
        bucket.charge(asked.get("charged").doubleValue(), 0.0, 0);
        bucket.charge(asked.get("size").doubleValue(), 0.0, asked.get("after_s").longValue() * 1_000);
        return JSON.getNodeFactory().numberNode(bucket.waitMs(0.0) / 1000.0);
    }

    /** What is read in each of `records`: null for what is no record of sums. */
    private static JsonNode sums(JsonNode asked) throws IOException {
        ArrayNode answer = JSON.createArrayNode();
        for (JsonNode record : asked.get("records")) {
            try {
                Sums sums = new Sums(record.binaryValue(), "me");
                ObjectNode read = answer.addObject().put("job_id", sums.jobId).put("batch", sums.batch);
                read.put("own_until_ms", sums.ownUntilMs).put("heartbeat_of", sums.heartbeatOf);
                ArrayNode counters = read.putArray("counters");
                for (Sums.CounterSum sum : sums.counters) {
                    ArrayNode counter = counters.addArray()
                            .add(sum.counter.kind.key)
                            .add(sum.counter.tags.user)
                            .add(sum.counter.tags.clientId)
                            .add(sum.counter.tags.tenant)
                            .add(sum.fromMs)
                            .add(sum.untilMs)
                            .add(sum.fetches)
                            .add(sum.isReset);
                    for (Sums.GatewaySum charged : sum.byGateway) {
                        counter.add(charged.gateway.instance)
                                .add(charged.gateway.chargesInLine)
                                .add(charged.value)
                                .add(charged.faded)
                                .add(charged.untilMs)
                                .add(charged.appliedMs);
                    }
                }
            } catch (IOException error) {
                answer.addNull();
            }
        }
        return answer;
    }

    /** Whether a meter is looked at, has waited since it published, and holds anybody, an hour before its last charge. */
    private static JsonNode clock() {
        KafkaMeters meters = new KafkaMeters(MAX_MUTE_MS, new Window(11, 1_000), Time.SYSTEM::milliseconds);
        long laterMs = 10_000_000;
        long nowMs = laterMs - 3_600_000;
        try (Metrics metrics = metricsOf(meters)) {
            sensor(metrics, ALICE, WINDOW).record(100.0, laterMs, false);
            Meter meter = meters.of(ALICE);
            meter.look(laterMs);
            meter.lookAgain(laterMs, 1_000);
            meter.takeUnpublished(laterMs);
            meter.stepBack(nowMs);
            return JSON.createArrayNode()
                    .add(meter.isDue(nowMs))
                    .add(nowMs - meter.publishedMs())
                    .add(meter.heldUntilMs() > nowMs);
        }
    }

    /** The rate of a meter that was charged an amount, its rate after a reset, and what it publishes in the end. */
    private static JsonNode reset(JsonNode asked) {
        KafkaMeters meters = new KafkaMeters(MAX_MUTE_MS, new Window(11, 1_000), Time.SYSTEM::milliseconds);
        long nowMs = System.currentTimeMillis();
        try (Metrics metrics = metricsOf(meters)) {
            Sensor sensor = sensor(metrics, ALICE, WINDOW);
            sensor.record(asked.get("amount").doubleValue(), nowMs, false);
            Meter meter = meters.of(ALICE);
            ArrayNode answer = JSON.createArrayNode().add(meter.rate());
            meter.reset(nowMs);
            answer.add(meter.rate());
            sensor.record(1.0, nowMs, false);
            meter.look(nowMs);
            return answer.add(meter.takeUnpublished(nowMs).amount);
        }
    }

    /** The bound of a metric that Kafka removed while a request of an overdrawn tenant asked for it, per second. */
    private static JsonNode removed() {
        KafkaMeters meters = new KafkaMeters(MAX_MUTE_MS, new Window(11, 1_000), Time.SYSTEM::milliseconds);
        CounterKey member = new CounterKey(Kind.PRODUCE, new Tags("alice", "", "shop"));
        long nowMs = System.currentTimeMillis();
        try (Metrics metrics = metricsOf(meters)) {
            Sensor sensor = sensor(metrics, member, WINDOW);
            meters.common(member.ofTenant()).set(1.0, 1.0, false, nowMs);
            sensor.record(100_000.0, nowMs, false);
            KafkaMeter meter = meters.of(member);
            meter.look(nowMs);
            meter.bind(1e6, nowMs);
            Map<String, String> tags = KafkaMeters.metricTags(member.tags);
            KafkaMetric metric = metrics.metric(metrics.metricName("byte-rate", "Produce", "", tags));
            meter.remove(metric, nowMs);
            return JSON.getNodeFactory().numberNode(metric.config().quota().bound());
        }
    }

    /**
     * The waits in ms of mutations that come one after the other, each once it may; those that the meter tells of, and whether it
     * tells at once; and what is left of the bucket. Strict ones are asked for, and charged if they aren't refused.
     */
    private static JsonNode mutations(JsonNode asked) {
        ManualTime time = new ManualTime();
        time.sleep(1_000_000); // the bucket is full
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode waitsMs = answer.putArray("waits_ms");
        ArrayNode toldMs = answer.putArray("told_ms");
        boolean isStrict = asked.path("strict").booleanValue();
        try (Metrics metrics = new Metrics(new MetricConfig(), Collections.emptyList(), time, false)) {
            Sensor sensor = metrics.sensor("mutations");
            MetricName name = metrics.metricName("tokens", "ControllerMutation");
            sensor.add(name, new TokenBucket(), new MetricConfig()
                    .samples(11)
                    .timeWindow(1, TimeUnit.SECONDS)
                    .quota(Quota.upperBound(asked.get("limit").doubleValue())));
            KafkaMetric metric = metrics.metric(name);
            CounterKey counter = new CounterKey(Kind.MUTATION, new Tags("alice", ""));
            Window window = new Window(11, 1_000);
            KafkaMeter meter = new KafkaMeter(counter, window, new LongestMute(MAX_MUTE_MS, -1), time::milliseconds);
            MetricName charged = metrics.metricName("mutation-rate", "ControllerMutation");
            sensor.add(charged, new Rate(), new MetricConfig().samples(11).timeWindow(1, TimeUnit.SECONDS));
            meter.add(metrics.metric(charged), time.milliseconds());
            metric.config(new Bound(metric, meter, asked.get("limit").doubleValue(), MAX_MUTE_MS, false));
            for (JsonNode amount : asked.get("amounts")) {
                long waitMs = 0;
                try {
                    if (isStrict) {
                        sensor.checkQuotas(time.milliseconds());
                    }
                    sensor.record(amount.doubleValue(), time.milliseconds(), !isStrict);
                } catch (QuotaViolationException error) {
                    waitMs = Math.round(-error.value() / error.bound() * 1_000);
                }
                waitsMs.add(waitMs);
                meter.look(time.milliseconds());
                long heldMs = Math.max(0, meter.heldUntilMs() - time.milliseconds());
                toldMs.add(meter.hasUnpublished() ? heldMs : 0);
                meter.takeUnpublished(time.milliseconds());
                time.sleep(waitMs);
            }
            return answer.put("tokens", ((Number) metric.metricValue()).doubleValue());
        }
    }

    /**
     * The waits in ms of mutations of a member that are asked for a second apart, while another one has used its tenant's
     * bucket of 10 a second up for 10 s; and what is left of the member's own bucket after it.
     */
    private static JsonNode borrowed(JsonNode asked) {
        ManualTime time = new ManualTime();
        time.sleep(1_000_000); // the buckets are full
        KafkaMeters meters = new KafkaMeters(MAX_MUTE_MS, new Window(11, 1_000), time::milliseconds);
        CounterKey member = new CounterKey(Kind.MUTATION, new Tags("alice", "", "shop"));
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode waitsMs = answer.putArray("waits_ms");
        try (Metrics metrics = new Metrics(new MetricConfig(), Collections.singletonList(new Feed(meters)), time, false)) {
            Sensor sensor = sensor(metrics, member, WINDOW);
            MetricName name = metrics.metricName("tokens", member.kind.group, "", KafkaMeters.metricTags(member.tags));
            sensor.add(name, new TokenBucket(), new MetricConfig()
                    .samples(11)
                    .timeWindow(1, TimeUnit.SECONDS)
                    .quota(Quota.upperBound(asked.get("limit").doubleValue())));
            CommonBucket ofTenant = meters.common(member.ofTenant());
            ofTenant.set(10.0, 10.0, false, time.milliseconds());
            meters.of(member).bind(asked.get("limit").doubleValue(), time.milliseconds());
            ofTenant.charge(asked.get("charged").doubleValue(), time.milliseconds());
            for (int second = 0; second <= 10; second++) {
                try {
                    sensor.checkQuotas(time.milliseconds());
                    waitsMs.add(0);
                } catch (QuotaViolationException error) {
                    waitsMs.add(Math.round(-error.value() / error.bound() * 1_000));
                }
                time.sleep(1_000);
            }
            return answer.put("tokens", ((Number) metrics.metric(name).metricValue()).doubleValue());
        }
    }

    /** How long a client waits for its tenant's bucket of 10 a second, asked a while before it was noted, as a poll may be. */
    private static JsonNode sharedWait(JsonNode asked) {
        long nowMs = 1_000_000;
        CounterKey tenant = new CounterKey(Kind.PRODUCE, new Tags("", "", "shop"));
        CommonBucket bucket = new CommonBucket(tenant, new Window(11, 1_000), new LongestMute(MAX_MUTE_MS, 0));
        bucket.set(10.0, 10.0, false, nowMs);
        bucket.charge(asked.get("charged").doubleValue(), nowMs);
        bucket.noteThrottled(asked.get("throttle_ms").longValue(), nowMs + 20);
        return JSON.getNodeFactory().numberNode(Math.max(0, bucket.heldUntilMs() - nowMs));
    }

    /** How many ms a meter of this share isn't looked at once its client was charged an amount. */
    private static JsonNode rest(JsonNode asked) {
        KafkaMeters meters = new KafkaMeters(MAX_MUTE_MS, new Window(11, 1_000), Time.SYSTEM::milliseconds);
        long nowMs = System.currentTimeMillis();
        try (Metrics metrics = metricsOf(meters)) {
            sensor(metrics, ALICE, WINDOW).record(asked.get("amount").doubleValue(), nowMs, false);
            Meter meter = meters.of(ALICE);
            meter.look(nowMs);
            meter.bind(asked.get("share").doubleValue(), nowMs);
            meter.lookAgain(nowMs, asked.get("idle_ms").longValue());
            long restMs = 0;
            while (!meter.isDue(nowMs + restMs)) {
                restMs++;
            }
            return JSON.getNodeFactory().numberNode(restMs);
        }
    }

    /** The number of gateways and the share of one counter after each of `steps`. */
    private static JsonNode shares(JsonNode asked) throws IOException {
        Window window = new Window(asked.get("samples").intValue(), asked.get("window_ms").longValue());
        Shares shares = new Shares("me", asked.get("id_stem").textValue(), window);
        shares.expect(asked.get("expected").intValue());
        CounterKey counter = new CounterKey(Kind.ofKey(asked.get("quota").textValue()), new Tags("alice", "app"));
        ArrayNode answer = JSON.createArrayNode();
        for (JsonNode step : asked.get("steps")) {
            long nowMs = step.get("now_ms").longValue();
            if (step.has("record")) {
                Sums sums = new Sums(step.get("record").textValue().getBytes(StandardCharsets.UTF_8), "me");
                List<CounterKey> resets = shares.take(sums, nowMs);
                if (step.has("resets")) {
                    answer.add(resets.size());
                }
            } else if (step.has("step_back")) {
                shares.stepBack(nowMs);
            } else {
                boolean isCharged = step.get("charged").booleanValue();
                double limit = step.get("limit").doubleValue();
                double share = shares.share(counter, limit, isCharged, step.get("held_until_ms").longValue(), nowMs);
                answer.addArray().add(shares.gateways(nowMs)).add(share);
            }
        }
        return answer;
    }

    /** What stands for each of `names` in tags. */
    private static JsonNode names(JsonNode asked) {
        ArrayNode answer = JSON.createArrayNode();
        asked.get("names").forEach(name -> answer.add(Names.bounded(name.textValue())));
        return answer;
    }

    /** The counters that a broker has made once a user has come with so many client-ids of `length` characters. */
    private static JsonNode invented(JsonNode asked) {
        BrokerGateway gateway = gateway(asked);
        if (asked.get("limited").booleanValue()) {
            gateway.kafkaQuotas.enforced(Kind.REQUEST).put(new Entity(null, Entity.DEFAULT), 10.0);
        }
        gateway.kafkaQuotas.enforced(Kind.REQUEST).put(new Entity(null, "known"), 20.0);
        ObjectNode window = JSON.createObjectNode().put("samples", 11).put("window_ms", 1_000);
        Map<CounterKey, Sensor> sensors = new HashMap<>();
        try (Metrics metrics = metricsOf(gateway.meters)) {
            for (int number = 0; number <= asked.get("names").intValue(); number++) {
                String padding = String.join("", Collections.nCopies(asked.get("length").intValue(), "x"));
                String name = number == asked.get("names").intValue() ? "known" : number + padding;
                CounterKey counter = gateway.meterOf(Kind.REQUEST, "alice", name);
                sensors.computeIfAbsent(counter, key -> sensor(metrics, key, window));
            }
        }
        ObjectNode answer = JSON.createObjectNode().put("counters", sensors.size());
        answer.put("more", sensors.containsKey(new CounterKey(Kind.REQUEST, new Tags("", NewNames.MORE))));
        answer.put("known", sensors.containsKey(new CounterKey(Kind.REQUEST, new Tags("", "known"))));
        answer.put("of_user", sensors.containsKey(new CounterKey(Kind.REQUEST, new Tags("alice", ""))));
        answer.put("refused", gateway.getRequestsOfMoreNames());
        return answer.put("longest", sensors.keySet().stream().mapToInt(key -> key.tags.clientId.length()).max().getAsInt());
    }

    private static BrokerGateway gateway(JsonNode asked) {
        Map<String, String> configs = new HashMap<>();
        JsonNode properties = asked.get("properties");
        properties.fieldNames().forEachRemaining(name -> configs.put(name, properties.get(name).textValue()));
        return new BrokerGateway(new BrokerSettings(configs));
    }

    /**
     * A heartbeat right after the first charges of `clients` (user, client-id, amount), before anybody has looked at their
     * meters; and the one an hour later, when others have come.
     */
    private static JsonNode heartbeat(JsonNode asked) throws IOException {
        BrokerGateway gateway = gateway(asked);
        gateway.takeLimits(view(asked).inForce());
        Map<CounterKey, Sensor> sensors = new HashMap<>();
        ArrayNode answer = JSON.createArrayNode();
        ManualTime time = new ManualTime();
        Feed feed = new Feed(gateway.meters);
        try (Metrics metrics = new Metrics(new MetricConfig(), Collections.singletonList(feed), time, false)) {
            for (JsonNode client : asked.get("clients")) {
                CounterKey counter = gateway.meterOf(Kind.PRODUCE, client.get(0).textValue(), client.get(1).textValue());
                sensors.computeIfAbsent(counter, key -> sensor(metrics, key, WINDOW))
                        .record(client.get(2).doubleValue(), time.milliseconds(), false);
            }
            for (long nowMs : new long[] {time.milliseconds(), System.currentTimeMillis() + 3_600_000}) {
                answer.add(new String(gateway.heartbeat(null, nowMs), StandardCharsets.UTF_8));
            }
        }
        return answer.add(sensors.size());
    }

    /** How many of 10 000 new names are admitted at each of `at_s`, in seconds after the start. */
    private static JsonNode newNames(JsonNode asked) {
        NewNames names = new NewNames(0);
        ArrayNode answer = JSON.createArrayNode();
        for (JsonNode atS : asked.get("at_s")) {
            long nowNs = atS.longValue() * 1_000_000_000;
            answer.add(IntStream.range(0, 10_000).filter(number -> names.admits(nowNs)).count());
        }
        return answer;
    }

    /** The events of what `charges` (quota, user, client-id, amount, time) recorded in sensors such as Kafka's own. */
    private static JsonNode amounts(JsonNode asked) throws IOException {
        BrokerGateway gateway = gateway(asked);
        gateway.takeLimits(view(asked).inForce());
        Events events = new Events("gateway", "me");
        ArrayNode answer = JSON.createArrayNode();
        try (Metrics metrics = metricsOf(gateway.meters)) {
            Map<CounterKey, Sensor> sensors = new HashMap<>();
            long nowMs = 0;
            for (JsonNode step : asked.get("charges")) {
                Kind kind = Kind.ofKey(step.get(0).textValue());
                CounterKey meter = gateway.meterOf(kind, step.get(1).textValue(), step.get(2).textValue());
                nowMs = step.get(4).longValue();
                Sensor sensor = sensors.computeIfAbsent(meter, key -> sensor(metrics, key, asked));
                sensor.record(step.get(3).doubleValue(), nowMs, false);
                if (step.get(5).booleanValue()) {
                    look(gateway, events, nowMs, answer);
                }
            }
            look(gateway, events, nowMs, answer);
        }
        return answer;
    }

    private static void look(BrokerGateway gateway, Events events, long nowMs, ArrayNode answer) {
        for (Meter meter : gateway.meters.all()) {
            meter.look(nowMs);
            if (meter.hasUnpublished()) {
                Meter.Sum sum = meter.takeUnpublished(nowMs);
                Tags client = gateway.named(meter.key, sum.callers);
                byte[] event = events.sum(meter.counter.kind, client, sum, Collections.emptyMap(), null, nowMs);
                answer.add(new String(event, StandardCharsets.UTF_8));
            }
        }
    }

    /** Metrics of which these meters are told, as a broker's are. */
    private static Metrics metricsOf(KafkaMeters meters) {
        return new Metrics(new MetricConfig(), Collections.singletonList(new Feed(meters)), Time.SYSTEM, false);
    }

    private static Sensor sensor(Metrics metrics, CounterKey counter, JsonNode asked) {
        Map<String, String> tags = KafkaMeters.metricTags(counter.tags);
        MetricName name = metrics.metricName(counter.kind.chargedMetric, counter.kind.group, "", tags);
        Sensor sensor = metrics.sensor(counter.kind.group + "-" + String.join(":", tags.values()));
        sensor.add(name, new Rate(), new MetricConfig()
                .samples(asked.get("samples").intValue())
                .timeWindow(asked.get("window_ms").longValue(), TimeUnit.MILLISECONDS)
                .quota(Quota.upperBound(1e12)));
        return sensor;
    }

    /** What is estimated, in one look a second, of `amount` charged every 100 ms for `seconds`. */
    private static JsonNode estimate(JsonNode asked) {
        ManualTime time = new ManualTime();
        double estimated = 0.0;
        try (Metrics metrics = new Metrics(new MetricConfig(), Collections.emptyList(), time, false)) {
            Sensor sensor = metrics.sensor("estimate");
            MetricName name = metrics.metricName("byte-rate", "Produce");
            sensor.add(name, new Rate(), new MetricConfig().samples(11).timeWindow(1, TimeUnit.SECONDS));
            Samples samples = new Samples(metrics.metric(name), null, time.milliseconds());
            for (int tenth = 1; tenth <= 10 * asked.get("seconds").intValue(); tenth++) {
                time.sleep(100);
                sensor.record(asked.get("amount").doubleValue(), time.milliseconds(), false);
                if (tenth % 10 == 0) {
                    samples.look(time.milliseconds());
                    estimated += samples.gained();
                }
            }
        }
        return JSON.getNodeFactory().numberNode(estimated);
    }

    /** Why a broker with these properties doesn't start; null if it does. */
    private static JsonNode settings(JsonNode asked) {
        Map<String, Object> configs = new HashMap<>();
        JsonNode properties = asked.get("properties");
        properties.fieldNames().forEachRemaining(key -> configs.put(key, properties.get(key).asText()));
        try {
            new BrokerSettings(configs);
            return JSON.nullNode();
        } catch (ConfigException error) {
            return JSON.valueToTree(error.getMessage());
        }
    }

    private static LimitsView view(JsonNode asked) throws IOException {
        LimitsView view = new LimitsView();
        read(asked, view);
        return view;
    }

    /** Reads the records, and returns how many of them Sluice doesn't write. */
    private static int read(JsonNode asked, LimitsView view) throws IOException {
        int garbage = 0;
        for (JsonNode record : asked.get("records")) {
            byte[] key = record.get(0).binaryValue();
            byte[] value = record.get(1).isNull() ? null : record.get(1).binaryValue();
            try {
                view.take(key, value, 0);
            } catch (IOException error) {
                garbage++;
            }
        }
        return garbage;
    }

    static final class Feed implements MetricsReporter {
        private final KafkaMeters meters;

        Feed(KafkaMeters meters) {
            this.meters = meters;
        }

        @Override
        public void configure(Map<String, ?> configs) {}

        @Override
        public void init(List<KafkaMetric> metrics) {}

        @Override
        public void metricChange(KafkaMetric metric) {
            meters.add(metric, 0);
        }

        @Override
        public void metricRemoval(KafkaMetric metric) {
            meters.remove(metric, 0);
        }

        @Override
        public void close() {}
    }
}
