"""The whole job over SASL_SSL with least rights, and where its password never appears."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import TopicAuthorizationFailedError

from sluice.configs.settings import Properties
from sluice.kafka_io.client import connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice_demo.counts import records, rows
from sluice_lab.testbed.processes import descendants
from sluice_lab.testbed.reconciliation import reconcile
from sluice_toolbox.cluster_quotas import read_cluster_quotas
from tests.commands import invoke, run_sluice
from tests.integration.job_process import AUDITED, JobProcess, wait_until
from tests.integration.secure_broker import SecureBroker

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PASSWORDS = {"job": "jobs-own-Secret-17", "gateway": "gates-own-Secret-18", "auditor": "audits-own-Secret-19"}
HOSTILE = [
    'x\n{"level": "error", "message": "forged"}',
    "\x1b[2J\x1b]0;owned\x07",
    '"}, {"verdict": "ALLOW"',
    "' OR 1=1; DROP TABLE decisions; --",
    "`rm -rf`$(id)${HOME}%s{0}",
    "../../etc/passwd",
    "\u202euser\u2028\x00",
]
QUOTAS = [{"entity": {"user": None}, "quotas": {"controller_mutation_rate": 1}}]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    broker = SecureBroker(tmp_path_factory.mktemp("secure"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def job(broker: SecureBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobProcess]:
    """The job as user `job`; its password comes from the environment only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_PASSWORD", PASSWORDS["job"])
        folder = tmp_path_factory.mktemp("job") / "secure"
        kafka = login(broker, "job", "${SLUICE_PASSWORD}")
        spark = {"spark.hadoop.fs.s3a.secret.key": "${SLUICE_PASSWORD}"}
        process = JobProcess(folder, broker.bootstrap_servers, QUOTAS, audit=AUDITED, kafka=kafka, spark=spark)
        broker.let_in(process.settings.topics, PASSWORDS)
        process.start()
        yield process
        process.stop()


def login(broker: SecureBroker, user: str, password: str) -> dict[str, str]:
    """The properties of a client that may connect; PEM, so that Java and Python use the same file."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(broker.certificate),
    }


def creates(user: str) -> bytes:
    mutations = [{"topic": user, "partitions": 30}]
    return json.dumps({"api": "CreateTopics", "api_version": 7, "user": user, "mutations": mutations}).encode()


def send(kafka: dict[str, str], topic: str, values: list[bytes]) -> None:
    with connect(KafkaProducer, kafka, enable_idempotence=False, max_block_ms=10_000) as producer:
        for sent in [producer.send(topic, value) for value in values]:
            sent.get(timeout=120)


def test_a_gateway_is_served_over_tls_whatever_the_names_in_its_events(broker: SecureBroker, job: JobProcess) -> None:
    """Hostile names are unchanged in the decision and in Delta, and forge no line of the log."""
    send(login(broker, "gateway", PASSWORDS["gateway"]), job.settings.topics.requests, [*map(creates, HOSTILE), b"bad"])
    wait_until(lambda: rows(job.settings.delta.decisions) >= len(HOSTILE), 120)
    wait_until(lambda: rows(job.settings.delta.dead_letters) >= 1, 120)

    decisions = [json.loads(record.value) for record in records(job.settings, job.settings.topics.decisions)]
    assert sorted(decision["user"] for decision in decisions) == sorted(HOSTILE)
    assert {decision["topic_results"][0]["topic"] for decision in decisions} == set(HOSTILE)
    found = reconcile(job.settings)
    assert (found.requests, found.decisions, found.decision_rows) == (len(HOSTILE) + 1, len(HOSTILE), len(HOSTILE))
    for line in log(job).splitlines():
        assert "forged" not in line
        assert line.isprintable()


def test_no_password_is_in_logs_status_settings_or_the_process_list(job: JobProcess) -> None:
    """It is in the environment, which the system shows only to the same user."""
    assert job.child is not None
    pid = job.child.pid
    commands = [Path(f"/proc/{pid}/cmdline").read_text(), *descendants(pid).values()]
    files = [path.read_bytes() for path in job.folder.rglob("*") if path.is_file()]

    assert len(commands) > 2
    assert not any(password in command for password in PASSWORDS.values() for command in commands)
    assert not any(password.encode() in content for password in PASSWORDS.values() for content in files)
    assert PASSWORDS["job"] not in repr(job.settings)


def test_a_certificate_and_its_truststore_may_be_replaced_while_the_job_runs(
    broker: SecureBroker, job: JobProcess
) -> None:
    """Java's clients, which keep what they have read at their start, are made again."""
    before = job.count(job.settings.topics.decisions)
    broker.renew()
    send(login(broker, "gateway", PASSWORDS["gateway"]), job.settings.topics.requests, [creates("renewed")])

    wait_until(lambda: job.count(job.settings.topics.decisions) > before, 240)


@pytest.mark.parametrize(("user", "topic"), [("gateway", "decisions"), ("auditor", "decisions"), ("job", "requests")])
def test_nobody_writes_what_is_not_theirs(broker: SecureBroker, job: JobProcess, user: str, topic: str) -> None:
    with pytest.raises(TopicAuthorizationFailedError):
        send(login(broker, user, PASSWORDS[user]), getattr(job.settings.topics, topic), [b"forged"])


def test_nobody_reads_what_is_not_theirs(broker: SecureBroker, job: JobProcess) -> None:
    """Requests name users and topics, so gateways and auditors must not read those of others."""
    for user in ("gateway", "auditor"):
        assert read_one(login(broker, user, PASSWORDS[user]), job.settings.topics.requests) is None
    kafka = login(broker, "auditor", PASSWORDS["auditor"])
    assert read_one(kafka, job.settings.topics.dead_letters)


@pytest.mark.usefixtures("job")
def test_mirroring_the_clusters_quotas_needs_describe_configs_on_the_cluster(broker: SecureBroker) -> None:
    """The job has this right only where it is given."""
    kafka = login(broker, "job", PASSWORDS["job"])
    with pytest.raises(KafkaUnavailableError, match="the login has DescribeConfigs on the cluster"):
        read_cluster_quotas(kafka)
    broker.let_read_quotas("job")
    wait_until(lambda: can_read_quotas(kafka), 120)


def can_read_quotas(kafka: dict[str, str]) -> bool:
    """True if the broker has learnt of the right."""
    try:
        return read_cluster_quotas(kafka) == []
    except KafkaUnavailableError:
        return False


@pytest.mark.parametrize(
    ("command", "change", "said"),
    [
        pytest.param("run", {}, "refuses the login", marks=pytest.mark.long),  # a wrong password
        ("topics", {}, "refuses the login"),
        ("topics", {"security.protocol": "SASL_PLAINTEXT"}, "ends connections without an answer"),
        (
            *("topics", {"ssl.truststore.location": "missing.pem"}),
            "missing.pem, which ssl.* names; expected a PEM file there",
        ),
    ],
)
def test_a_refused_login_is_one_line_without_the_password(
    broker: SecureBroker, tmp_path: Path, command: str, change: dict[str, str], said: str
) -> None:
    wrong = login(broker, "job", PASSWORDS["job"].replace("own", "0wn"))
    kafka = Properties(login(broker, "job", PASSWORDS["job"]) | (change or wrong))
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps({"kafka": kafka, "enforce": {"checkpoint": str(tmp_path / "checkpoint")}}))
    arguments = (command, "--config", file)
    ended = run_sluice(*arguments) if command == "run" else invoke(*arguments, code=1)

    assert ended.code == 1
    assert said in ended.error.splitlines()[-1]
    assert "Secret" not in ended.error


def log(job: JobProcess) -> str:
    return "".join(path.read_text() for path in job.folder.glob("job-*.log"))


def read_one(kafka: dict[str, str], topic: str) -> bytes | None:
    """The first record of a topic's first partition; None when the broker returns none."""
    consumer = connect(KafkaConsumer, kafka, consumer_timeout_ms=5000)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        return next((record.value for record in consumer), None)
    except TopicAuthorizationFailedError:
        return None
    finally:
        consumer.close()
