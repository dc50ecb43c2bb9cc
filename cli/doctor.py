"""Checks of everything the job depends on, a line for each, with the fix for each failure."""

import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPException
from threading import Thread
from typing import NamedTuple, TypeVar
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaConnectionError, KafkaError
from msgspec import structs, to_builtins

from sluice.cli.errors import CheckError, CheckWarningError
from sluice.cli.options import quotas_in_force
from sluice.cli.start_checks import Check, start_checks
from sluice.configs.capacity import broker_limits
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import Properties, Settings
from sluice.insight.texts import unlimited_text
from sluice.jvm.plugin import CALLBACK_CLASS, REPORTER_CLASS
from sluice.kafka_io.client import CONNECT_TIMEOUT_MS, OF_COMMANDS, connect, principal_of
from sluice.kafka_io.cluster_facts import CALLBACK
from sluice.kafka_io.cluster_quotas import read_cluster_quotas
from sluice.kafka_io.errors import KafkaUnavailableError, TopicLostError
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.properties import has_layer
from sluice.kafka_io.topic_reader import TopicReader
from sluice.kafka_io.topics import differing_topics, topic_id_now
from sluice.process.addresses import is_loopback
from sluice.process.clock import now_ms
from sluice.process.format import printable
from sluice.sinks.tables.delta_files import empty_commits
from sluice.sinks.tables.holds import HoldsTable
from sluice.sinks.tables.quotas import QuotasTable
from sluice.sinks.tables.trouble import lost_files, missing_rights, table_trouble
from sluice.state.contract.records import HEARTBEAT_API, NO_LOGIN, Override, Overrides, Request
from sluice.state.errors import UNREADABLE, InvalidQuotaError, SluiceError
from sluice.state.overrides.operator_holds import holds_at
from sluice.state.quotas.cluster import client_quotas, cluster_changes
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import LimitsView
from sluice.state.quotas.overrides import lend_of, overrides_now
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.load import FULL_LOAD, BrokerLimits, broker_load, heaviest_unlimited
from sluice.streaming.checkpoint.batch_log import BatchLog
from sluice.streaming.checkpoint.folder import Checkpoint, is_locked
from sluice.streaming.checkpoint.origin import Origin, check_origin, new_pages, read_origin, with_pages
from sluice.streaming.checkpoint.spark_files import check_enforce_checkpoint, check_spark_files, read_offsets
from sluice.streaming.enforce.requests_topic import another_topic
from sluice.streaming.runtime.health import JobHealth, health_server
from sluice.streaming.workers.contract import are_batched

T = TypeVar("T")

_TABLES = ("decisions", "quota_metrics", "dead_letters", "unreadable")
"""Tables that every job writes."""

_METRICS_TIMEOUT_S = 5.0

_ANSWER_S = 10.0
"""Longest wait for the answers of brokers."""

_CONNECT_S = CONNECT_TIMEOUT_MS / 1000 + 2.0
"""Longest wait for the first answer. The search for a broker ends before, with an error that names the address."""

_HEARTBEATS_MS = 10_000
"""A gateway sends one each second."""

_NEXT_S = 2.0
"""Time for the next heartbeat of each gateway."""

_MAX_AHEAD_MS = 1_000
"""The shortest sample of a quota."""

_MAX_BEHIND_MS = 2_000
"""A heartbeat is read some tenths of a second after it was sent."""

_MAX_SKEW_MS = 60_000
"""Skew of a clock from which the check fails."""

_MOST_NAMED = 5
"""Most overrides that a line names."""

_INSTANCE_OF_BROKER = re.compile(r"-([0-9]+)-[0-9a-f]{8}$")
_REQUEST = msgspec.json.Decoder(Request)

_REPORTERS = "metric.reporters"
_EXEMPT = ("sluice.exempt.principals", "sluice.exempt.client.id")


def run_doctor(settings: Settings, show: Callable[[str], object] = print) -> int:
    """Show a line for each check, `ok`, `warn` or `FAIL`; returns 1 if one fails, else 0. Changes nothing."""

    def passes(name: str, check: Check) -> bool:
        try:
            show(f"ok    {name}: {printable(check())}")  # heartbeats, which have names in them, may be forged
        except CheckWarningError as warning:
            show(f"warn  {name}: {printable(' '.join(str(warning).split()))}")
        except (SluiceError, OSError, KafkaError) as error:
            unread = f"can't be read ({error}); check that the user may describe topics, and read them"
            is_of_topics = isinstance(error, KafkaError) and not isinstance(error, KafkaConnectionError)
            words = unread if is_of_topics else str(error)
            show(f"FAIL  {name}: {printable(' '.join(words.split()))}")
            return False
        return True

    of_kafka = checks_of_kafka(replace(settings, kafka=Properties(settings.kafka | OF_COMMANDS)))
    passed = [
        *(passes(name, check) for name, check in start_checks(settings)),
        # without a broker the others would only wait and fail too
        all(all([passes(name, answer) for name, answer in begun(*checks)]) for checks in of_kafka),
        *(passes(name, partial(check, settings)) for name, check in CHECKS_OF_JOB),
    ]
    return 0 if all(passed) else 1


def checks_of_kafka(settings: Settings) -> Iterator[tuple[Mapping[str, Check], float]]:
    """The check of the broker, then those that ask it for more, each with the longest wait for their answers in s."""
    yield {"broker": partial(check_broker, settings)}, _CONNECT_S
    topics = settings.topics
    enforced = settings.enforce.checkpoint, (topics.requests,)
    audited = settings.audit.checkpoint, (topics.decisions, topics.dead_letters)
    brokers, beats = in_thread(partial(broker_configs, settings.kafka)), in_thread(partial(read_heartbeats, settings))
    limits = in_thread(partial(read_limits, settings))

    def threads() -> str:
        having = {node for node, configs in brokers.result().items() if configs.get(CALLBACK) == CALLBACK_CLASS}
        return threads_verdict(having, beats.result().by_instance) if having else "no broker has the plugin"

    def loads() -> str:
        try:
            capacities = broker_limits(settings.elastic)
        except InvalidSettingsError as error:
            raise CheckWarningError(f"{error}; a job goes on with the capacities that it read last") from error
        return loads_verdict(beats.result().by_instance, capacities)

    def own_login() -> str:
        cluster = client_quotas(read_cluster_quotas(settings.kafka)).entries
        read: Mapping[str, Request] | None = None
        try:
            in_force, read = [*limits.result().entries.values()], beats.result().by_instance
        except (KafkaError, TopicLostError):  # a login that is throttled itself reads no topic
            in_force = quotas_in_force(settings)
        return own_login_verdict(settings.kafka, in_force, cluster, brokers.result(), read)

    yield (
        {
            "topics": partial(check_topics, settings),
            "requests topic": partial(check_requests_topic, settings),
            "brokers as gateways": _if_read("their configuration", lambda: plugin_verdict(brokers.result())),
            "threads of the plugin": _if_read("the heartbeats", threads),
            "clocks of gateways": _if_read("the heartbeats", lambda: clocks_verdict(beats.result().ahead_ms)),
            "load of brokers": _if_read("the heartbeats", loads),
            "overrides": _if_read("the limits", lambda: overrides_verdict(limits.result().overrides, now_ms())),
            "own login": _if_read("quotas", own_login),
            "enforce query": partial(check_progress, settings, *enforced),
            "audit query": partial(check_progress, settings, *audited),
            "quotas source": partial(check_quotas_source, settings),
        },
        _ANSWER_S,
    )


def _if_read(source: str, check: Check) -> Check:
    """The check, which doesn't fail where its source can't be read: not every login may do so."""

    def answer() -> str:
        try:
            return check()
        except (KafkaError, TopicLostError) as error:
            return f"unknown; {source} can't be read ({error})"

    return answer


def begun(checks: Mapping[str, Check], longest_s: float) -> Iterator[tuple[str, Check]]:
    """The same checks, which begin at once. One that has no answer after `longest_s` fails, and isn't waited for.

    A broker that hangs takes connections, and no time-out of the client bounds all that a check asks it.
    """
    deadline_s = time.monotonic() + longest_s
    found = {name: in_thread(check) for name, check in checks.items()}
    return ((name, partial(_answer, future, deadline_s, longest_s)) for name, future in found.items())


def in_thread(call: Callable[[], T]) -> "Future[T]":
    """The result of a call that runs in a thread of its own, which ends with the process."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # of any class: whoever asks for the answer gets it
            future.set_exception(error)

    Thread(target=run, name="sluice-doctor", daemon=True).start()
    return future


def _answer(future: "Future[str]", deadline_s: float, longest_s: float) -> str:
    wait([future], max(0.0, deadline_s - time.monotonic()))
    if not future.done():
        raise CheckError(
            f"no answer in {longest_s:.0f} s; a broker that takes connections and answers nothing is frozen, has"
            " far too much to do, or mutes this login by a quota: look at its process, its log and such quotas"
        )
    return future.result()


def check_broker(settings: Settings) -> str:
    """The address that answered. Raises KafkaUnavailableError."""
    connect(KafkaAdminClient, settings.kafka).close()
    return f"{settings.kafka['bootstrap.servers']} answers"


def check_topics(settings: Settings) -> str:
    """The topics of the job, and whether they are as it needs them.

    Raises CheckError if one is missing after the first start or loses records, CheckWarningError, and KafkaError.
    """
    topics, in_shared_storage = settings.topics, not Checkpoint(settings.enforce.checkpoint).is_local
    wanted = [topics.requests, topics.decisions, topics.dead_letters, topics.limits, topics.waits, topics.sums]
    if in_shared_storage:
        wanted.append(topics.claims)
    with connect(KafkaAdminClient, settings.kafka) as admin:
        existing = set(admin.list_topics())
    missing = [topic for topic in wanted if topic not in existing]
    if missing and not _is_new(settings):
        raise CheckError(f"{', '.join(missing)} not there; sluice run creates them, or create them yourself")
    found = differing_topics(topics, settings.kafka, in_shared_storage=in_shared_storage)
    if found:
        raise (CheckError if any(each.is_fatal for each in found) else CheckWarningError)("; ".join(map(str, found)))
    if missing:
        return f"{', '.join(missing)} will be created by sluice run"
    return f"{', '.join(wanted)} are there, as the job needs them"


def check_requests_topic(settings: Settings) -> str:
    """The id of the requests topic. Raises KafkaError, and CheckError if the checkpoint is of another topic."""
    with connect(KafkaAdminClient, settings.kafka) as admin:
        found = topic_id_now(admin, settings.topics.requests)
    if (text := another_topic(settings, found)) is not None:
        if settings.enforce.fail_on_data_loss:
            raise CheckError(text)
        return text
    return "no id" if found is None else f"id {found}"


def broker_configs(kafka: Mapping[str, str]) -> dict[int, dict[str, str | None]]:
    """Configuration of each broker, as far as it is of the plugin, by node id. Raises KafkaError."""
    with connect(KafkaAdminClient, kafka) as admin:
        nodes = [node["broker_id"] for node in admin.describe_cluster()["brokers"] if not node.get("is_fenced")]
        asked = [
            ConfigResource(ConfigResourceType.BROKER, str(node), [CALLBACK, _REPORTERS, *_EXEMPT]) for node in nodes
        ]
        found = admin.describe_configs(asked, config_filter="all")["broker"]
    return {int(node): {name: each["value"] for name, each in configs.items()} for node, configs in found.items()}


class Heartbeats(NamedTuple):
    """The last heartbeat of each gateway among the newest requests, and by how many ms its clock is ahead.

    Below 0 the clock is behind. One that has just ended has none: the age of its last heartbeat says nothing of it.
    """

    by_instance: Mapping[str, Request]
    ahead_ms: Mapping[str, int]


def read_heartbeats(settings: Settings) -> Heartbeats:
    """Read the newest requests, and those that come now: a gateway whose clock is behind sends old ones.

    Raises KafkaError and TopicLostError.
    """
    ahead_ms: dict[str, int] = {}

    def read(records: Iterable[tuple[int, FetchedRecord]], least_ms: float = -math.inf) -> dict[str, Request]:
        """Note the clocks of heartbeats that were just sent, if they are so far ahead; of a gateway's the latest."""
        found = heartbeats(record.value for _, record in records)
        for name, beat in found.items():
            if beat.timestamp_ms is not None and (ahead := beat.timestamp_ms - now_ms()) >= least_ms:
                ahead_ms[name] = max(ahead, ahead_ms.get(name, ahead))  # without a time it is the record's
        return found

    with TopicReader(settings.kafka, settings.topics.requests, now_ms() - _HEARTBEATS_MS) as reader:
        found = read(reader.read_to_end(), -_MAX_AHEAD_MS)
        until_s = time.monotonic() + _NEXT_S
        while time.monotonic() < until_s:
            found |= read(reader.read())
    return Heartbeats(found, ahead_ms)


def heartbeats(values: Iterable[bytes | None]) -> dict[str, Request]:
    """The last heartbeat of each gateway among request events, by instance.

    >>> beat = b'{"api":"GatewayHeartbeat","instance":"host-2-0a1b2c3d","heartbeat":{"staleness_ms":5,"counters":0}}'
    >>> heartbeats([beat])["host-2-0a1b2c3d"].heartbeat.staleness_ms
    5
    """
    found = {}
    for value in values:
        if value is None or HEARTBEAT_API.encode() not in value:
            continue
        try:
            event = _REQUEST.decode(value)
        except UNREADABLE:
            continue
        if event.instance and event.heartbeat:
            found[event.instance] = event
    return found


def loads_verdict(beats: Mapping[str, Request], limits: BrokerLimits) -> str:
    """The load of the busiest broker by the last heartbeats.

    Raises CheckError if a log directory is low, CheckWarningError if a broker is at its capacity.

    >>> from sluice.state.contract.records import Heartbeat, Load
    >>> beat = Request("GatewayHeartbeat", heartbeat=Heartbeat(0, 0, load=Load(broker_id=2, handler_idle=0.7)))
    >>> loads_verdict({"host-2-0a1b2c3d": beat}, BrokerLimits())
    'the busiest of 1 is host-2-0a1b2c3d: request handlers 30 % busy'
    """
    found_unlimited = heaviest_unlimited(beat.heartbeat for beat in beats.values() if beat.heartbeat)
    heaviest = _some([unlimited_text(each) for each in found_unlimited])
    measured = {name: beat.heartbeat.load for name, beat in beats.items() if beat.heartbeat and beat.heartbeat.load}
    low = sorted(found for load in measured.values() if (found := limits.floor.low(load)) is not None)
    if low:
        raise CheckError(f"{'; '.join(low)}: producers are held; delete records, or give it a larger volume")
    found_loads = ((name, broker_load(each, limits.capacities.of(each))) for name, each in measured.items())
    loads = {name: load for name, load in found_loads if load is not None}
    if not loads:
        return "none; brokers with the plugin report it"
    busiest = max(loads, key=lambda name: loads[name].rho)
    text = f"the busiest of {len(loads)} is {busiest}: {loads[busiest].reason}"
    text += f"; without a limit, the heaviest: {heaviest}" if heaviest else ""
    if full := sum(load.rho >= FULL_LOAD for load in loads.values()):
        raise CheckWarningError(f"{full} of {len(loads)} brokers are at their capacity; {text}")
    return text


def read_limits(settings: Settings) -> LimitsView:
    """The limits and overrides that gateways read. Raises KafkaError and TopicLostError."""
    view = LimitsView()
    with TopicReader(settings.kafka, settings.topics.limits) as reader:
        for _, record in reader.read_to_end():
            with suppress(InvalidQuotaError):  # gateways count it, and pass over it too
                view.take(record.key, record.value)
    return view


def overrides_verdict(said: Mapping[str, Overrides], at_ms: int) -> str:
    """The overrides of limits that hold at a time, by the last record of each decider.

    Raises CheckWarningError for gateways that are tightened, and for producers that are throttled.

    >>> overrides_verdict({"elastic": Overrides(1, 0, 5_000, [Override("lend", 1.5)])}, 1_000)
    'limits with a ceiling are lent 1.5 times'
    """
    now = list(overrides_now(said, at_ms))
    tight = {each.gateway: each for _, each in now if each.kind == "tighten"}
    troubles = []
    if tight:
        factors = sorted(each.factor for each in tight.values())
        reasons = _some([f"{name}: {each.reason}" for name, each in sorted(tight.items(), key=str)])
        troubles.append(
            f"{len(tight)} brokers are tightened, clients get {factors[0]:.2f} to {factors[-1]:.2f} of their shares"
            f" there, or their reservations ({reasons})"
        )
    if held := [f"{_scope_text(each)} by {decider} ({each.reason})" for decider, each in now if each.kind == "hold"]:
        troubles.append(f"throttled whatever their limits are: {_some(held)}")
    if troubles:
        raise CheckWarningError("; ".join(troubles))
    lent = lend_of(each for _, each in now)
    return "none" if lent == 1 else f"limits with a ceiling are lent {lent:g} times"


def _scope_text(hold: Override) -> str:
    """The clients of a hold.

    >>> from sluice.state.contract.records import CountedEntity
    >>> _scope_text(Override("hold")), _scope_text(Override("hold", entity=CountedEntity(tenant="shop"), gateway="b-1"))
    ('all producers', 'producers of tenant shop at b-1')
    """
    names = {} if hold.entity is None else to_builtins(hold.entity)
    clients = "clients" if hold.consumers else "producers"
    of = " and ".join(f"{part.replace('_', '-')} {name}" for part, name in names.items())
    scope = f"{clients} of {of}" if of else f"all {clients}"
    return scope if hold.gateway is None else f"{scope} at {hold.gateway}"


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def own_login_verdict(
    kafka: Mapping[str, str],
    limits: Iterable[QuotaEntry],
    cluster: Iterable[QuotaEntry],
    brokers: Mapping[int, Mapping[str, str | None]],
    beats: Mapping[str, Request] | None,
) -> str:
    """The quotas on Sluice's own login: those of the cluster, and the limits where brokers have the plugin.

    Raises CheckWarningError for one that brokers don't exempt. Their configuration shows that they exempt somebody, and
    not whom; heartbeats have each login with a client-id of Sluice, as this command's own, that they don't exempt. None
    are heartbeats that can't be read, as by a login that is throttled.
    """
    principal, has_plugin = principal_of(kafka), [each.get(CALLBACK) == CALLBACK_CLASS for each in brokers.values()]
    exempting = [any(key in each for key in _EXEMPT) for each in brokers.values()]
    told = [beat.heartbeat for beat in (beats or {}).values() if beat.heartbeat]
    held = {each.principal: each for heartbeat in told for each in heartbeat.not_exempt}
    if held and any(exempting):
        clients = _some([f"{name} (client-id {each.client_id})" for name, each in sorted(held.items())])
        raise CheckWarningError(
            f"brokers don't exempt {clients}, by its client-id one of Sluice: under a quota on it requests, decisions"
            f" and limits wait. {_how_to_exempt(held)}"
        )
    if principal is None and has_layer(kafka, "SSL") and kafka.get("ssl.keystore.location"):
        return "unknown; brokers make a name of its certificate"
    user = NO_LOGIN if principal is None else principal.removeprefix("User:")
    if has_plugin and all(has_plugin) and all(exempting) and beats is not None:
        return f"{user}; all brokers exempt somebody, and none has a login of Sluice that it doesn't exempt"
    client_id, texts = kafka.get("client.id", ""), dict[str, None]()
    for entries in (limits if any(has_plugin) else (), cluster):
        quotas = Quotas(entries)
        for kind in (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE):
            found = quotas.resolve_client(kind, user, client_id)
            if found.limit is not None and not found.shadow:
                texts[f"{kind} {found.limit:g}"] = None
    if texts:
        raise CheckWarningError(
            f"{user}, which is Sluice's own, is limited: {', '.join(texts)}; requests, decisions and limits wait for"
            f" it{', unless brokers exempt it: no heartbeat can be read, which would say so' if beats is None else ''}."
            f" {_how_to_exempt({f'User:{user}'})}, or give it a larger quota"
        )
    return f"{user} has no quota"


def _how_to_exempt(principals: Collection[str]) -> str:
    """The step by which every broker with the plugin exempts these logins of Sluice, and nobody else.

    >>> _how_to_exempt({"User:ANONYMOUS"})
    "Set kafka.client.id to a secret, and sluice.exempt.client.id of every broker with the plugin to the same; \
User:ANONYMOUS in sluice.exempt.principals would exempt all clients without a login"
    """
    steps = []
    if named := sorted(set(principals) - {f"User:{NO_LOGIN}"}):
        steps.append(
            f"Name exactly {_some(named)} in sluice.exempt.principals of every broker with the plugin: the type, each"
            " letter, blanks and case count, and semicolons separate names"
        )
    if len(named) < len(principals):
        steps.append(
            "Set kafka.client.id to a secret, and sluice.exempt.client.id of every broker with the plugin to the same;"
            f" User:{NO_LOGIN} in sluice.exempt.principals would exempt all clients without a login"
        )
    return ". ".join(steps)


def clocks_verdict(ahead_ms: Mapping[str, int]) -> str:
    """The clocks of gateways, so much ahead of this machine's in ms; below 0 is behind.

    Raises CheckWarningError, and CheckError from a minute on.

    >>> clocks_verdict({"a": 900, "b": -1_900})
    'of 2 gateways, none is ahead or behind'
    """
    if not ahead_ms:
        return "no gateway sends heartbeats with its time"
    ahead = sorted(ahead_ms.items())
    troubles = []
    if fast := [f"{name} by {ms / 1000:.0f} s" for name, ms in ahead if ms > _MAX_AHEAD_MS]:
        troubles.append(
            f"ahead of this machine's: gateway {', '.join(fast)}; after a request through it, mutations of the same"
            " client are refused elsewhere until its time is reached"
        )
    if slow := [f"{name} by {-ms / 1000:.0f} s" for name, ms in ahead if ms < -_MAX_BEHIND_MS]:
        troubles.append(
            f"behind this machine's: gateway {', '.join(slow)}; tables have its requests at times that were over, and"
            " waits for them are over elsewhere so much too early"
        )
    if troubles:
        is_far = max(map(abs, ahead_ms.values())) >= _MAX_SKEW_MS
        raise (CheckError if is_far else CheckWarningError)(f"{'; '.join(troubles)}; set the clocks by NTP")
    return f"of {len(ahead_ms)} gateways, none is ahead or behind"


def threads_verdict(nodes: Set[int], beats: Mapping[str, Request]) -> str:
    """The threads of the plugin by the heartbeats of brokers, whose instance has the node id before a random part.

    Raises CheckError.

    >>> threads_verdict(set(), {})
    'those of all 0 brokers live'
    """
    known = {int(node[1]): beat.heartbeat for name, beat in beats.items() if (node := _INSTANCE_OF_BROKER.search(name))}
    silent = sorted(nodes - known.keys())
    blind = sorted(node for node in nodes & known.keys() if (beat := known[node]) and not beat.metrics_seen)
    if blind:
        raise CheckError(
            f"broker {_names(blind)} of {len(nodes)} doesn't hand its metrics to the plugin: no charge there is"
            f" published, though known shares hold; name {REPORTER_CLASS} in {_REPORTERS} again, also where"
            " kafka-configs.sh --entity-type brokers has set it: no restart is needed"
        )
    down = sorted(node for node in nodes & known.keys() if (beat := known[node]) and beat.threads_down)
    for found, trouble in ((silent, f"no heartbeat in {_HEARTBEATS_MS // 1000} s"), (down, "threads that don't work")):
        if found:
            raise CheckError(
                f"broker {_names(found)} of {len(nodes)}: {trouble}, so shares stay as they are there; lines with"
                " sluice in its log say why, and a restart of the broker ends it"
            )
    return f"those of all {len(nodes)} brokers live"


def plugin_verdict(brokers: Mapping[int, Mapping[str, str | None]]) -> str:
    """The plugin in the configuration of each broker, by node id. Raises CheckError.

    >>> plugin_verdict({1: {"client.quota.callback.class": None}})
    'no broker has the plugin'
    """
    if not all(CALLBACK in configs for configs in brokers.values()):
        return "unknown; check that the user may describe the configuration of brokers"
    having = [node for node, configs in brokers.items() if configs[CALLBACK] == CALLBACK_CLASS]
    if not having:
        return "no broker has the plugin"
    missing = sorted(brokers.keys() - having)
    deaf = sorted(node for node in having if REPORTER_CLASS not in (brokers[node].get(_REPORTERS) or ""))
    if missing:
        raise CheckError(
            f"broker {_names(missing)} of {len(brokers)} is without {CALLBACK}={CALLBACK_CLASS}: what clients send"
            " there counts for no quota; run sluice broker-plugin and add its lines to server.properties"
        )
    if deaf:
        raise CheckError(
            f"broker {_names(deaf)} of {len(brokers)} is without {REPORTER_CLASS} in {_REPORTERS}: no charge there is"
            " published, though known shares hold; name it again, in server.properties and where kafka-configs.sh"
            " --entity-type brokers has set it: no restart is needed"
        )
    return f"all {len(having)} brokers have the plugin"


def _names(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))


def check_checkpoint(settings: Settings) -> str:
    """The settings of the enforce checkpoint. Raises CheckpointError if the job can't use it."""
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    check_enforce_checkpoint(settings)
    origin = read_origin(checkpoint)
    if origin is None:
        return f"{checkpoint.location} is new"
    check_origin(checkpoint, with_pages(settings))
    committed = check_spark_files(checkpoint).committed
    return (
        f"{checkpoint.location} was made with {_origin_text(origin)}; {committed + 1} micro-batches,"
        f" {_mebibytes(checkpoint.size_bytes())}"
    )


def _origin_text(origin: Origin) -> str:
    """The frozen settings, such as `pages 32, requests_topic quota-requests`."""
    return ", ".join(f"{name} {value}" for name, value in structs.asdict(origin).items())


def _is_new(settings: Settings) -> bool:
    """True before the first start of the job, which makes its topics and tables. Raises CheckpointError."""
    return read_origin(Checkpoint(settings.enforce.checkpoint)) is None


def check_job(settings: Settings) -> str:
    """The lock of the checkpoint, which a job holds, or a command that needs it stopped."""
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    match is_locked(checkpoint):
        case True:
            return f"one runs on {checkpoint.location}"
        case False:
            return f"none runs on {checkpoint.location}"
    return f"nobody can tell whether one runs on {checkpoint.location}, which is no local folder"


def check_progress(settings: Settings, location: str, topics: Sequence[str]) -> str:
    """The last micro-batch of a query, and the records of its topics still to be read.

    Raises CheckpointError or CheckError if that can't be read.
    """
    checkpoint = Checkpoint(location)
    committed = check_spark_files(checkpoint).committed
    done = f"micro-batch {committed} is committed" if committed >= 0 else "no micro-batch is committed yet"
    read = read_offsets(checkpoint, committed) if committed >= 0 else {topic: {} for topic in topics}
    unread = [_unread_text(settings, topic, read_to) for topic, read_to in sorted(read.items())]
    return f"{done}; still to be read: {', '.join(unread)}"


def _unread_text(settings: Settings, topic: str, read_to: Mapping[int, int]) -> str:
    """The records of a topic still to be read. A missing topic is no failure here: the check of the topics has it."""
    try:
        with TopicReader(settings.kafka, topic) as reader:
            offsets = reader.offsets()
    except KafkaError as error:
        raise CheckError(f"the end of {topic} can't be read ({error}); check that the user may read it") from error
    if not offsets:
        return f"{topic}, which is not there"
    records = sum(max(each.end - read_to.get(partition, each.first), 0) for partition, each in offsets.items())
    return f"{records} records of {topic}"


def check_tables(settings: Settings) -> str:
    """Rows and size of the tables that the job writes. Raises CheckError if one can't be read."""
    names = (*_TABLES, "overrides") if settings.elastic.limits == "elastic" else _TABLES
    return "; ".join(_table_text(settings, name) for name in names)


def _check_commits(name: str, path: str, storage_options: Mapping[str, str]) -> None:
    """Raise CheckError if a commit of a table's log is empty: readers pass over it, and nobody misses its rows."""
    if empty := empty_commits(path, storage_options):
        raise CheckError(
            f"{path}/_delta_log/{empty[0]} is empty: a full disk or a crash has cut it off, and what it added to {name}"
            " doesn't count; if it is the newest, remove it while no job runs; else look for its rows in the topic"
        )


def _table_text(settings: Settings, name: str) -> str:
    path = getattr(settings.delta, name)
    _check_commits(name, path, settings.delta.storage_options)
    try:
        actions = DeltaTable(path, storage_options=dict(settings.delta.storage_options)).get_add_actions(flatten=True)
    except TableNotFoundError:
        if reason := missing_rights(path):
            raise CheckError(f"{path} can't be read: {reason}") from None
        return f"{name} isn't there yet"
    except (DeltaError, OSError, ValueError) as error:
        reason = table_trouble(path, error)
        raise CheckError(f"{path} can't be read ({reason}); check delta.{name} and delta.storage_options") from error
    if reason := missing_rights(path) or lost_files(path):
        raise CheckError(reason)
    rows, sizes = (actions[column].to_pylist() for column in ("num_records", "size_bytes"))
    return f"{name} has {sum(count or 0 for count in rows)} rows in {len(sizes)} files, {_mebibytes(sum(sizes))}"


def check_holds_table(settings: Settings) -> str:
    """Clients that the table of holds stops now. Raises CheckWarningError if it can't be read whole."""
    table = HoldsTable(settings.delta.quotas, settings.delta.storage_options)
    try:
        _check_commits("quotas-holds", table.path, settings.delta.storage_options)
        is_there = table.look()
    except SluiceError as error:
        raise CheckWarningError(f"{error}; a job goes on with the holds that it read last") from error
    return f"{len(holds_at(table.holds or (), now_ms()))} in force" if is_there else "nobody was ever held"


def check_inputs(settings: Settings) -> str:
    """Inputs beside the requests that a running job can't read. Raises CheckWarningError with the reasons."""
    health = settings.health
    if not health.port:
        return "unknown; health.port lets the running job say what it can't read"
    try:
        answer = _asked(f"http://{health.place}/readyz")
        failing = msgspec.json.decode(answer, type=_Inputs).inputs
    except (OSError, ValueError, HTTPException) as error:
        return f"unknown; no job answers at {health.place} ({getattr(error, 'reason', error)})"
    if failing:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(failing.items()))
        raise CheckWarningError(f"the job goes on with what it read last of {reasons}")
    return "the job reads all of them"


class _Inputs(msgspec.Struct):
    """The part of `/readyz` that is about inputs."""

    inputs: dict[str, str] = {}


def _asked(url: str) -> bytes:
    """The body of an answer, whatever its status is."""
    try:
        # of this machine, whatever http_proxy says
        with build_opener(ProxyHandler({})).open(url, timeout=_METRICS_TIMEOUT_S) as answer:
            body: bytes = answer.read()
    except HTTPError as unready:
        body = unready.read()
    return body


def check_health(settings: Settings) -> str:
    """Address of the health checks. Raises CheckError if the job couldn't listen there."""
    health = settings.health
    if not health.port:
        return "off; health.port turns /healthz, /readyz and /metrics on"
    place = f"{health.address}:{health.port}"
    if is_locked(Checkpoint(settings.enforce.checkpoint)) is False:  # a running job listens there itself
        health_server(JobHealth("", 0), health.port, health.address).stop()
    readers = "this machine alone" if is_loopback(health.address) else "every host that reaches it"
    return f"{place}; readable for {readers}"


def check_tracked_entities(settings: Settings) -> str:
    """The tracked entities in the metrics of the running job; none found is no failure."""
    health = settings.health
    if not health.port:
        return "unknown; health.port makes them a metric of the running job"
    try:
        metrics = _asked(f"http://{health.place}/metrics").decode()
    except (OSError, ValueError, HTTPException) as error:  # ValueError: what answers is no text
        return f"unknown; no job answers at {health.place} ({getattr(error, 'reason', error)})"
    found = re.search(r"^sluice_known_entities (\S+)$", metrics, re.MULTILINE)
    if found is None:
        return f"unknown; what answers at {health.place} is no job of this release"
    return f"{float(found[1]):.0f} with stored counters, in the pages that were charged since the job's start"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def check_quotas_table(settings: Settings) -> str:
    """Path, version and size of the quotas table. Raises QuotasTableError, and CheckError for an empty commit."""
    table = QuotasTable(settings.delta.quotas, settings.delta.storage_options)
    _check_commits("quotas", table.path, settings.delta.storage_options)
    if not table.exists() and _is_new(settings):
        return f"{table.path} will be created by sluice run"
    version = table.version()
    return f"{table.path} is at version {version} with {len(table.entries(version))} quotas"


def check_quotas_source(settings: Settings) -> str:
    """The source of quotas on users and client-ids; where that is the cluster, the table is compared with it.

    Raises KafkaUnavailableError, QuotasTableError, and CheckError if a job runs and the table differs.
    """
    if settings.quotas.source == "table":
        return f"table; sluice quotas alters them{_beside_the_table(settings)}"
    cluster = client_quotas(read_cluster_quotas(settings.kafka))
    found = f"kafka, with {len(cluster.entries)} quotas of users and client-ids"
    if cluster.left_out:
        found += f" and {len(cluster.left_out)} that Sluice can't take ({cluster.left_out[0]})"
    table = QuotasTable(settings.delta.quotas, settings.delta.storage_options)
    if not table.exists() and _is_new(settings):
        return f"{found}; sluice run begins with them"
    version = table.version()
    changes = cluster_changes(table.entries(version), cluster.entries)
    if not any(changes):
        return f"{found}; version {version} of the table has the same"
    differing = f"{found}; against version {version} of the table: {changes}"
    if is_locked(Checkpoint(settings.enforce.checkpoint)):
        raise CheckError(f"{differing}; the job that runs should have mirrored them: look again, or see its log")
    return f"{differing}; the job mirrors them"


def _beside_the_table(settings: Settings) -> str:
    """The number of quotas in the cluster, which only a mirror takes; nothing if there are none, or it can't tell."""
    try:
        entries, _ = client_quotas(read_cluster_quotas(settings.kafka))
    except KafkaUnavailableError:
        return ""
    if not entries:
        return ""
    return f"; the cluster has {len(entries)} of its own, which quotas.source: kafka would mirror"


def check_sizing(settings: Settings) -> str:
    """The settings frozen with the checkpoint, on this machine; docs/sizing.md helps to choose them."""
    first_pages, wanted = new_pages(with_pages(settings)), new_pages(settings)
    pages = BatchLog(Checkpoint(settings.enforce.checkpoint)).pages or first_pages
    partitions, cores = settings.enforce.shuffle_partitions, os.cpu_count() or 1
    tasks = f"{partitions} tasks" if partitions else f"as many tasks as Spark has cores (here {cores})"
    workers = "batched" if are_batched(settings.enforce.batched_workers) else "PySpark's own, a millisecond for a page"
    found = f"{pages} pages; a micro-batch reads and writes those it charges, in {tasks}; the workers are {workers}"
    return found if first_pages == wanted else f"{found}; `sluice state import` moves the balances to {wanted} pages"


CHECKS_OF_JOB: Sequence[tuple[str, Callable[[Settings], str]]] = (
    ("job", check_job),
    ("checkpoint", check_checkpoint),
    ("quotas table", check_quotas_table),
    ("holds", check_holds_table),
    ("inputs", check_inputs),
    ("tables", check_tables),
    ("health", check_health),
    ("tracked entities", check_tracked_entities),
    ("sizing", check_sizing),
)
"""The checks that need no broker, which may use the settings alone."""
