package sluice.proxy;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.FetchRequestData;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.ProduceRequestData;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ShareFetchRequestData;
import org.apache.kafka.common.message.ShareFetchResponseData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.record.BaseRecords;
import sluice.kafka.CounterKey;
import sluice.kafka.Kind;
import sluice.kafka.ProxyGateway;

/**
 * The counters that a message is charged to, in order, each with its amount. A client's bytes are those of the whole
 * message, as in Kafka; a topic-partition's are those of its records (KIP-1010).
 */
final class Charges {
    private final ProxyGateway gateway;
    private final TopicNames names;
    private final Map<CounterKey, Integer> amounts = new LinkedHashMap<>();

    private Charges(ProxyGateway gateway, TopicNames names) {
        this.gateway = gateway;
        this.names = names;
    }

    /** Those of a request. A fetch is charged nothing yet: these counters hold it, and it is made to hold no more than they let. */
    static Map<CounterKey, Integer> ofRequest(
            RequestHeaderData header, ApiMessage request, Client client, ProxyGateway gateway, TopicNames names) {
        Charges charges = new Charges(gateway, names);
        if (request instanceof ProduceRequestData produce) {
            charges.add(Kind.PRODUCE, client, size(header, request));
            produce.topicData().forEach(topic -> topic.partitionData()
                    .forEach(part -> charges.add(Kind.TOPIC_PRODUCE, topic.name(), part.index(), size(part.records()))));
        } else if (request instanceof FetchRequestData fetch) {
            fetch.setMaxBytes(gateway.fetchBytes(charges.add(Kind.FETCH, client, 0), fetch.maxBytes()));
            fetch.setMinBytes(Math.min(fetch.minBytes(), fetch.maxBytes()));
            fetch.topics().forEach(topic -> topic.partitions().forEach(part -> {
                String name = charges.name(topic.topic(), topic.topicId());
                CounterKey counter = charges.add(Kind.TOPIC_FETCH, name, part.partition(), 0);
                part.setPartitionMaxBytes(gateway.fetchBytes(counter, part.partitionMaxBytes()));
            }));
        } else if (request instanceof ShareFetchRequestData fetch) {
            fetch.setMaxBytes(gateway.fetchBytes(charges.add(Kind.FETCH, client, 0), fetch.maxBytes()));
            fetch.setMinBytes(Math.min(fetch.minBytes(), fetch.maxBytes()));
            fetch.topics().forEach(topic -> topic.partitions().forEach(part ->
                    charges.add(Kind.TOPIC_FETCH, charges.name("", topic.topicId()), part.partitionIndex(), 0)));
        }
        return charges.amounts;
    }

    /** Those of the response to a fetch. */
    static Map<CounterKey, Integer> ofResponse(
            ApiMessage response, short version, Client client, ProxyGateway gateway, TopicNames names) {
        Charges charges = new Charges(gateway, names);
        if (response instanceof FetchResponseData fetched) {
            charges.add(Kind.FETCH, client, size(response, version));
            fetched.responses().forEach(topic -> topic.partitions().forEach(part -> charges.add(
                    Kind.TOPIC_FETCH,
                    charges.name(topic.topic(), topic.topicId()),
                    part.partitionIndex(),
                    size(part.records()))));
        } else if (response instanceof ShareFetchResponseData fetched) {
            charges.add(Kind.FETCH, client, size(response, version));
            fetched.responses().forEach(topic -> topic.partitions().forEach(part -> charges.add(
                    Kind.TOPIC_FETCH, charges.name("", topic.topicId()), part.partitionIndex(), size(part.records()))));
        }
        return charges.amounts;
    }

    private CounterKey add(Kind kind, Client client, int amount) {
        CounterKey counter = client.counter(kind, gateway);
        amounts.put(counter, amount);
        return counter;
    }

    /** Null without a counter. */
    private CounterKey add(Kind kind, String topic, int partition, int amount) {
        CounterKey counter = topic == null ? null : gateway.counterOfPartition(kind, topic, partition);
        if (counter != null) {
            amounts.merge(counter, amount, Integer::sum);
        }
        return counter;
    }

    private String name(String topic, Uuid id) {
        return topic == null || topic.isEmpty() ? names.of(id) : topic;
    }

    /** A broker meters a request with its header. */
    static int size(RequestHeaderData header, ApiMessage request) {
        short version = header.requestApiVersion();
        short headerVersion = ApiKeys.forId(request.apiKey()).requestHeaderVersion(version);
        ObjectSerializationCache cache = new ObjectSerializationCache();
        return header.size(cache, headerVersion) + request.size(cache, version);
    }

    /** A broker meters the response to a fetch without its header, but with the four bytes that say how long it is. */
    private static int size(ApiMessage response, short version) {
        return Integer.BYTES + response.size(new ObjectSerializationCache(), version);
    }

    private static int size(BaseRecords records) {
        return records == null ? 0 : records.sizeInBytes();
    }
}
