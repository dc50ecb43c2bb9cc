"""`./scripts/test-peers suites`: the own tests of Kafka's clients, at brokers and through the Kafka proxy."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import psutil
import typer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from scripts.command import EXIT_FAILED, check_known
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.cluster import Cluster
from sluice_demo.work_folder import work_folder
from sluice_lab.benchmarks.report import table
from sluice_lab.scenarios.peers.suite import FranzGo, Kafkajs, KafkaPython, Outcomes, Sarama, Suite
from sluice_lab.testbed.quotas_without_job import settings_with_limits
from sluice_proxy.gateway import Address, KafkaGateway
from sluice_proxy.processes import free_ports

SUITES: Mapping[str, type[Suite]] = {suite.client: suite for suite in (FranzGo, Sarama, KafkaPython, Kafkajs)}


class Route(StrEnum):
    """The way from a client to the brokers."""

    DIRECT = "direct"
    BARE = "bare"
    """Through Kroxylicious without the filter."""
    PROXY = "proxy"
    QUOTA = "quota"
    """Through the proxy, with quotas on all client-ids."""


@dataclass(frozen=True)
class Suites:
    """Run the own tests of Kafka's clients direct, through the Kafka proxy, and through it with a small quota.

    Each test is run once on each way, on new brokers. There is no job: a proxy whose job is away enforces the whole
    limit. franz-go and sarama need Go 1.26, kafkajs Node 20 and npm. Sarama's tests that stop brokers or break
    connections are left out, and kafka-python's of TLS and logins. Exit code 1 if a test that passes on the first way
    fails on another one, but for those that are told with their reasons, or if none passes. The output of the tests is
    kept in .work.

    \b
      ./scripts/test-peers suites                                     all suites on three ways
      ./scripts/test-peers suites franz-go --route bare --route proxy --tests TestGroupETL
    """

    clients: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(SUITES)}; all if none is given.")] = None
    route: Annotated[
        list[Route] | None,
        typer.Option(help="Ways; bare is the proxy without the filter. direct, proxy and quota if none is given."),
    ] = None
    quota: Annotated[float, typer.Option(min=1, help="Limit of each client-id on the way quota, bytes/s.")] = 400_000
    tests: Annotated[
        str | None,
        typer.Option(help="Only tests whose names this regular expression finds; of kafka-python parts, as a|b."),
    ] = None

    def run(self) -> int:
        """Run them, and print a table of each."""
        clients = self.clients or list(SUITES)
        routes = self.route or [Route.DIRECT, Route.PROXY, Route.QUOTA]
        check_known("suite", clients, SUITES)
        as_well = True
        for client in clients:
            suite = SUITES[client]()
            suite.prepare()
            with work_folder(f"suites-{client}", fresh=True) as folder:
                ran = {route: self._run(suite, folder / route, route) for route in routes}
            found = {route: outcomes for route, (outcomes, _) in ran.items()}
            print("\n".join(_table(client, found)))
            for route, (outcomes, cpu_s) in ran.items():
                used = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in cpu_s.items())
                print(f"{route}: {_sums(outcomes)}; CPU: {used}", flush=True)
            for name, reason in suite.expected_failures.items():
                if any(name in outcomes and outcomes[name].text == "failed" for outcomes in found.values()):
                    print(f"{name} may fail: {reason}", flush=True)
            as_well &= passes_as_well(found, suite.expected_failures)
        return 0 if as_well else EXIT_FAILED

    def _run(self, suite: Suite, folder: Path, route: Route) -> tuple[Outcomes, Mapping[str, float]]:
        """The outcomes on one way, and the seconds of CPU that its servers used meanwhile."""
        with entrance(folder, suite, route, self.quota) as (servers, pids):
            before_s = {name: _cpu_s(of) for name, of in pids.items()}
            outcomes = suite.run(servers, folder / "tests.log", self.tests)
            return outcomes, {name: _cpu_s(of) - before_s[name] for name, of in pids.items()}


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


@contextmanager
def entrance(
    folder: Path, suite: Suite, route: Route, quota: float
) -> Iterator[tuple[str, Mapping[str, Sequence[int]]]]:
    """Where clients connect, for new brokers as the suite wants them, and process ids of the servers."""
    with ExitStack() as stack:
        if suite.port and route is Route.DIRECT:
            _fix_ports(folder / "brokers", suite)
        properties = {**suite.properties, "transaction.state.log.num.partitions": "1"}
        cluster = stack.enter_context(Cluster(folder / "brokers", suite.brokers, lambda *_: properties))
        # Clients' tests fail on coordinators that are new and still load what they have.
        with closing(KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="first")) as producer:
            producer.init_transactions()
        with closing(KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, group_id="first")) as consumer:
            consumer.committed(TopicPartition("none", 0))
        pids = {"brokers": [broker.pid for broker in cluster.brokers]}
        if route is Route.DIRECT:
            yield cluster.bootstrap_servers, pids
            return
        settings = settings_with_limits(cluster.bootstrap_servers, _limits(quota) if route is Route.QUOTA else [])
        listener = Address(port=suite.port)
        proxy = KafkaGateway(folder / "proxy", settings, listener, filtered=route is not Route.BARE)
        stack.enter_context(proxy)
        yield proxy.bootstrap_servers, {**pids, "proxy": [proxy.pid]}


def _fix_ports(folder: Path, suite: Suite) -> None:
    """Let the brokers of a cluster that is started in this folder have the suite's ports."""
    folder.mkdir(parents=True)
    ports = enumerate(free_ports(suite.brokers), suite.port + 1)
    (folder / "ports.json").write_text(json.dumps(list(ports)))


def _limits(quota: float) -> list[QuotaEntry]:
    kinds = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE)
    return [QuotaEntry(QuotaEntity(client_id=DEFAULT), kind, quota) for kind in kinds]


def passes_as_well(found: Mapping[Route, Outcomes], expected_failures: Collection[str] = ()) -> bool:
    """True if some test passes on the first way, and on the others none of those fails but the expected ones."""
    first, *others = found.values()
    passed = [name for name, outcome in first.items() if outcome.text == "passed"]
    return bool(passed) and all(
        name in outcomes and (outcomes[name].text != "failed" or name in expected_failures)
        for outcomes in others
        for name in passed
    )


def _table(client: str, found: Mapping[Route, Outcomes]) -> Sequence[str]:
    names = sorted({name for outcomes in found.values() for name in outcomes})
    rows = [(name, *(str(outcomes.get(name, "not run")) for outcomes in found.values())) for name in names]
    return table(client, *found, rows=rows)


def _sums(outcomes: Outcomes) -> str:
    texts = [outcome.text for outcome in outcomes.values()]
    seconds = sum(outcome.seconds for outcome in outcomes.values())
    skipped = f", {texts.count('skipped')} skipped" if "skipped" in texts else ""
    return f"{texts.count('passed')} of {len(texts)} passed{skipped}, {seconds:.0f} s"
