"""Exported balances: the file, and going on from it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.codec import CODEC_VERSION
from sluice.streaming.checkpoint.origin import Origin
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.simulation import Simulation
from sluice.streaming.enforce.wire import OutputRecord, Source
from sluice_toolbox import balances as balances_module
from sluice_toolbox.balances import Balances, read_balances, write_balances
from sluice_toolbox.errors import StateFileError
from tests import strategies
from tests.builders import DEFAULTS
from tests.micro_batches import MicroBatches
from tests.stored_pages import PageCharge, bits, charges, stored


def balances_of(pages: dict[int, bytes], count: int) -> Balances:
    return Balances(Origin(count, "quota-requests", (11, 1000), (11, 1000)), {0: 17, 1: 2**40}, pages)


def all_bits(balances: Balances) -> dict[str, bytes]:
    return bits(balances.pages.values(), balances.origin.pages)


@given(charge_list=charges, before=st.integers(1, 9), after=st.integers(1, 9))
def test_a_file_imported_with_another_page_count_has_every_counter_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, charge_list: list[PageCharge], before: int, after: int
) -> None:
    """And the same offsets."""
    exported = balances_of(stored(charge_list, before), before)
    file = tmp_path_factory.mktemp("export") / "balances"

    write_balances(file, exported)
    read = read_balances(file)
    imported = read.resharded(after)

    assert read == exported
    assert all_bits(imported) == all_bits(exported)
    assert imported.entities() == exported.entities() == len({tags.key() for tags, *_ in charge_list})
    assert imported.offsets == exported.offsets
    assert imported.origin.pages == after


@given(
    stream=st.lists(strategies.events(), max_size=30),
    cut=st.integers(0, 30),
    before=st.sampled_from([1, 4, 8]),
    after=st.sampled_from([1, 5, 32]),
    entries=strategies.quota_entries,
)
def test_decisions_after_it_equal_those_without_it(
    stream: list[bytes], cut: int, before: int, after: int, entries: list[QuotaEntry]
) -> None:
    """Wherever the stream is cut."""
    quotas, plan = Quotas(entries), PipelineSettings.of(DEFAULTS)
    events = [(value, Source("quota-requests", 0, offset, strategies.START_MS)) for offset, value in enumerate(stream)]
    first, second = MicroBatches(plan._replace(pages=before)), MicroBatches(plan._replace(pages=after))

    records = first.run(events[:cut], quotas)
    second.state = dict(balances_of(first.state, before).resharded(after).pages)
    records += second.run(events[cut:], quotas)

    assert answers(records) == answers(list(Simulation(quotas, DEFAULTS).decide(stream)))


def answers(records: list[OutputRecord]) -> list[str]:
    """Decisions and dead letters without the time of deciding."""
    return sorted(json.dumps({**json.loads(record.value), "decided_at_ms": 0}) for record in records)


@pytest.mark.parametrize("place", [20, 60, -1])
def test_a_damaged_file_is_refused(tmp_path: Path, place: int) -> None:
    """A single flipped bit, in digest, content or end; or a missing end."""
    file = tmp_path / "balances"
    write_balances(file, balances_of({}, 4))
    written = bytearray(file.read_bytes())
    written[place] ^= 1

    for damaged in (written, written[:-1], written[:20]):
        file.write_bytes(damaged)
        with pytest.raises(StateFileError, match="is damaged; export once more"):
            read_balances(file)


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "holds no exported balances"), (b"sluice state 2\n", "the release that exported it")]
)
def test_another_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """By what it is, before anything in it is believed."""
    (tmp_path / "other").write_bytes(content)

    with pytest.raises(StateFileError, match=words):
        read_balances(tmp_path / "other")


def test_counters_of_a_newer_codec_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A downgrade doesn't guess."""
    monkeypatch.setattr(balances_module, "CODEC_VERSION", CODEC_VERSION + 1)
    write_balances(tmp_path / "newer", balances_of({}, 4))
    monkeypatch.undo()

    with pytest.raises(StateFileError, match=f"codec version {CODEC_VERSION + 1}, this release reads {CODEC_VERSION}"):
        read_balances(tmp_path / "newer")


def test_an_export_never_replaces_a_file(tmp_path: Path) -> None:
    """It may be the only copy of somebody's balances."""
    file = tmp_path / "balances"
    write_balances(file, balances_of({}, 4))

    with pytest.raises(StateFileError, match="is there already"):
        write_balances(file, balances_of({}, 5))

    assert read_balances(file).origin.pages == 4


def test_an_export_is_for_its_owner_alone(tmp_path: Path, usual_umask: None) -> None:  # noqa: ARG001 -- a state
    """It holds the names of users. A draft that a cut export left doesn't matter."""
    (tmp_path / "export.draft").write_bytes(b"half")

    write_balances(tmp_path / "export", balances_of({}, 4))

    assert (tmp_path / "export").stat().st_mode & 0o777 == 0o600
