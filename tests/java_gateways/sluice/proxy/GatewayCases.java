package sluice.proxy;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import sluice.kafka.CounterKey;
import sluice.kafka.Kind;
import sluice.kafka.ProxyGateway;
import sluice.kafka.SteppedGateway;

/** Gateways that tests step: each line is what to do with one of them, a JSON object, and is answered by a line. */
public final class GatewayCases {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final List<SteppedGateway> gateways = new ArrayList<>();
    private final List<ProxyMeters> meters = new ArrayList<>(); // null of the plugin
    private static final double NS_PER_POINT = 1e7;

    private GatewayCases() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // Kafka's log goes there
        GatewayCases cases = new GatewayCases();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(cases.answer(JSON.readTree(line))));
        }
    }

    private Object answer(JsonNode asked) throws Exception {
        if (asked.has("properties")) {
            return add(asked);
        }
        SteppedGateway gateway = gateways.get(asked.get("number").intValue());
        switch (asked.get("do").textValue()) {
            case "limits":
                for (JsonNode record : asked.get("records")) {
                    gateway.takeLimit(record.get(0).binaryValue(), record.get(1).binaryValue());
                }
                return null;
            case "sums":
                for (JsonNode record : asked.get("records")) {
                    gateway.takeSums(record.textValue().getBytes(StandardCharsets.UTF_8));
                }
                return null;
            case "sleep":
                gateway.sleep(asked.get("ms").longValue());
                ArrayNode events = JSON.createArrayNode();
                gateway.takePublished().forEach(event -> events.add(new String(event, StandardCharsets.UTF_8)));
                return events;
            default:
                ProxyMeters ofProxy = meters.get(asked.get("number").intValue());
                return ofProxy == null ? chargeKafka(gateway, asked) : charge(ofProxy, asked);
        }
    }

    private int add(JsonNode asked) {
        Map<String, String> configs = new LinkedHashMap<>();
        JsonNode properties = asked.get("properties");
        properties.fieldNames().forEachRemaining(name -> configs.put(name, properties.get(name).textValue()));
        SteppedGateway gateway = new SteppedGateway(configs, asked.get("is_proxy").booleanValue());
        gateways.add(gateway);
        meters.add(gateway.gateway instanceof ProxyGateway proxy
                ? new ProxyMeters(proxy, gateway.settings, gateway.time())
                : null);
        return gateways.size() - 1;
    }

    /** The wait in ms for an amount of a client; of mutations, also how many of the topics are admitted. */
    private static ObjectNode charge(ProxyMeters meters, JsonNode asked) {
        Client client = new Client(asked.get("user").textValue(), asked.get("client_id").textValue());
        CounterKey counter = meters.counter(kind(asked), client);
        ObjectNode answer = JSON.createObjectNode();
        if (counter.kind != Kind.MUTATION) {
            double amount = asked.get("amount").doubleValue();
            long waitMs = counter.kind == Kind.REQUEST
                    ? meters.chargeTime(client, (long) amount)
                    : meters.charge(counter, amount);
            return answer.put("wait_ms", waitMs);
        }
        Map<String, Integer> partitions = new LinkedHashMap<>();
        asked.get("amount").forEach(count -> partitions.put("t" + partitions.size(), count.intValue()));
        return answer.put("admitted", meters.admit(counter, partitions).size()).put("wait_ms", meters.waitMs(counter));
    }

    /** The same of Kafka's own meters, in a broker. */
    private static ObjectNode chargeKafka(SteppedGateway broker, JsonNode asked) {
        Kind kind = kind(asked);
        String clientId = asked.get("client_id").textValue();
        CounterKey counter = broker.gateway.meterOf(kind, asked.get("user").textValue(), clientId);
        ObjectNode answer = JSON.createObjectNode();
        if (kind != Kind.MUTATION) {
            double amount = asked.get("amount").doubleValue();
            boolean isTime = kind == Kind.REQUEST;
            long waitMs = broker.kafka.charge(counter, isTime ? amount / NS_PER_POINT : amount);
            return answer.put("wait_ms", isTime ? Math.min(waitMs, broker.settings.window.windowMs) : waitMs);
        }
        int admitted = 0;
        for (JsonNode partitions : asked.get("amount")) {
            if (broker.kafka.waitMs(counter) == 0) {
                broker.kafka.charge(counter, partitions.doubleValue());
                admitted++;
            }
        }
        return answer.put("admitted", admitted).put("wait_ms", broker.kafka.waitMs(counter));
    }

    private static Kind kind(JsonNode asked) {
        return SteppedGateway.kind(asked.get("quota").textValue());
    }
}
