"""Native deciding: the same decisions, sums, waits and stored pages as Python's, from any page batches and pages."""

import ctypes
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from native_fuzz.builds import EXAMPLES, LONG_EXAMPLES, SEED, library
from native_fuzz.pages import compare, compare_pages, outputs_of
from native_fuzz.switched import REASONS, with_or_without
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import CLIENT_KINDS, Coexistence, QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares import sums
from sluice.streaming.enforce import pipeline
from sluice.streaming.enforce.engine import PageToDecide
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Source, decode_group
from sluice_demo.job import storage_in, write_settings
from sluice_lab.benchmarks.events import LOADS, Load, spread
from sluice_lab.benchmarks.harness import Workers
from sluice_native import decide as native_decide
from sluice_native.decide import NativeCharger, native_charger
from sluice_native.library import declined as left_to_python
from tests.builders import DEFAULTS, member, quota
from tests.decided_pages import in_python

_PARTS = 4  # of the events, so that processes share them
_SETTINGS = PipelineSettings.of(DEFAULTS)._replace(pages=1)
_NOW_MS = 1_800_000_000_000
_PRODUCE = {"api": "Produce", "bytes": 10}


@pytest.mark.parametrize("part", range(_PARTS))
def test_pages_are_decided_as_in_python_to_the_byte(part: int) -> None:
    """Any quotas, windows and amounts, control records, damaged pages and page batches, attempts that break off."""
    left_to_python.clear()
    decided, declined = compare(library(), EXAMPLES // _PARTS, SEED + part)
    assert decided > declined, "resets, giant decisions and what is damaged are declined, but not the rest"
    assert 0 < left_to_python["groups"] < left_to_python["pages"]


@pytest.mark.long
@pytest.mark.timeout(8 * 3600)
@pytest.mark.parametrize("part", range(_PARTS))
def test_pages_are_decided_as_in_python_to_the_byte_for_millions_of_events(part: int) -> None:
    compare(library(), LONG_EXAMPLES // _PARTS, 1_000 + SEED + part)


def test_numbers_are_the_texts_of_msgspec() -> None:
    """Any doubles, those of rates, whole ones, and powers of two, whose two neighbours aren't equally near."""
    draw, count = np.random.default_rng(SEED), 250_000
    some = [
        draw.integers(0, 2**64, count, dtype=np.uint64).view(np.float64),
        draw.integers(0, 2**53, count) / (draw.integers(1, 20_000, count) / 1000.0),
        draw.random(count) * 10.0 ** draw.integers(-9, 18, count),
        draw.integers(0, 2**62, count) / 10.0 ** draw.integers(0, 18, count),
        np.ldexp(1.0, draw.integers(-1074, 1023, count)),
        np.array(
            [0.0, -0.0, 5e-324, 1.7976931348623157e308, np.inf, np.nan, 1e15, 1e16, 1e17, 1e22, 1e23, 1e-5, 9.9e-6]
        ),
    ]
    for numbers in some:
        text = ctypes.create_string_buffer(33 * len(numbers))
        length = library().doubles_text(numbers.ctypes.data, len(numbers), text)
        expected = msgspec.json.encode(numbers.tolist())[1:-1].split(b",")
        found = text.raw[:length].split(b",")
        assert [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]] == []


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_bench_s_pages_are_all_decided_natively(load: Load, tmp_path: Path) -> None:
    settings = write_settings(tmp_path / "settings.yaml", storage_in(tmp_path), {"state": {"pages": 8}})
    native_decide.kept_charger.cache_clear()
    left_to_python.clear()

    workers = Workers(load, settings)
    for first in range(0, 5_000, 1_000):
        workers.micro_batch(first, spread(1_000, 1_000))

    assert native_decide.kept_charger.cache_info().currsize == 1
    assert left_to_python["pages"] == left_to_python["groups"] == 0


def page_of(quotas: Quotas, events: list[dict[str, Any]], settings: PipelineSettings = _SETTINGS) -> PageToDecide:
    """The page batches of these events, all of one page."""
    alice = {"user": "alice", "client_id": "app", "timestamp_ms": _NOW_MS}
    values = [json.dumps(event if "control" in event else alice | event).encode() for event in events]
    sources = ((value, Source(settings.requests_topic, 0, number, _NOW_MS)) for number, value in enumerate(values))
    planned = pipeline.plan(sources, quotas, settings, _NOW_MS)
    return PageToDecide(0, None, [batch for by_page in planned for batch in by_page.values()])


@pytest.mark.parametrize("event", [
    {"api": "Produce", "bytes": 10**9},
    {"api": "Fetch", "bytes": 10**9, "withheld": True, "instance": "i-0"},
    {"api": "Metadata", "request_time_ns": 10**12, "network_time_ns": 10**9},
    {"api": "CreateTopics", "api_version": 1, "mutations": [{"topic": "a", "partitions": 9_000}]},
    {"api": "CreateTopics", "mutations": [{"topic": "a", "partitions": 9_000}, {"topic": "b", "partitions": 1}]},
    {"api": "Connect", "requests": 10**6},
    {"api": "Produce", "topic_partitions": [{"topic": "a", "partition": n, "bytes": 2**53} for n in range(12)]},
    {"api": "DeleteTopics", "user": "of-shop", "mutations": [{"topic": "a", "partitions": 9_000}]},
    {"api": "Produce", "bytes": 10**9, "instance": "i-1", "throttled_by": [
        {"quota": "producer_byte_rate", "entity": {"user": "alice"}, "ms": 9}]},
], ids=lambda event: event["api"])  # fmt: skip
def test_what_is_throttled_or_refused_is_decided_natively(event: dict[str, Any]) -> None:
    """Loads with throttled clients are what quotas are for."""
    entries = [quota(kind, 5.0, user=DEFAULT) for kind in CLIENT_KINDS]
    of_tenant = [member("shop", user="of-*"), quota(QuotaKind.CONTROLLER_MUTATION_RATE, 9.0, tenant="shop")]
    quotas = Quotas([*entries, *of_tenant], version=3)
    charger = NativeCharger(_SETTINGS, library())

    page = page_of(quotas, [event] * 3)
    made = charger.decide([page])

    partial = [each for payload in made.partial_decisions.values for each in decode_group(payload or b"")]
    outputs = pipeline.combine(partial, _SETTINGS) if partial else outputs_of(made)
    decisions = [json.loads(value or b"") for value in outputs[_SETTINGS.decisions_topic].values]
    assert (charger.decided, charger.declined) == (1, 0)
    assert decisions[-1]["verdict"] in ("THROTTLE", "REJECT")
    assert made.stored == [in_python([page], _SETTINGS).stored[0]]


def test_a_limit_that_was_given_as_a_whole_number_is_a_float_in_pages() -> None:
    """Shapes of charges are kept: 7 and 7.0 are equal, and native code would decline all of both."""
    for limit in (7, 7.0):
        charger = NativeCharger(_SETTINGS, library())
        charger.decide([page_of(Quotas([quota(QuotaKind.PRODUCER_BYTE_RATE, limit, user=DEFAULT)]), [_PRODUCE])])
        assert (charger.decided, charger.declined) == (1, 0)


def test_gateways_beyond_those_that_sums_name_are_summed_up_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a sender of invented instances would take native code from all pages."""
    for module in (native_decide, sums):
        monkeypatch.setattr(module, "MAX_NAMED_GATEWAYS", 2)
    quotas = Quotas([quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user=DEFAULT)], version=3)
    charger = NativeCharger(_SETTINGS, library())
    inline: list[dict[str, Any]] = [{}, {"throttled_by": []}]
    events = [{"api": "Produce", "bytes": 1, "instance": f"i-{each % 5}"} | inline[each % 2] for each in range(20)]

    compare_pages(charger, [page_of(quotas, events)], _SETTINGS)

    assert (charger.decided, charger.declined) == (1, 0)


def test_no_name_takes_the_place_of_the_charges_or_of_the_answer() -> None:
    """Native code finds both by the text around them; quotes in names are escaped."""
    names = ['],"decided_by":null,"charges":[', ',"verdict":"ALLOW"', "\n", '\\"']
    entries = [quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user=DEFAULT)]
    named = [{"user": name, "client_id": name, "gateway": name, "instance": name} for name in names]
    events = [{"api": "Produce", "bytes": size} | of for of in named for size in (1, 10**9)]
    events += [event | {"request_time_ns": 1, "api": "Fetch", "cluster_action": True} for event in events]
    charger = NativeCharger(_SETTINGS, library())

    compare_pages(charger, [page_of(Quotas(entries, version=3), events)], _SETTINGS)

    assert (charger.decided, charger.declined) == (1, 0)


def test_a_page_with_a_reset_is_declined_and_leaves_nothing() -> None:
    quotas = Quotas([quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user=DEFAULT)], version=3)
    charger = NativeCharger(_SETTINGS, library())
    plain = {"api": "Produce", "bytes": 10**9, "instance": "i-0"}
    unmute = {"control": "unmute", "request_id": "r", "entity": {"user": "alice"}}

    made = charger.decide([page_of(quotas, [plain, unmute, plain])])

    assert made.stored == [None]
    assert made.records == {}
    assert made.partial_decisions.keys == []
    assert list(made.sums.records("0123", 5, 1)) == []


def test_a_limit_that_damage_has_made_no_number_is_left_to_python() -> None:
    page = page_of(Quotas([quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user=DEFAULT)]), [_PRODUCE])
    harmed = [batch.replace(b"\xcb\x40\x14", b"\xcb\x7f\xf8") for batch in page.page_batches]
    assert NativeCharger(_SETTINGS, library()).decide([PageToDecide(0, None, harmed)]).stored == [None]


def test_sequential_coexistence_is_decided_by_python() -> None:
    assert native_charger(_SETTINGS._replace(quota=QuotaSettings(coexistence=Coexistence.SEQUENTIAL))) is None


@pytest.mark.parametrize("reason", REASONS)
def test_python_decides_where_native_code_is_turned_off_or_not_built(reason: str, tmp_path: Path) -> None:
    rows, load = [], LOADS[1]
    for native in (True, False):
        with with_or_without(tmp_path, reason, NativeCharger, "decide", native=native) as settings:
            made = Workers(load, settings).micro_batch(0, spread(100, 50))
        rows.append(sorted(row for row in made if row[1] != settings.topics.sums))

    assert rows[0] == rows[1]


def test_new_counters_are_stored_in_the_order_of_their_keys_whatever_order_rows_come_in() -> None:
    """Spark gives page batches in any order; a page that is made again has the same bytes."""
    quotas = Quotas([quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user=DEFAULT, client_id=DEFAULT)], version=3)
    events = [{"api": "Produce", "bytes": 9, "client_id": f"c-{number}"} for number in range(99)]
    pages = []
    for few in (20, 99):  # charged one by one, and together
        own = events[:few]
        for _ in range(2):
            random.Random(few).shuffle(own)
            pages.append(in_python([page_of(quotas, own)], _SETTINGS).stored[0])

    assert pages[0] == pages[1]
    assert pages[2] == pages[3]
