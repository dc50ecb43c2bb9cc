"""Overrides of limits in the job: asks all deciders, and makes records, metrics, a log and a table of what they say."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from threading import Lock

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.topic_reader import TopicReader
from sluice.process.background import BackgroundService, LastError
from sluice.process.clock import now_ms
from sluice.process.format import label_of
from sluice.process.texts import override_text
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.instances import gateway_name
from sluice.state.contract.records import CountedEntity
from sluice.state.overrides.decider import DecidedOverrides, Decider
from sluice.state.quotas.overrides import are_alike, overrides_now
from sluice.state.shares.alive import heartbeat_in

log = logging.getLogger("sluice.overrides")

_POLL_S = 0.5

_WRITE_S = 10.0
"""Interval between two commits to the table."""

_MAX_ROWS = 10_000
"""Most changes that wait for a table that can't be written."""

_LEAST_SHOWN = 100
"""Overrides of a decider that metrics have at least: as many as operators may hold."""

_MAX_LOGGED = 20
"""Most overrides of a change in the log."""

_GAUGES = (
    (
        "sluice_override",
        "Factor of an override; 0 while producers are throttled",
        ("decider", "kind", "gateway", "tenant", "user", "client_id"),
    ),
    ("sluice_override_measured", "A figure of a decider, such as bytes that a tenant stores", ("decider", "name")),
    ("sluice_override_bound", "That figure from which on it overrides, such as a budget", ("decider", "name")),
)


class OverridesWatch(Collector):
    """Asks the deciders twice a second. It is the metrics of their overrides: of each at most `top`, or _LEAST_SHOWN.

    With `top` 0 they name nobody, and there are none of figures. `said` are the last records by decider. `clock_ms` is
    the time in epoch milliseconds.
    """

    def __init__(
        self,
        deciders: Sequence[Decider],
        table: OverridesTable,
        top: int,
        clock_ms: Callable[[], int] = now_ms,
        report: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """`report` is told after each commit why the table can't be written, None if it can."""
        self.said: Mapping[str, Overrides] = {}
        self._deciders = deciders
        self._table = table
        self._top = top
        self._clock_ms = clock_ms
        self._report = report
        self._number = clock_ms() // 100  # grows over restarts, as there are fewer changes than ten a second
        self._rows: list[tuple[str, Overrides]] = []
        self._troubles: dict[str, str | None] = {}
        self._last_error = LastError()
        self._lock = Lock()  # guards the deciders, and the rows
        self._is_known = False  # what an earlier process published

    def services(self, topics: TopicSettings, kafka: Mapping[str, str]) -> list[BackgroundService]:
        """The service that decides, that which writes the history meanwhile, and a reader of heartbeats if needed."""

        def decide() -> Iterator[None]:
            try:
                while True:
                    self.decide(self._clock_ms())
                    yield
            finally:
                self.end(self._clock_ms())

        def read() -> Iterator[None]:
            with TopicReader(kafka, topics.sums, since_ms=self._clock_ms(), fenced=True) as reader:
                while True:
                    for _, record in reader.read_to_end():
                        self.on_record(record.value, self._clock_ms())
                    yield

        reading = BackgroundService("heartbeats", read, _POLL_S, failure="heartbeats can't be read", log=log)
        has_readers = any(each.reads_heartbeats for each in self._deciders)
        deciding = BackgroundService("overrides", decide, _POLL_S, log=log)
        writing = BackgroundService("overrides-history", self.write, _WRITE_S, log=log)
        return [deciding, writing, *([reading] if has_readers else [])]

    def on_record(self, value: bytes | None, arrived_ms: int) -> None:
        """Give a record of the sums topic to the deciders, if it is a heartbeat."""
        if (heartbeat := heartbeat_in(value)) is not None:
            with self._lock:
                for decider in self._deciders:
                    decider.on_heartbeat(heartbeat, arrived_ms)

    def remember(self, said: Mapping[str, Overrides]) -> None:
        """Take over what the topic says of all deciders. Only the first call counts."""
        if not self._is_known:
            with self._lock:
                for decider in self._deciders:
                    decider.remember(said.get(decider.name, Overrides(0, 0, 1)))
            self._is_known = True

    def decide(self, at_ms: int) -> None:
        """Ask all deciders, and keep what has changed. Before they know what was published, they say nothing."""
        if not self._is_known:
            return
        said = {}
        for decider in self._deciders:
            with self._lock:
                decided = decider.decide(at_ms)
            if decider.trouble != self._troubles.get(decider.name):
                self._troubles[decider.name] = decider.trouble
                log.warning("%s: %s", decider.name, decider.trouble or "overrides what it should again")
            said[decider.name] = self._record(decider, decided, at_ms)
        self.said = said

    def end(self, at_ms: int) -> None:
        """Keep that nothing is overridden now: readers take the last row of a decider for the present one."""
        before, self.said = self.said, {}
        self._note((name, Overrides(each.number, at_ms, 1)) for name, each in before.items() if each.overrides)
        self.write()

    def write(self) -> None:
        """Write the changes since the last time. Raises nothing: those that can't be written wait for the next time."""
        with self._lock:
            rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            self._table.append(rows)
            self._last_error.ends()
        except Exception as error:  # of any class: overrides hold, whatever their history does
            with self._lock:
                self._rows = [*rows, *self._rows][-_MAX_ROWS:]
            if self._last_error.is_new(error):
                log.error("overrides can't be written: %s; trying again", self._last_error.line)
        self._report(self._last_error.line)

    def limits_now(self) -> Overrides | None:
        """All by which limits give way now, of which the job knows itself; None if they don't."""
        said = self.said
        found = [(said[name].number, each) for name, each in self._now(said) if each.kind != "hold"]
        if not found:
            return None
        return Overrides(max(number for number, _ in found), self._clock_ms(), 1, [each for _, each in found])

    def collect(self) -> Iterator[Metric]:
        """The present metrics. Two processes of one gateway, of which one has just ended, are one series."""
        factors, measured, bounds = (GaugeMetricFamily(name, text, labels=labels) for name, text, labels in _GAUGES)
        for name, record in self.said.items():
            shown = self._now({name: record})[: max(self._top, _LEAST_SHOWN)]
            samples = [_sample(*each, is_named=self._top > 0) for each in shown]
            for labels, value in dict(sorted(samples, key=itemgetter(1), reverse=True)).items():  # the least counts
                factors.add_metric(labels, value)
            if self._clock_ms() - record.at_ms <= record.fresh_ms:
                for figure in record.measured[: self._top]:
                    measured.add_metric((name, label_of(figure.name)), figure.value)
                    bounds.add_metric((name, label_of(figure.name)), figure.bound)
        return iter((factors, measured, bounds))

    def _now(self, said: Mapping[str, Overrides]) -> list[tuple[str, Override]]:
        return list(overrides_now(said, self._clock_ms()))

    def _record(self, decider: Decider, decided: DecidedOverrides, at_ms: int) -> Overrides:
        before = self.said.get(decider.name, Overrides(self._number, 0, 1))
        is_new = not are_alike(before.overrides, decided.overrides)
        self._number += is_new
        number = self._number if is_new else before.number
        record = Overrides(number, at_ms, decider.fresh_ms, [*decided.overrides], [*decided.measured], decided.command)
        if is_new:
            level = logging.WARNING if any(each.kind == "hold" for each in record.overrides) else logging.INFO
            log.log(level, "%s (number %d): %s", decider.name, number, _text(record))
            self._note([(decider.name, record)])
        return record if decider.tells_measured else msgspec.structs.replace(record, measured=[])

    def _note(self, changes: Iterable[tuple[str, Overrides]]) -> None:
        with self._lock:
            self._rows = [*self._rows, *changes][-_MAX_ROWS:]


def _sample(decider: str, override: Override, *, is_named: bool) -> tuple[tuple[str, ...], float]:
    entity = (override.entity if is_named else None) or CountedEntity()
    gateway = gateway_name(gateway_name(override.gateway or ""))  # without its node, as other metrics name it
    names = (gateway, entity.tenant or "", entity.user or "", entity.client_id or "")
    return (decider, override.kind, *map(label_of, names)), 0.0 if override.kind == "hold" else override.factor


def _text(record: Overrides) -> str:
    """The overrides in words.

    >>> _text(Overrides(7, 0, 1)), _text(Overrides(8, 0, 1, [Override("hold", reason="/data is low")]))
    ('nothing is overridden', 'All producers are throttled: /data is low')
    """
    texts = [override_text(each) for each in record.overrides[:_MAX_LOGGED]]
    if len(record.overrides) > _MAX_LOGGED:
        texts.append(f"{len(record.overrides) - _MAX_LOGGED} more")
    return "; ".join(texts) or "nothing is overridden"
