package sluice.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import kafka.server.KafkaConfig;
import org.junit.jupiter.api.TestInfo;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Kafka's own quota tests on nodes that have Sluice's plugin. The properties of the nodes are all that differs. */
public final class WithPlugin {
    private static final Map<String, String> PLUGIN = Map.of(
            "client.quota.callback.class", "sluice.kafka.SluiceQuotaCallback",
            "metric.reporters", "sluice.kafka.SluiceMetricsReporter",
            // Nobody listens there: without a job, the quotas that Kafka keeps hold.
            "sluice.bootstrap.servers", "127.0.0.1:9");

    private WithPlugin() {}

    private static Seq<KafkaConfig> brokersWithPlugin(scala.collection.Seq<KafkaConfig> configs) {
        List<KafkaConfig> changed = new ArrayList<>();
        for (KafkaConfig config : CollectionConverters.asJava(configs)) {
            Properties properties = new Properties();
            properties.putAll(config.originals());
            properties.putAll(PLUGIN);
            changed.add(KafkaConfig.fromProps(properties));
        }
        return CollectionConverters.asScala(changed).toList();
    }

    private static Seq<Properties> controllersWithPlugin(scala.collection.Seq<Properties> configs) {
        List<Properties> changed = new ArrayList<>(CollectionConverters.asJava(configs));
        changed.forEach(properties -> properties.putAll(PLUGIN));
        return CollectionConverters.asScala(changed).toList();
    }

    /** See Kafka. */
    public static class ClientIdQuotaTest extends kafka.api.ClientIdQuotaTest {
        @Override
        public Seq<KafkaConfig> generateConfigs() {
            return brokersWithPlugin(super.generateConfigs());
        }

        @Override
        public Seq<Properties> kraftControllerConfigs(TestInfo test) {
            return controllersWithPlugin(super.kraftControllerConfigs(test));
        }
    }

    /** See Kafka. */
    public static class UserClientIdQuotaTest extends kafka.api.UserClientIdQuotaTest {
        @Override
        public Seq<KafkaConfig> generateConfigs() {
            return brokersWithPlugin(super.generateConfigs());
        }

        @Override
        public Seq<Properties> kraftControllerConfigs(TestInfo test) {
            return controllersWithPlugin(super.kraftControllerConfigs(test));
        }
    }

    /** See Kafka. */
    public static class UserQuotaTest extends kafka.api.UserQuotaTest {
        @Override
        public Seq<KafkaConfig> generateConfigs() {
            return brokersWithPlugin(super.generateConfigs());
        }

        @Override
        public Seq<Properties> kraftControllerConfigs(TestInfo test) {
            return controllersWithPlugin(super.kraftControllerConfigs(test));
        }
    }

    /** See Kafka. */
    public static class RequestQuotaTest extends kafka.server.RequestQuotaTest {
        @Override
        public Seq<KafkaConfig> generateConfigs() {
            return brokersWithPlugin(super.generateConfigs());
        }

        @Override
        public Seq<Properties> kraftControllerConfigs(TestInfo test) {
            return controllersWithPlugin(super.kraftControllerConfigs(test));
        }
    }

    /** See Kafka. */
    public static class ControllerMutationQuotaTest extends kafka.server.ControllerMutationQuotaTest {
        @Override
        public Seq<KafkaConfig> generateConfigs() {
            return brokersWithPlugin(super.generateConfigs());
        }

        @Override
        public Seq<Properties> kraftControllerConfigs(TestInfo test) {
            return controllersWithPlugin(super.kraftControllerConfigs(test));
        }
    }
}
