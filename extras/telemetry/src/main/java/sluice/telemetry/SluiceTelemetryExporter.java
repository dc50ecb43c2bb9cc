package sluice.telemetry;

import org.apache.kafka.server.telemetry.ClientTelemetryExporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporterProvider;

/**
 * For `metric.reporters` of Kafka 4.2 and newer. An older one can't load it, as it lacks the interface; and a class with
 * both interfaces would get each push twice.
 */
public final class SluiceTelemetryExporter extends TelemetryReporter implements ClientTelemetryExporterProvider {
    @Override
    public ClientTelemetryExporter clientTelemetryExporter() {
        Receiver receiver = receiver();
        return (context, payload) -> receiver.take(context.authorizableRequestContext(), payload);
    }
}
