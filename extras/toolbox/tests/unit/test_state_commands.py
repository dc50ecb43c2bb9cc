"""`sluice state ...` as far as no Spark is needed: what it refuses, and balances that nothing was charged to yet."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sluice.configs.settings import Settings, load_settings
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.store.codec import decode
from sluice.streaming.balances.imported import ImportedBalances
from sluice.streaming.checkpoint.batch_log import BatchLog
from sluice.streaming.checkpoint.folder import Checkpoint, locked
from sluice.streaming.checkpoint.origin import Origin, check_origin
from sluice_toolbox.balances import Balances, read_balances, write_balances
from tests.commands import Ended, invoke
from tests.stored_pages import stored

USERS = [Tags(f"user{number}") for number in range(20)]
CHARGES = [(user, QuotaKind.PRODUCER_BYTE_RATE, 1.0, 7.0, 5) for user in USERS]


def imported_entities(settings: Settings, pages: int) -> int:
    """Entities with imported balances in the checkpoint of the settings."""
    return sum(len(decode(payload, pages)) for payload in ImportedBalances.of(settings).pages(range(pages)).values())


class Place:
    """A folder with settings, a checkpoint and a file of balances, and the command line run on them."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "balances"
        self._settings_file = folder / "settings.yaml"
        self.use(pages=8)
        write_balances(self.file, Balances(Origin.of(self.settings), {0: 17, 1: 4}, stored(CHARGES, 8)))

    @property
    def settings(self) -> Settings:
        """As they are written now."""
        return load_settings(self._settings_file)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that the settings name."""
        return Checkpoint(self.settings.enforce.checkpoint)

    def use(self, pages: int, **sections: dict[str, object]) -> None:
        """Write other settings; the checkpoint stays."""
        enforce = {"checkpoint": str(self._settings_file.parent / "checkpoint")}
        self._settings_file.write_text(yaml.safe_dump({"state": {"pages": pages}, "enforce": enforce, **sections}))

    def state(self, *arguments: object) -> Ended:
        """Run `sluice state ...`."""
        return invoke("state", *arguments, "--config", self._settings_file, code=None)

    def refused(self, *arguments: object, code: int = 1) -> str:
        """Run `sluice state ...`, which ends with this code and says nothing but one line of error."""
        ended = self.state(*arguments)
        assert (ended.output, ended.code) == ("", code)
        return ended.error_line


@pytest.fixture
def place(here: Path) -> Place:
    """Balances of twenty users in 8 pages, and a checkpoint that doesn't exist yet."""
    return Place(here)


def plan_batch(place: Place, conf: bytes = b"{}") -> None:
    """Spark has planned micro-batch 0."""
    place.checkpoint.spark.write("metadata", b'{"id": "some"}')
    place.checkpoint.spark.write("offsets/0", b"v1\n" + conf + b'\n{"quota-requests": {"0": 20, "1": 4}}')


def test_an_import_says_what_it_did_and_where_the_job_goes_on(place: Place) -> None:
    """In one line; and the job takes the checkpoint for its own."""
    place.use(pages=5)

    code, output, _ = place.state("import", place.file)

    assert (code, output.count("\n")) == (0, 1)
    assert output.startswith("imported 20 entities into 5 pages in ")
    assert output.endswith("the next sluice run goes on at quota-requests 0:17 1:4\n")
    check_origin(place.checkpoint, place.settings)
    assert imported_entities(place.settings, 5) == 20


def test_balances_that_were_imported_and_not_used_yet_can_be_exported_again(place: Place) -> None:
    """Imported balances are as good as stored ones."""
    place.use(pages=5)
    place.state("import", place.file)
    again = place.file.with_name("again")

    code, output, _ = place.state("export", again)

    assert (code, output.count("\n")) == (0, 1)
    assert output.startswith("exported 20 entities of 5 pages, charged up to quota-requests 0:17 1:4, to ")
    assert read_balances(again).entities() == 20
    assert read_balances(again).offsets == {0: 17, 1: 4}


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"topics": {"requests": "other"}}, "topics.requests = quota-requests, the settings say other; set it back"),
        ({"quota": {"quota.window.num": 5}}, "quota.window.num"),
        ({"quota": {"controller.quota.window.size.seconds": 2}}, "controller.quota.window.num"),
    ],
)
def test_balances_go_to_no_other_topic_or_window(
    place: Place, sections: dict[str, dict[str, object]], named: str
) -> None:
    """They would mean something else. One line says which setting; the checkpoint stays untouched."""
    place.use(8, **sections)

    assert named in place.refused("import", place.file, code=2)
    assert place.checkpoint.is_new()


def test_an_import_takes_a_new_folder_only(place: Place) -> None:
    """One with anything in it may be a job's."""
    place.state("import", place.file)

    assert "isn't empty; name a new enforce.checkpoint" in place.refused("import", place.file)


def test_a_damaged_file_leaves_no_trace(place: Place) -> None:
    """Bad input is exit 2, one line."""
    place.file.write_bytes(place.file.read_bytes()[:-1])

    assert "is damaged" in place.refused("import", place.file, code=2)
    assert place.checkpoint.is_new()


def test_there_must_be_balances(place: Place) -> None:
    """Neither no checkpoint nor one without a micro-batch; no folder is made."""
    for words in ("name the enforce.checkpoint of a job that has run", "has committed no micro-batch"):
        assert words in place.refused("export", "unused")
        assert not Path("unused").exists()
        check_origin(place.checkpoint, place.settings)


def test_a_running_job_is_left_alone(place: Place) -> None:
    """It holds its checkpoint."""
    place.state("import", place.file)

    with locked(place.checkpoint):
        error = place.refused("export", "unused")

    assert "is in use by a job or another command; stop it with SIGTERM first" in error


def test_a_micro_batch_that_was_begun_has_to_be_committed_first(place: Place) -> None:
    """Part of its decisions may be out; only its own query leaves those out when it repeats the batch."""
    place.state("import", place.file)
    plan_batch(place)
    BatchLog(place.checkpoint).begin(0, quota_version=0, now_ms=1)

    error = place.refused("export", "unused")

    assert "micro-batch 0" in error
    assert "start the job once with the settings it ran with" in error


def test_a_micro_batch_that_was_only_planned_is_left_to_the_next_run(place: Place) -> None:
    """As it is when a job is stopped: nothing of it was decided, so the balances stand before it."""
    place.state("import", place.file)
    plan_batch(place)

    code, _, _ = place.state("export", place.file.with_name("again"))

    assert code == 0
    assert read_balances(place.file.with_name("again")).offsets == {0: 17, 1: 4}


_WORKS = """
import sys
from sluice_toolbox.stored_state import temporary_folder
with temporary_folder("sluice-test-") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_temporary_folder_is_gone_after_each_signal(sent: signal.Signals) -> None:
    """A command that reads the state has copies of it there."""
    with subprocess.Popen(
        [sys.executable, "-c", _WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as working:
        assert working.stdout is not None
        folder = Path(working.stdout.readline().strip())
        assert folder.is_dir()
        working.send_signal(sent)

    assert working.returncode == 128 + sent
    assert not folder.exists()
