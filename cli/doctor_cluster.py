"""Checks of the executors: broker, storage, Python and clocks, a line for each."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from sluice.cli.errors import CheckError
from sluice.cli.machine_probe import Probe, Probing, probe_executors
from sluice.configs.settings import Settings
from sluice.kafka_io.client import connect, error_line
from sluice.streaming.runtime.session import start_session

_WAIT_S = 60.0
_READY_TIMEOUT_MS = 30_000

MOST_MS = 1000.0
"""Largest difference of clocks: a sample of a client quota is a second long."""


def executors_pass(settings: Settings, passes: Callable[[str, Callable[[], str]], bool]) -> bool:
    """Show a line for each check by `passes`. They start a session of Spark, and a topic that is removed again."""
    found: list[tuple[Probe, list[Probe]]] = []

    def ask() -> str:
        driver, executors = _probed(settings)
        found.append((driver, executors))
        return f"{len(executors)} answered: {'; '.join(each.where for each in executors)}"

    if not passes("executors", ask):
        return False
    ((driver, executors),) = found
    return all(
        [
            passes("executors to broker", lambda: broker_verdict(executors)),
            passes("executors to storage", lambda: storage_verdict(executors)),
            passes("python of executors", lambda: python_verdict(driver, executors)),
            passes("clocks", lambda: clock_verdict(driver, executors)),
        ]
    )


def broker_verdict(executors: Sequence[Probe]) -> str:
    """Executors that reach the broker. Raises CheckError naming the first that doesn't."""
    for each in executors:
        if each.broker is not None:
            raise CheckError(f"{each.where}: {each.broker}")
    return f"all {len(executors)} executors store records"


def storage_verdict(executors: Sequence[Probe]) -> str:
    """Executors that read the storage. Raises CheckError naming the first that doesn't."""
    for each in executors:
        for location, trouble in each.storage.items():
            if trouble is not None:
                raise CheckError(f"{each.where} can't read {location}: {trouble}")
    return f"all {len(executors)} executors read {', '.join(executors[0].storage)}"


def python_verdict(driver: Probe, executors: Sequence[Probe]) -> str:
    """Python and packages of driver and executors. Raises CheckError naming the first difference."""
    for each in executors:
        if each.python != driver.python:
            raise CheckError(f"{each.where} has Python {each.python}, the driver {driver.python}; install the same")
        for name, version in driver.packages.items():
            if each.packages[name] != version:
                own, drivers = _named(name, each.packages[name]), _named(name, version)
                raise CheckError(f"{each.where} has {own}, the driver {drivers}; install the same")
    packages = ", ".join(f"{name} {version}" for name, version in driver.packages.items())
    return f"{driver.python} everywhere, with {packages}"


def clock_verdict(driver: Probe, executors: Sequence[Probe]) -> str:
    """Clocks against the broker's. Raises CheckError if two of all differ by more than MOST_MS."""
    clocks = [(each.where, each.clock) for each in executors if each.clock is not None]
    if driver.clock is not None:
        clocks.append(("the driver", driver.clock))
    if not clocks:
        raise CheckError("unknown: no record could be stored with the broker's time")
    ahead = [(clock.ahead_ms, where) for where, clock in clocks]
    (least_ms, least), (most_ms, most) = min(ahead), max(ahead)
    spread = f"{least} {_ahead(least_ms)}, {most} {_ahead(most_ms)}"
    if max(most_ms, 0.0) - min(least_ms, 0.0) > MOST_MS:
        raise CheckError(f"{spread}; expected less than {MOST_MS:.0f} ms between all: let NTP set them")
    within_ms = max(clock.within_ms for _, clock in clocks)
    return (
        f"{least_ms:+.0f} to {most_ms:+.0f} ms against the broker's, {most_ms - least_ms:.0f} ms between them, known to"
        f" {within_ms:.0f} ms"
    )


def _named(package: str, version: str | None) -> str:
    return f"no {package}" if version is None else f"{package} {version}"


def _ahead(ms: float) -> str:
    """
    >>> _ahead(-1500.4), _ahead(3)
    ('is 1500 ms behind the broker', 'is 3 ms ahead of the broker')
    """
    return f"is {abs(ms):.0f} ms {'behind' if ms < 0 else 'ahead of'} the broker"


def _probed(settings: Settings) -> tuple[Probe, list[Probe]]:
    """Probes of the driver and the executors. Raises CheckError if no executor answers."""
    locations = sorted({settings.enforce.checkpoint, settings.audit.checkpoint})
    with _stamped_topic(settings) as topic:
        probing = Probing(dict(settings.kafka), topic, locations)
        spark = start_session(settings)
        try:
            driver, executors = probing(), probe_executors(spark, probing, _WAIT_S)
        except Exception as error:  # of any class: PySpark's depends on what the executors lack
            raise CheckError(f"they can't run Sluice's Python ({_last_words(error)})") from error
        finally:
            spark.stop()
    if not executors:
        raise CheckError(
            f"none came within {_WAIT_S:.0f} s; see that {settings.spark['spark.master']} has cores and memory for one"
            " beside the running job"
        )
    return driver, executors


@contextmanager
def _stamped_topic(settings: Settings) -> Iterator[str]:
    """A topic whose records get the broker's time, for this block."""
    name = f"sluice-doctor-{secrets.token_hex(4)}"
    spec = {"num_partitions": 1, "replication_factor": 1, "configs": {"message.timestamp.type": "LogAppendTime"}}
    with connect(KafkaAdminClient, settings.kafka) as admin:
        try:
            admin.create_topics({name: spec})
            admin.wait_for_topics([name], timeout_ms=_READY_TIMEOUT_MS)
        except (KafkaError, OSError) as error:
            raise CheckError(f"topic {name} can't be made for a moment ({error_line(error)})") from error
        try:
            yield name
        finally:
            admin.delete_topics([name])


def _last_words(error: Exception) -> str:
    """Python's own last line in a long report of Spark's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    said = [line for line in lines if "Error" in line or "Exception" in line]
    return (said or lines or [type(error).__name__])[-1][:300]
