package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.apache.kafka.common.utils.Time;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One gateway, in a broker or a proxy: it knows the limits in force, its share of each counter, and publishes what its
 * meters were charged.
 *
 * <p>Request threads call {@link #meterOf} and {@link #limit}, which never wait. All else happens in daemon threads of its
 * own: one reads the limits, one the sums of what is decided, and one polls the meters every `sluice.sum.ms`, sets their
 * limits and publishes. While Sluice is away the last shares hold. {@link GatewayMXBean} says what the figures are.
 */
public abstract class Gateway<M extends Meters<?>> implements AutoCloseable {
    static final long STALE_MS = 30_000;
    private static final Logger LOG = LoggerFactory.getLogger(Gateway.class);
    private static final long LOOKBACK_MS = 10_000;
    private static final long CLOSE_MS = 2_000;
    private static final long IDLE_MS = 1_000;
    private static final long GIVE_UP_MS = 60_000;
    private static final long MODEST_MS = 1_000;
    private static final long SMALL_MS = 10_000;
    private static final long UNLIMITED_MS = 30_000; // no share depends on it
    private static final double FETCH = 0.025; // Kafka lets a fetch hold S-1 windows of it
    private static final int RECENT = 100;
    private static final int MAX_SHOWN = 20;
    private static final int MAX_SHOWN_CHARACTERS = 500;

    final Time time;
    final M meters;
    final Events events;
    final Quotas kafkaQuotas = new Quotas(-1); // none of a proxy
    final EventSender sender;
    final LastingThread thread;

    private final Settings settings;
    private final String instance;
    private final NewNames newNames = new NewNames(System.nanoTime());
    private final Unlimited unlimited = new Unlimited();
    private final Shares shares;
    private final Staleness staleness = new Staleness();
    final LimitsHandler limitsHandler = new LimitsHandler();
    final TopicReader.Handler sumsHandler = new SumsHandler();
    private final TopicReader limitsReader;
    private final TopicReader sumsReader;
    private final long idleMs;
    private final AtomicLong givenUp = new AtomicLong();
    private volatile Overrides overrides = Overrides.NONE; // what holds
    private volatile Quotas inForce;
    private volatile int gateways = 1;
    private volatile long sums;
    private volatile String ownLowDisk;
    private Quotas applied;
    private long heartbeatMs;
    private long othersMs;
    private boolean isStale;
    private long nextNs = System.nanoTime();

    /** A gateway whose clock, way to the requests topic and meters are given. */
    Gateway(Settings settings, Time time, EventSender sender, M meters) {
        this.settings = settings;
        this.time = time;
        this.sender = sender;
        String random = UUID.randomUUID().toString().substring(0, 8);
        this.instance = settings.gatewayName + "-" + settings.node + "-" + random;
        this.events = new Events(settings.gatewayName, instance);
        this.meters = meters;
        this.shares = new Shares(instance, events.idStem, settings.window);
        this.limitsReader = new TopicReader(settings.limitsTopic, null, client(settings, "limits"), limitsHandler);
        this.sumsReader = new TopicReader(settings.sumsTopic, LOOKBACK_MS, client(settings, "sums"), sumsHandler);
        // A sample of a meter with one short window would be started anew between two looks.
        this.idleMs = Math.min(IDLE_MS, settings.window.samples * settings.window.windowMs / 2);
        this.thread = new LastingThread("sluice-shares", this::round, this::finish);
    }

    /** The way of a gateway's events to the requests topic. */
    static EventSender sender(Settings settings) {
        return new EventSender(settings.requestsTopic, client(settings, "requests"), EventSender.MUTE_MS);
    }

    /** How many gateways share the limits until the first own heartbeat is decided, if there are so many brokers. */
    int expected(int brokers) {
        return brokers;
    }

    /** Its load as of the last look, with its disks; null if it isn't known. */
    Load load() {
        return null;
    }

    /** The load for a heartbeat, so many ms after the last one. */
    Load takeLoad(long sinceMs) {
        return load();
    }

    /** Takes over the decision on a request that awaits one, null without one. Throws IOException for what the job wouldn't write. */
    void takeAnswer(JsonNode decision) throws IOException {}

    /** Passes the time until System.nanoTime() is `untilNs`. */
    void pass(long untilNs) throws InterruptedException {
        TimeUnit.NANOSECONDS.sleep(untilNs - System.nanoTime());
    }

    /** Publishes what else there is: once a second, and at the end. */
    void publishOthers(long nowMs) {}

    /** Whether it sees what is charged. */
    public boolean isMetricsSeen() {
        return true;
    }

    /** Its threads. */
    Stream<LastingThread> threads() {
        return Stream.of(thread, limitsReader.thread, sumsReader.thread);
    }

    /** Starts the threads. Doesn't wait: no broker need be there, and no topic. */
    public void start() {
        LOG.info("Sluice is gateway {} of node {}; {}", instance, settings.node, Samples.isPossible()
                ? "what is charged is read from the meters, exactly"
                : "this version of Kafka doesn't let it read the meters, so what is charged is estimated from their rates");
        limitsReader.thread.start();
        if (settings.role.servesClients()) {
            sumsReader.thread.start();
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
     * <p>A client without a limit of its own has one with its client-id if that is why it is in its tenant, or as long as
     * `Unlimited` has room. So has a client that is held by a name that its counter doesn't have, as long as it is held.
     */
    public CounterKey meterOf(Kind kind, String user, String clientId) {
        Quotas quotas = quotas();
        Overrides.Single hold = overrides.hold(kind, user, clientId, quotas.tenants);
        String tenant = hold != null && hold.isOfTenant()
                ? quotas.tenants.of(user, clientId)
                : quotas.tenantOf(kind, user, clientId);
        Resolution found = quotas.resolve(kind, user, clientId);
        boolean isHeldByName = hold != null && hold.isStricterThan(overrides.hold(kind, found.tags.in(tenant)));
        boolean isNamed = isHeldByName || found.level == 0 && !quotas.tenantOf(kind, found.tags).equals(tenant);
        boolean isWatched = !isNamed
                && found.level == 0
                && tenant.isEmpty()
                && unlimited.admits(kind, new Tags(user, clientId));
        Tags tags = isNamed || isWatched ? new Tags(Names.bounded(user), Names.bounded(clientId)) : found.tags;
        CounterKey key = new CounterKey(kind, tags.in(tenant));
        boolean isInvented = isHeldByName ? !hold.isOfClientId() : isNamed || found.isAnyClientId();
        if (isInvented && !kind.isCount() && meters.of(key) == null && !(isKept(tenant, user, clientId) && admitsCounter())) {
            tags = isHeldByName
                    ? new Tags(Names.bounded(user), NewNames.MORE)
                    : isNamed ? found.tags : quotas.resolve(kind, user, NewNames.MORE).tags;
            key = new CounterKey(kind, tags.in(tenant));
        }
        if (!kind.isCount() && !quotas.tenantOf(kind, tags).equals(tenant)) {
            meters.noteClient(key, user, clientId);
        }
        if (!kind.isCount()) {
            meters.noteCaller(key, user, clientId);
        }
        return key;
    }

    /** Whether the names of a client in a tenant can be kept: the hashes of long ones are in none. */
    private boolean isKept(String tenant, String user, String clientId) {
        return tenant.isEmpty() || meters.hasRoomFor(user, clientId);
    }

    /** Whether there may be one more counter for names that clients have invented. */
    boolean admitsCounter() {
        return meters.hasRoom() && newNames.admits(System.nanoTime());
    }

    /** What this gateway may let through on a meter's own counter now, per second; null is unlimited. Never waits. */
    public Double limit(CounterKey key) {
        Double limit = quotas().limitOf(key.own());
        if (limit == null || !isShared(key.kind)) {
            return limit;
        }
        Meter meter = meters.of(key); // null of a count
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

    /** So little of a share that fetches come often. A fetch holds one batch at least, however large. */
    static double fetchLimit(double share) {
        return share * FETCH;
    }

    private double shareOf(double limit, double share) {
        return Math.min(limit, Double.isNaN(share) ? limit / gateways : share);
    }

    /** The limit by which Kafka bounds what the next fetch on a meter may hold; null is unlimited. Never waits. */
    public Double fetchLimit(CounterKey key) {
        Double limit = limit(key);
        Meter meter = limit == null ? null : meters.of(key);
        boolean isPaced = settings.role.pacesAlone() || meter != null && meter.isPaced();
        double own = limit == null ? Meter.UNLIMITED : isPaced ? fetchLimit(limit) : limit;
        Double ofTenant = tenantLimit(key);
        double least = Math.min(own, ofTenant == null ? Meter.UNLIMITED : fetchLimit(ofTenant));
        return least == Meter.UNLIMITED ? null : Double.valueOf(least);
    }

    /** Takes over a new meter, whose client is throttled from the first request, not from the next look. */
    void begin(Meter meter, long nowMs) {
        for (CommonBucket bucket : meter.common()) {
            Double limit = quotas().limitOf(bucket.counter);
            if (limit != null) {
                bucket.begin(isShared(bucket.counter.kind) ? shareOf(limit, Double.NaN) : limit, limit, nowMs);
            }
        }
        if (holdOf(meter) != null) {
            meter.hold(Meter.UNLIMITED);
        }
    }

    /** The quotas in force; until the limits topic has been read, those that Kafka itself keeps. */
    Quotas quotas() {
        Quotas known = inForce;
        return known == null ? kafkaQuotas : known;
    }

    private boolean isShared(Kind kind) {
        return inForce != null && settings.role.shares(kind);
    }

    /** Whether a limit of this kind is paced. Mutations have a bucket already. */
    private boolean isPaced(Kind kind) {
        return isShared(kind) && kind != Kind.MUTATION && (gateways > 1 || settings.role.pacesAlone());
    }

    private void round() throws InterruptedException {
        nextNs = Math.max(nextNs + settings.sumMs * 1_000_000, System.nanoTime());
        tick(time.milliseconds());
        pass(Math.max(nextNs, System.nanoTime() + 1_000_000));
    }

    /** Publishes what is left when the broker stops: others may still take it. */
    private void finish() {
        long nowMs = time.milliseconds();
        for (Meter meter : meters.all()) {
            meter.look(nowMs);
            if (meter.hasUnpublished() && sender.isReady()) {
                publish(meter, 0, nowMs);
            }
        }
        if (sender.isReady()) {
            publishOthers(nowMs);
        }
        sender.close();
    }

    /** Looks at the meters, sets their limits, and publishes what is due. */
    void tick(long nowMs) {
        if (heartbeatMs - nowMs >= AliveGateways.HEARTBEAT_MS) {
            stepBack(nowMs);
        }
        Quotas quotas = quotas();
        boolean isNew = quotas != applied | noteOverrides(nowMs);
        applied = quotas;
        gateways = shares.gateways(nowMs);
        meters.common().forEach(bucket -> lookAt(bucket, quotas, nowMs));
        boolean isReady = sender.isReady();
        for (Meter meter : meters.all()) {
            if (isNew || meter.isDue(nowMs)) {
                lookAt(meter, quotas, isReady, nowMs);
            }
        }
        if (Math.abs(nowMs - othersMs) >= MODEST_MS) {
            othersMs = nowMs;
            meters.forgetUnmade();
            if (isReady) {
                publishOthers(nowMs);
            }
        }
        if (settings.role.servesClients() && isReady && nowMs - heartbeatMs >= AliveGateways.HEARTBEAT_MS) {
            Load load = takeLoad(nowMs - heartbeatMs);
            heartbeatMs = nowMs;
            publish(new Tags("", ""), heartbeat(load, nowMs), nowMs, () -> {});
        }
        noteStale();
    }

    /** Clients that seem to be Sluice's own and aren't exempt. */
    List<OwnClients.NotExempt> notExempt() {
        return List.of();
    }

    /** A heartbeat of now; `load` is null if it isn't known. */
    byte[] heartbeat(Load load, long nowMs) {
        return events.heartbeat(
                getStalenessMs(),
                meters.all().size(),
                getThreadsDown(),
                isMetricsSeen(),
                busiest(nowMs),
                unlimited.heaviest(meters, nowMs),
                notExempt(),
                settings.brokerId,
                load,
                overrides.command,
                nowMs);
    }

    /** Why a meter's clients are throttled, whatever their quotas are; null if they aren't. */
    private Overrides.Single holdOf(Meter meter) {
        boolean isOfProducers = meter.counter.kind == Kind.PRODUCE;
        Overrides.Single hold = overrides.hold(meter.counter.kind, meter.key.tags);
        return ownLowDisk != null && isOfProducers && hold == null
                ? Overrides.Single.ofDisk(ownLowDisk)
                : hold;
    }

    /** Whether neither producers nor consumers of a meter get anything now. Never waits. */
    public boolean isStopped(CounterKey key) {
        return overrides.stop(key.tags) != null;
    }

    /** Looks which overrides hold now, and whether this broker's own disk is low. Says whether that has changed. */
    private boolean noteOverrides(long nowMs) {
        Overrides before = overrides;
        boolean wasLow = ownLowDisk != null;
        Load load = load();
        ownLowDisk = load == null ? null : load.lowDisk(settings);
        overrides = new Overrides(limitsHandler.overrides(), instance, nowMs);
        if (wasLow != (ownLowDisk != null)) {
            LOG.warn("Producers throttled as a disk of this broker is low: {}", wasLow ? "none" : "all (" + ownLowDisk + ")");
        }
        if (!overrides.holdsAs(before)) {
            LOG.warn("Clients throttled by the job: {}", overrides.held());
        }
        return wasLow != (ownLowDisk != null) || !overrides.isLike(before);
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
        double part = part(bucket.counter, quotas, limit);
        double share = share(bucket.counter, limit, part, bucket.takeCharged(), bucket.heldUntilMs(), nowMs);
        bucket.set(share, limit == null ? Meter.UNLIMITED : limit, part < 1, nowMs);
    }

    /** Reads a meter, sets its limit, and publishes what it was charged if that is due. */
    private void lookAt(Meter meter, Quotas quotas, boolean isReady, long nowMs) {
        boolean isCharged = meter.look(nowMs);
        Double limit = quotas.limitOf(meter.counter);
        meter.noteLimit(limit == null ? Meter.UNLIMITED : limit, nowMs);
        double part = part(meter.counter, quotas, limit); // a counter that has one is paced on a broker alone too
        double share = share(meter.counter, limit, part, isCharged, heldUntilMs(meter, nowMs), nowMs);
        if (holdOf(meter) != null) {
            meter.hold(share);
        } else if (limit != null && (isPaced(meter.counter.kind) || !Double.isNaN(part))) {
            meter.pace(share, limit, part < 1, nowMs);
        } else {
            meter.bind(share, nowMs);
        }
        meter.lookAgain(nowMs, idleMs);
        if (meter.hasUnpublished()) {
            publish(meter, limit, share, isReady, nowMs);
        } else if (meters.forgetIfUnused(meter, nowMs)) {
            shares.release(meter.counter);
            if (meter.key.ofTenant() != null && meters.common(meter.key.ofTenant()) == null) {
                shares.release(meter.key.ofTenant());
            }
        }
    }

    /** What a counter's clients get here of its limit, per second; of a share only a part, unless that is NaN. */
    private double share(CounterKey counter, Double limit, double part, boolean isCharged, long heldUntilMs, long nowMs) {
        if (limit == null || !isShared(counter.kind)) {
            return limit == null ? Meter.UNLIMITED : limit;
        }
        double share = shares.share(counter, limit, isCharged, heldUntilMs, nowMs);
        return Double.isNaN(part) ? share : share * part;
    }

    /** The part of its share that a counter has here while it is tightened; NaN for one that doesn't give way. */
    private double part(CounterKey counter, Quotas quotas, Double quota) {
        boolean isTight = quota != null && isShared(counter.kind) && overrides.factor < 1 && counter.kind.givesWay();
        return isTight ? overrides.part(quota, quotas.reservationOf(counter)) : Double.NaN;
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
        Overrides.Single hold = meter.isHeld() ? holdOf(meter) : null;
        if (hold != null) { // the mute is no quota's, though Kafka notes it as one
            heldBy = hold.decider;
            heldMsOf.put(hold.isOfTenant() ? meter.key.ofTenant() : new CounterKey(meter.counter.kind, client).own(), heldMs);
        } else {
            heldMsOf.put(meter.counter, heldMs);
            for (CommonBucket bucket : meter.common()) {
                heldMsOf.merge(bucket.counter, bucket.heldUntilMs() - nowMs, Math::max);
            }
        }
        byte[] event = events.sum(meter.counter.kind, named(meter.key, sum.callers), sum, heldMsOf, heldBy, nowMs);
        publish(meter.counter.tags, event, nowMs, () -> meter.giveBack(sum));
    }

    /**
     * The names in an event: those of a meter's counter, and those that its callers have in common. If the job wouldn't
     * charge these to the same counter and tenant, as limits have changed, they are left out.
     */
    Tags named(CounterKey key, Tags callers) {
        Tags own = key.own().tags;
        if (callers == null || own.topic != null) {
            return meters.clientOf(key);
        }
        String user = own.user.isEmpty() ? callers.user : own.user;
        String clientId = own.clientId.isEmpty() ? callers.clientId : own.clientId;
        Quotas quotas = quotas();
        boolean isSame = quotas.resolve(key.kind, user, clientId).tags.equals(own)
                && quotas.tenantOf(key.kind, user, clientId).equals(key.tags.tenant);
        return isSame ? new Tags(user, clientId) : meters.clientOf(key);
    }

    /** Publishes an event of a counter's clients. */
    void publish(Tags tags, byte[] event, long nowMs, Runnable onFailure) {
        if (settings.role.servesClients()) {
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

    private List<ObjectNode> busiest(long nowMs) {
        List<ObjectNode> busiest = new ArrayList<>();
        Quotas quotas = quotas();
        for (CommonBucket bucket : meters.common()) {
            Double limit = quotas.limitOf(bucket.counter);
            boolean isTenant = !bucket.counter.tags.tenant.isEmpty();
            if (limit != null && isTenant && bucket.share() > 0 && busiest.size() < RECENT / 2) {
                long heldMs = Math.max(0, bucket.heldUntilMs() - nowMs);
                busiest.add(Events.share(bucket.counter, limit, bucket.share(), bucket.rate(nowMs), heldMs));
            }
        }
        for (Meter meter : meters.all()) {
            Double limit = quotas.limitOf(meter.counter);
            boolean isRecent = nowMs - meter.activeMs() <= settings.window.spanMs();
            boolean isShared = !Double.isNaN(meter.share()); // since the first look
            int length = meter.counter.tags.user.length() + meter.counter.tags.clientId.length();
            if (limit != null && isRecent && isShared && length <= MAX_SHOWN_CHARACTERS && busiest.size() < RECENT) {
                long heldMs = Math.max(0, heldUntilMs(meter, nowMs) - nowMs);
                busiest.add(Events.share(meter.counter, limit, meter.share(), meter.rate(), heldMs));
            }
        }
        busiest.sort(Comparator.comparingDouble(
                share -> -share.get("charged").doubleValue() / share.get("limit").doubleValue()));
        return busiest.subList(0, Math.min(MAX_SHOWN, busiest.size()));
    }

    private void noteGivenUp() {
        if (givenUp.getAndIncrement() == 0) {
            LOG.warn("Sluice gives up sums that could not be published for {} s; further ones are only counted",
                    GIVE_UP_MS / 1_000);
        }
    }

    private void noteStale() {
        boolean now = getStalenessMs() > STALE_MS;
        if (now != isStale) {
            isStale = now;
            if (now) {
                LOG.warn("Sluice hasn't decided for {} s: {}", STALE_MS / 1_000,
                        inForce == null ? settings.role.withoutLimits() : "the last shares hold");
            } else {
                LOG.info("Sluice decides again");
            }
        }
    }

    private static Map<String, Object> client(Settings settings, String purpose) {
        Map<String, Object> client = new HashMap<>(settings.client);
        String id = settings.exemptClientId == null ? "sluice" : settings.exemptClientId;
        client.put("client.id", id + "-" + settings.node + "-" + purpose);
        client.put("bootstrap.servers", settings.bootstrapServers);
        return client;
    }

    public String getInstance() {
        return instance;
    }

    public long getLimitsVersion() {
        return quotas().version;
    }

    public boolean isLimitsRead() {
        return inForce != null;
    }

    public int getGateways() {
        return gateways;
    }

    public int getCounters() {
        return meters.all().size();
    }

    public long getRequestsOfMoreNames() {
        return newNames.refused.get();
    }

    public long getStalenessMs() {
        return staleness.staleMs(time.milliseconds());
    }

    public String getLowDisk() {
        Overrides.Single all = overrides.holdOfAll();
        return ownLowDisk == null && all != null ? all.reason : ownLowDisk;
    }

    public long getSums() {
        return sums;
    }

    public long getPublished() {
        return sender.published.get();
    }

    public long getPublishFailures() {
        return sender.failed.get();
    }

    public long getSumsGivenUp() {
        return givenUp.get();
    }

    public long getFencedRecords() {
        return sumsReader.fence.fenced;
    }

    public long getUnreadableRecords() {
        return limitsReader.unreadable + sumsReader.unreadable;
    }

    public int getThreadsDown() {
        return (int) threads().filter(LastingThread::isDown).count();
    }

    public long getThreadErrors() {
        return threads().mapToLong(each -> each.errors).sum() + sender.replaced.get();
    }

    /** Limits of a complete version hold from now on. */
    void takeLimits(Quotas complete) {
        if (inForce == null) {
            LOG.info("Sluice knows the limits (version {}); until now: {}", complete.version, settings.role.withoutLimits());
        } else {
            meters.noteChange(time.milliseconds());
        }
        inForce = complete;
    }

    final class LimitsHandler extends LimitsView implements TopicReader.ClusterHandler {
        @Override
        public void take(byte[] key, byte[] value) throws IOException {
            Quotas known = inForce();
            take(key, value, time.milliseconds());
            if (inForce() != known) {
                takeLimits(inForce());
            }
        }

        @Override
        public void brokers(int count) {
            shares.expect(expected(count));
        }
    }

    private final class SumsHandler implements TopicReader.Handler {
        @Override
        public void take(byte[] key, byte[] value) throws Exception {
            long nowMs = time.milliseconds();
            Sums read = new Sums(value, instance);
            takeAnswer(read.answer);
            shares.take(read, nowMs).forEach(counter -> meters.reset(counter, nowMs));
            sums += read.entities;
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
