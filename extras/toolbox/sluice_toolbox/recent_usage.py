"""Usage of the last quarter of an hour, from the table `quota_metrics`."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from sluice.sinks.tables.trouble import missing_rights
from sluice.state.quotas.kinds import QuotaKind
from sluice_toolbox.errors import UsageUnknownError

SPAN = timedelta(minutes=15)
_MINUTE_S = 60
_COLUMNS = ["user", "client_id", "topic", "partition", "tenant", "window_start", "window_s", "value", "mode"]


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
