"""A checkpoint that starts with imported balances."""

from pathlib import Path

import pytest
from msgspec import structs

from sluice.configs.settings import Settings
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind
from sluice.streaming.balances.imported import ImportedBalances, read_imported_start
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import Origin, charged_topic_id, check_origin
from sluice.streaming.enforce.requests_topic import another_topic
from sluice.streaming.errors import CheckpointError
from sluice_toolbox.balances import Balances, store_imported
from tests.builders import DEFAULTS, changed
from tests.stored_pages import stored

DEFAULTS = changed(DEFAULTS, "state", pages=600)
USERS = [Tags(f"user{number}") for number in range(20)]
PAGES = 600
"""In three files."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The defaults with a checkpoint that doesn't exist yet."""
    return changed(DEFAULTS, "enforce", checkpoint=str(tmp_path / "checkpoint"))


@pytest.fixture
def balances(settings: Settings) -> Balances:
    """Twenty users' byte rates."""
    charges = [(user, QuotaKind.PRODUCER_BYTE_RATE, 1.0, 7.0, 5) for user in USERS]
    return Balances(Origin.of(settings), {0: 17}, stored(charges, PAGES))


def test_each_page_starts_with_its_imported_balances_every_time(settings: Settings, balances: Balances) -> None:
    """A repeated micro-batch finds what the first run found; a page without entities begins empty."""
    store_imported(Checkpoint(settings.enforce.checkpoint), balances)
    check_origin(Checkpoint(settings.enforce.checkpoint), settings)

    imported = ImportedBalances.of(settings)

    for _ in range(2):
        assert imported.pages(range(PAGES)) == balances.pages
    for number in range(PAGES):
        assert imported.pages([number]) == {at: page for at, page in balances.pages.items() if at == number}
    assert imported.all_pages() == balances.pages


@pytest.mark.parametrize("topic_id", ["first", None])
def test_imported_balances_are_of_the_topic_that_they_were_charged_from(
    settings: Settings, balances: Balances, topic_id: str | None
) -> None:
    """In other pages too: their offsets name other requests in a topic that was made again."""
    store_imported(Checkpoint(settings.enforce.checkpoint), structs.replace(balances, topic_id=topic_id).resharded(7))

    assert charged_topic_id(Checkpoint(settings.enforce.checkpoint)) == topic_id
    assert (another_topic(settings, "second") is None) == (topic_id is None)
    assert another_topic(settings, topic_id) is None


def test_a_checkpoint_of_its_own_has_no_imported_balances(settings: Settings) -> None:
    """Nor a start."""
    folder = Checkpoint(settings.enforce.checkpoint)
    check_origin(folder, settings)

    assert read_imported_start(folder) is None
    assert not ImportedBalances.of(settings).pages(range(PAGES))


def test_an_import_that_was_cut_short_is_never_run(settings: Settings, balances: Balances) -> None:
    """Some pages would begin with nothing, and requests be charged twice."""
    folder = Checkpoint(settings.enforce.checkpoint)
    store_imported(folder, balances)
    folder.sluice.remove("start.json")

    with pytest.raises(CheckpointError, match="was cut short; remove that folder and import again"):
        ImportedBalances.of(settings)


def test_imported_balances_that_are_gone_or_damaged_are_no_empty_page(settings: Settings, balances: Balances) -> None:
    """It is an error that says what to do."""
    folder = Checkpoint(settings.enforce.checkpoint)
    store_imported(folder, balances)

    folder.sluice.write("seeds/pages-00000.bin", b"half")
    with pytest.raises(CheckpointError, match="restore the checkpoint from a backup"):
        ImportedBalances.of(settings).pages([0])
    folder.sluice.remove("seeds/pages-00000.bin")
    with pytest.raises(CheckpointError, match="is missing"):
        ImportedBalances.of(settings).pages([0])
