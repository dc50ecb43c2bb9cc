"""The job's stages without Spark: micro-batches through planner, shards (state as bytes) and combining."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from state.resolution import Quotas
from state.shard import Shard
from streaming.deciding import by_request, combine_rows, decide_rows
from streaming.events import Source
from streaming.planning import PlanSettings, plan_event
from streaming.records import (
    ChargeRow,
    OutputRecord,
    Parcel,
    PartialRow,
    decode_parcel,
    decode_partials,
    encode_parcel,
)

Shuffle = Callable[[list[ChargeRow | OutputRecord]], list[ChargeRow | OutputRecord]]


class MicroBatches:
    """The enforce query's data path; each batch's state goes through its stored form, as in Spark."""

    def __init__(self, settings: PlanSettings, idle_expiry_ms: int = 3_600_000) -> None:
        self._settings = settings
        self._idle_expiry_ms = idle_expiry_ms
        self.state: dict[int, bytes] = {}

    def run(
        self,
        events: Sequence[tuple[bytes | None, Source]],
        quotas: Quotas,
        shuffle: Shuffle = list,
        decided_at_ms: int = 0,
    ) -> list[OutputRecord]:
        """Decide one micro-batch; `shuffle` puts the rows of a shard in the order Spark happens to give them."""
        rows_by_shard: dict[int, list[ChargeRow | OutputRecord]] = defaultdict(list)
        for value, source in events:
            for shard, row in plan_event(value, source, quotas, self._settings, decided_at_ms):
                rows_by_shard[shard].append(row)
        records: list[OutputRecord] = []
        parts: list[PartialRow] = []
        for number, rows in rows_by_shard.items():
            for decided in self._decide(number, shuffle(rows)):
                if decided.topic is None:
                    parts.extend(decode_partials(decided.value))
                else:
                    records.append(decided)
        topic, quota = self._settings.decisions_topic, self._settings.quota
        return records + [combine_rows(rows_of_request, topic, quota) for rows_of_request in by_request(parts)]

    def _decide(self, number: int, rows: list[ChargeRow | OutputRecord]) -> list[OutputRecord]:
        settings = self._settings
        shard = Shard.from_bytes(self.state[number], settings.shards) if number in self.state else Shard()
        parcels = (decode_parcel(encode_parcel(_parcel(row))) for row in rows)
        decided = decide_rows(shard, parcels, settings.decisions_topic, settings.quota)
        self.state[number] = shard.to_bytes(settings.shards, self._idle_expiry_ms, settings.quota)
        return decided


def _parcel(row: ChargeRow | OutputRecord) -> Parcel:
    return Parcel([row], []) if isinstance(row, ChargeRow) else Parcel([], [row])
