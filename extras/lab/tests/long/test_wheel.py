"""The wheel outside the checkout, with an empty home: `sluice demo` on its embedded broker, and a gateway's install."""

import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from installs import install, run
from sluice.jvm import plugin
from sluice_demo.job import wait_until
from sluice_lab.testbed.distribution import EXTRAS, build_extra, build_wheel
from sluice_lab.testbed.processes import descendants
from sluice_proxy import jars as proxy
from sluice_shared_storage import jars as object_store

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]

GATEWAY = """
import sys, time
from sluice import Gateway, GatewayOptions, Request, TopicPartition

with Gateway({"bootstrap.servers": sys.argv[1]}, GatewayOptions(name="elsewhere")) as gateway:
    written = [TopicPartition("orders", 0, bytes=2_000_000)]
    request = Request("Produce", user="greedy", client_id="app", topic_partitions=written)
    deadline_s = time.monotonic() + 60
    while not gateway.admit(request).throttle_ms and time.monotonic() < deadline_s:
        time.sleep(1)
    print("throttled" if gateway.admit(request).throttle_ms else "never throttled")
"""
"""A gateway whose requests are above the limit of configs/quotas.yaml, until it is told so."""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A running `sluice demo` of an install with all extras, and its output. Its jars come from the registry."""
    extras = [build_extra(extra, tmp_path, through_sdist=True) for extra in EXTRAS]
    programs = install(build_wheel(tmp_path), tmp_path / "demo", "all", beside=extras)
    (tmp_path / "home").mkdir()
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SLUICE_HOME")}
    variables |= {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    output = tmp_path / "output"
    with output.open("wb") as shown:
        process = subprocess.Popen(
            [programs / "sluice", "demo", "--seconds", "120"], cwd=tmp_path, env=variables, stdout=shown, stderr=shown
        )
    try:
        yield process, output
    finally:
        process.kill()


def test_a_wheel_runs_the_whole_system_for_a_gateway_of_another_install(
    demo: tuple[subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    process, output = demo
    for name, each in ("kafka", plugin), ("kafka_proxy", proxy), ("kafka_shared_storage", object_store):
        with zipfile.ZipFile(next(tmp_path.glob(f"sluice_{name}-*.whl"))) as wheel:
            assert {Path(name).name for name in wheel.namelist() if name.endswith(".jar")} == {each.JAR_NAME}
    gateway = install(next(tmp_path.glob("sluice_kafka-*.whl")), tmp_path / "gateway")
    wait_until(lambda: "first decision " in output.read_text() or process.poll() is not None, 400)
    said = output.read_text()
    assert "first decision " in said, said
    (broker,) = re.findall(r"starting the job against (\S+) ", said)
    throttled = run(gateway / "python", "-c", GATEWAY, broker, folder=tmp_path)

    assert process.wait(600) == 0, output.read_text()
    assert throttled.stdout == "throttled\n"
    assert re.search(r"^\d+ requests = \d+ decisions \+ \d+ dead letters", output.read_text(), re.MULTILINE)
    assert not descendants(process.pid)
    assert sorted(path.name for path in (tmp_path / "cache" / "sluice").iterdir()) == ["jars", "running", "work"]
