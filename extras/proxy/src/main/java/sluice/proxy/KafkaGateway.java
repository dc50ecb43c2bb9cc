package sluice.proxy;

import io.kroxylicious.proxy.KafkaProxy;
import io.kroxylicious.proxy.config.ConfigParser;
import io.kroxylicious.proxy.internal.config.Features;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;

/** Runs a Kroxylicious proxy with a configuration file until SIGTERM. It prints a line when clients may connect. */
public final class KafkaGateway {
    private KafkaGateway() {}

    public static void main(String[] arguments) throws Exception {
        ConfigParser parser = new ConfigParser();
        try (InputStream file = Files.newInputStream(Path.of(arguments[0]))) {
            KafkaProxy proxy = new KafkaProxy(parser, parser.parseConfiguration(file), Features.defaultFeatures());
            Runtime.getRuntime().addShutdownHook(new Thread(() -> close(proxy)));
            proxy.startup();
            System.out.println("Kafka gateway started");
            proxy.block();
        } catch (RuntimeException error) {
            System.out.println("ERROR " + rootOf(error));
            System.exit(1);
        }
    }

    private static void close(KafkaProxy proxy) {
        try {
            proxy.close();
        } catch (Exception error) {
            System.out.println("ERROR " + error);
        }
    }

    private static Throwable rootOf(Throwable error) {
        return error.getCause() == null ? error : rootOf(error.getCause());
    }
}
