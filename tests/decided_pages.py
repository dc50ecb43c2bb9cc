"""The results of engines for some pages, in a form that doesn't depend on the order of counters, and compared."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sluice.state.contract.gateway_topics import CounterSum, Sums
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.store.pages import Evicted
from sluice.streaming.enforce.engine import DecidedPages, Made, PageToDecide, PythonEngine, engine_of
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Keyed, KeyedArrays, Outputs, decode_group

_SUMS = msgspec.json.Decoder(Sums)


class NormalForm(NamedTuple):
    """The result for some pages, in a form that doesn't depend on the order of counters."""

    records: Counter[tuple[str, bytes | None, bytes | None]]
    partial_decisions: list[Any]
    sums: dict[tuple[object, str], list[CounterSum]]
    waiting: set[object]
    gateways: dict[tuple[str | None, bool], int]
    stored: dict[int, bytes]
    evicted: Evicted


def check_engine(pages: Sequence[PageToDecide], settings: PipelineSettings) -> None:
    """Decide the pages with this process's engine as well: it has to do as Python. Raises AssertionError."""
    check_same(decided_by(engine_of(is_native=True).decide(pages, settings), pages), in_python(pages, settings))


def check_same(found: NormalForm, expected: NormalForm, is_damaged: bool = False) -> None:
    """Raises AssertionError if the two differ.

    Where something is damaged, one name may have become another, which then has two sums.
    """
    for key in [key for key, sums in [*found.sums.items(), *expected.sums.items()] if len(sums) > 1]:
        of_tenant_too = key[1] == QuotaKind.CONTROLLER_MUTATION_RATE  # of a name inside of a tenant, and outside of it
        if not (of_tenant_too or is_damaged):
            raise AssertionError(f"{key} has two sums")
        for either in (found, expected):
            if of_tenant_too:
                either.sums.pop(key, None)
                either.waiting.discard(key[0])
            elif key in either.sums:
                either.sums[key].sort(key=repr)
    for name, one, other in zip(NormalForm._fields, found, expected, strict=True):
        if one != other:
            raise AssertionError(f"{name}: {difference(one, other)}")


def in_python(pages: Sequence[PageToDecide], settings: PipelineSettings) -> NormalForm:
    """The result of Python."""
    return decided_by(PythonEngine().decide(pages, settings), pages)


def decided_by(decided: DecidedPages, pages: Sequence[PageToDecide]) -> NormalForm:
    """The normal form of what an engine has decided."""
    stored = {page.number: new for page, new in zip(pages, decided.stored, strict=True)}
    return normal_form(decided.made, stored, decided.evicted)


def in_lists(records: Mapping[str, KeyedArrays]) -> Outputs:
    """Records that are arrays of Arrow."""
    return Outputs({topic: Keyed(*(array.to_pylist() for array in keyed)) for topic, keyed in records.items()})


def records_of(outputs: Outputs) -> Counter[tuple[str, bytes | None, bytes | None]]:
    """Records by topic, key and value."""
    return Counter(
        (topic, key, value)
        for topic, keyed in outputs.items()
        for key, value in zip(keyed.keys, keyed.values, strict=True)
    )


def normal_form(made: Sequence[Made], stored: dict[int, bytes], evicted: Evicted) -> NormalForm:
    """The same for the same decisions, whatever their order."""
    records = Counter[tuple[str, bytes | None, bytes | None]]()
    for each in made:
        records += records_of(in_lists(each.records)) + records_of(each.outputs)
    groups = [decode_group(payload or b"") for each in made for payload in each.partial_decisions.values]
    decoded = sorted((one for group in groups for one in group), key=lambda one: (one.partition, one.offset, one.index))
    found: dict[tuple[object, str], list[CounterSum]] = {}
    waiting: set[object] = set()
    gateways: dict[tuple[str | None, bool], int] = {}
    for value in (value for each in made for value in each.sums.records("0123", 5, 1)):
        try:
            record = _SUMS.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):  # a damaged row's texts are those of its sums
            return NormalForm(records, decoded, {}, set(), {}, stored, evicted)
        names = [(each.instance, each.charges_inline) for each in record.gateways]
        gateways |= {name: record.base_ms + of.until_ms for name, of in zip(names, record.gateways, strict=True)}
        for entity in record.sums:
            name = msgspec.json.encode(entity.entity)
            if entity.has_waits:
                waiting.add(name)
            for of in entity.counters:
                key = name, record.quotas[of.quota]
                found.setdefault(key, []).append(_absolute(of, record.base_ms, names))
    return NormalForm(records, decoded, found, waiting, gateways, stored, evicted)


def _absolute(of: CounterSum, base_ms: int, names: Sequence[tuple[str | None, bool]]) -> CounterSum:
    """The sum with times and gateways as they are, not as the record has them."""
    if of.wait is not None:
        wait = of.wait
        of.wait = msgspec.structs.replace(
            wait, until_ms=wait.until_ms + base_ms, timestamp_ms=wait.timestamp_ms + base_ms
        )
    of.from_ms += base_ms
    of.until_ms += base_ms
    of.quota = 0
    of.by_gateway = sorted(
        (msgspec.structs.replace(each, gateway=names[each.gateway]) for each in of.by_gateway), key=repr
    )
    return of


def difference(one: Any, other: Any) -> str:
    """The first elements that one of them has alone."""
    if isinstance(one, dict):
        keys = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
        return f"{len(keys)} differ: {[(key, one.get(key), other.get(key)) for key in keys[:1]]}"
    alone = [(first, second) for first, second in zip(one, other, strict=False) if first != second]
    return f"{len(one)} and {len(other)}: {alone[:1]}"
