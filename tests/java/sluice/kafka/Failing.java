package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/** Threads of the plugin to which what no Java program expects happens, as when the heap is full for a moment. */
final class Failing {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long PATIENCE_S = 60;

    private Failing() {}

    /** A thread whose first rounds end by Throwables: how many rounds came, how many errors it counts, if it is down. */
    static JsonNode thread() throws InterruptedException {
        List<Throwable> thrown = Arrays.asList(
                new OutOfMemoryError("heap"), new StackOverflowError(), new NoClassDefFoundError("X"),
                new InterruptedException(), new IllegalStateException("x"), new Throwable("y"));
        Iterator<Throwable> left = thrown.iterator();
        CountDownLatch rounds = new CountDownLatch(thrown.size() + 2);
        LastingThread thread = new LastingThread("failing", () -> {
            rounds.countDown();
            if (left.hasNext()) {
                throwAny(left.next());
            }
            Thread.sleep(1);
        }, () -> {});
        thread.start();
        boolean isThrough = rounds.await(PATIENCE_S, TimeUnit.SECONDS);
        ObjectNode answer = JSON.createObjectNode().put("through", isThrough).put("errors", thread.errors);
        answer.put("down", thread.isDown());
        thread.close();
        return answer;
    }

    @SuppressWarnings("unchecked")
    private static <T extends Throwable> void throwAny(Throwable error) throws T {
        throw (T) error;
    }

    /** What a reader reads of a topic if its handler ends by an OutOfMemoryError twice, and by another Error at "bad". */
    static JsonNode reader(JsonNode asked) throws InterruptedException {
        ArrayNode read = JSON.createArrayNode();
        CountDownLatch wanted = new CountDownLatch(asked.get("records").intValue());
        AtomicInteger failures = new AtomicInteger();
        TopicReader reader = new TopicReader(asked.get("topic").textValue(), null, client(asked), new TopicReader.Handler() {
            @Override
            public void take(byte[] key, byte[] value) {
                String text = new String(value, StandardCharsets.UTF_8);
                if (failures.getAndIncrement() < 2) {
                    throw new OutOfMemoryError("heap");
                }
                if (text.equals("bad")) {
                    throw new StackOverflowError();
                }
                read.add(text);
                wanted.countDown();
            }

            @Override
            public void restart() {}
        });
        reader.thread.start();
        boolean isThrough = wanted.await(PATIENCE_S, TimeUnit.SECONDS);
        ObjectNode answer = JSON.createObjectNode().put("through", isThrough).put("unreadable", reader.unreadable);
        answer.put("errors", reader.thread.errors).put("down", reader.thread.isDown()).set("read", read);
        reader.thread.close();
        reader.thread.join(System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S));
        return answer;
    }

    /** What a reader reads whose handler misses records from each "gap" on until the topic is read again. */
    static JsonNode gaps(JsonNode asked) throws InterruptedException {
        ArrayNode read = JSON.createArrayNode();
        CountDownLatch wanted = new CountDownLatch(asked.get("records").intValue());
        AtomicInteger restarts = new AtomicInteger();
        TopicReader reader = new TopicReader(asked.get("topic").textValue(), null, client(asked), new TopicReader.Handler() {
            private boolean hasGap;

            @Override
            public void take(byte[] key, byte[] value) {
                String text = new String(value, StandardCharsets.UTF_8);
                hasGap |= text.equals("gap");
                read.add(text);
                wanted.countDown();
            }

            @Override
            public void restart() {
                hasGap = false;
                restarts.incrementAndGet();
            }

            @Override
            public boolean hasGaps() {
                return hasGap;
            }
        });
        reader.thread.start();
        boolean isThrough = wanted.await(PATIENCE_S, TimeUnit.SECONDS);
        ObjectNode answer = JSON.createObjectNode().put("through", isThrough).put("restarts", restarts.get());
        answer.put("down", reader.thread.isDown()).set("read", read);
        reader.thread.close();
        return answer;
    }

    /** How many of two events reach the topic if the thread of Kafka's producer ends at the first one's answer. */
    static JsonNode sender(JsonNode asked) throws InterruptedException {
        Map<String, Object> client = client(asked);
        client.put("interceptor.classes", EndsTheFirst.class.getName());
        EventSender sender = new EventSender(asked.get("topic").textValue(), client, 1_000);
        AtomicInteger unsent = new AtomicInteger(2);
        AtomicInteger givenBack = new AtomicInteger();
        long untilNs = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (sender.published.get() < 2 && System.nanoTime() - untilNs < 0) {
            if (unsent.get() > 0 && sender.isReady()) {
                unsent.decrementAndGet();
                sender.send(new byte[] {'k'}, new byte[] {'v'}, System.currentTimeMillis(), () -> {
                    givenBack.incrementAndGet();
                    unsent.incrementAndGet();
                });
            }
            sender.isReady();
            Thread.sleep(20);
        }
        ObjectNode answer = JSON.createObjectNode().put("published", sender.published.get());
        answer.put("replaced", sender.replaced.get()).put("given_back", givenBack.get() > 0);
        sender.close();
        return answer;
    }

    private static Map<String, Object> client(JsonNode asked) {
        Map<String, Object> client = new HashMap<>();
        client.put("bootstrap.servers", asked.get("servers").textValue());
        return client;
    }

    /** Ends the thread of the first producer of this process that gets an answer. */
    public static final class EndsTheFirst implements ProducerInterceptor<byte[], byte[]> {
        private static final AtomicInteger ANSWERS = new AtomicInteger();

        @Override
        public ProducerRecord<byte[], byte[]> onSend(ProducerRecord<byte[], byte[]> sent) {
            return sent;
        }

        @Override
        public void onAcknowledgement(RecordMetadata metadata, Exception error) {
            if (error == null && ANSWERS.getAndIncrement() == 0) {
                throw new OutOfMemoryError("heap");
            }
        }

        @Override
        public void close() {}

        @Override
        public void configure(Map<String, ?> configs) {}
    }
}
