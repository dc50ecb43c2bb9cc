package sluice.proxy;

import io.kroxylicious.proxy.filter.FilterContext;
import io.kroxylicious.proxy.filter.FilterDispatchExecutor;
import io.kroxylicious.proxy.filter.RequestFilter;
import io.kroxylicious.proxy.filter.RequestFilterResult;
import io.kroxylicious.proxy.filter.ResponseFilter;
import io.kroxylicious.proxy.filter.ResponseFilterResult;
import io.netty.channel.Channel;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.kafka.common.message.ApiVersionsResponseData;
import org.apache.kafka.common.message.FetchRequestData;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.MetadataRequestData;
import org.apache.kafka.common.message.MetadataResponseData;
import org.apache.kafka.common.message.ProduceRequestData;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.message.SaslAuthenticateResponseData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import sluice.kafka.CounterKey;
import sluice.kafka.Kind;
import sluice.kafka.ProxyGateway;
import sluice.kafka.Turn;

/**
 * The quotas of one connection: charges what passes by, says in responses how long to wait, and then mutes the connection
 * (KIP-219), as a broker does.
 *
 * <p>A produce request is charged when it goes to the broker, because a proxy takes the next one before the response; a
 * fetch when its response is there, whose bytes are delivered whatever the quota says. A muted connection's next request is
 * delayed, and nothing behind it is read. Logging in and asking for API versions is never delayed. A request whose quota is
 * overdrawn by more than its own connection's waits make up for is delayed as well, so that many connections are no way
 * round it.
 *
 * <p>All is called by the connection's event loop, and never blocks it.
 */
final class QuotaFilter implements RequestFilter, ResponseFilter {
    /** The longest time until mutations without a response count as done: else who closes its connection pays nothing. */
    private static final long MAX_UNSETTLED_MS = 30_000;

    private static final int SMALL_BYTES = 65_536; // a request for which there is always room while it waits

    private static final short METADATA_VERSION = 12; // the first one that takes the ids of topics
    private static final Set<ApiKeys> MUTATION_APIS =
            EnumSet.of(ApiKeys.CREATE_TOPICS, ApiKeys.CREATE_PARTITIONS, ApiKeys.DELETE_TOPICS);
    private static final Set<ApiKeys> CHARGED_APIS = EnumSet.of(ApiKeys.PRODUCE, ApiKeys.FETCH, ApiKeys.SHARE_FETCH);
    private static final Set<ApiKeys> FETCH_APIS = EnumSet.of(ApiKeys.FETCH, ApiKeys.SHARE_FETCH);
    private static final Set<ApiKeys> FREE_APIS =
            EnumSet.of(ApiKeys.API_VERSIONS, ApiKeys.SASL_HANDSHAKE, ApiKeys.SASL_AUTHENTICATE);

    private final Proxy proxy;
    private final FilterDispatchExecutor executor;
    private final Login login = new Login();
    private final Mute mute;
    private final Deque<Sent> sent = new ArrayDeque<>(); // as brokers answer them: in order
    private Map<CounterKey, Integer> fetched; // by the last fetch; null before the first
    private CompletableFuture<Void> fetching = CompletableFuture.completedFuture(null); // until the last fetch is charged
    private final Set<String> made = new LinkedHashSet<>(); // topics by Metadata, until they are there
    private String certifiedUser;
    private Channel channel; // of the client; null if it can't be known
    private boolean isAttached;
    private boolean isLearner; // nothing but its answer to Metadata comes from a broker
    private boolean isPatient; // requests may be kept for longer than 20 s
    private boolean isAdmitted; // the connection is, by the quotas on connections

    QuotaFilter(Proxy proxy, FilterDispatchExecutor executor) {
        this.proxy = proxy;
        this.executor = executor;
        this.mute = new Mute(proxy.gateway(), executor);
    }

    @Override
    public boolean shouldHandleRequest(ApiKeys api, short version) {
        return api != ApiKeys.API_VERSIONS
                && (CHARGED_APIS.contains(api)
                        || MUTATION_APIS.contains(api)
                        || api == ApiKeys.METADATA && proxy.gateway().isUsed(Kind.MUTATION)
                        || FREE_APIS.contains(api)
                        || !isAdmitted);
    }

    @Override
    public boolean shouldHandleResponse(ApiKeys api, short version) {
        return api == ApiKeys.API_VERSIONS || api != ApiKeys.SASL_HANDSHAKE && shouldHandleRequest(api, version);
    }

    @Override
    public CompletionStage<RequestFilterResult> onRequest(
            ApiKeys api, RequestHeaderData header, ApiMessage request, FilterContext context) {
        String fault = login.take(request, header.requestApiVersion());
        if (fault != null) {
            proxy.noteUnreadable(context.channelDescriptor(), fault);
            return context.requestFilterResultBuilder().withCloseConnection().completed();
        }
        if (FREE_APIS.contains(api)) {
            return context.forwardRequest(header, request);
        }
        Client client = client(header, context);
        attach(context);
        isAdmitted = isAdmitted || proxy.connections().admits(client, channel);
        if (!isAdmitted) {
            return close(context);
        }
        if (isLearner) {
            return context.forwardRequest(header, request); // as far as Kroxylicious' own filter, which closes the connection
        }
        Supplier<CompletionStage<RequestFilterResult>> take = () -> take(header, request, client, context);
        return isPatient && !fetching.isDone() && FETCH_APIS.contains(api) ? afterFetch(take) : take.get();
    }

    private CompletionStage<RequestFilterResult> take(
            RequestHeaderData header, ApiMessage request, Client client, FilterContext context) {
        Hold hold = new Hold(System.nanoTime());
        return learnNames(request, client, context, () -> {
            Map<CounterKey, Integer> charges = Charges.ofRequest(header, request, client, proxy.gateway(), proxy.names());
            return admit(new Asked(header, request, context, client, charges, hold, new Turn(), new Room(client)), true);
        });
    }

    /** Takes a fetch when the one before is charged, by its answer: a broker reads no request before that either. */
    private CompletionStage<RequestFilterResult> afterFetch(Supplier<CompletionStage<RequestFilterResult>> take) {
        CompletableFuture<RequestFilterResult> later = new CompletableFuture<>();
        mute.noteWaiting(1);
        fetching.thenRunAsync(() -> mute.noteWaiting(-1), executor).thenRun(() -> forward(take, later));
        return later;
    }

    @Override
    public CompletionStage<ResponseFilterResult> onResponse(
            ApiKeys api, ResponseHeaderData header, ApiMessage response, FilterContext context) {
        if (response instanceof SaslAuthenticateResponseData authenticated) {
            if (authenticated.errorCode() == 0) {
                login.accept(authenticated.authBytes());
            } else {
                login.refuse();
            }
            return context.forwardResponse(header, response);
        }
        if (response instanceof ApiVersionsResponseData versions) {
            OldestProduce.keep(versions.apiKeys());
            return context.forwardResponse(header, response);
        }
        Sent request = takeSent(api, header.correlationId());
        if (request == null) {
            return answer(header, response, context);
        }
        return learnNames(response, request.client, context, () -> {
            chargeResponse(response, request);
            proxy.gateway().endPromise(request.promised);
            request.mutations.settle(TopicRequest.undone(response));
            TopicRequest.refuse(response, request.refused);
            return answer(header, response, context);
        });
    }

    private CompletionStage<ResponseFilterResult> answer(
            ResponseHeaderData header, ApiMessage response, FilterContext context) {
        raiseThrottle(response);
        if (FETCH_APIS.contains(ApiKeys.forId(response.apiKey()))) {
            fetching.complete(null);
        }
        return context.forwardResponse(header, response);
    }

    /** Goes on once the names of the topics in a fetch are known, if there is a quota that asks for them. */
    private <R> CompletionStage<R> learnNames(
            ApiMessage message, Client client, FilterContext context, Supplier<CompletionStage<R>> then) {
        TopicNames names = proxy.names();
        MetadataRequestData question = proxy.gateway().isUsed(Kind.TOPIC_FETCH) ? names.question(message) : null;
        if (question == null) {
            return then.get();
        }
        return ask(question, client, context, answer -> {
            names.learn(answer);
            return then.get();
        });
    }

    /** Closes a connection that a quota refuses. */
    private CompletionStage<RequestFilterResult> close(FilterContext context) {
        proxy.noteRefusedConnection();
        CompletableFuture<RequestFilterResult> later = new CompletableFuture<>();
        executor.schedule(
                () -> {
                    proxy.connections().endWait();
                    forward(() -> context.requestFilterResultBuilder().withCloseConnection().completed(), later);
                },
                proxy.connections().beginWait(),
                TimeUnit.MILLISECONDS);
        return later;
    }

    private void attach(FilterContext context) {
        if (!isAttached) {
            isAttached = true;
            isLearner = HandlerParts.isLearner(context);
            channel = HandlerParts.channelOf(context);
            isPatient = channel != null && HandlerParts.keepFor(2 * Hold.MAX_MUTED_MS, context, channel.eventLoop());
            mute.attach(channel);
            if (channel != null) {
                channel.closeFuture().addListener(closed -> {
                    sent.forEach(each -> proxy.gateway().endPromise(each.promised));
                    sent.clear(); // a response that is on its way would end another request's promise
                });
            }
        }
    }

    /**
     * Serves a request when neither the connection nor a quota makes it wait any more, and its client isn't stopped. One that is
     * owed something after {@link Hold#MAX_OWED_MS} is refused: its client would give up soon, and try again.
     */
    private CompletionStage<RequestFilterResult> admit(Asked asked, boolean isNew) {
        long nowNs = System.nanoTime();
        if (channel != null && !channel.isActive()) { // the client has given up, and sends it again
            asked.turn.leave();
            return asked.context.requestFilterResultBuilder().withCloseConnection().completed();
        }
        boolean isStopped = isStopped(asked);
        boolean isKept = isPatient && asked.room.bytes > 0 && asked.message instanceof ProduceRequestData;
        long nextMs = isStopped
                ? asked.hold.nextMs(Hold.MAX_MS, Hold.MAX_MS, nowNs)
                : asked.hold.nextMs(mutedMs(asked), isKept ? Hold.MAX_MUTED_MS : Hold.MAX_MS, nowNs);
        if (nextMs <= 0) {
            if (isStopped) {
                return forget(asked, () -> !isStopped(asked));
            }
            Map<CounterKey, Double> amounts = promised(asked);
            long owedMs = proxy.gateway().promise(amounts, asked.turn);
            if (owedMs <= 0) {
                return serve(asked, amounts);
            }
            asked.charges.keySet().forEach(mute::waitFor);
            Hold hold = isKept && asked.turn.hasBegun() ? new Hold(asked.turn.sinceNs()) : asked.hold;
            nextMs = hold.nextMs(owedMs, Hold.MAX_OWED_MS, nowNs);
            if (nextMs <= 0) {
                asked.charges.keySet().forEach(counter -> mute.note(counter, owedMs));
                return forget(asked, () -> false);
            }
        }
        int bytes = isNew ? Charges.size(asked.header, asked.message) : 0;
        if (!asked.room.take(bytes) && bytes > SMALL_BYTES) {
            return forget(asked, () -> false);
        }
        if (isStopped && isNew) {
            asked.charges.keySet().stream().filter(proxy.gateway()::isStopped).forEach(proxy.gateway()::noteStopped);
        }
        CompletableFuture<RequestFilterResult> later = new CompletableFuture<>();
        mute.noteWaiting(1);
        executor.schedule(
                () -> {
                    mute.noteWaiting(-1);
                    proxy.noteHeld(System.nanoTime() - nowNs, isNew);
                    forward(() -> admit(asked, false), later);
                },
                nextMs,
                TimeUnit.MILLISECONDS);
        later.whenComplete((result, error) -> asked.room.giveBack());
        return later;
    }

    /**
     * Refuses a request that can't be served, or for whose bytes there is no room; a produce when its client has given up, as it would
     * send it again at once, or when that `isOver` for which it waits.
     */
    private CompletionStage<RequestFilterResult> forget(Asked asked, BooleanSupplier isOver) {
        if (!(asked.message instanceof ProduceRequestData produce)) {
            return refuse(asked);
        }
        produce.topicData().clear(); // Kroxylicious keeps the message
        asked.room.giveBack();
        asked.turn.leave();
        CompletableFuture<RequestFilterResult> later = new CompletableFuture<>();
        awaitEnd(asked, isOver, isPatient ? new Hold(System.nanoTime()) : asked.hold, later);
        return later;
    }

    private void awaitEnd(Asked asked, BooleanSupplier isOver, Hold hold, CompletableFuture<RequestFilterResult> refused) {
        long mostMs = isPatient ? Hold.MAX_RESPONSE_MS : Hold.MAX_OWED_MS;
        boolean isEnded = channel != null && !channel.isActive() || isOver.getAsBoolean();
        long nextMs = isEnded ? 0 : hold.nextMs(mostMs, mostMs, System.nanoTime());
        if (nextMs <= 0) {
            forward(() -> refuse(asked), refused);
        } else {
            executor.schedule(() -> awaitEnd(asked, isOver, hold, refused), nextMs, TimeUnit.MILLISECONDS);
        }
    }

    private boolean isStopped(Asked asked) {
        return asked.charges.keySet().stream().anyMatch(proxy.gateway()::isStopped);
    }

    /** What a request makes its counters pay; a fetch, whose response isn't there yet, as much as the one before. */
    private Map<CounterKey, Double> promised(Asked asked) {
        Map<CounterKey, Double> promised = new LinkedHashMap<>();
        asked.charges.forEach((counter, amount) -> promised.put(
                counter, isOfResponses(counter) && channel != null ? fetched(counter) : amount));
        return promised;
    }

    /** Whether what it is charged is known with the response alone. */
    private static boolean isOfResponses(CounterKey counter) {
        return counter.kind == Kind.FETCH || counter.kind == Kind.TOPIC_FETCH;
    }

    /** What the connection's last fetch was charged: that of a consumer without records nothing; of the first one a mean. */
    private double fetched(CounterKey counter) {
        return fetched == null ? proxy.gateway().size(counter) : fetched.getOrDefault(counter, 0);
    }

    /** Answers a fetch that isn't served without records. A produce has no such answer: its connection is closed. */
    private CompletionStage<RequestFilterResult> refuse(Asked asked) {
        asked.turn.leave();
        if (asked.message instanceof FetchRequestData) {
            FetchResponseData empty = new FetchResponseData();
            raiseThrottle(empty);
            return asked.context.requestFilterResultBuilder().shortCircuitResponse(empty).completed();
        }
        return asked.context.requestFilterResultBuilder().withCloseConnection().completed();
    }

    /** Completes a later answer with the result of a step, or with what it throws: else its client would wait for ever. */
    private static <R> void forward(Supplier<CompletionStage<R>> step, CompletableFuture<R> to) {
        try {
            step.get().whenComplete((result, error) -> {
                if (error == null) {
                    to.complete(result);
                } else {
                    to.completeExceptionally(error);
                }
            });
        } catch (RuntimeException error) {
            to.completeExceptionally(error);
        }
    }

    /** How long the connection is muted; a new one as long as others of its client that are held. */
    private long mutedMs(Asked asked) {
        ProxyGateway gateway = proxy.gateway();
        return mute.isCharged()
                ? mute.leftMs()
                : asked.charges.keySet().stream().mapToLong(gateway::heldMs).max().orElse(0);
    }

    private CompletionStage<RequestFilterResult> serve(Asked asked, Map<CounterKey, Double> promised) {
        TopicRequest topics = TopicRequest.of(asked.message, made);
        CounterKey mutations = topics == null ? null : asked.client.counter(Kind.MUTATION, proxy.gateway());
        boolean isFree = topics == null || topics.isAutomatic && !proxy.gateway().isLimited(mutations);
        if (!isFree && !topics.isValidation) {
            return mutate(asked, topics, mutations);
        }
        charge(asked.charges);
        boolean isFetch = asked.charges.keySet().stream().anyMatch(QuotaFilter::isOfResponses);
        if (isFetch) {
            fetching = new CompletableFuture<>();
        } else {
            proxy.gateway().endPromise(promised);
        }
        if (!(asked.message instanceof ProduceRequestData produce) || produce.acks() != 0) {
            note(asked, Set.of(), ChargedMutations.NONE, isFetch ? promised : Map.of());
        }
        return asked.forward();
    }

    private void charge(Map<CounterKey, Integer> charges) {
        charges.forEach((counter, amount) -> {
            if (amount > 0) {
                mute.note(counter, proxy.gateway().charge(counter, amount));
            }
        });
    }

    private void chargeResponse(ApiMessage response, Sent request) {
        Map<CounterKey, Integer> charges =
                Charges.ofResponse(response, request.version, request.client, proxy.gateway(), proxy.names());
        fetched = response instanceof FetchResponseData ? charges : fetched;
        charge(charges);
    }

    private CompletionStage<RequestFilterResult> mutate(Asked asked, TopicRequest topics, CounterKey counter) {
        return ask(topics.question(), asked.client, asked.context, answer -> {
            Map<String, Integer> partitions = ChargedMutations.bounded(
                    topics.partitions(answer), proxy.settings.maxPartitionsPerRequest);
            ApiKeys api = ApiKeys.forId(asked.message.apiKey());
            short version = asked.header.requestApiVersion();
            ChargedMutations mutations =
                    new ChargedMutations(proxy.gateway(), asked.client, counter, api, version);
            return mutations.decide(partitions, topics, mute, executor, refused ->
                    execute(asked, topics, refused, mutations, partitions.size()));
        });
    }

    /**
     * Goes on with what the cluster says of topics; with nothing without a question, or if it doesn't answer. Stages of
     * Kroxylicious can't be composed in one of Java's own.
     */
    private <R> CompletionStage<R> ask(
            MetadataRequestData question,
            Client client,
            FilterContext context,
            Function<MetadataResponseData, CompletionStage<R>> then) {
        MetadataResponseData nothing = new MetadataResponseData();
        if (question == null) {
            return then.apply(nothing);
        }
        RequestHeaderData ofQuestion =
                new RequestHeaderData().setRequestApiVersion(METADATA_VERSION).setClientId(client.clientId());
        CompletionStage<MetadataResponseData> metadata = context.sendRequest(ofQuestion, question);
        CompletableFuture<MetadataResponseData> known = new CompletableFuture<>();
        metadata.whenComplete((answer, error) -> known.complete(error == null ? answer : nothing));
        ScheduledFuture<?> silence =
                executor.schedule(() -> known.complete(nothing), Hold.MAX_OWED_MS, TimeUnit.MILLISECONDS);
        CompletableFuture<R> later = new CompletableFuture<>();
        known.whenComplete((answer, error) -> {
            silence.cancel(false);
            forward(() -> then.apply(answer), later);
        });
        return later;
    }

    private CompletionStage<RequestFilterResult> execute(
            Asked asked, TopicRequest topics, Set<String> refused, ChargedMutations charged, int count) {
        proxy.noteRefused(refused.size());
        if (refused.size() == count && count > 0 && !topics.isAutomatic) {
            ApiMessage response = topics.refusal(refused);
            mute.note(1); // with 0 ms a refusal would look like success
            raiseThrottle(response);
            return asked.context.requestFilterResultBuilder().shortCircuitResponse(response).completed();
        }
        topics.remove(refused);
        if (count > 0) {
            executor.schedule(() -> charged.settle(Set.of()), MAX_UNSETTLED_MS, TimeUnit.MILLISECONDS);
        }
        note(asked, refused, charged, Map.of());
        return asked.forward();
    }

    private void note(
            Asked asked, Set<String> refused, ChargedMutations mutations, Map<CounterKey, Double> promised) {
        short version = asked.header.requestApiVersion();
        ApiKeys api = ApiKeys.forId(asked.message.apiKey());
        int id = asked.header.correlationId();
        sent.add(new Sent(api, id, version, asked.client, refused, mutations, promised));
    }

    /** The request that a response answers; null if it isn't noted. A client may give all its requests the same id. */
    private Sent takeSent(ApiKeys api, int correlationId) {
        int passed = 0; // those before it have been answered, by responses that nobody looked at
        for (Sent each : sent) {
            passed++;
            if (each.api == api && each.correlationId == correlationId) {
                for (; passed > 1; passed--) {
                    proxy.gateway().endPromise(sent.removeFirst().promised);
                }
                sent.removeFirst();
                return each;
            }
        }
        return null;
    }

    private void raiseThrottle(ApiMessage response) {
        long mutedMs = mute.leftMs();
        if (mutedMs > 0) {
            ThrottleField.raise(response, (int) mutedMs);
            proxy.noteThrottled();
        }
    }

    private Client client(RequestHeaderData header, FilterContext context) {
        if (certifiedUser == null) {
            certifiedUser = Certificate.userOf(context, proxy.principalRules);
        }
        String authenticated = Authenticated.userOf(context);
        String user = authenticated.isEmpty() ? login.user() : authenticated;
        return new Client(user.isEmpty() ? certifiedUser : user, header.clientId() == null ? "" : header.clientId());
    }

    /** What a request that waits has taken of the memory for them. */
    private final class Room {
        private final Client client;
        private int bytes;

        Room(Client client) {
            this.client = client;
        }

        /** Whether there was room for so many bytes more. */
        boolean take(int more) {
            boolean isTaken = more == 0 || proxy.waiting().take(client, more);
            bytes += isTaken ? more : 0;
            return isTaken;
        }

        void giveBack() {
            if (bytes > 0) {
                proxy.waiting().giveBack(client, bytes);
                bytes = 0;
            }
        }
    }

    /** A request that isn't on its way to the broker yet, and what it is charged to. */
    private record Asked(
            RequestHeaderData header,
            ApiMessage message,
            FilterContext context,
            Client client,
            Map<CounterKey, Integer> charges,
            Hold hold,
            Turn turn,
            Room room) {
        CompletionStage<RequestFilterResult> forward() {
            return context.forwardRequest(header, message);
        }
    }

    /** A request that has no response yet. */
    private record Sent(
            ApiKeys api,
            int correlationId,
            short version,
            Client client,
            Set<String> refused,
            ChargedMutations mutations,
            Map<CounterKey, Double> promised) {}
}
