package sluice.proxy;

import org.apache.kafka.common.message.ApiVersionsResponseData.ApiVersion;
import org.apache.kafka.common.message.ApiVersionsResponseData.ApiVersionCollection;
import org.apache.kafka.common.protocol.ApiKeys;

/**
 * What a broker says of its oldest Produce. Brokers of Kafka 4 offer versions that they refuse (KAFKA-18659), as librdkafka
 * compresses by gzip, snappy and lz4 only where version 0 is offered. Kroxylicious 0.12 would raise it, after this filter.
 */
final class OldestProduce extends ApiVersion {
    private OldestProduce(ApiVersion offered) {
        setApiKey(offered.apiKey());
        super.setMinVersion(offered.minVersion());
        setMaxVersion(offered.maxVersion());
    }

    static void keep(ApiVersionCollection offered) {
        ApiVersion produce = offered.find(ApiKeys.PRODUCE.id);
        if (produce != null) {
            offered.remove(produce);
            offered.add(new OldestProduce(produce));
        }
    }

    @Override
    public ApiVersion setMinVersion(short version) {
        return this;
    }
}
