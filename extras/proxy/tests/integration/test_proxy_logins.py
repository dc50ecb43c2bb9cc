"""Parts of a proxy by themselves: names in logins, as a broker's own servers accept them, of topics, and holds.

With the Kroxylicious that the proxy runs, and with the newest interface of filters, whose runtime no registry has.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.java.build import PROXY
from scripts.java.compiler import compile_java
from sluice.jvm.java import find_java
from sluice_demo.jars import BROKER_JARS
from sluice_lab.testbed.jars import NEW_PROXY_JARS
from sluice_proxy.jars import PROXY_JARS

JAVA_SOURCES = Path(__file__).parents[1] / "java" / "sluice"
SEED = 20261125
MESSAGES = 100_000


def compiled(sources: Sequence[Path], jars: Sequence[Path], folder: Path) -> str:
    """The class path of these sources, compiled into a new folder, and of the jars."""
    folder.mkdir()
    compile_java(sources, jars, folder, PROXY.release)
    return os.pathsep.join(map(str, [*jars, folder]))


def with_newest_interface() -> Sequence[Path]:
    """The jars of the proxy, but for the interface of filters."""
    return [*NEW_PROXY_JARS.paths(), *(jar for jar in PROXY_JARS.paths() if "kroxylicious-api" not in jar.name)]


@pytest.fixture(params=["0.12.0", "0.18.0"])
def proxy_jars(request: pytest.FixtureRequest) -> Sequence[Path]:
    """The jars of the proxy, with the interface of a release."""
    return with_newest_interface() if request.param == "0.18.0" else PROXY_JARS.paths()


def test_whom_a_broker_accepts_the_proxy_meters_under_that_name(tmp_path: Path, proxy_jars: Sequence[Path]) -> None:
    """However a client damages its messages. The broker's Kafka isn't that of the proxy."""
    broker = compiled([JAVA_SOURCES / "broker" / "BrokerLogin.java"], BROKER_JARS.paths(), tmp_path / "broker")
    proxy_sources = [
        JAVA_SOURCES / "proxy" / "LoginFuzz.java",
        PROXY.sources[0] / "sluice" / "proxy" / "Login.java",
    ]
    proxy = compiled(proxy_sources, proxy_jars, tmp_path / "proxy")
    java, _ = find_java()
    fuzz = [java, "-XX:+UseSerialGC", "-cp", proxy, "sluice.proxy.LoginFuzz", str(SEED), str(MESSAGES), broker]
    ran = subprocess.run(fuzz, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, f"seed {SEED}: {ran.stdout}{ran.stderr}"
    accepted = {mechanism: int(count) for mechanism, _, count in map(str.split, ran.stdout.splitlines())}
    assert {*accepted} == {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "token"}
    assert min(accepted.values()) > MESSAGES / 100, accepted


def check(program: str, tested: str, jars: Sequence[Path], folder: Path) -> None:
    """Run a program of extras/proxy/tests/java that tests this class of the proxy."""
    sources = [
        JAVA_SOURCES / "proxy" / f"{program}.java",
        PROXY.sources[0] / "sluice" / "proxy" / f"{tested}.java",
    ]
    java, _ = find_java()
    checks = [java, "-XX:+UseSerialGC", "-cp", compiled(sources, jars, folder / "proxy"), f"sluice.proxy.{program}"]
    ran = subprocess.run(checks, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"


def test_a_topic_that_is_named_like_the_id_of_another_one_is_charged_as_any(
    tmp_path: Path, proxy_jars: Sequence[Path]
) -> None:
    """Two that the proxy took for one were charged as one, and given back with the one that the broker refused."""
    check("NamesAndIds", "TopicRequest", proxy_jars, tmp_path)


def test_a_request_is_held_for_ten_seconds_at_most_however_late_each_look_at_it_comes(
    tmp_path: Path, proxy_jars: Sequence[Path]
) -> None:
    """Planned waits were added up, so that ten thousand of 1 ms took as long as the event loop made of them."""
    check("LateLooks", "Hold", proxy_jars, tmp_path)


def test_whom_the_proxy_has_authenticated_itself_is_metered_under_that_name(tmp_path: Path) -> None:
    """No login passes by a filter behind one that ends logins at the proxy: all its clients were ANONYMOUS."""
    check("SubjectOfLogin", "Authenticated", with_newest_interface(), tmp_path)


@pytest.mark.long
def test_the_filter_uses_nothing_that_the_newest_interface_deprecates(tmp_path: Path) -> None:
    compiled(
        [source for folder in PROXY.sources for source in folder.rglob("*.java")],
        with_newest_interface(),
        tmp_path / "new",
    )
