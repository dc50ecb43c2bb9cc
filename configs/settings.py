"""The job's settings: one YAML file over the defaults of default.yaml."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.inspect import (
    BoolType,
    EnumType,
    IntType,
    LiteralType,
    NoneType,
    StrType,
    Type,
    UnionType,
    type_info,
)

from configs.errors import InvalidSettingsError
from configs.yaml_file import read_yaml
from state.quota import Coexistence, QuotaSettings, RequestPolicy, Window

DEFAULTS = Path(__file__).parent / "default.yaml"
"""Every setting with its default: the reference page for operators."""

Int32 = Annotated[int, Meta(ge=1, le=2_147_483_647)]
Millis = Annotated[int, Meta(ge=0, le=9_007_199_254_740_991)]
WindowSeconds = Annotated[int, Meta(ge=1, le=2_147_483)]  # its milliseconds fit an int32, as the longest throttle does
RetentionMillis = Annotated[int, Meta(ge=-1, le=9_007_199_254_740_991)]
Text = Annotated[str, Meta(min_length=1)]
TopicName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]

SECRET_NAME = re.compile(r"password|passphrase|jaas|key|secret|token|credential", re.IGNORECASE)
"""Names of properties whose values are never shown."""


class Properties(dict[str, str]):
    """Properties of a foreign system (Kafka, Spark, an object store); secrets are hidden when printed."""

    def __repr__(self) -> str:
        shown = {name: "***" if SECRET_NAME.search(name) else value for name, value in self.items()}
        return repr(shown)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Section `topics`: names, and how a missing topic is created."""

    requests: TopicName
    decisions: TopicName
    dead_letters: TopicName
    partitions: Annotated[int, Meta(ge=1, le=100_000)]
    replication_factor: Annotated[int, Meta(ge=1, le=32_767)]
    requests_retention_ms: RetentionMillis
    decisions_retention_ms: RetentionMillis
    dead_letters_retention_ms: RetentionMillis
    max_message_bytes: Int32


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Section `state`."""

    shards: Annotated[int, Meta(ge=1, le=65_536)]
    idle_expiry_s: Int32


@dataclass(frozen=True, slots=True)
class EnforceSettings:
    """Section `enforce`: the query from the requests topic to the decisions topic."""

    checkpoint: Text
    trigger_ms: Millis
    max_offsets_per_trigger: Int32
    starting_offsets: Literal["earliest", "latest"]
    fail_on_data_loss: bool
    max_future_ms: Millis
    max_event_bytes: Int32
    shuffle_partitions: Annotated[int, Meta(ge=1, le=65_536)] | None  # None: the number of cores


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Section `audit`: the query from the decisions and dead-letter topics to the Delta tables."""

    checkpoint: Text
    trigger_s: Annotated[int, Meta(ge=0, le=2_147_483_647)]
    max_offsets_per_trigger: Int32
    metrics_window_s: Int32


@dataclass(frozen=True, slots=True)
class DeltaSettings:
    """Section `delta`: where the tables are, the options of their object store, and how they are kept small."""

    quotas: Text
    decisions: Text
    quota_metrics: Text
    dead_letters: Text
    storage_options: Properties
    maintain_every_hours: Annotated[int, Meta(ge=0, le=8_760)]
    retention_hours: Annotated[int, Meta(ge=1, le=876_000)]


@dataclass(frozen=True, slots=True)
class QuotasSettings:
    """Section `quotas`: where the quotas come from."""

    seed: Text | None
    poll_ms: Int32


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Section `restart`: how a query that ended by itself is started again."""

    max_failures: Int32
    backoff_ms: Int32
    max_backoff_ms: Int32


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Section `health`: where the job answers /healthz, /readyz and /metrics, on loopback; port 0 is off."""

    port: Annotated[int, Meta(ge=0, le=65_535)]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the job can be configured with; printing it hides secrets."""

    kafka: dict[str, str]
    topics: TopicSettings
    quota: QuotaSettings
    state: StateSettings
    enforce: EnforceSettings
    audit: AuditSettings
    delta: DeltaSettings
    quotas: QuotasSettings
    restart: RestartSettings
    health: HealthSettings
    spark: dict[str, str]


@dataclass(frozen=True, slots=True)
class _QuotaSection:
    """Section `quota` as it is written: a `key` is Kafka's own property name."""

    samples: Int32 = field(metadata={"key": "quota.window.num"})
    window_s: WindowSeconds = field(metadata={"key": "quota.window.size.seconds"})
    controller_samples: Int32 = field(metadata={"key": "controller.quota.window.num"})
    controller_window_s: WindowSeconds = field(metadata={"key": "controller.quota.window.size.seconds"})
    num_io_threads: Int32 = field(metadata={"key": "num.io.threads"})
    policy: RequestPolicy
    coexistence: Coexistence
    validate_only_exempt: bool

    def settings(self) -> QuotaSettings:
        return QuotaSettings(
            client_window=Window(self.samples, self.window_s * 1000),
            controller_window=Window(self.controller_samples, self.controller_window_s * 1000),
            policy=self.policy,
            coexistence=self.coexistence,
            validate_only_exempt=self.validate_only_exempt,
            num_io_threads=self.num_io_threads,
        )


def load_settings(path: Path | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of the YAML file `path` over the defaults; without a path the defaults alone.

    `${NAME}` in a value is replaced from `environment`. Raises InvalidSettingsError for a file that can't be read,
    an unknown key, a missing variable and a value of the wrong type or range.
    """
    defaults = _sections(read_yaml(DEFAULTS), _File(DEFAULTS, {}))
    if path is None:
        return _build(defaults, _File(DEFAULTS, environment))
    file = _File(path, environment)
    given = _sections(read_yaml(path), file)
    file.check_known(given, defaults, "")
    return _build({name: {**values, **given.get(name, {})} for name, values in defaults.items()}, file)


def with_bootstrap_servers(settings: Settings, bootstrap_servers: str | None) -> Settings:
    """The settings with another Kafka address, where one is given on the command line."""
    if not bootstrap_servers:
        return settings
    return replace(settings, kafka=Properties({**settings.kafka, "bootstrap.servers": bootstrap_servers}))


class _File:
    """The file whose values are read: knows its name and the environment, for replacing and for errors."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self.path = path
        self.environment = environment

    def error(self, message: str) -> InvalidSettingsError:
        return InvalidSettingsError(f"{self.path}: {message}")

    def check_known(self, given: Mapping[str, object], known: Mapping[str, object], prefix: str) -> None:
        """Raises InvalidSettingsError for the first key of `given` that `known` has not."""
        for key in given:
            if key not in known:
                nearest = get_close_matches(key, known, n=1, cutoff=0.0)
                raise self.error(f"unknown setting {prefix}{key}; did you mean {prefix}{nearest[0]}?")

    def replaced(self, key: str, value: object) -> object:
        """`value` with every `${NAME}` replaced from the environment and `$${` made a plain `${`."""
        if not isinstance(value, str) or "${" not in value:
            return value

        def replacement(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name = match["name"]
            if name is None:
                raise self.error(f"{key} has a ${{ without a variable; expected ${{NAME}}, or $${{ for a plain ${{")
            if name not in self.environment:
                raise self.error(f"{key} needs the environment variable {name}, which is not set; set it")
            return self.environment[name]

        return re.sub(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)\})?", replacement, value)


SectionT = TypeVar("SectionT")


def _sections(content: object, file: _File) -> dict[str, dict[str, object]]:
    """The file's sections; one that is empty, such as with all its lines commented out, has no keys."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise file.error("not a mapping; expected sections such as kafka: and topics:")
    return {_name(name, "", file): _keys(name, values, file) for name, values in content.items()}


def _keys(section: str, values: object, file: _File) -> dict[str, object]:
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise file.error(f"{section} is not a section; expected settings indented below {section}:")
    return {_name(key, f"{section}.", file): value for key, value in values.items()}


def _name(key: object, prefix: str, file: _File) -> str:
    if not isinstance(key, str):
        raise file.error(f"{prefix}{_shown(key)} is not a name; expected a word such as topics.partitions")
    return key


def _build(sections: Mapping[str, Mapping[str, object]], file: _File) -> Settings:
    settings = Settings(
        kafka=_kafka(sections["kafka"], file),
        topics=_section(TopicSettings, "topics", sections, file),
        quota=_section(_QuotaSection, "quota", sections, file).settings(),
        state=_section(StateSettings, "state", sections, file),
        enforce=_section(EnforceSettings, "enforce", sections, file),
        audit=_section(AuditSettings, "audit", sections, file),
        delta=_section(DeltaSettings, "delta", sections, file),
        quotas=_section(QuotasSettings, "quotas", sections, file),
        restart=_section(RestartSettings, "restart", sections, file),
        health=_section(HealthSettings, "health", sections, file),
        spark=_spark(sections["spark"], file),
    )
    topics, delta = settings.topics, settings.delta
    _check_distinct(
        file,
        {
            "topics.requests": topics.requests,
            "topics.decisions": topics.decisions,
            "topics.dead_letters": topics.dead_letters,
        },
    )
    _check_distinct(
        file,
        {
            "enforce.checkpoint": settings.enforce.checkpoint,
            "audit.checkpoint": settings.audit.checkpoint,
            "delta.quotas": delta.quotas,
            "delta.decisions": delta.decisions,
            "delta.quota_metrics": delta.quota_metrics,
            "delta.dead_letters": delta.dead_letters,
        },
    )
    return settings


def _check_distinct(file: _File, places: Mapping[str, str]) -> None:
    """Raises InvalidSettingsError if two settings name the same topic or folder: one would spoil the other."""
    first: dict[str, str] = {}
    for key, place in places.items():
        if place in first:
            raise file.error(f"{key} is {_shown(place)}, as {first[place]} is; expected another one")
        first[place] = key


def _section(kind: type[SectionT], name: str, sections: Mapping[str, Mapping[str, object]], file: _File) -> SectionT:
    """The section `name` as the dataclass `kind`, whose field types say what is right."""
    setting_fields = {setting.metadata.get("key", setting.name): setting for setting in fields(kind)}  # type: ignore[arg-type] # kind is a dataclass
    file.check_known(sections[name], setting_fields, f"{name}.")
    values = {
        setting.name: _value(f"{name}.{key}", sections[name][key], setting.type, file)
        for key, setting in setting_fields.items()
    }
    return kind(**values)


def _value(key: str, given: object, kind: Any, file: _File) -> object:
    """The setting `key` as the type `kind`; a text that came from the environment may be a number or bool."""
    if kind is Properties:
        return _properties(key, given, file)
    value = file.replaced(key, given)
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise file.error(f"{key} is {_shown(value)}; expected {_expected(type_info(kind))}") from None


def _properties(section: str, given: object, file: _File) -> Properties:
    """Foreign properties as texts, as their systems want them: 10 is "10", true is "true"."""
    properties = Properties()
    for name, value in _keys(section, given, file).items():
        match file.replaced(f"{section}.{name}", value):
            case bool(flag):
                properties[name] = str(flag).lower()
            case str(text) | int(text):
                properties[name] = str(text)
            case _:  # the value is not shown, it may be a secret; a fraction would lose its spelling (1.10)
                raise file.error(f"{section}.{name} is not a text; expected a text, a whole number, true or false")
    return properties


def _kafka(given: object, file: _File) -> Properties:
    properties = _properties("kafka", given, file)
    for name in properties:
        if name.startswith("kafka."):
            plain = name.removeprefix("kafka.")
            raise file.error(f"kafka.{name} has Spark's prefix; expected Kafka's own name, kafka: {{{plain}: ...}}")
    if not properties["bootstrap.servers"].strip():
        raise file.error("kafka.bootstrap.servers is empty; expected host:port, or several with commas between them")
    return properties


def _spark(given: object, file: _File) -> Properties:
    properties = _properties("spark", given, file)
    for name in properties:
        if not name.startswith("spark."):
            raise file.error(f"unknown setting spark.{name}; did you mean spark: {{spark.{name}: ...}}?")
    return properties


def _shown(value: object) -> str:
    """`value` as YAML has it, short enough for one line."""
    return json.dumps(value, ensure_ascii=False, default=str)[:80]


def _expected(kind: Type) -> str:
    """What a value of `kind` looks like, for people."""
    match kind:
        case BoolType():
            return "true or false"
        case NoneType():
            return "null"
        case IntType(ge=least, le=most):
            return f"a whole number from {least} to {most}"
        case StrType(pattern=None):
            return "a text"
        case StrType():
            return "a topic name of letters, digits, . _ and -"
        case EnumType(cls=choices):
            return "one of " + ", ".join(choice.value for choice in choices)
        case LiteralType(values=choices):
            return "one of " + ", ".join(str(choice) for choice in choices)
        case UnionType(types=kinds):
            return " or ".join(_expected(member) for member in kinds)
    raise TypeError(f"no words for settings of {kind}")  # a new field's type needs its words here
