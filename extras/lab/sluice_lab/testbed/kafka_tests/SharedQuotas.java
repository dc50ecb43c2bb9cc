package sluice.tests;

import kafka.api.BaseQuotaTest;
import kafka.api.QuotaTestClients;
import kafka.server.KafkaBroker;
import org.apache.kafka.common.security.auth.KafkaPrincipal;

/**
 * The clients of a test whose brokers share the quotas. Kafka's wait until the broker's limit is the quota; the limit of
 * a broker is its share, so these wait until the limits of a quota that was altered are in force everywhere.
 */
final class SharedQuotas extends QuotaTestClients {
    private final QuotaTestClients clients;
    private long altered = -1;

    SharedQuotas(BaseQuotaTest test) {
        super(test.topic1(), test.leaderNode(), test.producerClientId(), test.consumerClientId(),
                test.quotaTestClients().producer(), test.quotaTestClients().consumer(), test.quotaTestClients().adminClient());
        clients = test.quotaTestClients();
    }

    @Override
    public void overrideQuotas(long producerQuota, long consumerQuota, double requestQuota) {
        altered = JobInForce.limitsVersion();
        clients.overrideQuotas(producerQuota, consumerQuota, requestQuota);
    }

    @Override
    public void removeQuotaOverrides() {
        altered = JobInForce.limitsVersion();
        clients.removeQuotaOverrides();
    }

    @Override
    public void waitForQuotaUpdate(long producerQuota, long consumerQuota, double requestQuota, KafkaBroker server) {
        JobInForce.await(() -> JobInForce.limitsVersion() > altered, "the altered quotas aren't in force");
    }

    @Override
    public KafkaPrincipal userPrincipal() {
        return clients.userPrincipal();
    }

    @Override
    public scala.collection.Map<String, String> quotaMetricTags(String clientId) {
        return clients.quotaMetricTags(clientId);
    }
}
