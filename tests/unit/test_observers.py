"""Extras that observe the newest decisions can't harm the job."""

from collections.abc import Callable, Iterable
from unittest.mock import Mock, patch

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric

from sluice.configs.settings import Settings
from sluice.streaming.runtime.observers import Guarded, Observer, observers_of
from tests.builders import DEFAULTS


class Counts(Observer):
    """Counts records, and fails at one of `bad`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_record(self, value: bytes | None) -> None:
        if value == b"bad":
            raise ValueError("no such record")
        self.count += 1

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily("observed", "Records")
        if self.count > 1:
            raise ZeroDivisionError
        family.add_metric((), self.count)
        return [family]


def installed(*factories: Callable[[Settings], Observer]) -> list[Guarded]:
    """The observers of a job in whose environment extras have these entry points."""
    points = [Mock(load=Mock(return_value=factory)) for factory in factories]
    for number, point in enumerate(points):
        point.name = f"extra-{number}"
    with patch("sluice.streaming.runtime.observers.entry_points", return_value=points):
        return observers_of(DEFAULTS)


def scrape(observers: Iterable[Guarded]) -> str:
    registry = CollectorRegistry()
    for each in observers:
        registry.register(each)
    return generate_latest(registry).decode()


def test_an_observer_gets_records_the_age_of_decisions_and_has_its_metrics_in_the_jobs() -> None:
    counts = Counts()
    (observer,) = installed(lambda _: counts)
    observer.watch_age(lambda at_ms: at_ms > 7)
    observer.on_record(None)

    assert "observed_total 1.0" in scrape([observer])
    assert [counts.is_stale(at_ms) for at_ms in (7, 8)] == [False, True]


@pytest.mark.parametrize("records", [(b"bad", b"", b""), (b"", b"", b"")], ids=["reading", "measuring"])
def test_an_observer_that_fails_is_left_out_and_harms_no_other(
    records: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = installed(lambda _: Counts(), lambda _: Mock(spec=Observer, collect=lambda: [], describe=list))
    for record in records:
        failing.on_record(record)

    assert "observed" not in scrape([failing, other]) + scrape([failing, other])
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "the observer extra-0 fails, and is left out until the job starts again"
    ]


def test_an_observer_that_cannot_be_made_is_left_out_and_the_log_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def of_another_release(settings: Settings) -> Observer:
        raise AttributeError(f"{type(settings).__name__} has no such section")

    assert len(installed(of_another_release, lambda _: Counts())) == 1
    (line,) = (record.getMessage() for record in caplog.records)
    assert "extra-0 can't be started" in line
    assert "install the same version" in line
