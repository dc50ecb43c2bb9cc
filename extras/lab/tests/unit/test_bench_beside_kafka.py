"""Verdicts of clients at full speed beside Kafka's own quotas."""

from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.full_speed_client import Role
from sluice_lab.benchmarks.beside_kafka import ClientId, Run, add_lines
from sluice_lab.benchmarks.report import Findings
from sluice_lab.scenarios.closed_loop.brokers import full_speed, served_since
from sluice_lab.scenarios.closed_loop.measures import measure

SECONDS = 70
LIMIT = 1_000_000.0
OWN = "1-broker-own-quotas"


def run(part: float, every_s: int = 1, errors: int = 0) -> Run:
    """A client that gets this part of its limit, every so many seconds."""
    samples = [(second * 1000, part * every_s * LIMIT) for second in range(every_s, SECONDS + 1, every_s)]
    found = measure(full_speed(QuotaKind.PRODUCER_BYTE_RATE, LIMIT, SECONDS), served_since(0, SECONDS, samples))
    return Run(found, errors, 50.0)


def verdict(own: Run, other: Run) -> str:
    findings = Findings()
    add_lines(findings, ClientId("java", Role.PRODUCE, LIMIT), {OWN: [own], "3-brokers-2-proxies": [other]})
    own_line, other_line = findings.lines
    assert own_line.verdict == ""
    return other_line.verdict


def test_a_client_that_gets_its_limit_evenly_reaches_all_bars() -> None:
    assert verdict(run(1.0), run(1.0)) == "reached"


def test_a_silence_may_last_twice_as_long_as_the_longest_at_one_broker_with_kafkas_own_quota() -> None:
    assert verdict(run(1.0, every_s=2), run(1.0, every_s=4)) == "reached"
    assert verdict(run(1.0, every_s=2), run(0.9, every_s=5)) == "MISSED: longest silence 5 (≤ 4)"


def test_a_client_that_gets_more_and_meets_an_error_misses_those_bars() -> None:
    missed = "mean 1.118 (0.97 to 1.02), worst minute 1.1 (≤ 1.05), errors 2 (≤ 0)"

    assert verdict(run(1.0), run(1.1, errors=2)) == f"MISSED: {missed}"
