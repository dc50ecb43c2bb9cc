package sluice.telemetry;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/** Another receiver beside Sluice's: it keeps the last push of each client-id in the folder `test.pushes`, as it came. */
@SuppressWarnings({"deprecation", "removal"}) // since 4.2
public final class OtherReceiver extends TelemetryReporter implements ClientTelemetry {
    private Path folder;

    @Override
    public void configure(Map<String, ?> configs) {
        folder = Path.of(configs.get("test.pushes").toString());
    }

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return (context, payload) -> {
            try {
                Files.write(folder.resolve(context.clientId()), Utils.toArray(payload.data()));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        };
    }
}
