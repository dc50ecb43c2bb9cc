package sluice.telemetry;

import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/** For `metric.reporters` of Kafka 3.8 and newer, until 5.0, which has {@link SluiceTelemetryExporter}'s interface alone. */
@SuppressWarnings({"deprecation", "removal"}) // since 4.2
public final class SluiceClientTelemetry extends TelemetryReporter implements ClientTelemetry {
    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return receiver()::take;
    }
}
