"""Native planning: the same bytes as Python's from any events, and Python's alone where it is off or not built."""

import ctypes
import json
import pickle
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark import cloudpickle

from native_fuzz.builds import EXAMPLES, LONG_EXAMPLES, SEED, library
from native_fuzz.plans import DECIDED_AT_MS, batches_of, compare
from native_fuzz.switched import REASONS, with_or_without
from sluice.cli.errors import CheckWarningError
from sluice.cli.start_checks import check_native_code
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, Membership, QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce import stages
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Source
from sluice_demo.job import storage_in, write_settings
from sluice_lab.benchmarks.events import LOADS, Load, spread
from sluice_lab.benchmarks.harness import Workers
from sluice_native import build as native_build
from sluice_native import plan as native_plan
from sluice_native.build import compile_source
from sluice_native.library import NativeCode
from sluice_native.plan import NativePlanner
from tests.builders import DEFAULTS, changed, quota

SETTINGS = PipelineSettings.of(DEFAULTS)
_PARTS = 4  # of the events, so that processes share them


@pytest.mark.parametrize("part", range(_PARTS))
def test_page_batches_are_those_of_python_to_the_byte(part: int) -> None:
    """Events as gateways send them, odd, damaged and bad ones; under many quotas, overrides and settings."""
    planned, declined = compare(library(), EXAMPLES // _PARTS, SEED + part)
    assert planned > declined / 10, "many are odd on purpose, and plans are asked for once, but not all of them"


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("part", range(_PARTS))
def test_page_batches_are_those_of_python_to_the_byte_for_millions_of_events(part: int) -> None:
    compare(library(), LONG_EXAMPLES // _PARTS, 1_000 + SEED + part)


def test_what_an_attempt_that_broke_off_has_planned_is_not_in_the_next_one() -> None:
    """A worker may be used again after a task that failed; its events would be charged twice."""
    values = [b'{"api":"Produce","user":"alice","client_id":"app","bytes":9}'] * 9
    sources = [Source("quota-requests", 0, offset, DECIDED_AT_MS) for offset in range(9)]
    batches = list(batches_of(values, sources, 9))
    native = NativePlanner(Quotas([]), SETTINGS, library())
    expected = planned_pages(native, batches)

    def broken() -> Iterator[Any]:
        yield from batches
        raise ConnectionError

    with pytest.raises(ConnectionError):
        planned_pages(native, broken())

    assert planned_pages(native, batches) == expected


def planned_pages(native: NativePlanner, batches: Iterable[Any]) -> list[dict[int, bytes]]:
    """The page batches of these events, by page."""
    made = native.plan(batches, DECIDED_AT_MS)
    return [dict(zip(each.pages, each.payloads.to_pylist(), strict=True)) for each in made]


def test_only_keys_that_are_new_bring_the_planner_nearer_to_forgetting_all() -> None:
    """Else a client that names known topics beside a new one would make it forget the plans of all others."""
    quotas = Quotas([quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 9.0, QuotaEntity(topic=DEFAULT))])
    known = [{"topic": f"known-{number}", "partition": 0, "bytes": 1} for number in range(40)]
    new = [{"topic": f"new-{number}", "partition": 0} for number in range(10)]
    held = []
    for again in ([], known):
        native = NativePlanner(quotas, SETTINGS, library())
        named = [known, *([*again, topic] for topic in new)]
        plan_all(native, [{"api": "Produce", "user": "u", "topic_partitions": topics} for topics in named])
        held.append(native.held_bytes())

    assert held[0] == held[1] > 0


def plan_all(native: NativePlanner, events: Iterable[Mapping[str, object]]) -> list[dict[int, bytes]]:
    """The page batches of these events, by page."""
    values = [json.dumps(event).encode() for event in events]
    sources = [Source("quota-requests", 0, offset, DECIDED_AT_MS) for offset in range(len(values))]
    return planned_pages(native, batches_of(values, sources, len(values)))


def test_new_clients_of_a_tenant_are_planned_as_the_first_one_without_python() -> None:
    """Python takes 50 times as long for a client; a user may invent names as fast as it sends requests."""
    tenants = [
        *(QuotaEntity(tenant=f"t-{number}", user=f"user-{number}*") for number in range(9)),
        QuotaEntity(tenant="rest", client_id="?pp"),
    ]
    limit = quota(QuotaKind.REQUEST_PERCENTAGE, 9.0, QuotaEntity(tenant=DEFAULT))
    quotas = Quotas([limit, *(QuotaEntry(tenant, Membership.MEMBER, 1.0) for tenant in tenants)])
    native = NativePlanner(quotas, SETTINGS, library())
    users = [f"user-{number:03d}" for number in range(900)] + [f"other-{number}" for number in range(100)]

    plan_all(native, [{"api": "Metadata", "user": user, "client_id": "app", "request_time_ns": 9} for user in users])

    assert (native.planned, native.declined) == (len(users) - len(tenants), len(tenants))


def test_a_client_that_names_new_apis_and_versions_fills_no_memory() -> None:
    """Names that change no charge make no plan of their own: else the worker would forget those of all others."""
    native = NativePlanner(Quotas([quota(kind, 3.0, user=DEFAULT) for kind in CLIENT_KINDS]), SETTINGS, library())
    of_client = {"user": "alice", "client_id": "app", "request_time_ns": 5}
    apis = ((api, version) for version in range(100) for api in (f"Api{version}", "Produce", "CreateTopics"))

    plan_all(native, [of_client | {"api": api, "api_version": version} for api, version in apis])

    assert native.declined == 4, "one of all other APIs, one of Produce, a strict and a permissive CreateTopics"


def test_names_that_a_client_chooses_do_not_collide_whatever_the_seed_is(tmp_path: Path) -> None:
    """Clients choose their names; a table of colliding ones would cost thousands of probes a name."""
    source = tmp_path / "hash.c"
    code = "API uint64_t hash_text(uint64_t s, const uint8_t *p, size_t n) { return hash_of(s, p, n); }"
    source.write_text(f'#include "text.h"\n{code}\n')
    made, include = tmp_path / "hash.so", f"-I{Path(native_build.__file__).parent}"
    compiler = native_build.compiler_of(tmp_path, "")
    subprocess.run([*compiler, "-shared", "-fPIC", include, "-o", str(made), str(source)], check=True)
    hash_text = ctypes.CDLL(str(made)).hash_text
    hash_text.restype, hash_text.argtypes = ctypes.c_uint64, (ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t)

    def slots(names: Sequence[bytes], seed: int) -> int:
        """The slots of 2**19 that these names fall into."""
        return len({hash_text(seed, name, len(name)) & (2**19 - 1) for name in names})

    tails = [b"topic-%c" % number for number in range(1, 256)]  # they differ in one byte
    flips = [b"".join(parts) for parts in product([b"aaaaaaa1aaa1aaa1", b"aaaaaaaqaaaqaaaq"], repeat=8)]
    for seed in (1, 2**40 + 12_345, 2**64 - 59):
        for names in (tails, flips):
            assert slots(names, seed) >= len(names) - 4


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_at_most_one_event_of_a_hundred_of_the_bench_is_declined(load: Load, tmp_path: Path) -> None:
    settings = write_settings(tmp_path / "settings.yaml", storage_in(tmp_path), {"state": {"pages": 8}})
    made: list[NativePlanner] = []

    def kept(*arguments: object) -> NativePlanner | None:
        made.append(native_plan.kept_planner(*arguments, library()))
        return made[-1]

    with patch("sluice_native.engine.native_planner", kept):
        workers = Workers(load, settings)
        for first in range(0, 5_000, 1_000):
            workers.micro_batch(first, spread(1_000, 1_000))

    [native] = {id(one): one for one in made}.values()
    assert native.planned + native.declined == 5_000
    assert native.declined <= 50


@pytest.mark.parametrize("reason", REASONS)
def test_python_plans_all_events_where_native_planning_is_turned_off_or_not_built(reason: str, tmp_path: Path) -> None:
    [load, *_] = LOADS
    rows = []
    for native in (True, False):
        with with_or_without(tmp_path, reason, NativePlanner, "plan", native=native) as settings:
            rows.append(Workers(load, settings).micro_batch(0, spread(100, 50)))

    assert rows[0] == rows[1]


def test_the_stage_plans_natively_in_a_worker_that_it_was_sent_to(tmp_path: Path) -> None:
    """Spark sends it by cloudpickle; nothing of the library is in it."""
    settings = write_settings(tmp_path / "settings.yaml", storage_in(tmp_path), {"state": {"pages": 8}})
    native_plan.kept_planner.cache_clear()

    def sent(*arguments: Any) -> stages.ArrowStage:
        sent_bytes = cloudpickle.dumps(stages.planner(*arguments))  # type: ignore[no-untyped-call] # PySpark's
        stage: stages.ArrowStage = pickle.loads(sent_bytes)  # noqa: S301 - our own
        return stage

    with patch("sluice_lab.benchmarks.harness.planner", sent):
        assert len(Workers(LOADS[0], settings).micro_batch(0, spread(100, 50))) >= 100

    assert native_plan.kept_planner.cache_info().currsize == 1


def test_the_doctor_says_who_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_native_code(DEFAULTS).startswith("plans and decides the events that gateways send (")
    off = changed(DEFAULTS, "enforce", native=False)
    assert check_native_code(off).startswith("off, as enforce.native is false: Python plans and decides all events")
    monkeypatch.setattr("sluice_native.engine.native_code", lambda: NativeCode(None, reason="native.so is damaged"))
    with pytest.raises(
        CheckWarningError, match=r"not used, so Python plans and decides all events, .*: native\.so is damaged"
    ):
        check_native_code(DEFAULTS)


def test_a_machine_that_cant_build_it_says_so_in_a_line_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'plan.c:1: error: no such machine' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(native_build, "BUILT", tmp_path / "built")

    native_build.main()

    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("native code: not built, so Python plans and decides all events, at several times the")
    assert line.endswith("error: no such machine")
    assert not list((tmp_path / "built").iterdir())


def test_without_a_compiler_the_locked_one_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is installed whose hash isn't known."""
    commands: list[list[str]] = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(native_build, "_run", lambda command: commands.append(list(command)))
    monkeypatch.setattr("venv.create", lambda *_, **__: None)

    compile_source(tmp_path / "plan.so", tmp_path)

    fetched, compiled = commands
    assert fetched[1:4] == ["-m", "pip", "install"]
    assert "--require-hashes" in fetched
    assert compiled[1:4] == ["-m", "ziglang", "cc"]
    assert shutil.which("cc") is None
