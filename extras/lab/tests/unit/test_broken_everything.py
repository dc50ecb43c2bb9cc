"""Each command, with each of its inputs missing, forbidden, damaged or wrong: one line that an operator can act on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from job_tables import recorded, settings_in
from sluice.cli.main import UNEXPECTED, app
from sluice.kafka_io import client as kafka_client
from sluice_reading import options
from tests.accounts import STRANGER, as_account, as_root
from tests.commands import Ended, invoke
from tests.web import answering

SETTINGS = ("--config", "{settings}")
COMMANDS: dict[str, tuple[str, ...]] = {
    "advise": SETTINGS,
    "balance": ("--client-id", "app", *SETTINGS),
    "broker-plugin": ("--out", "{folder}/settings.yaml/plugin", *SETTINGS),
    "console": ("--port", "{taken}", *SETTINGS),
    "demo": ("--brokers", "none"),
    "doctor": SETTINGS,
    "explain": ("--client-id", "app", *SETTINGS),
    "kafka-gateway": SETTINGS,
    "maintain": SETTINGS,
    "notices": SETTINGS,
    "own-view": ("--port", "{taken}", *SETTINGS),
    "quotas alter": ("--user", "u", "--add-config", "producer_byte_rate=1", "--yes", *SETTINGS),
    "quotas apply": ("{input}", "--yes", *SETTINGS),
    "quotas describe": SETTINGS,
    "quotas export": SETTINGS,
    "quotas exposure": ("--bootstrap-server", "{broker}"),
    "quotas history": SETTINGS,
    "quotas hold": ("--user", "u", "--for", "1m", "--reason", "test", *SETTINGS),
    "quotas import": ("--file", "{input}", *SETTINGS),
    "quotas release": ("--user", "u", *SETTINGS),
    "quotas resolve": ("--user", "u", *SETTINGS),
    "quotas revert": ("--to-version", "0", "--yes", *SETTINGS),
    "run": SETTINGS,
    "simulate": ("--quotas", "{input}", "--events", "{input}", *SETTINGS),
    "slo": SETTINGS,
    "state export": ("{folder}/balances", *SETTINGS),
    "state import": ("{input}", *SETTINGS),
    "tenants alter": ("shop", "--add-member", "user=u", "--yes", *SETTINGS),
    "tenants describe": SETTINGS,
    "tenants import": ("{input}", "--yes", *SETTINGS),
    "tenants resolve": ("--user", "u", *SETTINGS),
    "top": ("--once", *SETTINGS),
    "topics": SETTINGS,
    "unmute": ("--user", "u", "--timeout", "1", *SETTINGS),
    "usage": SETTINGS,
    "whatif": ("--quotas", "{input}", *SETTINGS),
}
"""Arguments of each command, by which it reads what it can."""


def leaves(command: Any, parent: typer.Context | None = None, path: str = "") -> Iterator[str]:
    """The names of all commands below a group."""
    context = typer.Context(command, parent, path.rpartition(" ")[2])
    for name in command.list_commands(context):
        inner, full = command.get_command(context, name), f"{path} {name}".strip()
        yield from leaves(inner, context, full) if hasattr(inner, "commands") else [full]


def test_a_fault_of_sluices_own_has_its_place_in_sluice_wherever_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout has the packages of others below a folder named sluice, too."""
    library: dict[str, Any] = {}
    code = "def decoded_name(_): raise ValueError('odd')"
    exec(compile(code, "/home/me/sluice/.venv/lib/deltalake/table.py", "exec"), library)  # noqa: S102 - a library
    monkeypatch.setattr(options, "decoded_name", library["decoded_name"])

    said = invoke("quotas", "resolve", "--user", "x", code=1).error_line

    assert said.startswith(f"sluice: error: {UNEXPECTED} ValueError at sluice_reading/options.py:")


def test_every_command_is_tried() -> None:
    assert sorted(leaves(get_command(app))) == sorted(COMMANDS)


def _no_tables(_: Path) -> None:
    """The state before the first start of a job."""


def _tables(folder: Path) -> None:
    recorded(folder, 1)


def _files_for_tables(folder: Path) -> None:
    for name in ("quotas", "quotas-holds", "decisions", "quota_metrics", "dead_letters", "unreadable", "overrides"):
        (folder / name).write_text("no table")


def _tables_with(pattern: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        _tables(folder)
        for file in folder.glob(pattern):
            file.write_bytes(content)

    return write


def _no_data(folder: Path) -> None:
    _tables(folder)
    for file in folder.rglob("*.parquet"):
        file.unlink()


def _other_tables(folder: Path) -> None:
    _tables(folder)
    (folder / "decisions").rename(folder / "other")
    (folder / "quotas").rename(folder / "decisions")
    (folder / "other").rename(folder / "quotas")


def _damaged_checkpoint(folder: Path) -> None:
    _tables(folder)
    for name in ("sluice/sluice.json", "sluice/batch.json", "sluice/job.json", "metadata", "offsets/0", "commits/0"):
        file = folder / "enforce" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\xff{")


def _folder_for_input(folder: Path) -> None:
    (folder / "input").mkdir()


def _file(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def _no_settings(folder: Path) -> None:
    (folder / "sluice.yaml").unlink()


def _folder_for_settings(folder: Path) -> None:
    _no_settings(folder)
    (folder / "sluice.yaml").mkdir()


FAULTS: dict[str, Callable[[Path], None]] = {
    "nothing recorded": _no_tables,
    "no broker": _tables,
    "files for tables": _files_for_tables,
    "damaged logs": _tables_with("*/_delta_log/*.json", b"no commit"),
    "empty logs": _tables_with("*/_delta_log/*.json", b""),
    "no data": _no_data,
    "damaged data": _tables_with("**/*.parquet", b"PAR1 no parquet PAR1"),
    "other tables": _other_tables,
    "damaged checkpoint": _damaged_checkpoint,
    "damaged input": _file("input", b"\xff\x00{["),
    "wrong input": _file("input", b'{"users": [1, {"x": null}]}\n'),
    "a folder for input": _folder_for_input,
    "no settings": _no_settings,
    "a folder for settings": _folder_for_settings,
    "damaged settings": _file("sluice.yaml", b"\xff\x00"),
    "settings that are a list": _file("sluice.yaml", b"- kafka\n"),
    "an unknown setting": _file("sluice.yaml", b"kafka: {bootstrap.servers: 'b:1'}\nquota: {sorce: kafka}\n"),
    "no address": _file("sluice.yaml", b"kafka: {bootstrap.servers: 'broker'}\n"),
    "no certificate": _file(
        "sluice.yaml",
        b"kafka: {bootstrap.servers: '127.0.0.1:1', security.protocol: SSL, ssl.truststore.type: PEM,"
        b" ssl.truststore.location: /nowhere/ca.pem}\n",
    ),
}


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port where somebody listens who answers nothing that Kafka's clients know."""
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        yield port


@pytest.fixture(autouse=True)
def nothing_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No search for a broker takes long, and there is no Java where all else is well."""
    monkeypatch.setattr(kafka_client, "CONNECT_TIMEOUT_MS", 100)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))


def ended(command: str, folder: Path, taken: int, broker: str) -> Ended:
    """The end of a command on this folder."""
    places = {"folder": folder, "settings": folder / "sluice.yaml", "input": folder / "input", "taken": taken}
    arguments = [argument.format(broker=broker, **places) for argument in COMMANDS[command]]
    return invoke(*command.split(), *arguments, code=None)


def judge(done: Ended) -> None:
    """One line that says what to do, and an exit code that says whose turn it is."""
    assert done.code in (0, 1, 2), done
    for words in ("Traceback", "Py4J", "py4j", "panicked", UNEXPECTED):
        assert words not in done.error + done.output, done
    lines = done.error.splitlines()
    assert sum(line.startswith("sluice: error: ") for line in lines) <= (done.code != 0), done
    if done.code:
        assert all(line.startswith("sluice: ") for line in lines), done
        assert "FAIL " in done.output or not lines[-1].startswith("sluice: settings: "), done


_SHORT = 6
"""One of so many pairs is tried in ./scripts/test: each command and each fault some times."""

PAIRS = [
    pytest.param(command, fault, marks=() if (row + column) % _SHORT == 0 else pytest.mark.long)
    for row, command in enumerate(COMMANDS)
    for column, fault in enumerate(FAULTS)
]


@pytest.mark.parametrize(("command", "fault"), PAIRS)
def test_an_operator_reads_one_line(command: str, fault: str, tmp_path: Path, taken: int) -> None:
    settings_in(tmp_path)
    FAULTS[fault](tmp_path)

    judge(ended(command, tmp_path, taken, "127.0.0.1:1"))


@pytest.mark.parametrize("command", ["doctor", "kafka-gateway", "quotas exposure", "top", "topics", "unmute"])
def test_a_server_that_is_no_broker_is_one_line(command: str, tmp_path: Path, taken: int) -> None:
    settings = settings_in(tmp_path)
    settings.write_text(settings.read_text().replace("127.0.0.1:1}", f"127.0.0.1:{taken}}}"))
    recorded(tmp_path, 1)

    judge(ended(command, tmp_path, taken, f"127.0.0.1:{taken}"))


@as_root
@pytest.mark.parametrize("command", COMMANDS)
def test_an_account_without_rights_reads_one_line(
    command: str, everybodys: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(everybodys / "java"))
    settings = settings_in(everybodys)
    tables = everybodys / "tables"
    tables.mkdir()
    settings.write_text(settings.read_text().replace(f"{everybodys}/", f"{tables}/"))
    recorded(tables, 1)
    (everybodys / "input").write_text("[]")
    ended(command, everybodys, taken, "127.0.0.1:1")  # the other account may not read Python's own modules
    for place in (tables, everybodys / "input"):
        place.chmod(0o700)

    monkeypatch.setattr("tempfile.tempdir", None)  # one account's folder for temporary files may not be another's
    with as_account(STRANGER):
        judge(ended(command, everybodys, taken, "127.0.0.1:1"))
