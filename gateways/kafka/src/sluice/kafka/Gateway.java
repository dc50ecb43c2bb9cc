package sluice.kafka;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Stream;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.utils.Time;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One gateway, in a broker or a proxy: it knows the limits in force, its share of each counter, and publishes what its
 * meters were charged.
 *
 * <p>Request threads call {@link #meterOf}, {@link #limit} and {@link #ask}, which never wait. All else happens in daemon threads of its
 * own: one reads the limits, one the sums of what is decided, and one looks at the meters every `sluice.sum.ms`, sets their limits and
 * publishes. While Sluice is away the last shares hold; before the limits topic could be read, the quotas that were set
 * with `kafka-configs` hold on each broker, as without the plugin.
 */
public final class Gateway implements GatewayMXBean, AutoCloseable {
    static final long STALE_MS = 30_000;
    private static final Logger LOG = LoggerFactory.getLogger(Gateway.class);
    private static final long LOOKBACK_MS = 10_000;
    private static final long CLOSE_MS = 2_000;
    private static final long IDLE_MS = 1_000;
    private static final long GIVE_UP_MS = 60_000;
    private static final long MODEST_MS = 1_000;
    private static final long SMALL_MS = 10_000;
    private static final long UNLIMITED_MS = 30_000; // no share depends on it
    private static final int RECENT = 100;
    private static final int MAX_AWAITED = 10_000;
    private static final int MAX_SHOWN = 20;
    private static final int MAX_SHOWN_CHARACTERS = 500;

    private final Settings settings;
    private final Time time;
    private final String instance;
    private final Quotas kafkaQuotas = new Quotas(-1);
    private final Meters meters;
    private final NewNames newNames = new NewNames(System.nanoTime());
    private final Shares shares;
    private final Events events;
    private final EventSender sender;
    private final Refusals refusals = new Refusals();
    private final Staleness staleness = new Staleness();
    private final LoadReader loadReader;
    private final DiskGuard diskGuard;
    final TopicReader.ClusterHandler limitsHandler = new LimitsHandler();
    final TopicReader.Handler sumsHandler = new SumsHandler();
    private final TopicReader limitsReader;
    private final TopicReader sumsReader;
    private final LastingThread thread;
    private final BlockingQueue<Mutations> asked = new LinkedBlockingQueue<>(MAX_AWAITED);
    private final Map<String, Mutations> awaited = new ConcurrentHashMap<>(); // by request id, until their timeout
    private final long idleMs;
    private final AtomicLong givenUp = new AtomicLong();
    private final LongAdder bytesIn = new LongAdder(); // of a proxy, since its last heartbeat
    private final LongAdder bytesOut = new LongAdder();
    private volatile LimitsView limitsView = new LimitsView();
    private volatile ElasticState heard = ElasticState.NEUTRAL;
    private volatile long heardUntilMs;
    private volatile ElasticState elastic = ElasticState.NEUTRAL; // what holds
    private volatile StorageState storage = StorageState.NONE;
    private volatile long storageUntilMs;
    private volatile Set<String> heldTenants = Set.of();
    private volatile Quotas inForce;
    private volatile int gateways = 1;
    private volatile long sums;
    private volatile String lowDisk;
    private Quotas applied;
    private long heartbeatMs;
    private long refusalsMs;
    private boolean isStale;
    private boolean saidGivenUp;
    private long nextNs = System.nanoTime();

    public Gateway(Settings settings) {
        this(
                settings,
                Time.SYSTEM,
                new EventSender(settings.requestsTopic, client(settings, "requests"), EventSender.MUTE_MS));
    }

    /** A gateway whose clock and whose way to the requests topic are given. */
    Gateway(Settings settings, Time time, EventSender sender) {
        this.settings = settings;
        this.time = time;
        this.sender = sender;
        String random = UUID.randomUUID().toString().substring(0, 8);
        this.instance = settings.gatewayName + "-" + settings.node + "-" + random;
        this.events = new Events(settings.gatewayName, instance);
        this.meters = new Meters(settings.maxMuteMs, !settings.isProxy, settings.window, time::milliseconds);
        this.shares = new Shares(instance, events.idStem(), settings.window);
        this.loadReader = new LoadReader(settings);
        this.diskGuard = new DiskGuard(settings);
        this.limitsReader = new TopicReader(settings.limitsTopic, null, client(settings, "limits"), limitsHandler);
        this.sumsReader = new TopicReader(settings.sumsTopic, LOOKBACK_MS, client(settings, "sums"), sumsHandler);
        // A sample of a meter with one short window would be started anew between two looks.
        this.idleMs = Math.min(IDLE_MS, settings.window.samples * settings.window.windowMs / 2);
        this.thread = new LastingThread("sluice-shares", this::round, this::finish);
    }

    /** Starts the threads. Doesn't wait: no broker need be there, and no topic. */
    public void start() {
        LOG.info("Sluice is gateway {} of node {}; {}", instance, settings.node, Samples.isPossible()
                ? "what is charged is read from the meters, exactly"
                : "this version of Kafka doesn't let it read the meters, so what is charged is estimated from their rates");
        if (!settings.isProxy && settings.exemptPrincipals.isEmpty()) {
            LOG.warn(settings.exemptClientId == null
                    ? "Neither sluice.exempt.principals nor sluice.exempt.client.id is set: quotas hold Sluice itself, too"
                    : "sluice.exempt.client.id exempts only clients that don't log in: where Sluice's do, quotas hold them,"
                            + " too, unless sluice.exempt.principals names them");
        }
        limitsReader.start();
        if (settings.servesClients) {
            sumsReader.start();
        }
        if (settings.servesClients && !settings.isProxy) {
            loadReader.start();
        }
        thread.start();
    }

    /** Publishes the last charges where a broker takes them, and ends all threads and clients; waits a second or two for that. */
    @Override
    public void close() {
        threads().forEach(LastingThread::close);
        long untilNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(CLOSE_MS);
        threads().forEach(each -> each.join(untilNs));
    }

    /**
     * The meter that a client's requests are charged to. Never waits.
     *
     * <p>A client without a limit of its own has one with its client-id if that is why it is in its tenant.
     */
    public CounterKey meterOf(Kind kind, String user, String clientId) {
        Quotas quotas = quotas();
        String tenant = quotas.tenantOf(kind, user, clientId);
        Resolution found = quotas.resolve(kind, user, clientId);
        boolean isNamed = found.level == 0 && !quotas.tenantOf(kind, found.tags).equals(tenant);
        Tags tags = isNamed ? new Tags(Names.bounded(user), Names.bounded(clientId)) : found.tags;
        CounterKey key = new CounterKey(kind, tags.in(tenant));
        boolean isNew = (isNamed || found.isAnyClientId()) && !kind.isCount() && meters.of(key) == null;
        if (isNew && !admitsCounter()) {
            tags = isNamed ? found.tags : quotas.resolve(kind, user, NewNames.MORE).tags;
            key = new CounterKey(kind, tags.in(tenant));
        }
        if (!kind.isCount() && !quotas.tenantOf(kind, tags).equals(tenant)) {
            meters.noteClient(key, user, clientId);
        }
        return key;
    }

    /** The counter of a topic-partition; null if no quota meters it. Clients may name partitions that don't exist. Never waits. */
    public CounterKey counterOfPartition(Kind kind, String topic, int partition) {
        if (quotas().resolve(kind, topic, "").level == 0) {
            return null;
        }
        CounterKey counter = new CounterKey(kind, Tags.ofPartition(Names.bounded(topic), partition));
        return meters.of(counter) != null || admitsCounter() ? counter : null;
    }

    /** Whether any quota of this kind is set. Never waits. */
    public boolean isUsed(Kind kind) {
        return quotas().isUsed(kind);
    }

    private boolean admitsCounter() {
        return meters.hasRoom() && newNames.admits(System.nanoTime());
    }

    /** What this gateway may let through on a meter's own counter now, per second; null is unlimited. Never waits. */
    public Double limit(CounterKey key) {
        Double limit = quotas().limitOf(key.own());
        if (limit == null || !isShared(key.kind)) {
            return limit;
        }
        if (key.kind.isCount()) {
            return limit / gateways;
        }
        Meter meter = meters.of(key);
        return shareOf(limit, meter == null ? Double.NaN : meter.share());
    }

    /** The same on the counter of its clients' tenant. */
    public Double tenantLimit(CounterKey key) {
        CounterKey tenant = key.ofTenant();
        Double limit = tenant == null ? null : quotas().limitOf(tenant);
        if (limit == null || !isShared(key.kind)) {
            return limit;
        }
        CommonBucket bucket = meters.common(tenant);
        return shareOf(limit, bucket == null ? Double.NaN : bucket.share());
    }

    private double shareOf(double limit, double share) {
        return Math.min(limit * elastic.lend, Double.isNaN(share) ? limit / gateways : share);
    }

    /** Whether a limit holds a meter's clients, their own or their tenant's. Never waits. */
    public boolean isLimited(CounterKey key) {
        return limit(key) != null || tenantLimit(key) != null;
    }

    /** The limit by which Kafka bounds what the next fetch on a meter may hold; null is unlimited. Never waits. */
    public Double fetchLimit(CounterKey key) {
        Double limit = limit(key);
        Meter meter = limit == null ? null : meters.of(key);
        boolean isPaced = settings.isProxy || meter != null && meter.isPaced();
        double own = limit == null ? Meter.UNLIMITED : isPaced ? Pace.fetchLimit(limit) : limit;
        Double ofTenant = tenantLimit(key);
        double least = Math.min(own, ofTenant == null ? Meter.UNLIMITED : Pace.fetchLimit(ofTenant));
        return least == Meter.UNLIMITED ? null : Double.valueOf(least);
    }

    /** Of a client's own counter and its tenant's, the one that makes its requests wait. Never waits. */
    public CounterKey holding(CounterKey key) {
        CounterKey tenant = key.ofTenant();
        CommonBucket bucket = tenant == null ? null : meters.common(tenant);
        return bucket != null && bucket.waitMs(time.milliseconds()) > 0 ? tenant : key.own();
    }

    /**
     * Notes that the limit of `counter`, of a client's own or its tenant's, has refused a request, so that decisions tell
     * of it; its client waits for `waitMs`. Never waits.
     */
    public void noteRefused(CounterKey key, CounterKey counter, String user, String clientId, long waitMs) {
        Tags own = key.own().tags;
        boolean isNamed = quotas().tenantOf(key.kind, own).equals(key.tags.tenant);
        Tags client = isNamed ? own : new Tags(Names.bounded(user), Names.bounded(clientId));
        refusals.add(new Refusals.Refusal(key, counter, client, 1, time.milliseconds(), waitMs));
    }

    /** The quotas that Kafka itself keeps. They hold until the limits topic has been read. */
    Quotas kafkaQuotas() {
        return kafkaQuotas;
    }

    /** The meters of the broker. */
    public Meters meters() {
        return meters;
    }

    /** Takes over a metric that was made for a client, who is held from the first request, not from the next look. */
    public void add(KafkaMetric metric) {
        long nowMs = time.milliseconds();
        loadReader.add(metric);
        Meter meter = meters.add(metric, nowMs);
        if (meter == null) {
            return;
        }
        for (CommonBucket bucket : meter.common()) {
            Double limit = quotas().limitOf(bucket.counter);
            if (limit != null) {
                bucket.begin(isShared(bucket.counter.kind) ? shareOf(limit, Double.NaN) : limit, limit, nowMs);
            }
        }
        if (isHeld(meter)) {
            meter.hold(Meter.UNLIMITED);
        }
    }

    /** Takes leave of a metric that was removed. */
    public void remove(KafkaMetric metric) {
        loadReader.remove(metric);
        meters.remove(metric, time.milliseconds());
    }

    /** Asks the job whether these topics may be executed; the answer comes later. Never waits. */
    public void ask(Mutations mutations) {
        boolean isHopeless = staleMs() > STALE_MS || mutations.partitions.size() > Mutations.MAX_TOPICS;
        if (isHopeless || !asked.offer(mutations)) {
            giveUp(mutations);
        }
        mutations.answer().orTimeout(settings.decideTimeoutMs, TimeUnit.MILLISECONDS);
    }

    private Quotas quotas() {
        Quotas known = inForce;
        return known == null ? kafkaQuotas : known;
    }

    /** Of brokers the active controller alone meters mutations; who serves no clients shares nothing with those who do. */
    private boolean isShared(Kind kind) {
        boolean isDivided = kind != Kind.MUTATION || settings.isProxy;
        return inForce != null && isDivided && settings.servesClients;
    }

    /** A broker alone is as Kafka. */
    private boolean isPaced(Kind kind) {
        return isShared(kind) && kind.isPaced() && (gateways > 1 || settings.isProxy);
    }

    private void round() throws InterruptedException {
        nextNs = Math.max(nextNs + settings.sumMs * 1_000_000, System.nanoTime());
        tick(time.milliseconds());
        long leftNs = Math.max(1_000_000, nextNs - System.nanoTime());
        while (leftNs > 0) {
            Mutations mutations = asked.poll(leftNs, TimeUnit.NANOSECONDS);
            if (mutations != null) {
                publish(mutations, time.milliseconds());
            }
            leftNs = nextNs - System.nanoTime();
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
        Tags client = meters.clientOf(mutations.counter);
        publish(client, events.mutations(id, mutations, client, nowMs), nowMs, () -> giveUp(mutations));
    }

    private static void giveUp(Mutations mutations) {
        mutations.answer().completeExceptionally(new TimeoutException("no decision to be expected"));
    }

    private void finish() {
        publishAll(time.milliseconds());
        sender.close();
    }

    /** Publishes what is left when the broker stops: others may still take it. */
    private void publishAll(long nowMs) {
        for (Meter meter : meters.all()) {
            meter.look(nowMs);
            if (meter.hasUnpublished() && sender.isReady()) {
                publish(meter, 0, nowMs);
            }
        }
        publishRefusals(nowMs);
    }

    private void publishRefusals(long nowMs) {
        if (!sender.isReady()) {
            return;
        }
        refusalsMs = nowMs;
        for (Refusals.Refusal each : refusals.take()) {
            publish(each.client, events.refused(each), nowMs, () -> refusals.add(each));
        }
    }

    /** Looks at the meters, sets their limits, and publishes what is due. */
    void tick(long nowMs) {
        if (heartbeatMs - nowMs >= AliveGateways.HEARTBEAT_MS) {
            stepBack(nowMs);
        }
        Quotas quotas = quotas();
        ElasticState present = nowMs < heardUntilMs ? heard : ElasticState.NEUTRAL;
        boolean isNew = quotas != applied || present.number != elastic.number;
        isNew |= noteLowDisk(nowMs) | noteHeldTenants(nowMs);
        applied = quotas;
        elastic = present;
        gateways = shares.gateways(nowMs);
        meters.common().forEach(bucket -> lookAt(bucket, quotas, nowMs));
        boolean isReady = sender.isReady();
        for (Meter meter : meters.all()) {
            if (isNew || meter.isDue(nowMs)) {
                lookAt(meter, quotas, isReady, nowMs);
            }
        }
        if (Math.abs(nowMs - refusalsMs) >= MODEST_MS) {
            publishRefusals(nowMs);
        }
        if (settings.servesClients && isReady && nowMs - heartbeatMs >= AliveGateways.HEARTBEAT_MS) {
            Load load = settings.isProxy ? loadOfProxy(nowMs - heartbeatMs) : loadReader.load();
            heartbeatMs = nowMs;
            publish(new Tags("", ""), heartbeat(load, nowMs), nowMs, () -> {});
        }
        noteStale();
    }

    /** A heartbeat of now; `load` is null if it isn't known. */
    byte[] heartbeat(Load load, long nowMs) {
        String broker = settings.isProxy ? null : settings.node;
        return events.heartbeat(
                staleMs(), meters.all().size(), getThreadsDown(), busiest(nowMs), broker, load, nowMs);
    }

    /** Counts what the clients of a proxy were charged, for its load. Never waits. */
    public void count(Kind kind, double amount) {
        if (kind == Kind.PRODUCE) {
            bytesIn.add((long) amount);
        } else if (kind == Kind.FETCH) {
            bytesOut.add((long) amount);
        }
    }

    private Load loadOfProxy(long sinceMs) {
        double seconds = sinceMs / 1_000.0;
        return Load.ofBytes(bytesIn.sumThenReset() / seconds, bytesOut.sumThenReset() / seconds);
    }

    private boolean isHeld(Meter meter) {
        return meter.counter.kind == Kind.PRODUCE && (lowDisk != null || heldTenants.contains(meter.key.tags.tenant));
    }

    /** Looks whose producers have to be held because of a storage budget. Says whether that has changed. */
    private boolean noteHeldTenants(long nowMs) {
        Set<String> before = heldTenants;
        heldTenants = nowMs < storageUntilMs ? storage.held : Set.of();
        if (before.equals(heldTenants)) {
            return false;
        }
        LOG.info("Producers of these tenants are held, as their storage budgets are used up: {}", heldTenants);
        return true;
    }

    /** Looks whether producers have to be held because of a disk. Says whether that has changed. */
    private boolean noteLowDisk(long nowMs) {
        boolean wasLow = lowDisk != null;
        String heard = diskGuard.low(loadReader.load(), nowMs);
        lowDisk = heard == null && nowMs < storageUntilMs ? storage.lowDisk : heard;
        if (wasLow == (lowDisk != null)) {
            return false;
        }
        if (wasLow) {
            LOG.info("All disks have room again; producers are held no more");
        } else {
            LOG.warn("A disk is low, so producers are held: {}", lowDisk);
        }
        return true;
    }

    private void stepBack(long nowMs) {
        LOG.warn("The clock was set back by {} ms; shares begin anew", heartbeatMs - nowMs);
        heartbeatMs = nowMs;
        shares.stepBack(nowMs);
        staleness.stepBack(nowMs);
        meters.all().forEach(meter -> meter.stepBack(nowMs));
        meters.common().forEach(bucket -> bucket.stepBack(nowMs));
    }

    /** Sets the share of a bucket that several meters are charged for. */
    private void lookAt(CommonBucket bucket, Quotas quotas, long nowMs) {
        Double limit = quotas.limitOf(bucket.counter);
        boolean isCharged = bucket.takeCharged();
        if (limit == null) {
            bucket.set(Meter.UNLIMITED, Meter.UNLIMITED, false, nowMs);
        } else if (isShared(bucket.counter.kind)) {
            double part = part(bucket.counter, quotas, limit);
            double now = elastic.limit(limit, quotas.besideOf(bucket.counter));
            double share = shares.share(bucket.counter, now, isCharged, bucket.heldUntilMs(), nowMs);
            bucket.set(Double.isNaN(part) ? share : share * part, now, part < 1, nowMs);
        } else {
            bucket.set(limit, limit, false, nowMs);
        }
    }

    /** Reads a meter, sets its limit, and publishes what it was charged if that is due. */
    private void lookAt(Meter meter, Quotas quotas, boolean isReady, long nowMs) {
        boolean isCharged = meter.look(nowMs);
        Double limit = quotas.limitOf(meter.counter);
        meter.noteLimit(limit == null ? Meter.UNLIMITED : limit, nowMs);
        double share = Meter.UNLIMITED;
        double part = Double.NaN; // of an elastic counter, which is paced on a broker alone too
        if (limit != null && isShared(meter.counter.kind)) {
            part = part(meter.counter, quotas, limit);
            limit = elastic.limit(limit, quotas.besideOf(meter.counter));
            share = shares.share(meter.counter, limit, isCharged, heldUntilMs(meter, nowMs), nowMs);
            share = Double.isNaN(part) ? share : share * part;
        } else if (limit != null) {
            share = limit;
        }
        if (isHeld(meter)) {
            meter.hold(share);
        } else if (limit != null && (isPaced(meter.counter.kind) || !Double.isNaN(part))) {
            meter.pace(share, limit, part < 1, settings.window, nowMs);
        } else {
            meter.bind(share, nowMs);
        }
        meter.lookAgain(nowMs, idleMs);
        if (meter.hasUnpublished()) {
            publish(meter, limit, share, isReady, nowMs);
        } else if (meters.forgetIfGone(meter)) {
            shares.release(meter.counter);
            if (meter.key.ofTenant() != null && meters.common(meter.key.ofTenant()) == null) {
                shares.release(meter.key.ofTenant());
            }
        }
    }

    /** The part of its share that a counter has here; NaN for one that doesn't give way. */
    private double part(CounterKey counter, Quotas quotas, double quota) {
        double factor = elastic.factorOf(instance);
        ElasticState.Beside beside = quotas.besideOf(counter);
        boolean isElastic = factor < 1 || !Double.isNaN(beside.ceiling);
        return isElastic && counter.kind.givesWay() ? ElasticState.part(factor, quota, beside) : Double.NaN;
    }

    private void publish(Meter meter, Double limit, double share, boolean isReady, long nowMs) {
        if (meter.isOverdue(nowMs, GIVE_UP_MS)) {
            meter.takeUnpublished(nowMs);
            noteGivenUp();
            return;
        }
        if (!isReady || nowMs - meter.publishedMs() < intervalMs(meter, limit, share, nowMs) - settings.sumMs / 2) {
            return;
        }
        publish(meter, limit == null && !meter.isHeld() ? 0 : heldUntilMs(meter, nowMs) - nowMs, nowMs);
    }

    private void publish(Meter meter, long heldMs, long nowMs) {
        Meter.Sum sum = meter.takeUnpublished(nowMs);
        Map<CounterKey, Long> heldMsOf = new LinkedHashMap<>(4);
        Tags client = meters.clientOf(meter.key);
        String heldBy = null;
        if (meter.isHeld()) { // the mute is no quota's, though Kafka notes it as one
            CounterKey tenant = meter.key.ofTenant();
            boolean isStorage = lowDisk == null && tenant != null;
            heldBy = isStorage ? StorageState.NAME : DiskGuard.NAME;
            heldMsOf.put(isStorage ? tenant : new CounterKey(meter.counter.kind, client), heldMs);
        } else {
            heldMsOf.put(meter.counter, heldMs);
            for (CommonBucket bucket : meter.common()) {
                heldMsOf.merge(bucket.counter, bucket.heldUntilMs() - nowMs, Math::max);
            }
        }
        byte[] event = events.sum(meter.counter.kind, client, sum, heldMsOf, heldBy, nowMs);
        publish(meter.counter.tags, event, nowMs, () -> meter.giveBack(sum));
    }

    private void publish(Tags tags, byte[] event, long nowMs, Runnable onFailure) {
        if (settings.servesClients) {
            staleness.notePublished(nowMs);
        }
        sender.send(Events.key(tags), event, nowMs, onFailure);
    }

    /**
     * Until when this quota makes a client wait. A broker notes the waits that its controller asks for under request
     * time as well; a client that uses little of its share doesn't wait because of it.
     */
    private static long heldUntilMs(Meter meter, long nowMs) {
        long untilMs = meter.heldUntilMs();
        boolean isOthers = meter.counter.kind == Kind.REQUEST && untilMs > nowMs && meter.rate() < meter.share() / 2;
        return isOthers ? 0 : untilMs;
    }

    /** The nearer a client is to its share, the sooner the others have to know. */
    private long intervalMs(Meter meter, Double limit, double share, long nowMs) {
        long intervalMs = quotas().shadow(meter.counter.kind).isEmpty() ? UNLIMITED_MS : SMALL_MS;
        if (limit != null || meter.isHeld()) {
            intervalMs = intervalMs(meter.counter.kind, meter.rate() / share, heldUntilMs(meter, nowMs) > nowMs);
        }
        for (CommonBucket bucket : meter.common()) {
            double used = bucket.rate(nowMs) / bucket.share();
            intervalMs = Math.min(intervalMs, intervalMs(bucket.counter.kind, used, bucket.heldUntilMs() > nowMs));
        }
        return intervalMs;
    }

    private long intervalMs(Kind kind, double used, boolean isHeld) {
        if (isHeld || kind == Kind.MUTATION || used >= 0.5) {
            return settings.sumMs;
        }
        return used >= 0.1 ? MODEST_MS : SMALL_MS;
    }

    private List<Events.HeldShare> busiest(long nowMs) {
        List<Events.HeldShare> busiest = new ArrayList<>();
        Quotas quotas = quotas();
        for (CommonBucket bucket : meters.common()) {
            Double limit = quotas.limitOf(bucket.counter);
            boolean isTenant = !bucket.counter.tags.tenant.isEmpty();
            if (limit != null && isTenant && bucket.share() > 0 && busiest.size() < RECENT / 2) {
                long heldMs = Math.max(0, bucket.heldUntilMs() - nowMs);
                busiest.add(new Events.HeldShare(bucket.counter, limit, bucket.share(), bucket.rate(nowMs), heldMs));
            }
        }
        for (Meter meter : meters.all()) {
            Double limit = quotas.limitOf(meter.counter);
            boolean isRecent = nowMs - meter.activeMs() <= settings.window.spanMs();
            boolean isShared = !Double.isNaN(meter.share()); // since the first look
            int length = meter.counter.tags.user.length() + meter.counter.tags.clientId.length();
            if (limit != null && isRecent && isShared && length <= MAX_SHOWN_CHARACTERS && busiest.size() < RECENT) {
                long heldMs = Math.max(0, heldUntilMs(meter, nowMs) - nowMs);
                busiest.add(new Events.HeldShare(meter.counter, limit, meter.share(), meter.rate(), heldMs));
            }
        }
        busiest.sort(Comparator.comparingDouble(share -> -share.rate / share.limit));
        return busiest.subList(0, Math.min(MAX_SHOWN, busiest.size()));
    }

    private void noteGivenUp() {
        givenUp.incrementAndGet();
        if (!saidGivenUp) {
            saidGivenUp = true;
            LOG.warn("Sluice gives up sums that could not be published for {} s; further ones are only counted",
                    GIVE_UP_MS / 1_000);
        }
    }

    private void noteStale() {
        boolean now = staleMs() > STALE_MS;
        if (now != isStale) {
            isStale = now;
            if (now) {
                String undecided = settings.isProxy
                        ? "no limit is known"
                        : "the quotas set with kafka-configs hold on each broker";
                LOG.warn("Sluice hasn't decided for {} s: {}", STALE_MS / 1_000,
                        inForce == null ? undecided : "the last shares hold");
            } else {
                LOG.info("Sluice decides again");
            }
        }
    }

    private long staleMs() {
        return staleness.staleMs(time.milliseconds());
    }

    private static Map<String, Object> client(Settings settings, String purpose) {
        Map<String, Object> client = new HashMap<>(settings.client);
        String id = settings.exemptClientId == null ? "sluice" : settings.exemptClientId;
        client.put("client.id", id + "-" + settings.node + "-" + purpose);
        client.put("bootstrap.servers", settings.bootstrapServers);
        return client;
    }

    @Override
    public String getInstance() {
        return instance;
    }

    @Override
    public long getLimitsVersion() {
        return quotas().version;
    }

    @Override
    public boolean isLimitsRead() {
        return inForce != null;
    }

    @Override
    public boolean isExact() {
        return Samples.isPossible();
    }

    @Override
    public int getGateways() {
        return gateways;
    }

    @Override
    public int getCounters() {
        return meters.all().size();
    }

    @Override
    public long getCountersNotFollowed() {
        return meters.notFollowed();
    }

    @Override
    public long getRequestsOfMoreNames() {
        return newNames.refused();
    }

    @Override
    public long getStalenessMs() {
        return staleMs();
    }

    @Override
    public String getLowDisk() {
        return lowDisk;
    }

    @Override
    public long getSums() {
        return sums;
    }

    @Override
    public long getPublished() {
        return sender.published();
    }

    @Override
    public long getPublishFailures() {
        return sender.failed();
    }

    @Override
    public long getSumsGivenUp() {
        return givenUp.get();
    }

    @Override
    public long getFencedRecords() {
        return sumsReader.fenced();
    }

    @Override
    public long getUnreadableRecords() {
        return limitsView.garbage() + limitsReader.unreadable() + sumsReader.unreadable();
    }

    @Override
    public int getThreadsDown() {
        return (int) threads().filter(LastingThread::isDown).count();
    }

    @Override
    public long getThreadErrors() {
        return threads().mapToLong(LastingThread::errors).sum() + sender.replaced();
    }

    private Stream<LastingThread> threads() {
        return Stream.of(thread, limitsReader.thread(), sumsReader.thread(), loadReader.thread());
    }

    void takeLimits(Quotas complete) {
        if (inForce == null) {
            LOG.info("Sluice knows the limits (version {}){}", complete.version,
                    settings.isProxy ? "" : "; they replace the quotas set with kafka-configs");
        } else {
            meters.noteChange(time.milliseconds());
        }
        inForce = complete;
    }

    private void takeAnswer(Sums read) {
        Mutations mutations = read.answerTo == null ? null : awaited.get(read.answerTo);
        if (mutations != null) {
            mutations.answer().complete(read.answer);
        }
    }

    private final class LimitsHandler implements TopicReader.ClusterHandler {
        @Override
        public void take(byte[] key, byte[] value) {
            Quotas known = limitsView.inForce();
            limitsView.take(key, value);
            if (limitsView.elastic() != heard) {
                heard = limitsView.elastic();
                heardUntilMs = heard.holdsUntilMs(time.milliseconds());
            }
            if (limitsView.storage() != storage) {
                storageUntilMs = limitsView.storage().holdsUntilMs(time.milliseconds());
                storage = limitsView.storage();
            }
            Quotas complete = limitsView.inForce();
            if (complete != known) {
                takeLimits(complete);
            }
        }

        @Override
        public void restart() {
            limitsView = new LimitsView(); // the limits in force stay until a version is complete
        }

        @Override
        public boolean hasGaps() {
            return limitsView.missedRemovals();
        }

        @Override
        public void brokers(int count) {
            shares.expect(settings.isProxy ? settings.expectedGateways : count);
        }
    }

    private final class SumsHandler implements TopicReader.Handler {
        @Override
        public void take(byte[] key, byte[] value) throws Exception {
            long nowMs = time.milliseconds();
            Sums read = Sums.read(value, instance);
            shares.take(read, nowMs).forEach(counter -> meters.reset(counter, nowMs));
            sums += read.entities;
            takeAnswer(read);
            if (read.heartbeatOf != null) {
                diskGuard.take(read.heartbeatOf, read.lowDisk, nowMs);
            }
            if (read.ownUntilMs >= 0) {
                staleness.noteDecided(read.ownUntilMs, nowMs);
            }
            if (shares.isOwnHeartbeat(read)) {
                staleness.noteDecided(read.heartbeatMs, nowMs);
            }
        }

        @Override
        public void restart() {
            shares.clear();
        }
    }
}
