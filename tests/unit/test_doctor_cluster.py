"""`sluice doctor --cluster`: the verdicts on probes of the driver and the executors."""

from importlib.metadata import version

import pytest

from sluice.cli.doctor_cluster import broker_verdict, clock_verdict, python_verdict, storage_verdict
from sluice.cli.errors import CheckError
from sluice.cli.machine_probe import PACKAGES, Clock, Probe

DRIVER = Probe(
    "driver", "3.11.9", {"sluice-kafka": "1.0", "pyarrow": "20.0"}, None, {"hdfs://nn/enforce": None}, Clock(2.0, 1.0)
)
ONE = DRIVER._replace(where="a, process 7", clock=Clock(-4.0, 3.0))
TWO = DRIVER._replace(where="b, process 9", clock=Clock(11.0, 2.0))


def test_every_probed_package_is_installed() -> None:
    assert all(version(name) for name in PACKAGES)


def test_a_cluster_that_is_well_is_a_line_for_each_check() -> None:
    executors = [ONE, TWO]

    assert broker_verdict(executors) == "all 2 executors store records"
    assert storage_verdict(executors) == "all 2 executors read hdfs://nn/enforce"
    assert python_verdict(DRIVER, executors) == "3.11.9 everywhere, with sluice-kafka 1.0, pyarrow 20.0"
    assert clock_verdict(DRIVER, executors) == ("-4 to +11 ms against the broker's, 15 ms between them, known to 3 ms")


def test_an_executor_without_broker_or_storage_is_named() -> None:
    with pytest.raises(CheckError, match="b, process 9: no Kafka broker answers"):
        broker_verdict([ONE, TWO._replace(broker="no Kafka broker answers at x")])
    with pytest.raises(CheckError, match="b, process 9 can't read hdfs://nn/enforce: refused"):
        storage_verdict([ONE, TWO._replace(storage={"hdfs://nn/enforce": "refused"})])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (TWO._replace(python="3.12.1"), "b, process 9 has Python 3.12.1, the driver 3.11.9; install the same"),
        (
            TWO._replace(packages={"sluice-kafka": "1.0", "pyarrow": "21.0"}),
            "b, process 9 has pyarrow 21.0, the driver pyarrow 20.0; install the same",
        ),
        (
            TWO._replace(packages={"sluice-kafka": None, "pyarrow": "20.0"}),
            "b, process 9 has no sluice-kafka, the driver sluice-kafka 1.0; install the same",
        ),
    ],
)
def test_another_python_or_package_than_the_drivers_is_named(other: Probe, said: str) -> None:
    with pytest.raises(CheckError) as raised:
        python_verdict(DRIVER, [ONE, other])

    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("clocks_ms", "well"), [((400.0, -590.0), True), ((400.0, -610.0), False), ((1001.0, 1001.0), False)]
)
def test_clocks_may_differ_by_a_second_from_each_other_and_from_the_brokers(
    clocks_ms: tuple[float, float], well: bool
) -> None:
    executors = [
        each._replace(clock=Clock(ahead_ms, 1.0)) for each, ahead_ms in zip((ONE, TWO), clocks_ms, strict=True)
    ]
    if well:
        assert "990 ms between them" in clock_verdict(DRIVER, executors)
        return
    with pytest.raises(CheckError, match="let NTP set them"):
        clock_verdict(DRIVER, executors)


def test_clocks_that_nobody_could_compare_are_a_failure() -> None:
    with pytest.raises(CheckError, match="unknown"):
        clock_verdict(DRIVER._replace(clock=None), [ONE._replace(clock=None)])
