"""`./scripts/bench`: speed and scale against baselines, all in one run on one machine."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.managers import RemoteError
from pathlib import Path

import psutil
from confluent_kafka import KafkaException

from scripts.command import EXIT_FAILED, EXIT_INTERRUPTED, interrupt_on_signals, print_error, run_command
from sluice.configs.errors import InvalidSettingsError
from sluice.jvm.java import find_java
from sluice.state.errors import SluiceError
from sluice_demo.jars import BROKER_JARS
from sluice_lab.benchmarks.beside_kafka import measure_beside_kafka
from sluice_lab.benchmarks.gateway import measure_gateway
from sluice_lab.benchmarks.latency import measure_latency, measure_storage, measure_tracked
from sluice_lab.benchmarks.many_clients import measure_many_clients
from sluice_lab.benchmarks.micro_batch import measure_micro_batch
from sluice_lab.benchmarks.mutations import measure_mutations
from sluice_lab.benchmarks.neighbours import measure_invented_names, measure_neighbours
from sluice_lab.benchmarks.peers.measure import measure_peers
from sluice_lab.benchmarks.proxy_filter import measure_proxy_filter
from sluice_lab.benchmarks.report import Findings, to_json, to_markdown
from sluice_lab.benchmarks.reports import measure_reports
from sluice_lab.benchmarks.rig import BenchmarkRig
from sluice_lab.benchmarks.scale import MEASURES, Scale, sections
from sluice_lab.benchmarks.start import measure_start
from sluice_lab.benchmarks.throughput import measure_audit, measure_tenants, measure_throughput

_MEASURES: dict[str, Callable[[BenchmarkRig, Scale, Findings], None]] = {
    "throughput": measure_throughput,
    "tenants": measure_tenants,
    "latency": measure_latency,
    "micro-batch": measure_micro_batch,
    "start": measure_start,
    "mutations": measure_mutations,
    "audit": measure_audit,
    "beside-kafka": measure_beside_kafka,
    "proxy-filter": measure_proxy_filter,
    "many-clients": measure_many_clients,
    "peers": measure_peers,
    "tracked": measure_tracked,
    "storage": measure_storage,
    "neighbours": measure_neighbours,
    "invented-names": measure_invented_names,
    "gateway": measure_gateway,
    "reports": measure_reports,
}

_PACKAGES = ("pyspark", "delta-spark", "pandas", "pyarrow", "numpy", "msgspec", "kafka-python", "confluent-kafka")


def run_bench(scale: Scale) -> int:
    """Measure, and show the findings, also those before an interruption; 0 when everything was measured, else 1."""
    findings, code, overrides = Findings(), 0, sections(scale.settings)
    environment = _environment(scale)
    interrupt_on_signals()
    psutil.cpu_times_percent()  # the percentages below are since this call
    try:
        with BenchmarkRig(overrides) as rig:
            for name in scale.only or _MEASURES:
                code = max(code, _measure(name, rig, scale, findings))
    except KeyboardInterrupt:
        print_error("bench", "interrupted; what was measured so far:")
        code = EXIT_INTERRUPTED
    environment |= {
        "load average over 1 minute, after": f"{os.getloadavg()[0]:.1f}",
        "CPU time that the host gave to others": f"{getattr(psutil.cpu_times_percent(), 'steal', 0.0):.1f}%",
    }
    if not findings.figures:
        return code
    print(to_markdown(environment, findings))
    if scale.json:
        scale.json.write_text(to_json(environment, findings))
    return code


def _measure(name: str, rig: BenchmarkRig, scale: Scale, findings: Findings) -> int:
    """Take a measurement; 1 if it fails, which doesn't keep the others from being taken."""
    start_s, code = time.monotonic(), 0
    print(f"bench: {name}: {MEASURES[name]} ...", file=sys.stderr, flush=True)
    try:
        _MEASURES[name](rig, scale, findings)
    except InvalidSettingsError:  # of --set: the same in every measurement
        raise
    except (SluiceError, KafkaException, RemoteError, OSError, EOFError) as error:
        print_error("bench", f"{name}: {error}")
        code = EXIT_FAILED
    print(f"bench: {name} took {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
    return code


def _environment(scale: Scale) -> dict[str, str]:
    _, java = find_java()
    kafka = next(jar for jar in BROKER_JARS.expected() if jar.startswith("kafka-clients-"))
    packages = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    git = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    memory_gib = psutil.virtual_memory().total / 2**30
    return {
        "command": shlex.join(["./scripts/bench", *sys.argv[1:]]),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit or "unknown",
        "machine": f"{os.cpu_count()} cores of {_processor()}, {memory_gib:.0f} GiB, {platform.system()}",
        "versions": f"Python {platform.python_version()}, Java {java}, {kafka}, {packages}",
        "load average over 1 minute, before": f"{os.getloadavg()[0]:.1f}",
        "scale": (
            f"{scale.runs} runs of {scale.events} events in batches of {scale.batch_events}, the first {scale.warm} of "
            f"which don't count; {scale.users} users; Java is {'not warm' if scale.quick else 'warm'}"
        ),
        "settings changed": json.dumps(sections(scale.settings)),
    }


def _processor() -> str:
    """The processor's name, which psutil doesn't know."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return found[1] if found else platform.machine()


if __name__ == "__main__":
    sys.exit(run_command("bench", Scale, run_bench))
