"""Random page batches and stored pages through step decide, natively and in Python: both have to decide the same."""

import random
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from ctypes import CDLL
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from native_fuzz.plans import DECIDED_AT_MS, QUOTAS, event
from sluice.state.contract.records import ChargeResult, CountedEntity, Decision
from sluice.state.errors import StateError
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind, Window
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce import pipeline
from sluice.streaming.enforce.engine import Made, PageToDecide
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Outputs, Source, decode_group, decode_page_batch, encoded_groups
from sluice_native.decide import NativeCharger, NativelyCharged
from tests.builders import DEFAULTS
from tests.decided_pages import NormalForm, check_same, difference, in_lists, in_python, normal_form, records_of

_DEFAULTS = PipelineSettings.of(DEFAULTS)
_REFUSED = (msgspec.DecodeError, UnicodeDecodeError)
_UNMUTE = b'{"control":"unmute","request_id":"x","entity":{"user":"u-%d","client_id":"c-1"}}'


def compare(library: CDLL, count: int, seed: int) -> tuple[int, int]:
    """Decide pages of so many events in both ways; the numbers of pages decided natively and declined.

    Raises AssertionError.
    """
    draw, decided, declined, events_done = random.Random(seed), 0, 0, 0
    while events_done < count:
        settings, quotas = _settings(draw), _quotas(draw)
        native, stored = NativeCharger(settings, library), dict[int, bytes]()
        now_ms, offset, is_damaged = DECIDED_AT_MS, 0, False
        for _ in range(draw.randrange(2, 12)):
            now_ms += draw.choice([0, 3, 400, 1_000, 2_500, 11_000, 61_000, 4_000_000])
            most = draw.choice([1, 5, 40, 40, 400])
            values = [_event(draw, now_ms) for _ in range(most)]
            sources = [
                Source(settings.requests_topic, draw.choice([0, 0, 1, 7]), offset + n, now_ms) for n in range(most)
            ]
            offset, events_done = offset + most, events_done + most
            events = list(zip(values, sources, strict=True))
            some = (events[at : at + 3 * settings.pages] for at in range(0, most, 3 * settings.pages))
            planned = (batches for each in some for batches in pipeline.plan(each, quotas, settings, now_ms))
            pages, unsound, some_damaged = _pages(draw, planned, stored)
            is_damaged |= some_damaged  # what is read of a damaged page is stored
            try:
                native.decide(unsound)
            except _REFUSED:  # of an entity that has to wait: Python refuses it as well
                with pytest.raises(_REFUSED):
                    in_python(unsound, settings)
            _compare(draw, native, pages, settings, stored, is_damaged)
        decided, declined = decided + native.decided, declined + native.declined
    return decided, declined


def _compare(
    draw: random.Random,
    native: NativeCharger,
    pages: Sequence[PageToDecide],
    settings: PipelineSettings,
    stored: dict[int, bytes],
    is_damaged: bool,
) -> None:
    """Decide the pages in both ways; `stored` takes over what they leave."""
    if draw.random() < 0.1:
        native.decide(draw.sample(pages, draw.randrange(len(pages) + 1)))  # an attempt whose results nobody takes
    found = compare_pages(native, pages, settings, is_damaged)
    stored |= found.stored
    payloads = [payload or b"" for payload in encoded_groups(found.partial_decisions).values]
    payloads = [damaged(draw, each) if draw.random() < 0.02 else each for each in payloads]
    if all(map(_has_sound_decisions, payloads)):
        compare_combined(native, payloads, settings)
    else:
        native.combine([pa.py_buffer(payload) for payload in payloads])
    for page in pages:
        if page.number not in found.stored:
            try:
                stored |= in_python([page], settings).stored
            except (StateError, ValueError, msgspec.DecodeError, IndexError, KeyError, OverflowError, struct.error):
                continue  # damaged


def compare_pages(
    native: NativeCharger, pages: Sequence[PageToDecide], settings: PipelineSettings, is_damaged: bool = False
) -> NormalForm:
    """Decide the pages in both ways; the result for those that are decided natively. Raises AssertionError.

    Where something is damaged, one name may have become another, which then has two sums.
    """
    made = native.decide(pages)
    compare_combined(native, [payload or b"" for payload in made.partial_decisions.values], settings)
    plain = [page for page, new in zip(pages, made.stored, strict=True) if new is not None]
    stored = {page.number: new for page, new in zip(pages, made.stored, strict=True) if new is not None}
    found = normal_form([Made(made.records, made.waits, made.partial_decisions, made.sums)], stored, made.evicted)
    check_same(found, in_python(plain, settings), is_damaged)
    return found


def compare_combined(native: NativeCharger, payloads: Sequence[bytes], settings: PipelineSettings) -> None:
    """Combine these partial decisions in both ways, unless native code declines them. Raises AssertionError."""
    found = native.combine([pa.py_buffer(payload) for payload in payloads])
    try:
        expected = pipeline.combine([each for payload in payloads for each in decode_group(payload)], settings)
    except (ValueError, msgspec.DecodeError, IndexError, OverflowError) as error:
        if found is not None:
            raise AssertionError("native code combines what is damaged") from error
        return
    if found is not None and (one := records_of(in_lists(found))) != (other := records_of(expected)):
        raise AssertionError(f"combined: {difference(one, other)}")


def outputs_of(made: NativelyCharged) -> Outputs:
    """All records, in lists."""
    return Outputs(in_lists(made.records) | made.waits)


def _settings(draw: random.Random) -> PipelineSettings:
    windows = [Window(), Window(), Window(3, 1000), Window(1, 1), Window(4, 10), Window(12, 2000)]
    rule = replace(
        _DEFAULTS.quota,
        client_window=draw.choice(windows),
        controller_window=draw.choice(windows),
        max_partitions_per_request=draw.choice([5, 10_000]),
    )
    return _DEFAULTS._replace(
        pages=draw.choice([1, 3, 64]),
        job_id="0123",
        quota=rule,
        idle_expiry_ms=draw.choice([1_000, 60_000, 3_600_000]),
        max_entities=draw.choice([20, 5_000_000, 5_000_000]),
        max_record_bytes=draw.choice([_DEFAULTS.max_record_bytes, _DEFAULTS.max_record_bytes, 8_192]),
    )


def _quotas(draw: random.Random) -> Quotas:
    """Limits that nobody, some or nearly all exceed."""
    factor = draw.choice([1.0, 1_000.0, 1e9, 1e13, 0.013])
    return Quotas([_scaled(entry, factor) for entry in draw.choice(QUOTAS)], version=3)


def _scaled(entry: QuotaEntry, factor: float) -> QuotaEntry:
    value = entry.value * factor if isinstance(entry.kind, QuotaKind) else entry.value
    return QuotaEntry(entry.entity, entry.kind, value, entry.shadow)


def _event(draw: random.Random, now_ms: int) -> bytes:
    """An event of a gateway, seldom an odd one or a control record; its amounts are of all sizes."""
    if draw.random() < 0.004:
        return _UNMUTE % draw.randrange(9)
    at_ms = now_ms + draw.choice([0, 0, 1, -1, 7, -300, -2_000, -40_000])
    fields = msgspec.json.decode(event(draw, at_ms, 0.0).decode("utf-8", "replace"))
    most = draw.choice([3, 100, 10_000, 2**53])
    for name in ("bytes", "request_time_ns", "network_time_ns", "mutations_charged"):
        if fields.get(name):
            fields[name] = min(
                fields[name], draw.randrange(most) * 1_000 if name.endswith("_ns") else draw.randrange(most), 2**31 - 1
            )
    for each in fields.get("mutations", ()):
        each["partitions"] = min(each["partitions"], draw.randrange(most))
    for each in fields.get("topic_partitions", ()):
        if "bytes" in each:
            each["bytes"] = min(each["bytes"], draw.randrange(most))
    return msgspec.json.encode(fields)


def _pages(
    draw: random.Random, planned: Iterable[dict[int, bytes]], stored: dict[int, bytes]
) -> tuple[list[PageToDecide], list[PageToDecide], bool]:
    """The pages with their page batches in any order, and whether a stored page or a page batch is damaged: few are.

    Those whose JSON is damaged are apart: native code copies it, and Python reads it.
    """
    batches: dict[int, list[bytes]] = defaultdict(list)
    for by_page in planned:
        for number, batch in by_page.items():
            batches[number].append(batch)
    pages, unsound, is_damaged = list[PageToDecide](), list[PageToDecide](), False
    for number, own in batches.items():
        draw.shuffle(own)
        payload = stored.get(number)
        if draw.random() < 0.02 and payload is not None:
            payload, is_damaged = damaged(draw, payload), True
        if draw.random() < 0.02:
            place = draw.randrange(len(own))
            harmed = damaged(draw, own[place])
            if _has_sound_rows(harmed):
                own[place], is_damaged = harmed, True
            else:
                unsound.append(PageToDecide(number, payload, [harmed]))
        pages.append(PageToDecide(number, payload, own))
    return pages, unsound, is_damaged


def _has_sound_rows(page_batch: bytes) -> bool:
    """True if the JSON of all rows, if any can be read, is as Python writes it."""
    try:
        rows = decode_page_batch(page_batch).charge_rows
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return _have_sound_decisions(rows) and _are_sound([row.entity for row in rows], CountedEntity)


def _has_sound_decisions(payload: bytes) -> bool:
    """The same for partial decisions."""
    try:
        partial = decode_group(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return _have_sound_decisions(partial) and _are_sound([each.charges for each in partial], list[ChargeResult])


def _have_sound_decisions(rows: Iterable[Any]) -> bool:
    """The same, and each decision has the time of its row, at which a wait begins in native code."""
    timed = all(not row.decision or b'"timestamp_ms":%d,' % row.timestamp_ms in row.decision for row in rows)
    return timed and _are_sound([row.decision for row in rows if row.decision], Decision)


def _are_sound(texts: Iterable[bytes], kind: Any) -> bool:
    try:
        return all(msgspec.json.encode(msgspec.json.decode(text, type=kind)) == text for text in texts)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def damaged(draw: random.Random, value: bytes) -> bytes:
    """The bytes truncated, or with some of them replaced, doubled or left out."""
    start = draw.randrange(len(value) + 1)
    end = draw.choice([start, start + 1, start + draw.randrange(30)])
    some = bytes(
        draw.choice([0, 1, 0x7F, 0x80, 0xC0, 0xCB, 0xDD, 0xFF, draw.randrange(256)]) for _ in range(end - start)
    )
    return draw.choice(
        [
            value[:start],
            value[:start] + some + value[end:],
            value[:start] + value[end:],
            value[:start] + value[start:end] * 2 + value[end:],
            value + some,
        ]
    )
