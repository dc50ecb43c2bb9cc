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
import sluice.kafka.Mutations;
import sluice.kafka.ProxyGateway;
import sluice.kafka.SteppedGateway;
import sluice.kafka.Turn;

/** Gateways that tests step: each line is what to do with one of them, a JSON object, and is answered by a line. */
public final class GatewayCases {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final List<SteppedGateway> gateways = new ArrayList<>();

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
                    gateway.takeLimit(
                            record.get(0).binaryValue(), record.get(1).binaryValue(), asked.get("is_past").booleanValue());
                }
                return gateway.unreadableLimits();
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
            case "ask":
                return awaited((ProxyGateway) gateway.gateway, asked.get("requests").intValue(), asked.get("length").intValue());
            case "take_turns":
                return longestWaitMs(gateway, asked);
            case "invent":
                return inventedMiB(gateway, asked);
            default:
                return charge(gateway, asked);
        }
    }

    private int add(JsonNode asked) {
        Map<String, String> configs = new LinkedHashMap<>();
        JsonNode properties = asked.get("properties");
        properties.fieldNames().forEachRemaining(name -> configs.put(name, properties.get(name).textValue()));
        SteppedGateway gateway = new SteppedGateway(configs, asked.get("is_proxy").booleanValue());
        gateways.add(gateway);
        return gateways.size() - 1;
    }

    /** The wait in ms for an amount of a client; of mutations, also how many of the topics are admitted. */
    private static ObjectNode charge(SteppedGateway gateway, JsonNode asked) {
        Kind kind = SteppedGateway.kind(asked.get("quota").textValue());
        CounterKey counter =
                gateway.gateway.meterOf(kind, asked.get("user").textValue(), asked.get("client_id").textValue());
        ObjectNode answer = JSON.createObjectNode();
        if (kind != Kind.MUTATION) {
            return answer.put("wait_ms", gateway.charge(counter, asked.get("amount").doubleValue()));
        }
        int admitted = 0;
        for (JsonNode partitions : asked.get("amount")) {
            if (gateway.admits(counter)) {
                gateway.admit(counter, partitions.intValue());
                admitted++;
            }
        }
        boolean isRefused = admitted < asked.get("amount").size(); // else nobody asks for a wait, which plugin and Kafka note
        return answer.put("admitted", admitted).put("wait_ms", isRefused ? gateway.waitMs(counter) : 0);
    }

    /** How many of so many requests to make a topic, with a name of a length, wait for their decision. */
    private static int awaited(ProxyGateway gateway, int requests, int length) {
        CounterKey counter = gateway.meterOf(Kind.MUTATION, "ANONYMOUS", "app");
        int waiting = 0;
        for (int number = 0; number < requests; number++) {
            Map<String, Integer> partitions = Map.of("x".repeat(length), 1);
            Mutations mutations = new Mutations(counter, "ANONYMOUS", "app", "CreateTopics", 7, partitions);
            gateway.ask(mutations);
            waiting += mutations.answer().isDone() ? 0 : 1;
        }
        return waiting;
    }

    /**
     * The longest wait for a turn, in ms, of so many connections that send the next request of a size when one was served. The last
     * connection looks first each time, as if the event loop were in its favour.
     */
    private static long longestWaitMs(SteppedGateway stepped, JsonNode asked) throws Exception {
        ProxyGateway gateway = (ProxyGateway) stepped.gateway;
        CounterKey counter = gateway.meterOf(Kind.PRODUCE, "ANONYMOUS", "shop-1");
        Map<CounterKey, Double> amounts = Map.of(counter, asked.get("size").doubleValue());
        Turn[] turns = new Turn[asked.get("connections").intValue()];
        long[] sinceMs = new long[turns.length];
        long longestMs = 0;
        for (long nowMs = 0; nowMs < asked.get("ms").longValue(); nowMs += 10) {
            stepped.sleep(10);
            for (int number = turns.length - 1; number >= 0; number--) {
                turns[number] = turns[number] == null ? new Turn() : turns[number];
                longestMs = Math.max(longestMs, nowMs - sinceMs[number]);
                if (gateway.promise(amounts, turns[number]) == 0) {
                    stepped.charge(counter, asked.get("size").doubleValue());
                    gateway.endPromise(amounts);
                    turns[number] = null;
                    sinceMs[number] = nowMs;
                }
            }
        }
        return longestMs;
    }

    /** MiB of heap that are used for so many new client-ids of a length, which fetch once; with or without a response. */
    private static long inventedMiB(SteppedGateway gateway, JsonNode asked) {
        long beforeMiB = usedMiB();
        String tail = "x".repeat(asked.get("length").intValue());
        for (int number = 0; number < asked.get("names").intValue(); number++) {
            CounterKey counter = gateway.gateway.meterOf(Kind.FETCH, "shop-1", "shop-" + number + tail);
            if (asked.get("is_charged").booleanValue()) {
                gateway.charge(counter, 100.0);
            }
        }
        return usedMiB() - beforeMiB;
    }

    private static long usedMiB() {
        System.gc();
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory() >> 20;
    }
}
