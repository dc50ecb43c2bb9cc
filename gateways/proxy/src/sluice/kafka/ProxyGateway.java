package sluice.kafka;

import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.common.utils.Time;

/**
 * The gateway of a proxy. It shares the limits of mutations too, asks the job for what its share doesn't admit, and says what
 * limits have refused. Request threads call it; it never waits.
 */
public final class ProxyGateway extends Gateway {
    private static final int MAX_AWAITED = 10_000;

    private final ProxySettings settings;
    private final Refusals refusals = new Refusals();
    private final BlockingQueue<Mutations> asked = new LinkedBlockingQueue<>(MAX_AWAITED);
    private final Map<String, Mutations> awaited = new ConcurrentHashMap<>(); // by request id, until their timeout
    private final LongAdder bytesIn = new LongAdder(); // since the last heartbeat
    private final LongAdder bytesOut = new LongAdder();

    public ProxyGateway(ProxySettings settings) {
        this(settings, Time.SYSTEM, sender(settings));
    }

    /** A gateway whose clock and whose way to the requests topic are given. */
    ProxyGateway(ProxySettings settings, Time time, EventSender sender) {
        super(settings, time, sender, new Meters(settings.maxMuteMs, false, settings.window, time::milliseconds));
        this.settings = settings;
    }

    /** The counter of a topic-partition; null if no quota meters it. Clients may name partitions that don't exist. */
    public CounterKey counterOfPartition(Kind kind, String topic, int partition) {
        if (quotas().resolve(kind, topic, "").level == 0) {
            return null;
        }
        CounterKey counter = new CounterKey(kind, Tags.ofPartition(Names.bounded(topic), partition));
        return meters.of(counter) != null || admitsCounter() ? counter : null;
    }

    /** Whether any quota of this kind is set. */
    public boolean isUsed(Kind kind) {
        return quotas().isUsed(kind);
    }

    /** Whether a limit holds a meter's clients, their own or their tenant's. */
    public boolean isLimited(CounterKey key) {
        return limit(key) != null || tenantLimit(key) != null;
    }

    /** Of a client's own counter and its tenant's, the one that makes its requests wait. */
    public CounterKey holding(CounterKey key) {
        CounterKey tenant = key.ofTenant();
        CommonBucket bucket = tenant == null ? null : meters.common(tenant);
        return bucket != null && bucket.waitMs(time.milliseconds()) > 0 ? tenant : key.own();
    }

    /** Counts what clients were charged, for the proxy's load. */
    public void count(Kind kind, double amount) {
        if (kind == Kind.PRODUCE) {
            bytesIn.add((long) amount);
        } else if (kind == Kind.FETCH) {
            bytesOut.add((long) amount);
        }
    }

    /**
     * Notes that the limit of `counter`, of a client's own or its tenant's, has refused a request, so that decisions tell
     * of it; its client waits for `waitMs`.
     */
    public void noteRefused(CounterKey key, CounterKey counter, String user, String clientId, long waitMs) {
        Tags own = key.own().tags;
        boolean isNamed = quotas().tenantOf(key.kind, own).equals(key.tags.tenant);
        Tags client = isNamed ? own : new Tags(Names.bounded(user), Names.bounded(clientId));
        refusals.add(new Refusals.Refusal(key, counter, client, 1, time.milliseconds(), waitMs));
    }

    @Override
    void publishOthers(long nowMs) {
        for (Refusals.Refusal each : refusals.take()) {
            publish(each.client, events.refused(each), nowMs, () -> refusals.add(each));
        }
    }

    /** Asks the job whether these topics may be executed; the answer comes later. */
    public void ask(Mutations mutations) {
        boolean isHopeless = staleMs() > STALE_MS || mutations.partitions.size() > Mutations.MAX_TOPICS;
        if (isHopeless || !asked.offer(mutations)) {
            giveUp(mutations);
        }
        mutations.answer().orTimeout(settings.decideTimeoutMs, TimeUnit.MILLISECONDS);
    }

    @Override
    void pass(long untilNs) throws InterruptedException {
        for (long leftNs = untilNs - System.nanoTime(); leftNs > 0; leftNs = untilNs - System.nanoTime()) {
            Mutations mutations = asked.poll(leftNs, TimeUnit.NANOSECONDS);
            if (mutations != null) {
                publish(mutations, time.milliseconds());
            }
        }
    }

    private void publish(Mutations mutations, long nowMs) {
        if (!isReady() || awaited.size() >= MAX_AWAITED) {
            giveUp(mutations);
            return;
        }
        String id = events.newId();
        awaited.put(id, mutations);
        mutations.answer().whenComplete((answer, error) -> awaited.remove(id));
        Tags client = meters.clientOf(mutations.counter);
        publish(client, events.mutations(id, mutations, client, nowMs), nowMs, () -> giveUp(mutations));
    }

    private static void giveUp(Mutations mutations) {
        mutations.answer().completeExceptionally(new TimeoutException("no decision to be expected"));
    }

    @Override
    void takeAnswer(Sums read) {
        Mutations mutations = read.answerTo == null ? null : awaited.get(read.answerTo);
        if (mutations != null) {
            mutations.answer().complete(read.answer);
        }
    }

    @Override
    int expected(int brokers) {
        return settings.expectedGateways;
    }

    @Override
    Load takeLoad(long sinceMs) {
        double seconds = sinceMs / 1_000.0;
        return Load.ofBytes(bytesIn.sumThenReset() / seconds, bytesOut.sumThenReset() / seconds);
    }
}
