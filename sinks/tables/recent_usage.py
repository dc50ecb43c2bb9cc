"""Usage of the last quarter of an hour, from the table `quota_metrics`, and new limits that lie far below it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from sluice.process.format import amount, short
from sluice.process.texts import counter_text
from sluice.sinks.errors import UsageUnknownError
from sluice.sinks.tables.trouble import missing_rights
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags, bounded_name
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import KEY_ALIASES, KINDS_BY_NAME, QuotaKind
from sluice.state.quotas.resolution import Quotas, Resolution, level_of

SPAN = timedelta(minutes=15)
_MINUTE_S = 60
_COLUMNS = ["user", "client_id", "topic", "partition", "tenant", "window_start", "window_s", "value", "mode"]
_NEWEST = "max.last_timestamp_ms"
"""Name of that column's greatest value in a file, in the table's log."""


class Usage(NamedTuple):
    """Charges of a counter in one minute, or in one window of the table if that is longer."""

    user: str
    """"" where the counter has no user, like `client_id` and `tenant`."""
    client_id: str
    topic: str | None
    partition: int
    tenant: str
    start: datetime
    mode: str | None
    """None for enforced quotas; a shadow quota counts the same requests once more."""
    rate: float
    """bytes/s, percent or mutations/s, over the whole minute."""


class RecentUsage:
    """The usage of the last SPAN before `now` by event time; needs no Java."""

    def __init__(self, path: str, storage_options: Mapping[str, str], now: datetime) -> None:
        """Open the table of metrics. Raises UsageUnknownError if there is none, or it can't be read."""
        self._path = path
        self._since = now - SPAN
        try:
            self._table = DeltaTable(path, storage_options=dict(storage_options))
        except TableNotFoundError:
            raise UsageUnknownError(missing_rights(path) or f"no usage is recorded yet in {path}") from None
        except Exception as error:  # deltalake raises no narrower class than this one
            raise self._unreadable(error) from error

    def recorded_until(self) -> datetime | None:
        """The event time of the newest charge in the table, from its log alone; None while the table is empty.

        Raises UsageUnknownError.
        """
        try:
            files = self._table.get_add_actions(flatten=True)
            newest = list(files[_NEWEST].to_pylist()) if _NEWEST in files.schema.names else []
        except Exception as error:  # as above
            raise self._unreadable(error) from error
        newest_ms = max((value for value in newest if value is not None), default=None)
        return None if newest_ms is None else datetime.fromtimestamp(newest_ms / 1000, UTC)

    def of(self, kind: QuotaKind) -> list[Usage]:
        """Charges of each counter of this kind. Raises UsageUnknownError."""
        try:
            found = self._table.scan(
                columns=_COLUMNS,
                predicate=f"quota = '{kind.value}' AND date >= DATE '{self._since:%Y-%m-%d}'"
                f" AND window_start >= TIMESTAMP '{self._since:%Y-%m-%dT%H:%M:%S}Z'",
            ).read_all()
            rows = list(zip(*(found[name].to_pylist() for name in _COLUMNS), strict=True))
        except Exception as error:  # arro3 raises no narrower class either
            raise self._unreadable(error) from error
        totals: dict[tuple[str, str, str | None, int, str, datetime, str | None], float] = {}
        for user, client_id, topic, partition, tenant, window_start, window_s, value, mode in rows:
            length_s = max(window_s, _MINUTE_S)
            start = datetime.fromtimestamp(window_start.timestamp() // length_s * length_s, UTC)
            number = -1 if partition is None else partition
            key = (user or "", client_id or "", topic, number, tenant or "", start, mode)
            totals[key] = totals.get(key, 0.0) + (value or 0.0) / length_s
        return [Usage(*key, rate) for key, rate in totals.items()]

    def _unreadable(self, error: Exception) -> UsageUnknownError:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return UsageUnknownError(f"the table {self._path} can't be read ({reason:.200})")


LEAST_SHARE = 0.5
"""A limit below this share of a client's highest minute counts as a slip."""

_FRESH = timedelta(minutes=2)
"""The audit query writes every few seconds; usage that ends longer ago is worth a note."""

Recent = Mapping[QuotaKind, Sequence[Usage]]
"""Kind -> recent charges of the counters that a quota may limit."""


def freshness_note(recorded_until: datetime | None, now: datetime) -> str | None:
    """A note for the operator on the age of the usage that a limit is compared with; None if it is up to date.

    >>> noon = datetime(2026, 1, 1, 12)
    >>> freshness_note(noon - timedelta(minutes=7), noon)
    'the limit is compared with usage until 7 minutes ago; nothing newer is recorded yet'
    """
    if recorded_until is None:
        return "the limit is not compared with recent usage: no usage is recorded yet"
    age = now - recorded_until
    minutes = int(age.total_seconds() // 60)
    if age > SPAN:
        return f"the limit is not compared with recent usage: what is recorded ends {minutes} minutes ago"
    if age > _FRESH:
        return f"the limit is compared with usage until {minutes} minutes ago; nothing newer is recorded yet"
    return None


def recent_of(entity: QuotaEntity, added: Mapping[str, float], usage: RecentUsage) -> Recent:
    """The usage that limits on the entity may limit, of the kinds that they could be too low for; others are left out.

    `added`: key -> limit. Raises UsageUnknownError.
    """
    recent: dict[QuotaKind, list[Usage]] = {}
    for key, limit in added.items():
        kind = KINDS_BY_NAME.get(KEY_ALIASES.get(key, key))
        if kind is None:
            continue  # a number beside a limit, or a key that will be refused
        usages = [used for used in usage.of(kind) if _names_match(entity, used)]
        totals = Counter[tuple[datetime, str | None]]()
        for used in usages:
            totals[used.start, used.mode] += used.rate  # type: ignore[assignment] # a Counter counts floats too
        if limit < LEAST_SHARE * max(totals.values(), default=0.0):
            recent[kind] = usages
    return recent


def tight_limits(changed: Iterable[QuotaEntry], after: Iterable[QuotaEntry], recent: Recent) -> Iterator[str]:
    """A line for each enforced quota of `changed` that lies far below the usage of a client that it limits.

    `after`: all quotas with the change.
    """
    quotas = Quotas([entry for entry in after if not entry.shadow])
    for entry in changed:
        if not isinstance(entry.kind, QuotaKind):
            continue
        peaks = _peaks(recent.get(entry.kind, ()), quotas, entry, entry.kind)
        if not peaks or entry.shadow:
            continue
        counter, rate = max(peaks.items(), key=lambda peak: peak[1])
        if entry.value < LEAST_SHARE * rate:
            yield (
                f"{entry.kind} {amount(entry.kind, entry.value)} is less than half of {amount(entry.kind, rate)}, the"
                f" highest minute of the last 15 of {short(counter_text(counter))}"
            )


def _peaks(usages: Iterable[Usage], quotas: Quotas, entry: QuotaEntry, kind: QuotaKind) -> dict[Tags, float]:
    """The highest minute of each counter that the quota limits; a tenant's is its own, or that of all its members."""
    minutes: dict[tuple[Tags, datetime, str | None, str], float] = {}
    for usage in usages:
        resolution = _resolution(quotas, kind, entry.entity, usage)
        if resolution is None or resolution.level != level_of(entry.entity):
            continue
        if _names_match(entry.entity, usage) and entry.entity.tenant in (None, DEFAULT, resolution.tags.tenant):
            key = (resolution.tags, usage.start, usage.mode, usage.tenant)
            minutes[key] = minutes.get(key, 0.0) + usage.rate
    peaks: dict[Tags, float] = {}
    for (tags, *_), rate in minutes.items():
        peaks[tags] = max(rate, peaks.get(tags, 0.0))
    return peaks


def _resolution(quotas: Quotas, kind: QuotaKind, entity: QuotaEntity, usage: Usage) -> Resolution | None:
    """The limit that holds a usage among those of clients, of topics or of tenants, as the entity is."""
    if entity.tenant is not None:
        return quotas.resolve_tenant(kind, usage.tenant or quotas.tenants.of(usage.user, usage.client_id))
    if usage.topic is not None:
        return quotas.resolve_topic(kind, usage.topic, usage.partition)
    return quotas.resolve_client(kind, usage.user, usage.client_id)


def _names_match(entity: QuotaEntity, usage: Usage) -> bool:
    """True if a quota on the entity could be the one for this usage, whose names are those of counters.

    A tenant's could be that of any client.
    """
    if entity.tenant is not None:
        return usage.topic is None
    if usage.tenant:
        return False
    names = ((entity.user, usage.user), (entity.client_id, usage.client_id), (entity.topic, usage.topic))
    return all(not isinstance(own, str) or bounded_name(own) == used for own, used in names)
