"""The doctor's checks of brokers, topics, gateways, checkpoints and tables, an entry point of `sluice.checks`."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from msgspec import structs

from sluice.cli.doctor import Ask, in_thread, unread_text
from sluice.cli.errors import CheckError, CheckWarningError
from sluice.cli.start_checks import Check
from sluice.configs.capacity import broker_limits
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.quotas import seed_quotas
from sluice.configs.settings import Properties, Settings
from sluice.jvm.plugin import CALLBACK_CLASS, REPORTER_CLASS
from sluice.kafka_io.client import CONNECT_TIMEOUT_MS, OF_COMMANDS, connect
from sluice.kafka_io.errors import KafkaUnavailableError, TopicLostError
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_needs import lost_without, needs
from sluice.kafka_io.topic_reader import TopicReader
from sluice.kafka_io.topics import topic_id_now
from sluice.process.addresses import is_loopback
from sluice.process.clock import now_ms
from sluice.sinks.tables.quotas import QuotasTable
from sluice.sinks.tables.trouble import TableSeen, check_commits
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.contract.instances import server_text
from sluice.state.contract.records import HEARTBEAT_API, Heartbeat, Request
from sluice.state.errors import UNREADABLE, SluiceError
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.limits import LimitsView
from sluice.state.shares.load import BrokerLimits, broker_loads
from sluice.state.troubles import (
    AT_ONCE_MS,
    MAX_AHEAD_MS,
    BrokersSeen,
    DeadLettersSeen,
    Facts,
    Flow,
    Trouble,
    Unwritten,
    broker_troubles,
    clock_troubles,
    dead_letter_troubles,
    in_order,
    job_troubles,
    load_troubles,
    login_troubles,
    override_troubles,
    plugin_troubles,
    query_troubles,
    some,
    source_troubles,
    topic_troubles,
)
from sluice.streaming.checkpoint.folder import Checkpoint, is_locked
from sluice.streaming.checkpoint.origin import check_origin, read_origin, with_pages
from sluice.streaming.checkpoint.spark_files import check_enforce_checkpoint, check_spark_files, read_offsets
from sluice.streaming.enforce.requests_topic import another_topic
from sluice.streaming.runtime.health import JobHealth, health_server
from sluice.streaming.runtime.recorded import see_tables
from sluice_reading.brokers_seen import (
    CALLBACK,
    BrokerConfigs,
    plugins_of,
    read_broker_configs,
    read_replicas,
    silent_servers,
)
from sluice_reading.holds_table import HoldsTable
from sluice_reading.job_probe import JobProbe
from sluice_reading.loads import heaviest_unlimited
from sluice_reading.newest_records import NewestRecords
from sluice_reading.operator_holds import holds_at
from sluice_reading.options import quotas_in_force
from sluice_reading.texts import unlimited_text
from sluice_reading.troubles import is_doubtful
from sluice_toolbox.cluster import client_quotas
from sluice_toolbox.cluster_changes import cluster_changes
from sluice_toolbox.cluster_quotas import read_cluster_quotas
from sluice_toolbox.operator_holds import MAX_HOLDS, too_many_text
from sluice_toolbox.own_login import own_login
from sluice_toolbox.topics_seen import topics_seen
from sluice_toolbox.unwritten import unread_answers

ANSWER_S = 10.0
"""Longest wait for the answers of brokers."""

_CONNECT_S = CONNECT_TIMEOUT_MS / 1000 + 2.0
"""Longest wait for the first answer. The search for a broker ends before, with an error that names the address."""

_HEARTBEATS_MS = 10_000
"""A gateway sends one each second."""

_NEXT_S = 2.0
"""Time for the next heartbeat of each gateway."""
_FROZEN = (
    "a broker that takes connections and answers nothing is frozen, has far too much to do, or mutes this login by a"
    " quota: look at its process, its log and such quotas"
)
_HANGING = "the storage of tables or checkpoints hangs: see that its disk or mount answers, such as with ls -l"
_NO_TIMES = "no gateway sends heartbeats with its time"
_NOBODY_KNOWS = "nobody can tell whether one runs on {}, which is no local folder, or one of another account"

_BY_THE_JOB = ("enforce_down", "audit_down", "foreign_decisions", "input_unreadable", "mirror_down", "native_missing")
"""Troubles that a running job alone knows; all others have lines of their own."""

_REQUEST = msgspec.json.Decoder(Request)


def verdict(troubles: Iterable[Trouble], well: str, more: str = "") -> str:
    """The words for a check that found these troubles. Raises CheckError or CheckWarningError if there are some."""
    found = in_order(troubles)
    if not found:
        return well + more
    is_failing = any(each.severity == "fail" for each in found)
    raise (CheckError if is_failing else CheckWarningError)("; ".join(each.line for each in found) + more)


def check_cluster(settings: Settings, ask: Ask) -> None:
    """Ask the brokers, then all that has an answer in Kafka, in the checkpoints and in the tables."""
    of_kafka = replace(settings, kafka=Properties(settings.kafka | OF_COMMANDS))
    # without a broker the others would only wait and fail too
    is_there = ask({"broker": partial(check_broker, of_kafka)}, _CONNECT_S, _FROZEN)
    if is_there:
        ask(checks_of_kafka(of_kafka), ANSWER_S + AT_ONCE_MS / 1000, _FROZEN)  # read_newest may wait for so long
    of_job = checks_of_job(settings)
    if is_there:
        del of_job["job"]
    ask(of_job, ANSWER_S, _HANGING)


def checks_of_job(settings: Settings) -> dict[str, Check]:
    """The checks that need no broker."""
    return {
        "job": partial(check_job, settings),
        "checkpoint": partial(check_checkpoint, settings),
        "quotas table": partial(check_quotas_table, settings),
        "holds": partial(check_holds_table, settings),
        "tables": partial(check_tables, settings),
        "health": partial(check_health, settings),
    }


def checks_of_kafka(settings: Settings) -> dict[str, Check]:
    """The checks that ask brokers, some of them for the same."""
    topics = settings.topics
    enforced = settings.enforce.checkpoint, (topics.requests,)
    brokers, beats = in_thread(partial(broker_configs, settings.kafka)), in_thread(partial(read_heartbeats, settings))
    limits, newest = in_thread(partial(read_limits, settings)), in_thread(partial(read_newest, settings))

    def flow() -> Flow | None:
        try:
            return newest.result()[0]
        except (KafkaError, TopicLostError):
            return None

    def threads() -> str:
        having = {node for node, configs in brokers.result().items() if configs.get(CALLBACK) == CALLBACK_CLASS}
        return threads_verdict(having, beats.result().by_instance) if having else "no broker has the plugin"

    def loads() -> str:
        try:
            capacities = broker_limits(settings.brokers)
        except InvalidSettingsError as error:
            raise CheckWarningError(f"{error}; a job goes on with the capacities that it read last") from error
        return loads_verdict(beats.result().by_instance, capacities)

    def login() -> str:
        cluster = client_quotas(read_cluster_quotas(settings.kafka)).entries
        read: Mapping[str, Request] | None = None
        try:
            in_force, read = [*limits.result().entries.values()], beats.result().by_instance
        except (KafkaError, TopicLostError):  # a login that is throttled itself reads no topic
            in_force = quotas_in_force(settings)
        return own_login_verdict(settings.kafka, in_force, cluster, brokers.result(), read)

    return {
        "topics": partial(check_topics, settings),
        "replicas": if_read("the topics", partial(check_replicas, settings)),
        "requests topic": partial(check_requests_topic, settings),
        "brokers as gateways": if_read("their configuration", lambda: plugin_verdict(brokers.result())),
        "threads of the plugin": if_read("the heartbeats", threads),
        "clocks of gateways": if_read("the heartbeats", lambda: clocks_verdict(beats.result().ahead_ms)),
        "load of brokers": if_read("the heartbeats", loads),
        "limits": if_read("the limits", lambda: limits_verdict(limits.result())),
        "overrides": if_read("the limits", lambda: overrides_verdict(limits.result().overrides, now_ms())),
        "own login": if_read("the quotas", login),
        "dead letters": if_read("the newest records", lambda: dead_letters_verdict(newest.result()[1])),
        "enforce query": partial(check_progress, settings, *enforced),
        "audit query": lambda: check_audit(settings, flow()),
        "quotas source": partial(check_quotas_source, settings),
        "job": lambda: check_job(settings, flow()),
    }


def if_read(source: str, check: Check) -> Check:
    """The check, which doesn't fail where its source can't be read: not every login may do so."""

    def answer() -> str:
        try:
            return check()
        except (KafkaError, KafkaUnavailableError, TopicLostError) as error:
            return f"unknown; {source} can't be read ({error})"

    return answer


def check_broker(settings: Settings) -> str:
    """The address that answered. Raises KafkaUnavailableError, and CheckWarningError for others that don't."""
    silent = in_thread(partial(silent_servers, settings.kafka))
    connect(KafkaAdminClient, settings.kafka).close()
    return verdict(
        broker_troubles(Facts(brokers=BrokersSeen(silent.result())), 0),
        f"{settings.kafka['bootstrap.servers']} answers",
    )


def check_topics(settings: Settings) -> str:
    """The topics of the job, and whether they are as it needs them.

    Raises CheckError if one is missing after the first start or loses records, CheckWarningError, and KafkaError.
    """
    in_shared_storage = not Checkpoint(settings.enforce.checkpoint).is_local
    refused: dict[tuple[str, str], bool] = {}
    seen = topics_seen(settings.topics, settings.kafka, refused, in_shared_storage=in_shared_storage)
    wanted = [*needs(settings.topics), *([settings.topics.claims] if in_shared_storage else [])]
    well = f"{', '.join(wanted)} are there, as the job needs them"
    if lost := [f"{key} of {name} ({lost_without(key)})" for (name, key), is_refused in refused.items() if is_refused]:
        well += f", but for what the cluster refuses: {some(lost)}"
    if seen.missing and _is_new(settings):
        seen, well = seen._replace(missing=()), f"{', '.join(seen.missing)} will be created by sluice run"
    return verdict(topic_troubles(Facts(topics=seen), 0), well)


def check_requests_topic(settings: Settings) -> str:
    """The id of the requests topic. Raises KafkaError, and CheckError if the checkpoint is of another topic."""
    with connect(KafkaAdminClient, settings.kafka) as admin:
        found = topic_id_now(admin, settings.topics.requests)
    if (text := another_topic(settings, found)) is not None:
        if settings.enforce.fail_on_data_loss:
            raise CheckError(text)
        return text
    return "no id" if found is None else f"id {found}"


def broker_configs(kafka: Mapping[str, str]) -> BrokerConfigs:
    """Configuration of each broker, as far as it is of the plugin, by node id. Raises KafkaError."""
    with connect(KafkaAdminClient, kafka) as admin:
        return read_broker_configs(admin)


def check_replicas(settings: Settings) -> str:
    """The replicas of the job's topics.

    Raises KafkaError, CheckError for partitions without a leader, and CheckWarningError for a broker that is away.
    """
    topics = settings.topics
    names = (topics.requests, topics.decisions, topics.dead_letters, topics.limits, topics.waits, topics.sums)
    with connect(KafkaAdminClient, settings.kafka) as admin:
        seen = read_replicas(admin, names)
    return verdict(broker_troubles(Facts(brokers=seen), 0), "all brokers that have some of the job's topics are there")


def read_newest(settings: Settings) -> tuple[Flow | None, DeadLettersSeen | None]:
    """The newest requests and answers, and the dead letters of the last hour. Raises KafkaError.

    Where the times of records, which other machines' clocks made, leave a doubt, it waits some seconds for an answer.
    """
    with NewestRecords(settings.kafka, settings.topics) as newest:
        while is_doubtful(flow := newest.flow(), now_ms()):
            time.sleep(1.0)
        return flow, newest.dead_letters(now_ms())


def dead_letters_verdict(seen: DeadLettersSeen | None) -> str:
    """The dead letters of the last hour. Raises CheckWarningError if there are some.

    >>> dead_letters_verdict(DeadLettersSeen(0))
    'none in the last hour'
    """
    return verdict(dead_letter_troubles(Facts(dead_letters=seen), 0), "none in the last hour")


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
                server = server_text(name, beat.gateway)
                ahead_ms[server] = max(ahead, ahead_ms.get(server, ahead))  # without a time it is the record's
        return found

    with TopicReader(settings.kafka, settings.topics.requests, now_ms() - _HEARTBEATS_MS) as reader:
        found = read(reader.read_to_end(), -MAX_AHEAD_MS)
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
    'the busiest of 1 is broker 2: request handlers 30 % busy'
    """
    heartbeats_of = _of(beats)
    heaviest = some([unlimited_text(each) for each in heaviest_unlimited(heartbeats_of.values())])
    loads = broker_loads({name: beat.load for name, beat in heartbeats_of.items() if beat.load}, limits.capacities)
    well = "none; brokers with the plugin report it"
    if loads:
        busiest = max(loads, key=lambda name: loads[name].rho)
        well = f"the busiest of {len(loads)} is {busiest}: {loads[busiest].reason}"
    more = f"; without a limit, the heaviest: {heaviest}" if heaviest and loads else ""
    return verdict(load_troubles(Facts(beats=heartbeats_of, capacities=limits), 0), well, more)


def read_limits(settings: Settings) -> LimitsView:
    """The limits and overrides that gateways read. Raises KafkaError and TopicLostError."""
    view = LimitsView()
    with TopicReader(settings.kafka, settings.topics.limits) as reader:
        for _, record in reader.read_to_end():
            view.take_readable(record.key, record.value)  # gateways pass over garbage too
    return view


def limits_verdict(view: LimitsView) -> str:
    """The limits that gateways know. Raises CheckWarningError for records that none of them reads."""
    if view.unreadable:
        keys = some([key.decode(errors="backslashreplace") for key in sorted(view.unreadable)])
        found = f"gateways pass over {len(view.unreadable)} records of the limits topic, those of {keys}"
        raise CheckWarningError(f"{found}; start the job, which replaces them, and check who may write there")
    return f"{len(view.entries)} in the limits topic"


def overrides_verdict(said: Mapping[str, Overrides], at_ms: int) -> str:
    """The overrides of limits that hold at a time, by the last record of each decider.

    Raises CheckWarningError for gateways that are tightened, and for producers that are throttled.
    """
    return verdict(override_troubles(Facts(overrides=said), at_ms), "none")


def own_login_verdict(
    kafka: Mapping[str, str],
    limits: Iterable[QuotaEntry],
    cluster: Iterable[QuotaEntry],
    brokers: BrokerConfigs,
    beats: Mapping[str, Request] | None,
) -> str:
    """The quotas on Sluice's own login. Raises CheckWarningError for one that brokers don't exempt."""
    found = own_login(kafka, limits, cluster, brokers, CALLBACK_CLASS, None if beats is None else _of(beats))
    return verdict(login_troubles(Facts(own_login=found.limited), 0), found.text)


def clocks_verdict(ahead_ms: Mapping[str, int]) -> str:
    """The clocks of gateways, so much ahead of this machine's in ms; below 0 is behind.

    Raises CheckWarningError, and CheckError from a minute on.

    >>> clocks_verdict({"a": 900, "b": -1_900})
    'of 2 gateways, none is ahead or behind'
    """
    well = f"of {len(ahead_ms)} gateways, none is ahead or behind" if ahead_ms else _NO_TIMES
    return verdict(clock_troubles(Facts(ahead_ms=ahead_ms), 0), well)


def threads_verdict(nodes: Set[int], beats: Mapping[str, Request]) -> str:
    """The threads of the plugin by the heartbeats of brokers, whose instance has the node id before a random part.

    Raises CheckError.

    >>> threads_verdict(set(), {})
    'those of all 0 brokers live'
    """
    facts = Facts(plugins=dict.fromkeys(nodes, "there"), beats=_of(beats), heard_s=_HEARTBEATS_MS // 1000)
    return verdict(plugin_troubles(facts, 0), f"those of all {len(nodes)} brokers live")


def plugin_verdict(brokers: BrokerConfigs) -> str:
    """The plugin in the configuration of each broker, by node id. Raises CheckError.

    >>> plugin_verdict({1: {"client.quota.callback.class": None}})
    'no broker has the plugin'
    """
    plugins = plugins_of(brokers, CALLBACK_CLASS, REPORTER_CLASS)
    if plugins is None:
        return "unknown; check that the user may describe the configuration of brokers"
    having = sum(state != "missing" for state in plugins.values())
    well = f"all {having} brokers have the plugin" if having else "no broker has the plugin"
    return verdict(plugin_troubles(Facts(plugins=plugins), 0), well)


def _of(beats: Mapping[str, Request]) -> dict[str, Heartbeat]:
    return {server_text(name, beat.gateway): beat.heartbeat for name, beat in beats.items() if beat.heartbeat}


def check_checkpoint(settings: Settings) -> str:
    """The settings of the enforce checkpoint. Raises CheckpointError if the job can't use it."""
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    check_enforce_checkpoint(settings)
    origin = read_origin(checkpoint)
    if origin is None:
        return f"{checkpoint.location} is new"
    check_origin(checkpoint, with_pages(settings))
    committed = check_spark_files(checkpoint).committed
    frozen = ", ".join(f"{name} {value}" for name, value in structs.asdict(origin).items())
    size = _mebibytes(checkpoint.size_bytes())
    return f"{checkpoint.location} was made with {frozen}; {committed + 1} micro-batches, {size}"


def _is_new(settings: Settings) -> bool:
    """True before the first start of the job, which makes its topics and tables. Raises CheckpointError."""
    return read_origin(Checkpoint(settings.enforce.checkpoint)) is None


def check_job(settings: Settings, flow: Flow | None = None) -> str:
    """The lock of the checkpoint, which a job holds, or a command that needs it stopped.

    Raises CheckError if there is no job, or it stands still, although requests wait, and for what the job itself says.
    """
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    words: dict[bool | None, str] = {True: "one runs on {}", False: "none runs on {}", None: _NOBODY_KNOWS}
    own, said = _job_now(settings, flow)
    of_job = (each for each in said if each.name in _BY_THE_JOB)
    return verdict([*own, *of_job], words[is_locked(checkpoint)].format(checkpoint.location))


def _job_now(settings: Settings, flow: Flow | None) -> tuple[list[Trouble], list[Trouble]]:
    """Troubles of the job as this command sees it, and all troubles in the job's own words."""
    probe = JobProbe(f"http://{settings.health.place}" if settings.health.port else None)
    probe.ask()
    seen = probe.seen(is_locked(Checkpoint(settings.enforce.checkpoint)))
    return list(job_troubles(Facts(job=seen, flow=flow), now_ms())), probe.troubles


def check_progress(settings: Settings, location: str, topics: Sequence[str]) -> str:
    """A query's last micro-batch, and the records of topics still to be read. Raises CheckpointError and CheckError."""
    checkpoint = Checkpoint(location)
    committed = check_spark_files(checkpoint).committed
    done = f"micro-batch {committed} is committed" if committed >= 0 else "no micro-batch is committed yet"
    read = read_offsets(checkpoint, committed) if committed >= 0 else {topic: {} for topic in topics}
    unread = [_unread_text(settings, topic, read_to) for topic, read_to in sorted(read.items())]
    return f"{done}; still to be read: {', '.join(unread)}"


def check_audit(settings: Settings, flow: Flow | None = None) -> str:
    """The progress of the audit query. Raises CheckWarningError for answers that no job writes, or as the job says."""
    topics = settings.topics
    progress = check_progress(settings, settings.audit.checkpoint, (topics.decisions, topics.dead_letters))
    own, said = _job_now(settings, flow)
    behind = [each for each in said if each.name == "audit_behind"]
    if any(each.name == "job_away" for each in own):
        behind += query_troubles(Facts(unwritten=Unwritten(unread_answers(settings))), 0)
    return verdict(behind, progress)


def _unread_text(settings: Settings, topic: str, read_to: Mapping[int, int]) -> str:
    """The records of a topic still to be read. A missing topic is no failure here: the check of the topics has it."""
    try:
        with TopicReader(settings.kafka, topic) as reader:
            offsets = reader.offsets()
    except KafkaError as error:
        raise CheckError(f"the end of {topic} {unread_text(error, 'read it')}") from error
    if not offsets:
        return f"{topic}, which is not there"
    records = sum(max(each.end - read_to.get(partition, each.first), 0) for partition, each in offsets.items())
    return f"{records} records of {topic}"


def check_tables(settings: Settings) -> str:
    """Rows and size of the tables that the job writes. Raises CheckError for those that can't be read."""
    seen, reasons = see_tables(settings)
    texts = [f"{name} {_size_text(found)}" for name, found in seen.items()]
    return verdict(source_troubles(Facts(tables=reasons), 0), "; ".join(texts))


def _size_text(seen: TableSeen | None) -> str:
    if seen is None:
        return "isn't there yet"
    return f"has {seen.rows} rows in {seen.files} files, {_mebibytes(seen.size_bytes)}"


def check_holds_table(settings: Settings) -> str:
    """Clients that the table of holds stops now. Raises CheckWarningError if it can't be read whole."""
    table = HoldsTable(settings.delta.quotas, settings.delta.storage_options)
    try:
        check_commits("quotas-holds", table.path, settings.delta.storage_options)
        commands = table.poll() or ()
    except SluiceError as error:
        raise CheckWarningError(f"{error}; a job goes on with the holds that it read last") from error
    held = len(holds_at(commands, now_ms()))
    if held > MAX_HOLDS:
        raise CheckWarningError(too_many_text(held))
    return f"{held} in force" if commands else "none, as before the first hold; overrides says who is held"


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


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def check_quotas_table(settings: Settings) -> str:
    """Path, version and size of the quotas table. Raises QuotasTableError, and TableReadError for an empty commit."""
    table = QuotasTable(settings.delta.quotas, settings.delta.storage_options)
    check_commits("quotas", table.path, settings.delta.storage_options)
    if not table.exists() and _is_new(settings):
        entries, seed = seed_quotas(settings), settings.quotas.seed
        with_quotas = f", with {len(entries)} quotas of {seed}" if seed else ""
        return f"{table.path} will be created by sluice run{with_quotas}"
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
