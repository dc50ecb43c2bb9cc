"""The load of a broker out of its heartbeats, the capacity file, and the guard of disks."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from sluice.configs.capacity import broker_limits, load_capacities
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import load_settings
from sluice.state.contract.records import MAX_INSTANCE_CHARACTERS, MAX_TIMESTAMP_MS, Heartbeat, Load, LogDirectory
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.load import FULL_LOAD, BrokerLimits, Capacities, Capacity, DiskFloor, broker_load
from sluice.streaming.enforce.simulation import Simulation
from sluice_reading.gateways_seen import FUTURE_MS, GatewaysSeen
from tests.builders import AT_MS, file_of

_PARTS = st.none() | st.floats(0, 1)
_RATES = st.none() | st.floats(0, 1e30)
LOADS = st.builds(Load, st.none(), _RATES, _RATES, _PARTS, _PARTS, _PARTS, _RATES)
LOW = LogDirectory("/data", 5, 100)


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (Load(bytes_in_per_s=90.0), "bytes in 90 % of capacity"),
        (Load(bytes_out_per_s=180.0), "bytes out 90 % of capacity"),
        (Load(handler_idle=0.1), "request handlers 90 % busy"),
        (Load(network_idle=0.1), "network threads 90 % busy"),
        (Load(queue_used=0.8), "request queue 80 % full"),
        (Load(queue_wait_ms=20.0), "queue wait 20 ms"),
    ],
)
def test_each_signal_alone_says_that_a_broker_is_at_its_capacity(measured: Load, reason: str) -> None:
    load = broker_load(measured, Capacity(100.0, 200.0))
    assert load is not None
    assert load.rho == pytest.approx(FULL_LOAD)
    assert (load.reason, load.is_of_bytes) == (reason, reason.startswith("bytes "))


@given(LOADS, st.builds(Capacity, st.none() | st.floats(1, 1e12), st.none() | st.floats(1, 1e12)))
def test_the_load_is_its_greatest_part_and_never_below_0(measured: Load, capacity: Capacity) -> None:
    load = broker_load(measured, capacity)
    if load is not None:
        assert load.rho == max(load.parts.values()) == load.parts[load.signal] >= 0


def test_without_a_capacity_bytes_say_nothing() -> None:
    assert broker_load(Load(bytes_in_per_s=1e9, bytes_out_per_s=1e9)) is None


def test_a_capacity_file_of_cruise_control_is_read(tmp_path: Path) -> None:
    """The forms of its capacity.json, capacityCores.json and capacityJBOD.json."""
    entries = [
        {"brokerId": "-1", "capacity": {"DISK": "100000", "CPU": "100", "NW_IN": "10000", "NW_OUT": "20000"}},
        {"brokerId": "0", "capacity": {"DISK": {"/d1": "5"}, "CPU": {"num.cores": "8"}, "NW_IN": 1, "NW_OUT": "2.5"}},
    ]
    file = file_of(tmp_path / "capacity.json", json.dumps({"brokerCapacities": entries}))

    capacities = load_capacities(str(file))
    assert capacities.of(Load(broker_id=0)) == Capacity(1024.0, 2560.0)
    assert capacities.of(Load(broker_id=7)) == Capacity(10_240_000.0, 20_480_000.0)
    assert capacities.of(Load()) == Capacity()


def test_brokers_that_the_file_does_not_name_have_the_capacity_of_the_settings(tmp_path: Path) -> None:
    file, settings = tmp_path / "capacity.json", tmp_path / "settings.yaml"
    entry = {"brokerId": "0", "capacity": {"NW_IN": "1", "NW_OUT": "2"}}
    file.write_text(json.dumps({"brokerCapacities": [entry]}))
    settings.write_text("brokers: {capacity_in_bytes_per_s: 5000}\n")
    both = file_of(tmp_path / "both.yaml", f"brokers: {{capacity_in_bytes_per_s: 5000, capacity_file: {file}}}\n")

    alone, beside = (broker_limits(load_settings(each).brokers).capacities for each in (settings, both))

    assert alone.of(Load(broker_id=0)) == Capacity(5000, None)
    assert [beside.of(Load(broker_id=number)) for number in (0, 7)] == [Capacity(1024.0, 2048.0), Capacity(5000, None)]
    assert alone.of(Load()) == Capacity()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is no capacity file"),
        ("[]", "is no capacity file"),
        ('{"brokerCapacities": [{"brokerId": "x", "capacity": {}}]}', "is no capacity file"),
        ('{"brokerCapacities": [{"brokerId": "1", "capacity": {"NW_IN": "1"}}]}', "is no capacity file"),
        (
            '{"brokerCapacities": [{"brokerId": "1", "capacity": {"NW_IN": "0", "NW_OUT": "1"}}]}',
            "a capacity is not above 0",
        ),
        ('{"brokerCapacities": [{"brokerId": "1", "capacity": {"NW_IN": "nan", "NW_OUT": "1"}}]}', "not above 0"),
    ],
)
def test_a_capacity_file_of_another_form_is_refused_with_one_line(tmp_path: Path, content: str, problem: str) -> None:
    file = file_of(tmp_path / "capacity.json", content)
    with pytest.raises(InvalidSettingsError, match=problem) as caught:
        load_capacities(str(file))
    assert "brokers.capacity_file" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_capacity_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingsError, match=r"nothing\.json can't be read: No such file"):
        load_capacities(str(tmp_path / "nothing.json"))


def hear(seen: GatewaysSeen, at_ms: int, load: Mapping[str, object], gateway: str = "a", read_ms: int = 0) -> None:
    heartbeat = convert({"staleness_ms": 1, "counters": 0, "load": load}, Heartbeat)
    seen.add(gateway, f"{gateway}-1", heartbeat, at_ms, read_ms or at_ms, decided_ms=at_ms)


def test_gateways_seen_have_the_mean_load_of_ten_seconds_the_busiest_gateway_first() -> None:
    seen = GatewaysSeen(BrokerLimits(Capacities(default=Capacity(1000.0)), DiskFloor(free_percent=10)))
    log_dirs = [{"path": "/data", "free_bytes": 5, "total_bytes": 100}]
    for second in range(20):
        rate = 900.0 if second < 10 else 100.0 + second
        hear(seen, AT_MS + 1_000 * second, {"broker_id": 1, "bytes_in_per_s": rate, "log_dirs": log_dirs})
    hear(seen, AT_MS + 19_000, {"handler_idle": 0.5}, "b")

    busiest, other = seen.loads(AT_MS + 20_000)
    assert (busiest.gateway.name, busiest.load and busiest.load.reason) == ("b", "request handlers 50 % busy")
    assert other.load is not None
    assert other.load.rho == pytest.approx(0.1145)
    assert (busiest.low_disk, other.low_disk) == (None, "broker 1: /data has 5 B of 100 B free")

    assert [each.gateway.name for each in seen.loads(AT_MS + 49_500)] == []


@pytest.mark.parametrize("job_ahead_ms", [0, 3_600_000, -3_600_000])
def test_a_reader_that_begins_with_records_of_before_hears_only_who_still_speaks(job_ahead_ms: int) -> None:
    """By any clock of the job: a broker that is dead for minutes must not look alive for another one."""
    seen, beat = GatewaysSeen(), convert({"staleness_ms": 1, "counters": 0}, Heartbeat)
    for second in range(0, 301):
        for gateway in ("dead", "alive")[second > 100 :]:
            at_ms = AT_MS + 1_000 * second
            seen.add(gateway, gateway, beat, at_ms, now_ms=AT_MS + 400_000, decided_ms=at_ms + job_ahead_ms)

    assert set(seen.facts(AT_MS + 400_000).beats or {}) == seen.heard(AT_MS + 400_000) == {"alive"}


def test_a_job_whose_clock_is_set_back_silences_nobody() -> None:
    seen, beat = GatewaysSeen(), convert({"staleness_ms": 1, "counters": 0}, Heartbeat)
    for gateway, decided_ms in (("a", AT_MS), ("b", AT_MS - 3_600_000)):
        seen.add(gateway, gateway, beat, AT_MS, AT_MS, decided_ms)

    assert seen.heard(AT_MS + 1_000) == {"a", "b"}


@pytest.mark.parametrize("fault", [{"threads_down": 1}, {"metrics_seen": False}])
def test_a_fault_of_one_of_two_processes_of_a_name_is_seen_all_the_time(fault: Mapping[str, object]) -> None:
    """The one that was heard last counted, so no alert that lasts a minute was raised."""
    seen = GatewaysSeen()

    def hear_both(seconds: range, *, speaks: bool) -> list[str]:
        for second in seconds:
            for instance, wrong in (("edge-00000001", fault), ("edge-00000002", {}))[not speaks :]:
                beat = convert({"staleness_ms": 1, "counters": 0} | dict(wrong), Heartbeat)
                at_ms = AT_MS + 1_000 * second
                seen.add("edge", instance, beat, at_ms, at_ms, at_ms)
            found.append(seen.newest()["edge"].instance)
        return found[-len(seconds) :]

    found: list[str] = []
    assert set(hear_both(range(60), speaks=True)) == {"edge-00000001"}
    assert hear_both(range(60, 75), speaks=False)[9:] == ["edge-00000002"] * 6, "it has ended"


@pytest.mark.parametrize("forged_as", ["a", "forged"])
@pytest.mark.parametrize("decided_ms", [0, AT_MS - 3_600_000, AT_MS + 3_600_000, MAX_TIMESTAMP_MS])
@pytest.mark.parametrize("ahead_ms", [0, FUTURE_MS])
def test_a_forged_decision_on_a_heartbeat_silences_no_gateway(forged_as: str, decided_ms: int, ahead_ms: int) -> None:
    """Nor does one of the name of a gateway, whatever time it says: that of the next real one counts."""
    seen, beat = GatewaysSeen(), convert({"staleness_ms": 1, "counters": 0}, Heartbeat)
    for second in range(100):
        at_ms = AT_MS + 1_000 * second
        for gateway in ("a", "b"):
            seen.add(gateway, gateway, beat, at_ms, at_ms, at_ms)
        if second == 50:
            for _ in range(5):
                seen.add(forged_as, forged_as, beat, at_ms + ahead_ms, at_ms, decided_ms)
        assert seen.heard(at_ms) >= {"a", "b"}


def test_a_forged_load_in_the_decisions_topic_breaks_no_page() -> None:
    seen = GatewaysSeen()
    for number in range(3):
        load = {"bytes_in_per_s": 1.7e308, "handler_idle": -1.7e308, "queue_wait_ms": 1.7e308}
        hear(seen, AT_MS + number, load, read_ms=AT_MS)
    (found,) = seen.loads(AT_MS)
    assert found.load is not None


def test_a_decided_heartbeat_says_the_load_and_which_disk_is_low(tmp_path: Path) -> None:
    file = file_of(tmp_path / "sluice.yaml", "brokers: {disk_min_free_bytes: 6, capacity_in_bytes_per_s: 100}\n")
    simulation = Simulation(Quotas(), load_settings(file, environment={}))

    def told(free_bytes: int, rate: float = 0.0) -> object:
        log_dirs = [{"path": "/data", "free_bytes": free_bytes, "total_bytes": 100}]
        load = {"broker_id": 2, "queue_wait_ms": 34.0, "bytes_in_per_s": rate, "log_dirs": log_dirs}
        beat = {"staleness_ms": 1, "counters": 0, "load": load}
        event = {"api": "GatewayHeartbeat", "instance": "b-2", "timestamp_ms": AT_MS, "heartbeat": beat}
        records = simulation.records([json.dumps(event).encode()])
        (record,) = [record for record in records if record.topic == "quota-sums"]
        heartbeat = json.loads(record.value)["heartbeat"]
        reason = "bytes in 200 % of capacity" if rate else "queue wait 34 ms"
        assert heartbeat["load"] == [pytest.approx(2.0 if rate else 1.53), reason]
        assert heartbeat.get("load_is_of_bytes", False) is (rate > 0)
        return heartbeat.get("low_disk")

    assert told(5) == "broker 2: /data has 5 B of 100 B free"
    assert told(6, rate=200.0) is None


@pytest.mark.parametrize(
    ("floor", "is_low"),
    [
        (DiskFloor(), False),
        (DiskFloor(free_bytes=5), False),
        (DiskFloor(free_bytes=6), True),
        (DiskFloor(free_percent=5), False),
        (DiskFloor(free_percent=6), True),
    ],
)
def test_a_disk_is_low_below_the_floor_and_not_at_it(floor: DiskFloor, is_low: bool) -> None:
    assert (floor.low(Load(log_dirs=[LogDirectory("/ok", 50, 100), LOW])) is not None) == is_low
    assert floor.low(None) is None


@pytest.mark.parametrize(("characters", "heard"), [(MAX_INSTANCE_CHARACTERS, 1), (MAX_INSTANCE_CHARACTERS + 1, 0)])
def test_gateways_hear_of_no_instance_that_is_longer_than_a_gateway_has(
    tmp_path: Path, characters: int, heard: int
) -> None:
    """Each keeps a thousand of them."""
    file = file_of(tmp_path / "sluice.yaml", "{}\n")
    event = {"api": "GatewayHeartbeat", "instance": "i" * characters, "timestamp_ms": AT_MS}
    records = list(Simulation(Quotas(), load_settings(file, environment={})).records([json.dumps(event).encode()]))

    assert [record.topic for record in records] == ["quota-decisions", "quota-sums"][: 1 + heard]
