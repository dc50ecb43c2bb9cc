package sluice.kafka;

import java.util.Collections;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.server.quota.ClientQuotaCallback;
import org.apache.kafka.server.quota.ClientQuotaEntity;
import org.apache.kafka.server.quota.ClientQuotaType;

/**
 * Makes a broker a gateway of Sluice: `client.quota.callback.class`. Kafka meters and throttles; this class says whom a
 * request counts for and what the limit is, which is the broker's share of the quota.
 *
 * <p>Kafka 4.3 closes a plugin only if it is AutoCloseable, which ClientQuotaCallback isn't.
 *
 * <p>Request threads call it for every request; it never waits.
 */
public final class SluiceQuotaCallback implements ClientQuotaCallback, AutoCloseable {
    /** All clients of Sluice itself are metered as one, without a limit. No other counter has such tags. */
    private static final Map<String, String> EXEMPT_TAGS = Collections.singletonMap("sluice", "exempt");

    /** The threads that bring quotas: they ask for limits to set them as the bounds of meters. They serve no requests. */
    private final ThreadLocal<Boolean> bringsQuotas = ThreadLocal.withInitial(() -> false);

    private final AtomicBoolean isClosed = new AtomicBoolean();
    private BrokerGateway gateway;

    @Override
    public void configure(Map<String, ?> configs) {
        gateway = Nodes.open(configs);
    }

    @Override
    public Map<String, String> quotaMetricTags(ClientQuotaType type, KafkaPrincipal principal, String clientId) {
        String id = clientId == null ? "" : clientId;
        if (gateway.ownClients.isExempt(principal, id)) {
            return EXEMPT_TAGS;
        }
        gateway.noteIfOwn(principal, id);
        return KafkaMeters.metricTags(gateway.meterOf(Kind.of(type), principal.getName(), id).tags);
    }

    /**
     * Kafka asks for the limit when it makes a meter, when a quota has changed, and to bound what a fetch may hold: then
     * it is S-1 windows of the answer.
     */
    @Override
    public Double quotaLimit(ClientQuotaType type, Map<String, String> metricTags) {
        Tags tags = KafkaMeters.tagsOf(metricTags);
        if (tags == null) {
            return null;
        }
        CounterKey counter = new CounterKey(Kind.of(type), tags);
        boolean isForFetch = counter.kind == Kind.FETCH && !bringsQuotas.get();
        return isForFetch ? gateway.fetchLimit(counter) : gateway.limit(counter);
    }

    @Override
    public void updateQuota(ClientQuotaType type, ClientQuotaEntity entity, double newValue) {
        bringsQuotas.set(true);
        gateway.kafkaQuotas.enforced(Kind.of(type)).put(entityOf(entity), newValue);
    }

    @Override
    public void removeQuota(ClientQuotaType type, ClientQuotaEntity entity) {
        bringsQuotas.set(true);
        gateway.kafkaQuotas.enforced(Kind.of(type)).remove(entityOf(entity));
    }

    /** Shares move all the time; the plugin sets them itself, because here a request thread would walk all metrics. */
    @Override
    public boolean quotaResetRequired(ClientQuotaType type) {
        return false;
    }

    /** No {@code @Override}: Kafka 5.0 has no such method. KRaft before 4.0 never calls it: the gateway counts brokers. */
    @SuppressWarnings("removal") // deprecated since 4.4, and to be implemented until 4.3
    public boolean updateClusterMetadata(Cluster cluster) {
        return false;
    }

    @Override
    public void close() {
        if (gateway != null && isClosed.compareAndSet(false, true)) {
            Nodes.close(gateway);
        }
    }

    private static Entity entityOf(ClientQuotaEntity entity) {
        Object user = null;
        Object clientId = null;
        for (ClientQuotaEntity.ConfigEntity part : entity.configEntities()) {
            switch (part.entityType()) {
                case USER:
                    user = part.name();
                    break;
                case DEFAULT_USER:
                    user = Entity.DEFAULT;
                    break;
                case CLIENT_ID:
                    clientId = part.name();
                    break;
                default:
                    clientId = Entity.DEFAULT;
            }
        }
        return new Entity(user, clientId);
    }
}
