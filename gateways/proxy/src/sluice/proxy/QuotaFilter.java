package sluice.proxy;

import io.kroxylicious.proxy.filter.FilterContext;
import io.kroxylicious.proxy.filter.FilterDispatchExecutor;
import io.kroxylicious.proxy.filter.RequestFilter;
import io.kroxylicious.proxy.filter.RequestFilterResult;
import io.kroxylicious.proxy.filter.ResponseFilter;
import io.kroxylicious.proxy.filter.ResponseFilterResult;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.message.FetchRequestData;
import org.apache.kafka.common.message.MetadataRequestData;
import org.apache.kafka.common.message.MetadataResponseData;
import org.apache.kafka.common.message.ProduceRequestData;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.message.SaslAuthenticateRequestData;
import org.apache.kafka.common.message.SaslAuthenticateResponseData;
import org.apache.kafka.common.message.SaslHandshakeRequestData;
import org.apache.kafka.common.message.ShareFetchRequestData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import sluice.kafka.CounterKey;
import sluice.kafka.Kind;
import sluice.kafka.Mutations;

/**
 * The quotas of one connection: charges what passes by, says in responses how long to wait, and then mutes the connection
 * (KIP-219), as a broker does.
 *
 * <p>A produce request is charged when it goes to the broker, because a proxy takes the next one before the response; a
 * fetch when its response is there, whose bytes are delivered whatever the quota says. A muted connection's next request is
 * held, and nothing behind it is read. Logging in and asking for API versions is never held. A request whose quota is
 * overdrawn by more than its own connection's waits make up for is held as well, so that many connections are no way
 * round it.
 *
 * <p>All is called by the connection's event loop, and never blocks it.
 */
final class QuotaFilter implements RequestFilter, ResponseFilter {
    /** The longest wait that one response asks for; what was used stays charged, so the next request waits again. */
    static final long MAX_MUTE_MS = 5_000;

    /** The longest time for which a request is held. Kroxylicious closes the connection after 20 s, with decisions. */
    private static final long MAX_HOLD_MS = 10_000;

    private static final long LOOK_AGAIN_MS = 1_000; // limits may be raised meanwhile
    private static final short METADATA_VERSION = 12; // the first one that takes the ids of topics
    private static final Set<ApiKeys> MUTATION_APIS =
            EnumSet.of(ApiKeys.CREATE_TOPICS, ApiKeys.CREATE_PARTITIONS, ApiKeys.DELETE_TOPICS);
    private static final Set<ApiKeys> CHARGED_APIS = EnumSet.of(ApiKeys.PRODUCE, ApiKeys.FETCH, ApiKeys.SHARE_FETCH);
    private static final Set<ApiKeys> FREE_APIS =
            EnumSet.of(ApiKeys.API_VERSIONS, ApiKeys.SASL_HANDSHAKE, ApiKeys.SASL_AUTHENTICATE);

    /** Requests that a broker keeps until there is something to answer: their time says nothing of its work. */
    private static final Set<ApiKeys> WAITING_APIS =
            EnumSet.of(ApiKeys.FETCH, ApiKeys.SHARE_FETCH, ApiKeys.JOIN_GROUP, ApiKeys.SYNC_GROUP);

    private final Proxy proxy;
    private final FilterDispatchExecutor executor;
    private final Login login = new Login();
    private final Map<Integer, Sent> sent = new HashMap<>();
    private String certifiedUser;
    private long mutedUntilNs = System.nanoTime();
    private boolean isCharged; // anything was, on this connection

    QuotaFilter(Proxy proxy, FilterDispatchExecutor executor) {
        this.proxy = proxy;
        this.executor = executor;
    }

    @Override
    public boolean shouldHandleRequest(ApiKeys api, short version) {
        return api != ApiKeys.API_VERSIONS
                && (CHARGED_APIS.contains(api)
                        || MUTATION_APIS.contains(api)
                        || FREE_APIS.contains(api)
                        || proxy.settings().chargesUpstreamTime);
    }

    @Override
    public boolean shouldHandleResponse(ApiKeys api, short version) {
        return api != ApiKeys.SASL_HANDSHAKE && shouldHandleRequest(api, version);
    }

    @Override
    public CompletionStage<RequestFilterResult> onRequest(
            ApiKeys api, RequestHeaderData header, ApiMessage request, FilterContext context) {
        if (request instanceof SaslHandshakeRequestData handshake) {
            login.begin(handshake.mechanism());
        } else if (request instanceof SaslAuthenticateRequestData authenticate) {
            login.send(authenticate.authBytes());
        }
        if (FREE_APIS.contains(api)) {
            return context.forwardRequest(header, request);
        }
        Client client = client(header, context);
        if (proxy.meters().isExempt(client)) {
            return context.forwardRequest(header, request);
        }
        return admit(api, header, request, context, client, 0);
    }

    @Override
    public CompletionStage<ResponseFilterResult> onResponse(
            ApiKeys api, ResponseHeaderData header, ApiMessage response, FilterContext context) {
        if (response instanceof SaslAuthenticateResponseData authenticated) {
            if (authenticated.errorCode() == 0) {
                login.accept(authenticated.authBytes());
            }
            return context.forwardResponse(header, response);
        }
        Sent request = sent.remove(header.correlationId());
        if (request != null) {
            chargeResponse(api, response, request);
            TopicRequest.refuse(response, request.refused);
        }
        raiseThrottle(response);
        return context.forwardResponse(header, response);
    }

    /** Serves a request when neither the connection nor the quota makes it wait any more. */
    private CompletionStage<RequestFilterResult> admit(
            ApiKeys api, RequestHeaderData header, ApiMessage request, FilterContext context, Client client, long heldMs) {
        long waitMs = Math.min(waitMs(api, client), MAX_HOLD_MS - heldMs);
        if (waitMs <= 0) {
            return serve(api, header, request, context, client);
        }
        long nextMs = Math.min(waitMs, LOOK_AGAIN_MS);
        proxy.noteHeld(nextMs, heldMs == 0);
        CompletableFuture<RequestFilterResult> later = new CompletableFuture<>();
        executor.schedule(
                () -> forward(admit(api, header, request, context, client, heldMs + nextMs), later),
                nextMs,
                TimeUnit.MILLISECONDS);
        return later;
    }

    private static void forward(CompletionStage<RequestFilterResult> stage, CompletableFuture<RequestFilterResult> to) {
        stage.whenComplete((result, error) -> {
            if (error == null) {
                to.complete(result);
            } else {
                to.completeExceptionally(error);
            }
        });
    }

    private long waitMs(ApiKeys api, Client client) {
        if (api == ApiKeys.PRODUCE) {
            return Math.max(mutedMs(), owedMs(Kind.PRODUCE, client));
        }
        boolean isFetch = api == ApiKeys.FETCH || api == ApiKeys.SHARE_FETCH;
        return Math.max(mutedMs(), isFetch ? owedMs(Kind.FETCH, client) : 0);
    }

    /** What others used makes a connection wait; a new one at once, as no wait of its own tells of them. */
    private long owedMs(Kind kind, Client client) {
        return isCharged ? proxy.meters().owedMs(kind, client) : proxy.meters().overdrawnMs(kind, client);
    }

    private CompletionStage<RequestFilterResult> serve(
            ApiKeys api, RequestHeaderData header, ApiMessage request, FilterContext context, Client client) {
        TopicRequest topics = TopicRequest.of(request);
        if (topics != null && !topics.isValidation()) {
            return mutate(api, header, request, context, client, topics);
        }
        boolean hasResponse = true;
        if (request instanceof ProduceRequestData produce) {
            mute(proxy.meters().charge(Kind.PRODUCE, client, size(request, header.requestApiVersion())));
            hasResponse = produce.acks() != 0;
        } else if (request instanceof FetchRequestData fetch) {
            fetch.setMaxBytes(Math.min(fetch.maxBytes(), proxy.meters().fetchBytes(client)));
            fetch.setMinBytes(Math.min(fetch.minBytes(), fetch.maxBytes()));
        } else if (request instanceof ShareFetchRequestData fetch) {
            fetch.setMaxBytes(Math.min(fetch.maxBytes(), proxy.meters().fetchBytes(client)));
            fetch.setMinBytes(Math.min(fetch.minBytes(), fetch.maxBytes()));
        }
        if (hasResponse) {
            note(header, client, Set.of());
        }
        return context.forwardRequest(header, request);
    }

    private void chargeResponse(ApiKeys api, ApiMessage response, Sent request) {
        if (api == ApiKeys.FETCH || api == ApiKeys.SHARE_FETCH) {
            mute(proxy.meters().charge(Kind.FETCH, request.client, size(response, request.version)));
        }
        if (proxy.settings().chargesUpstreamTime && !WAITING_APIS.contains(api)) {
            mute(proxy.meters().chargeTime(request.client, System.nanoTime() - request.sentNs));
        }
    }

    private CompletionStage<RequestFilterResult> mutate(
            ApiKeys api,
            RequestHeaderData header,
            ApiMessage request,
            FilterContext context,
            Client client,
            TopicRequest topics) {
        MetadataRequestData question = topics.question();
        if (question == null) {
            return decide(api, header, request, context, client, topics, topics.partitions(Map.of()));
        }
        RequestHeaderData questionHeader =
                new RequestHeaderData().setRequestApiVersion(METADATA_VERSION).setClientId(header.clientId());
        CompletionStage<MetadataResponseData> metadata = context.sendRequest(questionHeader, question);
        return metadata.handle((answer, error) -> error == null ? TopicRequest.present(answer) : Map.<String, Integer>of())
                .thenCompose(present ->
                        decide(api, header, request, context, client, topics, topics.partitions(present)));
    }

    /**
     * Charges mutations. Where the client understands a refusal, what the share admits goes on at once, and the decision
     * on the rest is awaited: a connection's requests come one after the other, and a decision takes longer than a broker.
     */
    private CompletionStage<RequestFilterResult> decide(
            ApiKeys api,
            RequestHeaderData header,
            ApiMessage request,
            FilterContext context,
            Client client,
            TopicRequest topics,
            Map<String, Integer> partitions) {
        CounterKey counter = proxy.meters().counter(Kind.MUTATION, client);
        if (header.requestApiVersion() < topics.strictSince || !proxy.meters().isLimited(counter)) {
            mute(proxy.meters().charge(Kind.MUTATION, client, sum(partitions)));
            note(header, client, Set.of());
            return context.forwardRequest(header, request);
        }
        Map<String, Integer> rest = new LinkedHashMap<>(partitions);
        rest.keySet().removeAll(proxy.meters().admit(counter, partitions).keySet());
        if (rest.isEmpty()) {
            note(header, client, Set.of());
            return context.forwardRequest(header, request);
        }
        Mutations asked = new Mutations(counter, api.name, header.requestApiVersion(), rest);
        proxy.gateway().ask(asked);
        return executor.completeOnFilterDispatchThread(asked.answer())
                .handle((answer, error) -> refused(counter, rest, answer))
                .thenCompose(refused -> execute(header, request, context, client, topics, refused, partitions.size()));
    }

    /** The topics that are refused; without an answer all that the share didn't admit. */
    private Set<String> refused(CounterKey counter, Map<String, Integer> rest, Mutations.Answer answer) {
        Set<String> refused = new LinkedHashSet<>(rest.keySet());
        if (answer == null) {
            mute(proxy.meters().refillMs(counter));
            return refused;
        }
        refused.removeIf(topic -> !answer.refuses(topic));
        rest.keySet().removeAll(refused);
        proxy.meters().chargeDecided(counter, sum(rest));
        mute(answer.throttleMs);
        return refused;
    }

    private CompletionStage<RequestFilterResult> execute(
            RequestHeaderData header,
            ApiMessage request,
            FilterContext context,
            Client client,
            TopicRequest topics,
            Set<String> refused,
            int count) {
        proxy.noteRefused(refused.size());
        if (refused.size() == count && count > 0) {
            ApiMessage response = topics.emptyResponse();
            TopicRequest.refuse(response, refused);
            mute(1); // with 0 ms a refusal would look like success
            raiseThrottle(response);
            return context.requestFilterResultBuilder().shortCircuitResponse(response).completed();
        }
        topics.remove(refused);
        note(header, client, refused);
        return context.forwardRequest(header, request);
    }

    private void note(RequestHeaderData header, Client client, Set<String> refused) {
        sent.put(header.correlationId(), new Sent(header.requestApiVersion(), System.nanoTime(), client, refused));
    }

    private void mute(long waitMs) {
        isCharged = true;
        if (waitMs > 0) {
            long untilNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Math.min(waitMs, MAX_MUTE_MS));
            mutedUntilNs = untilNs - mutedUntilNs > 0 ? untilNs : mutedUntilNs;
        }
    }

    /** What is left of the connection's wait, rounded up. */
    private long mutedMs() {
        return Math.max(0, (mutedUntilNs - System.nanoTime() + 999_999) / 1_000_000);
    }

    private void raiseThrottle(ApiMessage response) {
        long mutedMs = mutedMs();
        if (mutedMs > 0) {
            ThrottleField.raise(response, (int) mutedMs);
            proxy.noteThrottled();
        }
    }

    private Client client(RequestHeaderData header, FilterContext context) {
        if (certifiedUser == null) {
            certifiedUser = Certificate.userOf(context);
        }
        String user = login.user().isEmpty() ? certifiedUser : login.user();
        return new Client(user, header.clientId() == null ? "" : header.clientId());
    }

    private static int size(ApiMessage message, short version) {
        return message.size(new ObjectSerializationCache(), version);
    }

    private static int sum(Map<String, Integer> partitions) {
        return partitions.values().stream().mapToInt(Integer::intValue).sum();
    }

    /** A request that has no response yet. */
    private record Sent(short version, long sentNs, Client client, Set<String> refused) {}
}
