"""One driver at a time on a checkpoint that can't be locked: a lease in a topic of a real broker."""

import logging
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event

import pytest
from kafka import KafkaAdminClient

from sluice.configs.settings import Settings, load_settings, with_bootstrap_servers
from sluice.streaming.errors import LeadershipError
from sluice_shared_storage.leadership import LEASE_S, KafkaLeadership
from tests.waiting import DriverClock, eventually

pytestmark = pytest.mark.kafka


def settings_on(broker: str) -> Settings:
    return with_bootstrap_servers(load_settings(environment={}), broker)


@pytest.fixture
def drivers(kafka_broker: str) -> Iterator[Callable[..., KafkaLeadership]]:
    """Makes drivers that want one checkpoint; all of them stop at the end."""
    settings = settings_on(kafka_broker)
    key = f"hdfs://storage/{uuid.uuid4().hex}"
    with ExitStack() as stack:

        def make(clock: DriverClock, standby: bool = False) -> KafkaLeadership:
            driver = KafkaLeadership(settings.topics, settings.kafka, key, standby, clock)
            stack.callback(driver.stop)
            return driver

        yield make


def ticking(clock: DriverClock, holds: Callable[[], bool]) -> None:
    """Let this clock go on until it holds."""

    def tick() -> bool:
        clock.now_s += 0.1
        return holds()

    eventually(tick)


def test_a_second_driver_is_refused_while_the_first_gives_signs_of_life(
    drivers: Callable[..., KafkaLeadership],
) -> None:
    clock = DriverClock()
    first, second = drivers(clock), drivers(DriverClock())
    assert first.acquire(Event())
    first.start()
    ticking(clock, first.may_decide)

    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(second.acquire, Event())
        ticking(clock, refused.done)
    with pytest.raises(LeadershipError, match=r"is in use by the driver with process \d+ on .*--standby"):
        refused.result()
    assert first.may_decide()


def test_after_a_clean_stop_the_next_driver_leads_at_once(drivers: Callable[..., KafkaLeadership]) -> None:
    first, second = drivers(DriverClock()), drivers(DriverClock())
    assert first.acquire(Event())
    first.start()
    first.stop()

    assert second.acquire(Event())


def test_a_standby_takes_over_when_the_signs_end_and_a_driver_that_wakes_up_then_is_refused(
    drivers: Callable[..., KafkaLeadership], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice.leadership")
    paused, standby_clock = DriverClock(), DriverClock()
    first, standby = drivers(paused), drivers(standby_clock, standby=True)
    assert first.acquire(Event())
    first.start()
    ticking(paused, first.may_decide)

    with ThreadPoolExecutor(1) as pool:
        taken_over = pool.submit(standby.acquire, Event())
        ticking(paused, lambda: "stands by" in caplog.text)
        assert not taken_over.done()
        begun_s = standby_clock.now_s
        ticking(standby_clock, taken_over.done)  # the clock of the first stands still, so it gives no sign
    assert taken_over.result()
    assert standby_clock.now_s - begun_s >= LEASE_S

    eventually(lambda: first.replaced_by == standby.driver)
    with pytest.raises(LeadershipError, match="has taken over the checkpoint"):
        first.may_decide()


def test_of_many_drivers_that_claim_at_the_same_time_one_leads(drivers: Callable[..., KafkaLeadership]) -> None:
    clocks = {drivers(clock): clock for clock in [DriverClock() for _ in range(6)]}

    def leads(driver: KafkaLeadership) -> bool:
        try:
            return driver.acquire(Event())
        except LeadershipError:
            return False

    with ThreadPoolExecutor(len(clocks)) as pool:
        running = [pool.submit(leads, driver) for driver in clocks]
        eventually(lambda: any(each.done() and each.result() for each in running))
        (leader,) = [driver for driver, each in zip(clocks, running, strict=True) if each.done() and each.result()]
        leader.start()  # its signs tell the others
        ticking(clocks[leader], lambda: all(each.done() for each in running))
    assert sum(each.result() for each in running) == 1


def test_a_leader_begins_nothing_before_it_has_read_a_sign_of_its_own(drivers: Callable[..., KafkaLeadership]) -> None:
    driver = drivers(DriverClock())
    assert driver.acquire(Event())
    assert not driver.may_decide()

    driver.start()
    eventually(driver.may_decide)


def test_a_leader_whose_lease_topic_is_deleted_makes_it_again_and_leads_on(
    drivers: Callable[..., KafkaLeadership], kafka_broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that stands by goes on standing by."""
    caplog.set_level(logging.INFO, "sluice.leadership")
    clock = DriverClock()
    driver, standby, stop = drivers(clock), drivers(DriverClock(), standby=True), Event()
    assert driver.acquire(Event())
    driver.start()
    ticking(clock, driver.may_decide)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(standby.acquire, stop)
        ticking(clock, lambda: "stands by: " in caplog.text)
        with KafkaAdminClient(bootstrap_servers=kafka_broker) as admin:
            admin.delete_topics([settings_on(kafka_broker).topics.claims])
        clock.now_s += LEASE_S
        reason = driver.waits_for()
        assert reason is not None
        assert "waiting for a heartbeat of this driver in topic" in reason
        ticking(clock, lambda: driver.waits_for() is None)
        eventually(lambda: "stands by on" in caplog.text)
        assert not waiting.done()
        stop.set()
        assert not waiting.result(60)


def test_a_standby_that_is_stopped_leaves(drivers: Callable[..., KafkaLeadership]) -> None:
    first, standby, stop = drivers(DriverClock()), drivers(DriverClock(), standby=True), Event()
    assert first.acquire(Event())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(standby.acquire, stop)
        stop.set()
        assert not waiting.result(60)
