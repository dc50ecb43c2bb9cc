"""A checkpoint that begins with others' balances."""

from dataclasses import replace
from pathlib import Path

import pytest

from configs.settings import Settings, load_settings
from state.entity import Tags
from state.errors import StateError
from state.quota import QuotaKind
from streaming.balances import Balances
from streaming.checkpoint import CheckpointFolder, Origin, check_origin
from streaming.errors import CheckpointError
from streaming.seed import Seeds, plant, read_start
from tests.unit.test_resharding import stored

DEFAULTS = load_settings(environment={})
USERS = [Tags(f"user{number}") for number in range(20)]
SHARDS = 32


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The defaults with a checkpoint that doesn't exist yet."""
    return replace(DEFAULTS, enforce=replace(DEFAULTS.enforce, checkpoint=str(tmp_path / "checkpoint")))


@pytest.fixture
def balances(settings: Settings) -> Balances:
    """Twenty users' byte rates."""
    charges = [(user, QuotaKind.PRODUCER_BYTE_RATE, 1.0, 7.0, 5) for user in USERS]
    return Balances(Origin.of(settings), {0: 17}, stored(charges, SHARDS))


def test_each_shard_begins_with_its_seed_as_often_as_it_is_asked_for(settings: Settings, balances: Balances) -> None:
    """A repeated micro-batch finds what the first run found; a shard without entities begins empty."""
    plant(CheckpointFolder(settings.enforce.checkpoint), balances)
    check_origin(CheckpointFolder(settings.enforce.checkpoint), settings)

    seeds = Seeds.of(settings)

    for _ in range(2):
        shards = [seeds.shard(number) for number in range(SHARDS)]
        assert sum(map(len, shards)) == len(USERS)
        assert {number for number in range(SHARDS) if len(shards[number])} == balances.shards.keys()


def test_a_checkpoint_of_its_own_has_no_seeds(settings: Settings) -> None:
    """Nor a start."""
    folder = CheckpointFolder(settings.enforce.checkpoint)
    check_origin(folder, settings)

    assert read_start(folder) is None
    assert len(Seeds.of(settings).shard(0)) == 0


def test_an_import_that_was_cut_short_is_never_run(settings: Settings, balances: Balances) -> None:
    """Some shards would begin with nothing, and requests be charged twice."""
    folder = CheckpointFolder(settings.enforce.checkpoint)
    plant(folder, balances)
    folder.remove("start.json")

    with pytest.raises(CheckpointError, match="was cut short; remove that folder and import again"):
        Seeds.of(settings)


def test_a_seed_that_is_gone_or_damaged_is_no_empty_shard(settings: Settings, balances: Balances) -> None:
    """It is an error that says what to do."""
    folder = CheckpointFolder(settings.enforce.checkpoint)
    plant(folder, balances)
    number = min(balances.shards)

    folder.write(f"seeds/{number:05d}.bin", balances.shards[number][:-1])
    with pytest.raises(StateError, match="restore the checkpoint from a backup"):
        Seeds.of(settings).shard(number)
    folder.remove(f"seeds/{number:05d}.bin")
    with pytest.raises(CheckpointError, match="is missing"):
        Seeds.of(settings).shard(number)
