"""The settings loader: defaults, what a file changes, and errors that say what is right."""

from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from msgspec.inspect import type_info

from sluice.configs import settings as settings_module
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import DEFAULTS, Properties, folders, load_settings, with_absolute_paths
from sluice.gateways.client.options import GatewayOptions
from sluice.state.quotas.kinds import Coexistence, QuotaSettings, RequestPolicy, Window

CONFIGS = DEFAULTS.parent
FREE_SECTIONS = ("kafka", "spark")  # any property of Kafka and Spark


Write = Callable[[str], Path]
"""Writes a settings file with the text and returns its path."""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_settings(text: str) -> Path:
        path = tmp_path / "sluice.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_settings


def error_of(path: Path, environment: dict[str, str] | None = None) -> str:
    """The message of the error that loading the file raises; it must be one line and name the file."""
    with pytest.raises(InvalidSettingsError) as caught:
        load_settings(path, environment or {})
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message.removeprefix(str(path)).removeprefix(": ")


def section_keys() -> dict[str, set[str]]:
    """The keys that the dataclasses have, by section."""
    sections = {}
    for section in fields(settings_module.Settings):
        kind = settings_module.QuotaSection if section.name == "quota" else section.type
        if section.name not in (*FREE_SECTIONS, "extras"):
            sections[section.name] = {field.encode_name for field in type_info(kind).fields}  # type: ignore[attr-defined] # kind has fields
    return sections


def test_default_yaml_has_every_setting_and_no_other() -> None:
    written = yaml.safe_load(DEFAULTS.read_text())

    assert {name: set(keys) for name, keys in written.items() if name not in FREE_SECTIONS} == section_keys()
    assert {*written, "extras"} == {section.name for section in fields(settings_module.Settings)}


def test_the_defaults_are_those_of_kafka() -> None:
    settings = load_settings()

    assert settings.quota == QuotaSettings()
    assert settings.kafka == {"bootstrap.servers": "localhost:9092"}
    assert settings.spark == {"spark.master": "local[*]"}
    assert settings.enforce.shuffle_partitions is None
    assert settings.quotas.seed is None
    assert settings.quotas.source == "table"


def test_a_file_changes_only_what_it_gives(write: Write) -> None:
    settings = load_settings(write("topics: {partitions: 12}\nkafka: {client.id: sluice, request.timeout.ms: 5000}\n"))

    assert settings.topics.partitions == 12
    assert settings.topics.requests == "quota-requests"
    expected = {"bootstrap.servers": "localhost:9092", "client.id": "sluice", "request.timeout.ms": "5000"}
    assert settings.kafka == expected


def test_quota_settings_go_by_kafkas_own_names(write: Write) -> None:
    text = """
        quota:
          quota.window.num: 5
          controller.quota.window.num: 100
          controller.quota.window.size.seconds: 2
          num.io.threads: 16
          policy: kip124_draft
          coexistence: sequential
          validate_only_exempt: false
          max_partitions_per_request: 500
    """

    assert load_settings(write(text)).quota == QuotaSettings(
        client_window=Window(5, 1000),
        controller_window=Window(100, 2000),
        policy=RequestPolicy.KIP124_DRAFT,
        coexistence=Coexistence.SEQUENTIAL,
        validate_only_exempt=False,
        num_io_threads=16,
        max_partitions_per_request=500,
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "topics:\n  # partitions: 12\n", "\ufefftopics:\n"])
def test_a_file_or_section_that_is_empty_changes_nothing(write: Write, text: str) -> None:
    assert load_settings(write(text)) == load_settings()


def test_the_profiles_load() -> None:
    embedded = load_settings(CONFIGS / "embedded.yaml", {})
    names = ("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_USERNAME", "KAFKA_PASSWORD", "KAFKA_CA_FILE", "SLUICE_STORAGE")
    cluster = load_settings(CONFIGS / "cluster.yaml", {name: name.lower() for name in names} | {names[0]: "kafka:9092"})

    assert embedded.enforce.checkpoint.startswith(".work/")
    assert cluster.topics.replication_factor == 3
    assert 'username="kafka_username" password="kafka_password"' in cluster.kafka["sasl.jaas.config"]


def test_environment_variables_are_replaced_anywhere(write: Write) -> None:
    text = """
        topics: {partitions: "${PARTITIONS}", requests: "${TEAM}-requests-${TEAM}"}
        enforce: {fail_on_data_loss: "${STRICT}", checkpoint: "/data/$${TEAM}/$5"}
        delta: {storage_options: {AWS_REGION: "${TEAM}"}}
    """

    settings = load_settings(write(text), {"PARTITIONS": "6", "TEAM": "blue", "STRICT": "false"})

    assert settings.topics.partitions == 6
    assert settings.topics.requests == "blue-requests-blue"
    assert settings.enforce.fail_on_data_loss is False
    assert settings.enforce.checkpoint == "/data/${TEAM}/$5"
    assert settings.delta.storage_options == {"AWS_REGION": "blue"}


def test_text_in_a_variable_is_not_replaced_again(write: Write) -> None:
    settings = load_settings(write("kafka: {client.id: '${A}'}"), {"A": "${B}", "B": "never"})

    assert settings.kafka["client.id"] == "${B}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("enforce: {chekpoint: x}", "unknown setting enforce.chekpoint; did you mean enforce.checkpoint?"),
        ("topic: {partitions: 2}", "unknown setting topic; did you mean topics?"),
        ("quota: {quota.windw.num: 2}", "unknown setting quota.quota.windw.num; did you mean quota.quota.window.num?"),
        ("spark: {sql.ansi: true}", "unknown setting spark.sql.ansi; did you mean spark: {spark.sql.ansi: ...}?"),
        ("topics: {partitions: four}", 'topics.partitions is "four"; expected a whole number from 1 to 100000'),
        ("topics: {partitions: 0}", "topics.partitions is 0; expected a whole number from 1 to 100000"),
        ("topics: {partitions: true}", "topics.partitions is true; expected a whole number from 1 to 100000"),
        ("topics: {partitions: 2.5}", "topics.partitions is 2.5; expected a whole number from 1 to 100000"),
        ("topics: {requests: a b}", 'topics.requests is "a b"; expected a topic name of letters, digits, . _ and -'),
        (
            "enforce: {shuffle_partitions: some}",
            'enforce.shuffle_partitions is "some"; expected a whole number from 1 to 65536 or null',
        ),
        ("enforce: {fail_on_data_loss: 3}", "enforce.fail_on_data_loss is 3; expected true or false"),
        ("enforce: {checkpoint: null}", "enforce.checkpoint is null; expected a text"),
        ("enforce: {starting_offsets: begin}", 'enforce.starting_offsets is "begin"; expected one of earliest, latest'),
        ("quota: {policy: kip125}", 'quota.policy is "kip125"; expected one of kip124, kip124_draft'),
        ("quotas: {source: foo}", 'quotas.source is "foo"; expected one of kafka, table'),
        ("quota: {coexistence: min}", 'quota.coexistence is "min"; expected one of max, sequential'),
        ("state: 3", "state is not a section; expected settings indented below state:"),
        ("- state", "not a mapping; expected sections such as kafka: and topics:"),
        ("3: {}", "3 is not a name; expected a word such as topics.partitions"),
        ("kafka: {3: a}", "kafka.3 is not a name; expected a word such as topics.partitions"),
        ("kafka: {client.id: [a]}", "kafka.client.id is not a text; expected a text, a whole number, true or false"),
        (
            "kafka: {kafka.client.id: a}",
            "kafka.kafka.client.id has Spark's prefix; expected Kafka's own name, kafka: {client.id: ...}",
        ),
        (
            "kafka: {bootstrap.servers: ''}",
            "kafka.bootstrap.servers is empty; expected host:port, or several with commas between them",
        ),
        (
            "topics: {decisions: quota-requests}",
            'topics.decisions is "quota-requests", as topics.requests is; expected another one',
        ),
        (
            "audit: {checkpoint: sluice-data/checkpoints/enforce}",
            'audit.checkpoint is "sluice-data/checkpoints/enforce", as enforce.checkpoint is; expected another one',
        ),
        (
            "delta: {decisions: tables, quotas: tables/quotas}",
            'delta.quotas is "tables/quotas", a folder in delta.decisions; expected one beside it',
        ),
        (
            "delta: {decisions: sluice-data/delta/quotas-holds}",
            'the table of holds is "sluice-data/delta/quotas-holds", as delta.decisions is; expected another one',
        ),
        (
            "topics: {requests: '${TEAM}'}",
            "topics.requests needs the environment variable TEAM, which is not set; set it",
        ),
        (
            "topics: {requests: '${TEAM'}",
            "topics.requests has a ${ without a variable; expected ${NAME}, or $${ for a plain ${",
        ),
        (
            "s3: {endpoint: 'store:9000'}",
            's3.endpoint is "store:9000"; expected null, or a URL such as https://store:9000',
        ),
        (
            "enforce: {checkpoint: 's3://bucket/e'}\naudit: {checkpoint: a}",
            'enforce.checkpoint is "s3://bucket/e" and audit.checkpoint "a"; expected both on S3, or none',
        ),
        (
            "enforce: {trigger_ms: 300000}",
            "health.stalled_after_s is 600, but a micro-batch may begin only every 300000 ms (enforce.trigger_ms);"
            " expected more than 600, or 0 for never",
        ),
        ("topics: {}\n---\nstate: {}\n", ":3:1: another document begins; expected one"),
        ("topics: {}\nstate: {}\ntopics: {}\n", ":3:1: the key topics is already given in line 1; expected it once"),
        (
            "topics:\n  partitions: 1\n  'partitions': 2\n",
            ":3:3: the key partitions is already given in line 2; expected it once",
        ),
        ("topics: !!python/object:os.system {}", ":1:9: not a plain value; quote a value that begins with * & or !"),
        ("topics:\n\trequests: a\n", ":2:1: a tab; YAML is indented with spaces"),
        (
            "restart: {backoff_ms: 60000, max_backoff_ms: 1000}",
            "restart.max_backoff_ms is 1000; expected restart.backoff_ms, 60000, or more",
        ),
        (
            "topics: {decisions_retention_ms: 5}",
            "topics.decisions_retention_ms is 5; expected 60000 or more, or -1 for ever",
        ),
        ("topics: {requests: a\x00b}", ":1: a control character; expected plain text"),
        ("topics: " + "[" * 5000, ":1:108: nested too deeply; expected sections of plain settings"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(write: Write, text: str, message: str) -> None:
    assert error_of(write(text)) == message


def test_text_that_is_no_yaml_is_named_with_its_place(write: Write) -> None:
    """The words are libyaml's, or PyYAML's own where it was built without."""
    assert error_of(write("topics: {partitions: 2\nstate: {}")).startswith(":2:6: ")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefghi")
)
"""Each line repeats the one before ten times: 10^9 values in a few hundred bytes."""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (BOMB, ":1:4"),
        ("kafka: {client.id: &x a}", ":1:20"),
        ("kafka: {client.id: *x}", ":1:20"),
        ("kafka: {client.id: !!str 7}", ":1:20"),
    ],
)
def test_anchors_aliases_and_tags_are_refused(write: Write, text: str, place: str) -> None:
    assert error_of(write(text)) == f"{place}: not a plain value; quote a value that begins with * & or !"


def test_a_long_value_is_cut_in_the_error(write: Write) -> None:
    path = write(f"state: {{pages: ['{'x' * 1_000_000}']}}\n")

    assert error_of(path).startswith('state.pages is ["xxxx')
    assert len(error_of(path)) < 200


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("topics: {requests: größe}".encode("latin-1"))

    assert error_of(tmp_path / "missing.yaml") == "No such file or directory; expected a readable YAML file"
    assert error_of(tmp_path) == "Is a directory; expected a readable YAML file"
    assert error_of(latin) == "byte 21 is not UTF-8; expected a UTF-8 text"


def test_words_and_numbers_that_yaml_would_change_stay_as_written(write: Write) -> None:
    """YAML 1.1 reads `no` as false, `0123` as 83, `12:30` as 750 and a date as a date: a password would be lost."""
    values = "{a: no, b: 0123, c: 12:30:45, d: 2024-13-45, e: 1_000, f: true, g: 17, h: '1.10'}"

    options = load_settings(write(f"delta: {{storage_options: {values}}}")).delta.storage_options

    written = {"a": "no", "b": "0123", "c": "12:30:45", "d": "2024-13-45", "e": "1_000", "f": "true", "g": "17"}
    assert options == {**written, "h": "1.10"}


@pytest.mark.parametrize(
    "key",
    ["sasl.jaas.config", "ssl.key.password", "ssl.keystore.key", "ssl.keystore.password", "ssl.truststore.password"],
)
def test_secrets_are_not_shown_when_settings_are_printed(write: Write, key: str) -> None:
    settings = load_settings(write(f"kafka: {{{key}: hunter2}}\ndelta: {{storage_options: {{{key}: hunter2}}}}"))

    assert settings.kafka[key] == "hunter2"
    assert settings.delta.storage_options[key] == "hunter2"
    for shown in (repr(settings), str(settings), f"{settings.kafka}", repr(settings.delta)):
        assert "hunter2" not in shown
        assert "***" in shown


@pytest.mark.parametrize("value", ["[hunter2]", "*hunter2", "!hunter2 x", "%hunter2", "{hunter2: 1}", "'hunter2"])
def test_secrets_are_not_shown_in_errors(write: Write, value: str) -> None:
    assert "hunter2" not in error_of(write(f"kafka: {{ssl.key.password: {value}}}"))


def test_properties_without_secrets_print_as_they_are() -> None:
    assert repr(Properties({"client.id": "sluice"})) == "{'client.id': 'sluice'}"


@pytest.mark.parametrize("stalled_after_s", [601, 0])
def test_a_query_that_waits_for_its_trigger_never_looks_stuck(write: Write, stalled_after_s: int) -> None:
    text = f"enforce: {{trigger_ms: 300000}}\nhealth: {{stalled_after_s: {stalled_after_s}}}\n"
    assert load_settings(write(text), {}).health.stalled_after_s == stalled_after_s


def test_a_remote_master_needs_storage_that_all_machines_reach(write: Write) -> None:
    remote = "spark: {spark.master: 'spark://host:7077'}\n"
    with pytest.raises(InvalidSettingsError, match=r"enforce\.checkpoint is .*a path, with a remote spark\.master"):
        load_settings(write(remote))

    shared = "{decisions: 'hdfs://s/d', quota_metrics: 'hdfs://s/m', dead_letters: 'hdfs://s/l', unreadable: %s}\n"
    checkpoints = "enforce: {checkpoint: 'hdfs://s/e'}\naudit: {checkpoint: 'file:///mnt/a'}\n"
    with pytest.raises(InvalidSettingsError, match=r"delta\.unreadable is"):
        load_settings(write(remote + checkpoints + "delta: " + shared % "'u'"))
    assert load_settings(write(remote + checkpoints + "delta: " + shared % "'hdfs://s/u'"))


def test_a_micro_batch_has_half_a_million_charges_at_most_and_gateways_split_events_for_it() -> None:
    """Some 5 s of two cores: it can't be cut once its offsets are chosen, and all clients wait for it."""
    enforce = load_settings().enforce
    assert enforce.max_offsets_per_trigger * enforce.max_charges_per_event <= 500_000
    assert GatewayOptions(name="any").max_charges_per_event == enforce.max_charges_per_event


def test_the_paths_of_a_job_are_from_the_root_as_java_and_workers_run_in_another_folder(write: Write) -> None:
    text = "kafka: {ssl.truststore.location: ca.pem, ssl.key.location: ''}\nbrokers: {capacity_file: brokers.json}\n"
    settings, here = load_settings(write(text + "audit: {checkpoint: 'file:///shared/audit'}\n")), Path.cwd()

    absolute = with_absolute_paths(settings)

    written = {key: place if "://" in place else str(here / place) for key, place in folders(settings).items()}
    assert folders(absolute) == written
    assert [absolute.kafka[f"ssl.{name}.location"] for name in ("truststore", "key")] == [str(here / "ca.pem"), ""]
    assert absolute.brokers.capacity_file == str(here / "brokers.json")
