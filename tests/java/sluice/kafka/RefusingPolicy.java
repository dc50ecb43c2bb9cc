package sluice.kafka;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.AlterConfigPolicy;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** Refuses topics with a config that the file `test.refused.configs` has as a line, as managed clusters do. */
public final class RefusingPolicy implements CreateTopicPolicy, AlterConfigPolicy {
    private Path refused;

    @Override
    public void configure(Map<String, ?> configs) {
        refused = Path.of(String.valueOf(configs.get("test.refused.configs")));
    }

    @Override
    public void validate(CreateTopicPolicy.RequestMetadata topic) {
        check(topic.configs().keySet());
    }

    @Override
    public void validate(AlterConfigPolicy.RequestMetadata topic) {
        check(topic.configs().keySet());
    }

    private void check(Set<String> configs) {
        try {
            for (String config : Files.readAllLines(refused)) {
                if (configs.contains(config) || config.equals("replication.factor")) {
                    throw new PolicyViolationException("Altering " + config + " is not allowed.");
                }
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void close() {}
}
