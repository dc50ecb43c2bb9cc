"""The doctor: one line a check, that says what is well and how to fix what isn't, and changes nothing."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sluice.cli import doctor, start_checks
from sluice.cli.doctor import run_doctor
from sluice.cli.errors import CheckError, CheckWarningError
from sluice.configs.capacity import broker_limits
from sluice.configs.settings import Properties, Settings
from sluice.jvm.plugin import CALLBACK_CLASS, REPORTER_CLASS
from sluice.kafka_io import client as kafka_client
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_needs import needs
from sluice.kafka_io.topic_reader import POLL_MS, Offsets, TopicReader
from sluice.process.errors import ListenError
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import (
    HEARTBEAT_API,
    RELEASE,
    CountedEntity,
    Heartbeat,
    Load,
    NotExemptClient,
    Request,
    UnlimitedClient,
)
from sluice.state.errors import SluiceError
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.troubles import TopicsSeen
from sluice.streaming.checkpoint.folder import Checkpoint, locked
from sluice.streaming.checkpoint.origin import check_origin, write_topic_id
from sluice.streaming.enforce.quota_watch import ensure_quotas_table
from sluice.streaming.errors import CheckpointError
from sluice_elastic.settings import ElasticSettings
from sluice_toolbox import checks
from sluice_toolbox.cluster import ClusterQuota
from tests.builders import DEFAULTS, changed, quota


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The defaults, with every folder below tmp_path and a broker address where nobody listens."""
    monkeypatch.setattr(kafka_client, "CONNECT_TIMEOUT_MS", 200)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    tables: dict[str, Any] = {name: str(tmp_path / name) for name in ("quotas", "decisions", "quota_metrics")}
    nobody = replace(DEFAULTS, kafka=Properties({"bootstrap.servers": address}))
    return changed(changed(nobody, "enforce", checkpoint=str(tmp_path / "checkpoint")), "delta", **tables)


def test_every_check_is_one_line_and_any_failure_is_exit_1(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    lines: list[str] = []

    exit_code = run_doctor(settings, lines.append)

    verdicts = {line[6:].split(":")[0]: line[:6].strip() for line in lines}
    for name in ("java", "native code"):  # a machine without Java and a compiler runs these tests too
        verdicts.pop(name)
    well = "python,account,environment,folders,temporary files,limits"
    well += ",parts of the job,job,checkpoint,quotas table,holds,tables,health"
    failing = ("jars of Spark", "broker")
    assert verdicts == dict.fromkeys(well.split(","), "ok") | dict.fromkeys(failing, "FAIL")
    assert not any("\n" in line for line in lines)
    assert exit_code == 1


def test_a_name_in_a_verdict_forges_no_line_and_moves_no_cursor(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_checks, "find_java", lambda: ("/usr/bin/java", "21\x1b[2J\nok    broker"))
    lines: list[str] = []
    run_doctor(settings, lines.append)

    assert lines[6] == "ok    java: 21\\x1b[2J\\nok    broker (/usr/bin/java)"


def test_a_new_checkpoint_is_fine_and_stays_untouched(settings: Settings) -> None:
    assert checks.check_checkpoint(settings) == f"{settings.enforce.checkpoint} is new"
    assert not Path(settings.enforce.checkpoint).exists()


def test_a_checkpoint_tells_what_it_was_made_with_and_of_another_page_count_fails(settings: Settings) -> None:
    check_origin(Checkpoint(settings.enforce.checkpoint), settings)

    assert " was made with pages 256, requests_topic quota-requests, " in checks.check_checkpoint(settings)
    with pytest.raises(CheckpointError, match=r"was made with state\.pages = 256"):
        checks.check_checkpoint(changed(settings, "state", pages=8))


def test_a_quotas_table_tells_its_version_and_a_missing_one_fails_after_the_first_start(settings: Settings) -> None:
    assert checks.check_quotas_table(settings) == f"{settings.delta.quotas} will be created by sluice run"

    check_origin(Checkpoint(settings.enforce.checkpoint), settings)
    with pytest.raises(QuotasTableError, match="no quotas table at"):
        checks.check_quotas_table(settings)
    QuotasTable(settings.delta.quotas).create([], "test", datetime(2026, 1, 1, tzinfo=UTC))

    assert checks.check_quotas_table(settings) == f"{settings.delta.quotas} is at version 0 with 0 quotas"


def test_quotas_of_the_table_need_no_cluster_and_those_of_a_cluster_beside_them_are_counted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster has quotas before it has Sluice."""
    assert checks.check_quotas_source(settings) == "table; sluice quotas alters them"
    cluster = [ClusterQuota({"user": "alice"}, {"producer_byte_rate": 1.0, "request_percentage": 2.0})]
    monkeypatch.setattr(checks, "read_cluster_quotas", lambda _: cluster)

    assert checks.check_quotas_source(settings) == (
        "table; sluice quotas alters them; the cluster has 2 of its own, which quotas.source: kafka would mirror"
    )


def test_before_the_first_start_the_quotas_of_the_cluster_are_counted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no table yet; who moves to Sluice wants to see what will be mirrored."""
    cluster = [
        ClusterQuota({"user": "alice"}, {"producer_byte_rate": 1.0, "request_percentage": 2.0}),
        ClusterQuota({"user": "bob"}, {"new_rate": 1.0}),
    ]
    monkeypatch.setattr(checks, "read_cluster_quotas", lambda _: cluster)
    mirroring = changed(settings, "quotas", source="kafka")

    found = checks.check_quotas_source(mirroring)

    assert found.startswith("kafka, with 2 quotas of users and client-ids and 1 that Sluice can't take (new_rate of ")
    assert found.endswith("; sluice run begins with them")
    check_origin(Checkpoint(settings.enforce.checkpoint), settings)
    with pytest.raises(QuotasTableError, match="no quotas table at"):
        checks.check_quotas_source(mirroring)


def test_a_requests_topic_that_the_checkpoint_has_not_charged_fails(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the settings say that lost input is no failure; the line is there all the same."""
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    described = {"error_code": 0, "topic_id": "b7a5f9ee-7e6e-4d2b-9dc6-2f0f3f4f5a01"}
    admin = Mock(describe_topics=lambda names: [described | {"name": name} for name in names])
    monkeypatch.setattr(checks, "connect", lambda *_: nullcontext(admin))
    write_topic_id(checkpoint, "another")
    assert checks.check_requests_topic(settings) == "id t6X57n5uTSudxi8PP09aAQ"

    checkpoint.spark.write("metadata", b"{}")
    checkpoint.spark.write("offsets/0", b"v1\n{}\n{}\n")
    with pytest.raises(CheckError, match=r"is another one .* set enforce\.fail_on_data_loss: false"):
        checks.check_requests_topic(settings)
    goes_on = changed(settings, "enforce", fail_on_data_loss=False)
    line = checks.check_requests_topic(goes_on)
    assert "is another one" in line
    assert "fail_on_data_loss" not in line, "which is set"


def test_before_the_first_start_missing_topics_will_be_created(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = [name for name in needs(settings.topics) if name != "quota-requests"]
    monkeypatch.setattr(checks, "topics_seen", lambda *_, **__: TopicsSeen(missing))

    found = checks.check_topics(settings)

    assert found.endswith("quota-dead-letters, quota-limits, quota-waits, quota-sums will be created by sluice run")
    assert "quota-requests" not in found
    check_origin(Checkpoint(settings.enforce.checkpoint), settings)
    with pytest.raises(CheckError, match=r"not there: topic quota-decisions, .* \(`sluice topics` makes"):
        checks.check_topics(settings)


def test_a_config_that_the_cluster_refuses_is_named_and_no_fault(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(_: object, __: object, refused: dict[tuple[str, str], bool], **___: object) -> TopicsSeen:
        refused["quota-requests", "compression.type"] = True
        return TopicsSeen()

    monkeypatch.setattr(checks, "topics_seen", seen)

    assert "but for what the cluster refuses: compression.type of quota-requests (" in checks.check_topics(settings)


@pytest.mark.parametrize(("is_fatal", "begin", "code"), [(False, "warn", 0), (True, "FAIL", 1)])
def test_a_topic_that_differs_from_what_is_needed_is_a_warning_and_one_that_loses_records_a_failure(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, is_fatal: bool, begin: str, code: int
) -> None:
    """Also before the first start: then a plugin may have been there before the job."""
    seen = TopicsSeen(unfit={"topic quota-requests: x; kafka-configs.sh y": is_fatal})
    monkeypatch.setattr(checks, "topics_seen", lambda *_, **__: seen)
    monkeypatch.setattr(doctor, "start_checks", lambda _: iter(()))
    topics_alone = {"topics": lambda: checks.check_topics(settings)}
    monkeypatch.setattr(checks, "check_cluster", lambda _, ask: ask(topics_alone, 9.0, ""))
    lines: list[str] = []

    exit_code = run_doctor(settings, lines.append)

    assert lines[0].startswith(f"{begin}  topics: topics are not as Sluice needs them: ")
    assert lines[0].endswith("; topic quota-requests: x; kafka-configs.sh y"), "a command that is copied to its end"
    assert exit_code == code


@pytest.mark.parametrize("name", ["decisions", "quotas"])
def test_an_empty_commit_is_found(settings: Settings, name: str) -> None:
    """A full disk may leave one. Readers take it for a commit that does nothing, so rows are missing unnoticed."""
    check = {"decisions": checks.check_tables, "quotas": checks.check_quotas_table}[name]
    path = getattr(settings.delta, name)
    QuotasTable(settings.delta.quotas).create([], "test", datetime(2026, 1, 1, tzinfo=UTC))
    write_deltalake(settings.delta.decisions, pa.table({"user": ["alice"]}))
    check(settings)
    (Path(path) / "_delta_log" / f"{1:020}.json").touch()

    with pytest.raises(SluiceError, match=rf"{path}/_delta_log/0+1\.json is empty: .*remove it while no job runs"):
        check(settings)


def test_a_job_that_holds_the_checkpoint_runs_and_one_of_an_object_store_may(settings: Settings) -> None:
    checkpoint = Checkpoint(settings.enforce.checkpoint)

    assert checks.check_job(settings) == f"none runs on {checkpoint.location}"
    with locked(checkpoint):
        assert checks.check_job(settings) == f"one runs on {checkpoint.location}"
    assert checks.check_job(settings) == f"none runs on {checkpoint.location}"
    in_store = changed(settings, "enforce", checkpoint="s3a://bucket/enforce")
    assert checks.check_job(in_store).startswith("nobody can tell")


def topic_with(monkeypatch: pytest.MonkeyPatch, **offsets: dict[int, tuple[int, int]]) -> None:
    """Let topics have these offsets, the first and the end, by partition."""

    class Reader(TopicReader):
        def offsets(self) -> dict[int, Offsets]:
            return {partition: Offsets(*each) for partition, each in offsets[self._topic].items()}

    monkeypatch.setattr(checks, "TopicReader", Reader)


def test_a_query_says_how_many_records_are_before_it(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that the topic has gained since counts from its beginning."""
    location = settings.enforce.checkpoint
    files = Checkpoint(location).spark
    files.write("metadata", b'{"id": "some"}')
    for batch, offset in enumerate((10, 20)):
        files.write(f"offsets/{batch}", b'v1\n{}\n{"requests": {"0": %d, "1": 4}}' % offset)
    files.write("commits/0", b"v1\n{}")
    topic_with(monkeypatch, requests={0: (0, 100), 1: (3, 4), 2: (50, 57)})

    found = checks.check_progress(settings, location, ["requests"])

    assert found == "micro-batch 0 is committed; still to be read: 97 records of requests"


def test_a_query_that_has_done_nothing_says_how_many_records_wait(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_with(monkeypatch, letters={0: (5, 5)}, decisions={0: (1, 4)})

    found = checks.check_progress(settings, settings.audit.checkpoint, ["decisions", "letters"])

    assert found == "no micro-batch is committed yet; still to be read: 3 records of decisions, 0 records of letters"


def test_tables_tell_their_rows_and_size(settings: Settings) -> None:
    write_deltalake(settings.delta.decisions, pa.table({"user": ["alice", "bob"]}))
    write_deltalake(settings.delta.decisions, pa.table({"user": ["carol"]}), mode="append")

    found = checks.check_tables(settings)

    assert found.startswith("decisions has 3 rows in 2 files, 0.0 MiB; quota_metrics isn't there yet; ")


def test_storage_that_hangs_fails_its_own_line_alone(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a table on a mount that is gone never ends, and ended no doctor either."""
    monkeypatch.setattr(checks, "ANSWER_S", 0.1)
    monkeypatch.setattr(doctor, "start_checks", lambda _: iter(()))
    of_job = {"tables": lambda: str(Event().wait()), "health": lambda: "right"}
    monkeypatch.setattr(checks, "checks_of_job", lambda _: {"job": lambda: "one runs"} | of_job)
    monkeypatch.setattr(checks, "checks_of_kafka", lambda _: {})
    monkeypatch.setattr(checks, "check_broker", lambda _: "answers")
    lines: list[str] = []

    assert run_doctor(settings, lines.append) == 1
    assert lines[1].startswith("FAIL  tables: no answer in 0 s; the storage of tables or checkpoints hangs: ")
    assert lines[2] == "ok    health: right"


def test_the_table_of_overrides_is_told_of_where_limits_give_way(settings: Settings) -> None:
    assert "overrides" not in checks.check_tables(settings)
    elastic = replace(settings, extras={"elastic": ElasticSettings("elastic")})
    assert checks.check_tables(elastic).endswith("; overrides isn't there yet")


def test_a_health_address_of_another_machine_fails(settings: Settings) -> None:
    """Documentation's own address (RFC 5737) is nobody's."""
    assert checks.check_health(settings).startswith("off; health.port")
    with pytest.raises(ListenError, match=r"can't listen on 192\.0\.2\.1:9464 .*health\.address to an address of"):
        checks.check_health(changed(settings, "health", address="192.0.2.1", port=9464))


@pytest.mark.parametrize(
    ("address", "readers"),
    [("127.0.0.1", "this machine alone"), ("0.0.0.0", "every host that reaches it")],  # noqa: S104 # as above
)
def test_the_health_line_says_who_can_read_it(settings: Settings, address: str, readers: str) -> None:
    with closing(socket.socket()) as free:
        free.bind((address, 0))
        port = free.getsockname()[1]

    healthy = changed(settings, "health", address=address, port=port)
    assert checks.check_health(healthy) == f"{address}:{port}; readable for {readers}"


def test_brokers_without_the_plugin_beside_brokers_with_it_are_named() -> None:
    """A broker without it would hold nobody on what the quota allows cluster-wide."""
    with_plugin = {"client.quota.callback.class": CALLBACK_CLASS, "metric.reporters": f"JmxReporter,{REPORTER_CLASS}"}
    without = {"client.quota.callback.class": None, "metric.reporters": "JmxReporter"}
    deaf = {**with_plugin, "metric.reporters": "JmxReporter"}

    assert checks.plugin_verdict({1: with_plugin, 2: with_plugin}) == "all 2 brokers have the plugin"
    assert checks.plugin_verdict({1: without, 2: without}) == "no broker has the plugin"
    assert "unknown" in checks.plugin_verdict({1: with_plugin, 2: {}})
    with pytest.raises(CheckError, match="broker 2, 3 of 3 is without"):
        checks.plugin_verdict({1: with_plugin, 3: without, 2: without})
    with pytest.raises(CheckError, match="broker 1 of 2 is without"):
        checks.plugin_verdict({1: deaf, 2: with_plugin})


def test_a_broker_whose_plugin_sends_no_heartbeat_or_has_a_dead_thread_is_named() -> None:
    def beat(node: int, threads_down: int = 0, **more: bool | str) -> bytes:
        heartbeat = {"staleness_ms": 5, "counters": 0, "threads_down": threads_down, "release": RELEASE} | more
        event = {"api": "GatewayHeartbeat", "instance": f"host-{node}-0a1b2c3d", "heartbeat": heartbeat}
        return json.dumps(event).encode()

    seen = checks.heartbeats([beat(1, 1), beat(2), beat(1), None, b"GatewayHeartbeat", b"{}"])

    assert checks.threads_verdict({1, 2}, seen) == "those of all 2 brokers live"
    with pytest.raises(CheckError, match="broker 3 of 2 with the plugin: no heartbeat in 10 s"):
        checks.threads_verdict({1, 3}, seen)
    with pytest.raises(CheckError, match="broker 2 of 2 with the plugin: threads that don't work"):
        checks.threads_verdict({1, 2}, checks.heartbeats([beat(1), beat(2, 1)]))
    with pytest.raises(CheckError, match=r"broker 1 of 2 with the plugin doesn't hand it its metrics: .* no restart"):
        checks.threads_verdict({1, 2}, checks.heartbeats([beat(1, metrics_seen=False), beat(2, 1)]))
    with pytest.raises(
        CheckWarningError, match=r"^broker 2 of 2 with the plugin has 0\.1\.0 of it, the job is .* copy the jar of "
    ):
        checks.threads_verdict({1, 2}, checks.heartbeats([beat(1), beat(2, release="0.1.0")]))


def load_of(broker: int, bytes_in_per_s: float) -> Request:
    """A heartbeat of a broker that takes in so much."""
    load = Load(broker_id=broker, bytes_in_per_s=bytes_in_per_s, handler_idle=1.0)
    return Request(HEARTBEAT_API, heartbeat=Heartbeat(0, 0, load=load))


def test_a_broker_at_its_capacity_is_a_warning_and_names_the_busiest() -> None:
    limits = broker_limits(changed(DEFAULTS, "brokers", capacity_in_bytes_per_s=1000).brokers)
    beats = {"a": load_of(1, 1480.0), "b": load_of(2, 950.0), "c": load_of(3, 100.0)}

    assert checks.loads_verdict({"c": beats["c"]}, limits).startswith("the busiest of 1 is c: ")
    with pytest.raises(CheckWarningError, match=r"^2 of 3 brokers are at their capacity; the busiest of 3 is a: bytes"):
        checks.loads_verdict(beats, limits)


def test_the_load_of_brokers_names_the_heaviest_clients_without_a_limit() -> None:
    beat = load_of(1, 100.0)
    assert beat.heartbeat is not None
    beat.heartbeat.unlimited = [UnlimitedClient("", name, 24e6, 0.0) for name in ("noisy", "other")]

    said = checks.loads_verdict({"a": beat}, broker_limits(DEFAULTS.brokers))
    noisy, other = (f"client-id '{name}' 24 MB/s in, 0 B/s out" for name in ("noisy", "other"))
    assert said.endswith(f"; without a limit, the heaviest: {noisy}, {other}")


def test_brokers_that_are_tightened_and_clients_that_are_held_back_are_a_warning_each() -> None:
    """All that a decider says until its record is too old, or a hold is over."""
    factors = enumerate((0.1, 0.21), 1)
    tight = [Override("tighten", factor, gateway=f"b-{node}-0a1b2c3d", reason="bytes in") for node, factor in factors]
    shop = Override("hold", entity=CountedEntity(tenant="shop"), reason="862 % of its budget", until_ms=9_000)
    stopped = Override("hold", entity=CountedEntity(client_id="x"), reason="by ops", until_ms=9_000, consumers=True)
    said = {"elastic": Overrides(1, 1_000, 5_000, tight), "holds": Overrides(1, 1_000, 60_000, [shop, stopped])}

    with pytest.raises(CheckWarningError) as raised:
        checks.overrides_verdict(said, 2_000)

    assert str(raised.value) == (
        "2 brokers are tightened, clients get 0.10 to 0.21 of their shares there, or their reservations (broker 1:"
        " bytes in, broker 2: bytes in): the other brokers give whole shares; it ends by itself, with the load of"
        " the busiest clients there; throttled whatever their limits are: producers of tenant shop until 00:00:09"
        " UTC by holds (862 % of its budget), clients of client-id x until 00:00:09 UTC by holds (by ops): all other"
        " clients have their limits; it ends with its reason"
    )
    with pytest.raises(CheckWarningError, match=r"^throttled whatever"):
        checks.overrides_verdict(said, 7_000)
    assert checks.overrides_verdict(said, 9_000) == "none"


def test_a_line_names_five_holds_and_counts_the_others() -> None:
    holds = [Override("hold", entity=CountedEntity(client_id=str(number)), reason="r") for number in range(9)]

    with pytest.raises(CheckWarningError, match=r"client-id 4 by x \(r\) and 4 more: all"):
        checks.overrides_verdict({"x": Overrides(1, 0, 5_000, holds)}, 0)


WITH_PLUGIN: dict[str, str | None] = {"client.quota.callback.class": CALLBACK_CLASS}
EXEMPTS: dict[str, str | None] = {**WITH_PLUGIN, "sluice.exempt.principals": None}
PLAIN = {"security.protocol": "SASL_SSL", "sasl.jaas.config": 'x required username="sluice" password="p";'}


@pytest.mark.parametrize(
    ("kafka", "entity", "brokers", "limited"),
    [
        ({}, QuotaEntity(user=DEFAULT), {}, "ANONYMOUS"),
        ({}, QuotaEntity(user="ANONYMOUS"), {}, "ANONYMOUS"),
        ({}, QuotaEntity(client_id=DEFAULT), {}, "ANONYMOUS"),
        ({}, QuotaEntity(client_id="sluice"), {}, None),
        (PLAIN, QuotaEntity(user="sluice"), {1: WITH_PLUGIN, 2: EXEMPTS}, "sluice"),
        (PLAIN, QuotaEntity(user="sluice"), {1: EXEMPTS, 2: EXEMPTS}, None),
        (PLAIN, QuotaEntity(user="alice"), {}, None),
        ({"security.protocol": "SSL", "ssl.keystore.location": "k"}, QuotaEntity(user=DEFAULT), {}, None),
    ],
)
def test_a_quota_on_sluices_own_login_is_a_warning_unless_all_brokers_exempt_somebody(
    kafka: dict[str, str], entity: QuotaEntity, brokers: dict[int, dict[str, str | None]], limited: str | None
) -> None:
    entries = [quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, entity)]
    if limited is None:
        checks.own_login_verdict(kafka, entries, entries, brokers, {})
        return
    words = f"^{limited}, which is Sluice's own, is limited: producer_byte_rate 1000;"
    with pytest.raises(CheckWarningError, match=words):
        checks.own_login_verdict(kafka, entries, entries, brokers, {})


def test_limits_of_sluice_count_for_its_own_login_only_where_brokers_have_the_plugin() -> None:
    """Without it brokers know the quotas of the cluster alone."""
    entries = [quota(QuotaKind.REQUEST_PERCENTAGE, 5.0, QuotaEntity(user=DEFAULT))]

    assert checks.own_login_verdict({}, entries, [], {1: {}}, {}) == "ANONYMOUS has no quota"
    with pytest.raises(CheckWarningError, match="request_percentage 5;"):
        checks.own_login_verdict({}, entries, [], {1: WITH_PLUGIN}, {})


def beats_with(*principals: str) -> dict[str, Request]:
    """A heartbeat of a broker that doesn't exempt these clients."""
    held = [NotExemptClient(principal, "sluice-doctor") for principal in principals]
    return {"b-1-0a1b2c3d": Request("GatewayHeartbeat", heartbeat=Heartbeat(0, 0, not_exempt=held))}


@pytest.mark.parametrize(
    ("kafka", "principal"),
    [
        (PLAIN, "User:sluice"),  # exempt is User:Sluice, "User: sluice", Group:sluice, User:sluice,User:x or another
        (PLAIN, "User:sluice@EXAMPLE.ORG"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "k"}, "User:CN=sluice,O=shop"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "User:sluice/host"),
    ],
)
def test_a_misspelt_exemption_is_named_with_the_login_as_brokers_see_it(kafka: dict[str, str], principal: str) -> None:
    """Also before any quota holds it; a broker's configuration only shows that somebody is exempt."""
    name = re.escape(principal)
    words = rf"^brokers don't exempt {name} \(client-id sluice-doctor\), .* come late; name exactly {name} in"
    with pytest.raises(CheckWarningError, match=words):
        checks.own_login_verdict(kafka, [], [], {1: EXEMPTS}, beats_with(principal))

    assert "none has a login" in checks.own_login_verdict(PLAIN, [], [], {1: EXEMPTS}, beats_with())


def test_a_login_that_is_too_throttled_to_read_heartbeats_is_named_with_its_limit() -> None:
    """Brokers exempt somebody; nobody knows whom."""
    entries = [quota(QuotaKind.CONSUMER_BYTE_RATE, 1000.0, QuotaEntity(user=DEFAULT))]

    words = (
        r"^sluice, which is Sluice's own, is limited: consumer_byte_rate 1000; .* unless .* name exactly User:sluice in"
    )
    with pytest.raises(CheckWarningError, match=words):
        checks.own_login_verdict(PLAIN, entries, [], {1: EXEMPTS}, None)


def test_what_a_login_may_not_read_fails_nothing() -> None:
    """Least rights have no DescribeConfigs on the cluster."""
    refused = Mock(side_effect=KafkaUnavailableError("no right"))

    assert checks.if_read("quotas", refused)() == "unknown; quotas can't be read (no right)"


def test_each_check_that_may_not_read_says_what_it_could_not_read(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Mock(side_effect=KafkaUnavailableError("no right"))
    for name in ("connect", "TopicReader", "NewestRecords", "read_cluster_quotas"):
        monkeypatch.setattr(checks, name, refused)
    said = dict[str, str]()
    for name, check in checks.checks_of_kafka(settings).items():
        with suppress(SluiceError):
            said[name] = check()

    unknown = {name: words for name, words in said.items() if words.startswith("unknown")}
    assert len(unknown) >= 8
    for words in unknown.values():
        assert re.fullmatch(r"unknown; (the|their) \w+( \w+)? can't be read \(no right\)", words)


def test_no_advice_exempts_all_clients_without_a_login() -> None:
    """Neither where brokers exempt somebody nor where they exempt nobody."""
    entries = [quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, QuotaEntity(user=DEFAULT))]

    for brokers, beats in (({1: EXEMPTS}, beats_with("User:ANONYMOUS")), ({1: WITH_PLUGIN}, {}), ({1: {}}, {})):
        with pytest.raises(CheckWarningError) as warned:
            checks.own_login_verdict({}, entries, entries, brokers, beats)
        assert "name exactly" not in str(warned.value)
        assert "; set client.id in section kafka, and of each Python gateway, to a secret" in str(warned.value)
        assert "would exempt all clients without a login" in str(warned.value)


def test_a_clock_that_is_some_seconds_off_is_a_warning_and_a_minute_a_failure() -> None:
    with pytest.raises(CheckWarningError, match="gateway a by 3 s"):
        checks.clocks_verdict({"a": 3_000, "b": 100})
    with pytest.raises(CheckError, match="gateway b by 60 s"):
        checks.clocks_verdict({"a": 3_000, "b": -60_000})


@pytest.fixture
def seen(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., checks.Heartbeats]:
    """Heartbeats of gateways by their times, None if they give none: some that were there, and then some new ones."""
    monkeypatch.setattr(checks, "_NEXT_S", 0.01)
    monkeypatch.setattr(checks, "now_ms", lambda: 500_000)

    def records(times_ms: dict[str, int | None]) -> Iterator[tuple[int, FetchedRecord]]:
        for name, at_ms in times_ms.items():
            event = Request(HEARTBEAT_API, instance=name, timestamp_ms=at_ms, heartbeat=Heartbeat(5, 0))
            yield 0, FetchedRecord(0, None, msgspec.json.encode(event))

    def make(new: dict[str, int | None], old: dict[str, int | None] | None = None) -> checks.Heartbeats:
        class Reader(TopicReader):
            def read_to_end(self) -> Iterator[tuple[int, FetchedRecord]]:
                return records(old or {})

            def read(self, wait_ms: int = POLL_MS) -> Iterator[tuple[int, FetchedRecord]]:  # noqa: ARG002 # as called
                return records(new)

        monkeypatch.setattr(checks, "TopicReader", Reader)
        return checks.read_heartbeats(settings)

    return make


@pytest.mark.parametrize("heartbeats", [{}, {"a": None}], ids=["none", "one that leaves its time to the record"])
def test_without_heartbeats_with_their_times_nothing_is_said_of_clocks(
    seen: Callable[..., checks.Heartbeats], heartbeats: dict[str, None]
) -> None:
    assert checks.clocks_verdict(seen(heartbeats).ahead_ms) == "no gateway sends heartbeats with its time"


def test_a_gateway_whose_clock_is_behind_is_named_from_2_s_on_and_one_that_has_just_ended_is_not(
    seen: Callable[..., checks.Heartbeats],
) -> None:
    """Also when all of them are behind: the times of their records are old, and they come all the same."""
    new = {"ahead": 503_000, "behind": 320_000, "little": 497_900, "right": 498_100}

    with pytest.raises(CheckError) as raised:
        checks.clocks_verdict(seen(new, old={"ended": 490_500, "little": 495_000}).ahead_ms)

    assert "clocks ahead of this machine's: gateway ahead by 3 s;" in str(raised.value)
    assert "; clocks behind this machine's: gateway behind by 180 s, little by 2 s: " in str(raised.value)


@pytest.mark.parametrize(
    "content", [None, "- {entity: {user: a}}\n", "- {entity: {user: a}, quotas: {topic_bytes: 1}}\n"]
)
def test_a_seed_that_the_first_start_can_not_read_fails_before_it(
    settings: Settings, tmp_path: Path, content: str | None
) -> None:
    seed = tmp_path / "seed.yaml"
    if content is not None:
        seed.write_text(content)
    seeded = changed(settings, "quotas", seed=str(seed))

    with pytest.raises(SluiceError, match=rf"^{seed}"):
        checks.check_quotas_table(seeded)
    with pytest.raises(SluiceError, match=rf"^{seed}"):
        ensure_quotas_table(seeded)


def test_the_quotas_of_a_seed_are_counted_before_the_first_start(settings: Settings, tmp_path: Path) -> None:
    seed = tmp_path / "seed.yaml"
    seed.write_text("- {entity: {user: a}, quotas: {request_percentage: 1}}\n")

    said = checks.check_quotas_table(changed(settings, "quotas", seed=str(seed)))

    assert said.endswith(f"/quotas will be created by sluice run, with 1 quotas of {seed}")
