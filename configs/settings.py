"""The job's settings: one YAML file over the defaults of default.yaml."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from itertools import permutations
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.inspect import BoolType, EnumType, IntType, LiteralType, NoneType, StrType, Type, UnionType, type_info

from sluice.configs.errors import InvalidSettingsError
from sluice.configs.extras import Section, SectionT, missing_section, sections, store_point
from sluice.configs.yaml_file import read_yaml
from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.errors import UnsupportedPropertyError
from sluice.kafka_io.properties import check_properties, has_layer, servers_of
from sluice.state.quotas.kinds import Coexistence, QuotaSettings, RequestPolicy, Window
from sluice.state.shares.load import Capacity, DiskFloor

DEFAULTS = Path(__file__).parent / "default.yaml"
"""Every setting with its default: the reference page for operators."""

Int32 = Annotated[int, Meta(ge=1, le=2_147_483_647)]
Whole = Annotated[int, Meta(ge=0, le=9_007_199_254_740_991)]
WindowSeconds = Annotated[int, Meta(ge=1, le=2_147_483)]  # its milliseconds fit an int32, as the longest throttle does
Text = Annotated[str, Meta(min_length=1)]

SECRET_NAME = re.compile(r"password|passphrase|jaas|key|secret|token|credential", re.IGNORECASE)
"""Names of properties whose values are never shown."""

_PROPERTIES = ("kafka", "spark", "delta.storage_options")
"""Sections that take any name: properties of foreign systems."""

_DISTINCT = (
    (
        *("topics.requests", "topics.decisions", "topics.dead_letters"),
        *("topics.limits", "topics.waits", "topics.sums", "topics.claims"),
    ),
    (
        *("enforce.checkpoint", "audit.checkpoint"),
        *("delta.quotas", "delta.decisions", "delta.quota_metrics", "delta.dead_letters", "delta.unreadable"),
        "delta.overrides",
    ),
)
"""Settings that name different topics, or different folders."""

_ODD_IN_TABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]|\\]")
"""Parts of a path that Delta's client reads as others, or refuses: it takes paths for URLs."""

_LEAST_RETENTION_MS = 60_000
_DAY_MS = 86_400_000
_SHORTEST_KEPT_MS, _LONGEST_KEPT_MS = 30 * _DAY_MS, 3_653 * _DAY_MS

CLOCK_DIFFERENCE_MS = _DAY_MS
"""Largest difference between the clocks of gateways, broker and job; a clock that is wrong by hours forges nothing."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_SHARED = (
    *("enforce.checkpoint", "audit.checkpoint"),
    *("delta.decisions", "delta.quota_metrics", "delta.dead_letters", "delta.unreadable"),
)
"""Folders that executors read and write. The tables `quotas` and `overrides` are the driver's."""


class Properties(dict[str, str]):
    """Properties of a foreign system (Kafka, Spark, an object store); secrets are hidden when printed."""

    def __repr__(self) -> str:
        shown = {name: "***" if SECRET_NAME.search(name) else value for name, value in self.items()}
        return repr(shown)


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Section `state`."""

    pages: Annotated[int, Meta(ge=1, le=65_536)] | None  # None: as the checkpoint has, see checkpoint/origin
    idle_expiry_s: Int32
    max_entities: Annotated[int, Meta(ge=1, le=1_000_000_000)]


@dataclass(frozen=True, slots=True)
class EnforceSettings:
    """Section `enforce`: the query from the requests topic to the decisions topic."""

    checkpoint: Text
    trigger_ms: Whole
    max_offsets_per_trigger: Int32
    starting_offsets: Literal["earliest", "latest"]
    fail_on_data_loss: bool
    max_future_ms: Whole
    max_past_ms: Whole
    max_event_bytes: Int32
    max_charges_per_event: Int32
    shuffle_partitions: Annotated[int, Meta(ge=1, le=65_536)] | None  # None: the number of cores
    batched_workers: bool
    native: bool


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Section `audit`: the query from the decisions and dead-letter topics to the Delta tables."""

    checkpoint: Text
    trigger_s: Annotated[int, Meta(ge=0, le=2_147_483_647)]
    max_offsets_per_trigger: Int32
    fail_on_data_loss: bool
    metrics_window_s: Int32


@dataclass(frozen=True, slots=True)
class DeltaSettings:
    """Section `delta`: where the tables are, the options of their object store, and how they are kept small."""

    quotas: Text
    decisions: Text
    quota_metrics: Text
    dead_letters: Text
    unreadable: Text
    overrides: Text
    storage_options: Properties
    maintain_every_hours: Annotated[int, Meta(ge=0, le=8_760)]
    retention_hours: Annotated[int, Meta(ge=1, le=876_000)]


@dataclass(frozen=True, slots=True)
class QuotasSettings:
    """Section `quotas`: where the quotas come from."""

    source: Literal["table", "kafka"]
    seed: Text | None
    poll_ms: Int32


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Section `restart`: how a query that ended by itself is started again."""

    max_failures: Int32
    backoff_ms: Int32
    max_backoff_ms: Int32


_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 # what the job listens on isn't opened here
"""Every address of the machine -> the one to call."""


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Section `health`: where the job answers /healthz, /readyz and /metrics; port 0 is off."""

    address: Text
    port: Annotated[int, Meta(ge=0, le=65_535)]
    stalled_after_s: Annotated[int, Meta(ge=0)]

    @property
    def place(self) -> str:
        """Host and port where a process of the same machine reaches it.

        >>> HealthSettings("::", 9464, 0).place
        '[::1]:9464'
        """
        address = _REACHED_AT.get(self.address, self.address)
        return f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Section `metrics`: what /metrics has of single clients; 0 is nothing."""

    top_clients: Annotated[int, Meta(ge=0, le=1_000)]


@dataclass(frozen=True, slots=True)
class BrokersSettings:
    """Section `brokers`: what brokers can take, and the floor of their disks; 0 is none."""

    capacity_file: Text | None
    capacity_in_bytes_per_s: Whole
    capacity_out_bytes_per_s: Whole
    disk_min_free_bytes: Whole
    disk_min_free_percent: Annotated[int, Meta(ge=0, le=100)]

    @property
    def capacity(self) -> Capacity:
        """The capacity of brokers that the capacity file doesn't name."""
        return Capacity(self.capacity_in_bytes_per_s or None, self.capacity_out_bytes_per_s or None)

    @property
    def disk_floor(self) -> DiskFloor:
        """The floor of log directories."""
        return DiskFloor(self.disk_min_free_bytes, self.disk_min_free_percent)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the job can be configured with; printing it hides secrets."""

    kafka: Properties
    topics: TopicSettings
    quota: QuotaSettings
    state: StateSettings
    enforce: EnforceSettings
    audit: AuditSettings
    delta: DeltaSettings
    quotas: QuotasSettings
    restart: RestartSettings
    health: HealthSettings
    metrics: MetricsSettings
    brokers: BrokersSettings
    spark: Properties
    extras: Mapping[str, Section]
    """The sections of the extras that are installed, by name."""

    @property
    def gives_way(self) -> bool:
        """True if an extra lets limits give way, so that reservations count."""
        return any(section.gives_way for section in self.extras.values())

    def section(self, kind: type[SectionT]) -> SectionT:
        """The section of this kind, of an extra that is installed."""
        return next(each for each in self.extras.values() if isinstance(each, kind))


class QuotaSection(
    msgspec.Struct,
    rename={
        "samples": "quota.window.num",
        "window_s": "quota.window.size.seconds",
        "controller_samples": "controller.quota.window.num",
        "controller_window_s": "controller.quota.window.size.seconds",
        "num_io_threads": "num.io.threads",
    },
):
    """Section `quota` as it is written, with Kafka's own property names."""

    samples: Int32
    window_s: WindowSeconds
    controller_samples: Int32
    controller_window_s: WindowSeconds
    num_io_threads: Int32
    policy: RequestPolicy
    coexistence: Coexistence
    validate_only_exempt: bool
    max_partitions_per_request: Int32

    def settings(self) -> QuotaSettings:
        return QuotaSettings(
            client_window=Window(self.samples, self.window_s * 1000),
            controller_window=Window(self.controller_samples, self.controller_window_s * 1000),
            policy=self.policy,
            coexistence=self.coexistence,
            validate_only_exempt=self.validate_only_exempt,
            num_io_threads=self.num_io_threads,
            max_partitions_per_request=self.max_partitions_per_request,
        )


def load_settings(path: Path | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of the YAML file `path` over the defaults; without a path the defaults alone.

    `${NAME}` in a value is replaced from `environment`. Raises InvalidSettingsError for a file that can't be read, an
    unknown key, a missing variable and a value of the wrong type or range.
    """
    of_extras = {name: asdict(section()) for name, section in sections().items()}
    defaults = _sections(read_yaml(DEFAULTS)) | of_extras
    try:
        given = _sections(read_yaml(path)) if path else {}
        _check_known(given, defaults)
        return _settings({name: {**values, **given.get(name, {})} for name, values in defaults.items()}, environment)
    except _SettingError as error:
        raise InvalidSettingsError(f"{path or DEFAULTS}: {error}") from None


def kept_ms(*retentions_ms: int) -> int:
    """Longest time for which topics made with these retentions may keep a record, at least 30 days.

    One that existed before has a retention of its own. Ten years stand for a topic that keeps records for ever.

    >>> kept_ms(86_400_000, 604_800_000) // _DAY_MS, kept_ms(-1, 604_800_000) // _DAY_MS
    (30, 3653)
    """
    if -1 in retentions_ms:
        return _LONGEST_KEPT_MS
    return min(max(*retentions_ms, _SHORTEST_KEPT_MS), _LONGEST_KEPT_MS)


def event_bounds_ms(settings: Settings) -> tuple[int, int]:
    """Longest time that an event's own may lie before, and after, the job's: with margins for a backlog and clocks."""
    age_ms = min(settings.enforce.max_past_ms, _LONGEST_KEPT_MS) + kept_ms(settings.topics.requests_retention_ms)
    return age_ms, min(settings.enforce.max_future_ms, _LONGEST_KEPT_MS) + CLOCK_DIFFERENCE_MS


def folders(settings: Settings) -> dict[str, str]:
    """The setting and the place of each checkpoint and table."""
    return {key: attrgetter(key)(settings) for key in _DISTINCT[1]}


def with_absolute_paths(settings: Settings) -> Settings:
    """The settings whose paths are from the root: Java and the workers run in another folder than the job's own."""
    absolute = dict[str, dict[str, str]]()
    for section, name in (key.split(".") for key in (*folders(settings), "brokers.capacity_file")):
        if (path := getattr(getattr(settings, section), name)) and "://" not in path:
            absolute.setdefault(section, {})[name] = os.path.abspath(path)
    own: dict[str, Any] = {name: replace(getattr(settings, name), **paths) for name, paths in absolute.items()}
    stores = {key: os.path.abspath(path) for key, path in settings.kafka.items() if path and key.endswith(".location")}
    of_extras = {name: _with_absolute(section) for name, section in settings.extras.items()}
    return replace(settings, kafka=Properties(settings.kafka | stores), extras=of_extras, **own)


def _with_absolute(section: Section) -> Section:
    paths = {name: path for name in section.paths if (path := getattr(section, name)) is not None}
    return replace(section, **{name: os.path.abspath(path) for name, path in paths.items()})


def odd_path(location: str, *, is_table: bool) -> str | None:
    """The reason why a path can't be used, and what to write; None for one that can, and for a URI.

    >>> odd_path("/data/50%25/quotas", is_table=True)
    ' with %25 in its path, which Delta reads as another name; expected a path without it'
    """
    is_local = "://" not in location
    path = os.path.abspath(location) if is_local else location
    if control := _CONTROL.search(path):
        return f" with the control character {control[0]!r} in its path; expected a path without it"
    if is_table and is_local and (odd := _ODD_IN_TABLE.search(path)):
        return f" with {odd[0]} in its path, which Delta reads as another name; expected a path without it"
    return None


def reach_stores(settings: Settings) -> None:
    """Give this process and its children the variables by which all clients find the store of checkpoints and tables.

    To be called before any of them is opened.
    """
    for section in settings.extras.values():
        os.environ |= section.environment(folders(settings).values(), os.environ)


def with_bootstrap_servers(settings: Settings, bootstrap_servers: str | None) -> Settings:
    """The settings with another Kafka address, where one is given on the command line.

    Raises InvalidSettingsError for one that isn't an address.
    """
    if not bootstrap_servers:
        return settings
    try:
        return replace(
            settings, kafka=_checked_kafka(Properties(settings.kafka | {"bootstrap.servers": bootstrap_servers}))
        )
    except _SettingError as error:
        raise InvalidSettingsError(f"--bootstrap-servers: {error}") from None


class _SettingError(InvalidSettingsError):
    """A fault in a settings file, without the file's name."""


def _sections(content: object) -> dict[str, dict[str, object]]:
    """The file's sections; an empty one, such as one with all its lines commented out, has no keys."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise _SettingError("not a mapping; expected sections such as kafka: and topics:")
    return {_name(name): _section(name, values) for name, values in content.items()}


def _section(key: str, values: object) -> dict[str, object]:
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise _SettingError(f"{key} is not a section; expected settings indented below {key}:")
    return {_name(name, f"{key}."): value for name, value in values.items()}


def _name(key: object, prefix: str = "") -> str:
    if not isinstance(key, str):
        raise _SettingError(f"{prefix}{_shown(key)} is not a name; expected a word such as topics.partitions")
    return key


def _check_known(given: Mapping[str, Any], known: Mapping[str, Any], prefix: str = "") -> None:
    """Raise InvalidSettingsError for the first key that the defaults don't have, with the nearest one they have."""
    for key, values in given.items():
        if key not in known:
            if not prefix and (missing := missing_section(key)):
                raise _SettingError(missing)
            nearest = get_close_matches(key, known, n=1, cutoff=0.0)
            raise _SettingError(f"unknown setting {prefix}{key}; did you mean {prefix}{nearest[0]}?")
        if not prefix and key not in _PROPERTIES:
            _check_known(values, known[key], f"{key}.")


def _settings(given: Mapping[str, Mapping[str, object]], environment: Mapping[str, str]) -> Settings:
    """The sections, each converted to its type, and checked together."""
    kinds = get_type_hints(Settings, include_extras=True) | {"quota": QuotaSection} | {**sections()}
    del kinds["extras"]
    values = {name: _converted(name, _replaced(name, given[name], environment), kinds[name]) for name in kinds}
    of_extras = {name: values.pop(name) for name in sections()}
    values |= {"quota": values["quota"].settings(), "kafka": _checked_kafka(values["kafka"]), "extras": of_extras}
    settings = Settings(**values)
    _check_spark(settings.spark)
    _check_places(settings)
    _check_times(settings)
    if not settings.spark.get("spark.master", "local").startswith("local"):
        _check_shared({key: attrgetter(key)(settings) for key in _SHARED})
    topics, places = ({key: attrgetter(key)(settings) for key in keys} for keys in _DISTINCT)
    _check_distinct(topics)
    _check_distinct(places | {"the table of holds": holds_path(settings.delta.quotas)})
    for key, location in folders(settings).items():
        if reason := odd_path(location, is_table=key.startswith("delta.")):
            raise _SettingError(f"{key} is {_shown(location)}{reason}")
    return settings


def _replaced(key: str, value: object, environment: Mapping[str, str]) -> Any:
    """`value` with every `${NAME}` in its texts replaced from the environment and `$${` made a plain `${`."""
    if key in _PROPERTIES:
        value = _section(key, value)
    if isinstance(value, Mapping):
        values = {name: _replaced(f"{key}.{name}", item, environment) for name, item in value.items()}
        return _properties(key, values) if key in _PROPERTIES else values
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        name = match["name"]
        if match[0] == "$${":
            return "${"
        if name is None:
            raise _SettingError(f"{key} has a ${{ without a variable; expected ${{NAME}}, or $${{ for a plain ${{")
        if name not in environment:
            raise _SettingError(f"{key} needs the environment variable {name}, which is not set; set it")
        return environment[name]

    return re.sub(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)\})?", replacement, value)


def _properties(section: str, values: Mapping[str, object]) -> Properties:
    """Foreign properties as texts, as their systems want them: 10 is "10", true is "true"."""
    properties = Properties()
    for name, value in values.items():
        if not isinstance(value, str | int):  # the value is not shown, it may be a secret; a fraction would lose digits
            raise _SettingError(f"{section}.{name} is not a text; expected a text, a whole number, true or false")
        properties[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return properties


def _converted(section: str, values: Any, kind: Any) -> Any:
    """The section as `kind`; a text from the environment may be a number or a bool. Raises InvalidSettingsError."""
    try:
        return msgspec.convert(values, kind, strict=False, dec_hook=lambda _, properties: properties)
    except msgspec.ValidationError as error:
        key = str(error).partition("`$.")[2].removesuffix("`")
        expected = next(field.type for field in type_info(kind).fields if field.encode_name == key)  # type: ignore[attr-defined] # kind has fields
        raise _SettingError(f"{section}.{key} is {_shown(values[key])}; expected {_expected(expected)}") from None


def _checked_kafka(kafka: Properties) -> Properties:
    """The properties, with addresses in the form that every client, and the proxy, takes."""
    if not kafka["bootstrap.servers"].strip():
        raise _SettingError("kafka.bootstrap.servers is empty; expected host:port, or several with commas between them")
    try:
        check_properties(kafka)
        servers = ",".join(servers_of(kafka["bootstrap.servers"]))
    except UnsupportedPropertyError as error:
        raise _SettingError(f"kafka.{error}") from None
    if has_layer(kafka, "SSL") and "ssl.ca.location" in kafka and "ssl.truststore.location" not in kafka:
        raise _SettingError(
            "kafka.ssl.ca.location is read by Python's clients alone; expected kafka.ssl.truststore.location, which all"
            " read where kafka.ssl.truststore.type is PEM"
        )
    return Properties(kafka | {"bootstrap.servers": servers})


def _check_spark(spark: Mapping[str, str]) -> None:
    for name in spark:
        if not name.startswith("spark."):
            raise _SettingError(f"unknown setting spark.{name}; did you mean spark: {{spark.{name}: ...}}?")


def _check_places(settings: Settings) -> None:
    """Raise InvalidSettingsError for a place that no installed extra reaches, or that a section of one refuses."""
    places = folders(settings)
    # the first place of each scheme: the search for a store reads the metadata of all packages
    schemes = {location.partition("://")[0]: key for key, location in reversed(places.items()) if "://" in location}
    for scheme, key in schemes.items():
        try:
            store_point(scheme)
        except InvalidSettingsError as error:
            raise _SettingError(f"{key} is {_shown(places[key])}; {error}") from None
    for section in settings.extras.values():
        try:
            section.check(places)
        except InvalidSettingsError as error:
            raise _SettingError(str(error)) from None


def _check_times(settings: Settings) -> None:
    """A query that waits for its trigger mustn't look stuck, pauses grow, and records stay until they are read."""
    stalled_after_s, trigger_ms = settings.health.stalled_after_s, settings.enforce.trigger_ms
    least_s = 2 * trigger_ms // 1000
    if 0 < stalled_after_s <= least_s:
        raise _SettingError(
            f"health.stalled_after_s is {stalled_after_s}, but a micro-batch may begin only every {trigger_ms} ms"
            f" (enforce.trigger_ms); expected more than {least_s}, or 0 for never"
        )
    if (most_ms := settings.restart.max_backoff_ms) < (first_ms := settings.restart.backoff_ms):
        raise _SettingError(f"restart.max_backoff_ms is {most_ms}; expected restart.backoff_ms, {first_ms}, or more")
    for name in ("requests_retention_ms", "decisions_retention_ms", "dead_letters_retention_ms"):
        if 0 <= (retention_ms := getattr(settings.topics, name)) < _LEAST_RETENTION_MS:
            least = f"expected {_LEAST_RETENTION_MS} or more, or -1 for ever"
            raise _SettingError(f"topics.{name} is {retention_ms}; {least}")


def _check_shared(values: Mapping[str, str]) -> None:
    """On several machines a path is a folder of each: one would look for what another has written."""
    for key, value in values.items():
        if "://" not in value:
            raise _SettingError(
                f"{key} is {_shown(value)}, a path, with a remote spark.master; expected storage that all machines"
                " reach, such as hdfs://..., or file:///... for a folder that all have mounted there"
            )


def _check_distinct(values: Mapping[str, str]) -> None:
    """Raise InvalidSettingsError if two settings name the same topic or folder: one would overwrite the other.

    So would a folder in another one: the maintenance of a table removes files that are none of its own.
    """
    first: dict[str, str] = {}
    for key, value in values.items():
        if value in first:
            raise _SettingError(f"{key} is {_shown(value)}, as {first[value]} is; expected another one")
        first[value] = key
    for inner, outer in permutations(values, 2):
        if values[inner].startswith(values[outer].rstrip("/") + "/"):
            raise _SettingError(f"{inner} is {_shown(values[inner])}, a folder in {outer}; expected one beside it")


def _shown(value: object) -> str:
    """`value` as YAML has it, short enough for one line."""
    return json.dumps(value, ensure_ascii=False, default=str)[:80]


def _expected(kind: Type) -> str:
    match kind:
        case BoolType():
            return "true or false"
        case NoneType():
            return "null"
        case IntType(ge=least, le=most):
            return f"a whole number from {least} to {most}"
        case StrType(pattern=pattern):
            return "a topic name of letters, digits, . _ and -" if pattern else "a text"
        case EnumType(cls=choices) | LiteralType(values=choices):
            return "one of " + ", ".join(map(str, choices))
        case UnionType(types=kinds):
            return " or ".join(map(_expected, kinds))
    raise TypeError(f"no words for settings of {kind}")  # a new field's type needs its words here


def holds_path(quotas: str) -> str:
    """The place of the table of holds, beside the quotas table at `quotas`."""
    return quotas.rstrip("/") + "-holds"
