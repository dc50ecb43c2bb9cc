package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.common.utils.Time;

/**
 * The gateway of a proxy. It shares the limits of mutations too, asks the job for what its share doesn't admit, and says what
 * limits have refused. Request threads call it; it never waits.
 */
public final class ProxyGateway extends Gateway<Meters<PlainMeter>> {
    /** The longest wait that one response asks for, but for bytes; what was used stays charged, so the next request waits. */
    public static final long MAX_MUTE_MS = 5_000;

    private static final int MAX_AWAITED = 10_000;
    private static final int MAX_CHARACTERS = 4_000_000; // of the topics of all that is asked and awaited

    private final ProxySettings settings;
    private final Refusals refusals = new Refusals();
    private final BlockingQueue<Mutations> asked = new LinkedBlockingQueue<>(MAX_AWAITED);
    private final Map<String, Mutations> awaited = new ConcurrentHashMap<>(); // by request id, until their timeout
    private final AtomicInteger characters = new AtomicInteger(); // of the topics of both
    private final LongAdder bytesIn = new LongAdder(); // since the last heartbeat
    private final LongAdder bytesOut = new LongAdder();

    public ProxyGateway(ProxySettings settings) {
        this(settings, Time.SYSTEM, sender(settings));
    }

    /** A gateway whose clock and whose way to the requests topic are given. */
    ProxyGateway(ProxySettings settings, Time time, EventSender sender) {
        super(settings, time, sender, new PlainMeters(settings, time));
        this.settings = settings;
    }

    private PlainMeter meter(CounterKey counter) {
        long nowMs = time.milliseconds();
        PlainMeter known = meters.of(counter);
        if (known != null && known.isUsable(nowMs)) {
            return known;
        }
        PlainMeter meter = meters.add(counter);
        Double limit = limit(counter);
        meter.bind(limit == null ? Meter.UNLIMITED : limit, nowMs);
        begin(meter, nowMs);
        return meter;
    }

    /** Charges an amount, and returns the wait in ms that the quotas ask for. */
    public long charge(CounterKey counter, double amount) {
        if (counter.kind == Kind.PRODUCE) {
            bytesIn.add((long) amount);
        } else if (counter.kind == Kind.FETCH) {
            bytesOut.add((long) amount);
        }
        return meter(counter).charge(amount, false, time.milliseconds());
    }

    /** Charges mutations that the job knows already, or is told of when they are settled. Returns the wait in ms. */
    public long chargeMutations(CounterKey counter, int partitions) {
        return meter(counter).charge(partitions, true, time.milliseconds());
    }

    /** Charges mutations that a limit has admitted, as {@link #chargeMutations}: their client is asked for no wait. */
    public void admitMutations(CounterKey counter, int partitions) {
        meter(counter).admit(partitions, time.milliseconds());
    }

    /** Tells the job of `told` partitions, less the `undone` ones, which are given back. It takes them off what comes next. */
    public void settle(CounterKey counter, int told, int undone) {
        meter(counter).settle(told, undone, time.milliseconds());
    }

    /** The wait in ms of a client that sends now. */
    public long waitMs(CounterKey counter) {
        return meter(counter).waitMs(time.milliseconds());
    }

    /** How long a client that sends now for the first time waits because it is held, in ms. */
    public long heldMs(CounterKey counter) {
        PlainMeter known = meters.of(counter);
        return known == null ? 0 : known.heldMs(time.milliseconds());
    }

    /**
     * Promises all these amounts to a request, unless a counter is overdrawn: then none, and returns how long that lasts still,
     * in ms, or until it has its turn. Who was promised something is charged, and then calls {@link #endPromise}; who wasn't
     * asks again, or leaves.
     */
    public long promise(Map<CounterKey, Double> amounts, Turn turn) {
        Map<CounterKey, Double> done = new LinkedHashMap<>();
        for (Map.Entry<CounterKey, Double> each : amounts.entrySet()) {
            long owedMs = meter(each.getKey()).promise(each.getValue(), turn, time.milliseconds());
            if (owedMs > 0) {
                endPromise(done);
                return owedMs;
            }
            done.put(each.getKey(), each.getValue());
        }
        turn.leave();
        return 0;
    }

    /** What was promised is charged, or won't be. */
    public void endPromise(Map<CounterKey, Double> amounts) {
        amounts.forEach((counter, amount) -> meter(counter).endPromise(amount));
    }

    /** What a request is charged on a counter in the mean. */
    public double size(CounterKey counter) {
        return meter(counter).size();
    }

    /** One more connection wants to use a counter if `change` is 1, or one fewer if it is -1. */
    public void joinRound(CounterKey counter, int change) {
        meter(counter).joinRound(change);
    }

    /** How often waits for a counter became needless. */
    public int reliefs(CounterKey counter) {
        PlainMeter known = meters.of(counter);
        return known == null ? 0 : known.reliefs();
    }

    /** Whether a counter is overdrawn, so that what a client sends now is refused and not charged. It counts as a wait. */
    public boolean refuses(CounterKey counter, String user, String clientId) {
        long nowMs = time.milliseconds();
        PlainMeter meter = meter(counter);
        long waitMs = Math.min(meter.waitMs(nowMs), MAX_MUTE_MS);
        if (waitMs > 0) {
            meter.noteRefused(waitMs, nowMs);
            CounterKey tenant = counter.ofTenant();
            CommonBucket bucket = tenant == null ? null : meters.common(tenant);
            boolean isOfTenant = bucket != null && bucket.waitMs(nowMs) > 0;
            noteRefused(counter, isOfTenant ? tenant : counter.own(), user, clientId, waitMs);
        }
        return waitMs > 0;
    }

    /** Notes that mutations are refused that nobody else tells of. Returns how long their client waits, in ms. */
    public long refuseMutations(CounterKey counter) {
        long nowMs = time.milliseconds();
        PlainMeter meter = meter(counter);
        long waitMs = meter.waitMs(nowMs);
        if (waitMs > 0) {
            meter.noteRefused(waitMs, nowMs);
        }
        return waitMs;
    }

    /** Notes that what a client sends isn't served, as it is stopped, so that events tell of it. */
    public void noteStopped(CounterKey counter) {
        meter(counter).noteStopped(time.milliseconds());
    }

    /** The most bytes that the response to a fetch that asks for so many may have, as Kafka bounds it. No counter bounds nothing. */
    public int fetchBytes(CounterKey counter, int asked) {
        Double limit = counter == null ? null : fetchLimit(counter);
        return limit == null ? asked : (int) Math.max(1, Math.min(asked, limit * settings.window.spanMs() / 1_000.0));
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

    /**
     * Notes that the limit of `counter`, of a client's own or its tenant's, has refused a request, so that decisions tell
     * of it; its client waits for `waitMs`.
     */
    public void noteRefused(CounterKey key, CounterKey counter, String user, String clientId, long waitMs) {
        Tags own = key.own().tags;
        boolean isNamed = quotas().tenantOf(key.kind, own).equals(key.tags.tenant);
        Tags client = isNamed
                ? named(key, Callers.of(user, clientId))
                : new Tags(Names.bounded(user), Names.bounded(clientId));
        refusals.add(new Refusals.Refusal(key, counter, client, 1, time.milliseconds(), waitMs));
    }

    @Override
    void publishOthers(long nowMs) {
        for (Refusals.Refusal each : refusals.take()) {
            publish(each.client(), ProxyEvents.refused(events, each), nowMs, () -> refusals.add(each));
        }
    }

    /** Asks the job whether these topics may be executed; the answer comes later. */
    public void ask(Mutations mutations) {
        boolean isHopeless = getStalenessMs() > STALE_MS || mutations.partitions.size() > Mutations.MAX_TOPICS;
        int length = mutations.characters();
        boolean hasRoom = characters.addAndGet(length) <= MAX_CHARACTERS;
        mutations.answer().whenComplete((answer, error) -> characters.addAndGet(-length));
        if (isHopeless || !hasRoom || !asked.offer(mutations)) {
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
        if (!sender.isReady() || awaited.size() >= MAX_AWAITED) {
            giveUp(mutations);
            return;
        }
        String id = events.newId();
        awaited.put(id, mutations);
        mutations.answer().whenComplete((answer, error) -> awaited.remove(id));
        Tags client = named(mutations.counter, mutations.caller);
        byte[] event = ProxyEvents.mutations(events, id, mutations, client, nowMs);
        publish(client, event, nowMs, () -> giveUp(mutations));
    }

    private static void giveUp(Mutations mutations) {
        mutations.answer().completeExceptionally(new TimeoutException("no decision to be expected"));
    }

    @Override
    void takeAnswer(JsonNode decision) throws IOException {
        if (decision == null) {
            return;
        }
        Mutations mutations = awaited.get(Json.text(decision, "request_id"));
        Mutations.Answer answer = Mutations.answer(decision);
        if (mutations != null) {
            mutations.answer().complete(answer);
        }
    }

    @Override
    int expected(int brokers) {
        return settings.expectedGateways;
    }

    /** The bytes alone: a proxy sees neither threads nor disks of brokers. */
    @Override
    Load takeLoad(long sinceMs) {
        double seconds = sinceMs / 1_000.0;
        double inPerS = bytesIn.sumThenReset() / seconds;
        double outPerS = bytesOut.sumThenReset() / seconds;
        return new Load(Map.of("bytes_in_per_s", inPerS, "bytes_out_per_s", outPerS), List.of());
    }
}
