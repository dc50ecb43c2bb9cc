package sluice.tests;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.function.BooleanSupplier;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import kafka.api.BaseQuotaTest;

/** A job of Sluice on the brokers of the test, if the system property "job" has the command that runs one. */
final class JobInForce {
    /** The listener for Sluice alone, so that the job needs no login where the clients of the test do. */
    private static final String LISTENER = "SLUICE";

    private static final String COMMAND = System.getProperty("job");
    private static final long SECONDS = 120;

    private static String brokers;
    private static Process process;
    private static int jobs;

    private JobInForce() {}

    /** Gives a broker a listener for Sluice. */
    static void addListener(Properties broker) {
        if (COMMAND == null) {
            return;
        }
        nameBrokers(broker);
        String port = "0".equals(broker.getProperty("node.id")) ? brokers.substring(brokers.indexOf(':') + 1) : "0";
        for (String listeners : new String[] {"listeners", "advertised.listeners"}) {
            broker.computeIfPresent(listeners, (name, present) -> present + "," + LISTENER + "://127.0.0.1:" + port);
        }
        broker.merge("listener.security.protocol.map", LISTENER + ":PLAINTEXT", (map, own) -> map + "," + own);
    }

    /** Tells a node where Sluice's topics are: at the first broker, whose port has to be known before it starts. */
    static void nameBrokers(Properties node) {
        if (COMMAND == null) {
            return;
        }
        if (brokers == null) {
            try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
                brokers = "127.0.0.1:" + free.getLocalPort();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
        node.put("sluice.bootstrap.servers", brokers);
    }

    /** Starts the job, and waits until each node has limits that it has published. */
    static void start(Object test) {
        if (COMMAND == null) {
            return;
        }
        try {
            process = new ProcessBuilder((COMMAND + "-" + jobs++ + " " + brokers).split(" "))
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start();
            String line = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8)).readLine();
            if (!"running".equals(line)) {
                throw new IllegalStateException("the job doesn't run: " + line);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        await(() -> limitsVersion() >= 0, "a node has no limits of the job");
        if (test instanceof BaseQuotaTest base) {
            base.quotaTestClients_$eq(new SharedQuotas(base));
        }
    }

    /** Ends the job. */
    static void stop() {
        brokers = null;
        if (process != null) {
            process.destroy();
            process.onExit().join();
            process = null;
        }
    }

    /** The oldest version of the limits that is in force at a node; -1 where those of Kafka still are. */
    static long limitsVersion() {
        MBeanServer beans = ManagementFactory.getPlatformMBeanServer();
        try {
            long oldest = Long.MAX_VALUE;
            for (ObjectName node : beans.queryNames(new ObjectName("sluice:type=gateway,node=*"), null)) {
                oldest = Math.min(oldest, ((Number) beans.getAttribute(node, "LimitsVersion")).longValue());
            }
            return oldest == Long.MAX_VALUE ? -1 : oldest;
        } catch (JMException error) {
            throw new IllegalStateException(error);
        }
    }

    static void await(BooleanSupplier done, String otherwise) {
        long deadline = System.nanoTime() + SECONDS * 1_000_000_000L;
        while (!done.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError(otherwise + " after " + SECONDS + " s");
            }
            try {
                Thread.sleep(50);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
