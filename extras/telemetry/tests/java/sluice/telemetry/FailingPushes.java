package sluice.telemetry;

import java.lang.management.ManagementFactory;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.util.Map;
import javax.management.ObjectName;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;

/** Pushes whose context fails, more bytes than a receiver keeps at once, and then a good one; prints what it counts. */
public final class FailingPushes {
    private static final int PUSHES = 1_000;
    private static final ByteBuffer DATA = ByteBuffer.allocate(10_000);

    private FailingPushes() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> configs = Map.of("node.id", "1", "sluice.bootstrap.servers", "127.0.0.1:1");
        try (Receiver receiver = new Receiver(new Settings(configs))) {
            ClientTelemetryPayload payload = payload();
            for (int number = 0; number < PUSHES; number++) {
                receiver.take(context(null), payload);
            }
            receiver.take(context(new KafkaPrincipal(KafkaPrincipal.USER_TYPE, "alice")), payload);
            ObjectName name = new ObjectName("sluice:type=telemetry,node=1");
            for (String count : new String[] {"pushes", "errors", "pushes-dropped"}) {
                System.out.println(ManagementFactory.getPlatformMBeanServer().getAttribute(name, count));
            }
        }
    }

    private static AuthorizableRequestContext context(KafkaPrincipal principal) {
        return (AuthorizableRequestContext) answering(
                AuthorizableRequestContext.class, Map.of("clientId", "app"), "principal", principal);
    }

    private static ClientTelemetryPayload payload() {
        return (ClientTelemetryPayload) answering(
                ClientTelemetryPayload.class, Map.of("clientInstanceId", Uuid.randomUuid()), "data", DATA);
    }

    private static Object answering(Class<?> type, Map<String, ?> answers, String more, Object answer) {
        return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (self, method, arguments) ->
                method.getName().equals(more) ? answer : answers.get(method.getName()));
    }
}
