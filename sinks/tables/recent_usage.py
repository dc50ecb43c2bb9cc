"""What each counter was charged minute by minute in the last quarter of an hour, from the table `quota_metrics`."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from deltalake import DeltaTable

from sinks.errors import UsageUnknownError
from state.quotas.kinds import QuotaKind

SPAN = timedelta(minutes=15)
_MINUTE_S = 60


class Usage(NamedTuple):
    """What a counter was charged in one minute, or in one window of the table if that is longer."""

    user: str
    """"" where the counter has no user, like `client_id`."""
    client_id: str
    topic: str | None
    partition: int
    start: datetime
    mode: str | None
    """None for enforced quotas; a shadow quota counts the same requests once more."""
    rate: float
    """bytes/s, percent or mutations/s, over the whole minute."""


def recent_usage(path: str, storage_options: Mapping[str, str], kind: QuotaKind, now: datetime) -> list[Usage]:
    """The usage of the last SPAN by event time; needs no Java. Raises UsageUnknownError if the table can't be read."""
    since = now - SPAN
    try:
        table = DeltaTable(path, storage_options=dict(storage_options))
        names = {field.name for field in table.schema().fields}
        columns = ["user", "client_id", "topic", "partition", "window_start", "window_s", "value"]
        columns += ["mode"] if "mode" in names else []
        found = table.scan(
            columns=columns,
            predicate=f"quota = '{kind.value}' AND date >= DATE '{since:%Y-%m-%d}'"
            f" AND window_start >= TIMESTAMP '{since:%Y-%m-%dT%H:%M:%S}Z'",
        ).read_all()
        values = [found[name].to_pylist() for name in columns]
        rows = list(zip(*values, *([] if "mode" in names else [[None] * found.num_rows]), strict=True))
    except Exception as error:  # arro3 raises no narrower class than this one
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageUnknownError(f"the table {path} can't be read ({reason:.200})") from error
    totals: dict[tuple[str, str, str | None, int, datetime, str | None], float] = {}
    for user, client_id, topic, partition, window_start, window_s, value, mode in rows:
        length_s = max(window_s, _MINUTE_S)
        start = datetime.fromtimestamp(window_start.timestamp() // length_s * length_s, UTC)
        key = (user or "", client_id or "", topic, -1 if partition is None else partition, start, mode)
        totals[key] = totals.get(key, 0.0) + (value or 0.0) / length_s
    return [Usage(*key, rate) for key, rate in totals.items()]
