package sluice.testbed;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A producer of Kafka's Java library with numbered records of one size, each in a request of its own, so many in
 * flight; `extras/lab/sluice_lab/scenarios/closed_loop/holds.py` starts it. All else is as the library has it.
 */
public final class NumberedProducer {
    private final Queue<String> acknowledged = new ConcurrentLinkedQueue<>();
    private final Queue<String> errors = new ConcurrentLinkedQueue<>();
    private final KafkaProducer<byte[], byte[]> producer;
    private final Semaphore room;
    private final int inFlight;
    private volatile boolean stopped;

    public NumberedProducer(String name, String servers, String topic, int partition, int bytes, int inFlight) {
        this.inFlight = inFlight;
        room = new Semaphore(inFlight);
        ByteArraySerializer serializer = new ByteArraySerializer();
        Map<String, Object> config = Map.of(
                "bootstrap.servers", servers,
                "client.id", name,
                "batch.size", 1,
                "linger.ms", 0,
                "max.request.size", Math.max(1 << 20, bytes + 1_000),
                "connections.max.idle.ms", -1); // what is closed for being idle isn't counted
        producer = new KafkaProducer<>(config, serializer, serializer);
        Thread thread = new Thread(() -> produce(topic, partition, bytes), name);
        thread.setDaemon(true);
        thread.start();
    }

    private void produce(String topic, int partition, int bytes) {
        for (long number = 0; !stopped; number++) {
            room.acquireUninterruptibly();
            byte[] value = ByteBuffer.allocate(bytes).putLong(number).array();
            long sentMs = System.currentTimeMillis();
            producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
                long nowMs = System.currentTimeMillis();
                if (error == null) {
                    acknowledged.add(nowMs + " " + (nowMs - sentMs));
                } else {
                    errors.add(error.toString().replace('\n', ' '));
                }
                room.release();
            });
        }
    }

    /** Sends nothing more, and waits until all is acknowledged or has failed. */
    public void stop() {
        stopped = true;
        producer.flush();
    }

    public void close() {
        producer.close(Duration.ZERO);
    }

    /** A line for each record: epoch milliseconds of its acknowledgement, and the milliseconds that it took. */
    public String acknowledged() {
        return String.join("\n", acknowledged);
    }

    /** A line for each record that failed. */
    public String errors() {
        return String.join("\n", errors);
    }

    /** The sum of a metric over all that have this name. */
    public double total(String name) {
        return producer.metrics().entrySet().stream()
                .filter(each -> each.getKey().name().equals(name) && each.getKey().group().equals("producer-metrics"))
                .map(Map.Entry::getValue)
                .map(Metric::metricValue)
                .mapToDouble(value -> (Double) value)
                .sum();
    }
}
