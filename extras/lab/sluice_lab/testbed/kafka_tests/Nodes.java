package sluice.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import kafka.server.KafkaConfig;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.TestInfo;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** What the nodes of a test have in addition: the system properties whose names begin with "node.". */
final class Nodes {
    private static final String PREFIX = "node.";
    private static final Map<String, String> ADDED = System.getProperties().stringPropertyNames().stream()
            .filter(name -> name.startsWith(PREFIX))
            .collect(Collectors.toMap(name -> name.substring(PREFIX.length()), System::getProperty));

    private Nodes() {}

    /** Skips a test on ZooKeeper, which Kafka 3.9 has beside each on KRaft. */
    static void skipZooKeeper(TestInfo test) {
        Assumptions.assumeFalse(test.getDisplayName().contains("quorum=zk"), "on ZooKeeper");
    }

    static KafkaConfig broker(KafkaConfig config) {
        Properties properties = new Properties();
        properties.putAll(config.originals());
        properties.putAll(ADDED);
        JobInForce.addListener(properties);
        return KafkaConfig.fromProps(properties);
    }

    static Seq<Properties> controllers(scala.collection.Seq<Properties> configs) {
        List<Properties> changed = new ArrayList<>(CollectionConverters.asJava(configs));
        changed.forEach(properties -> properties.putAll(ADDED));
        changed.forEach(JobInForce::nameBrokers);
        return CollectionConverters.asScala(changed).toList();
    }
}
