"""Replays a scenario of the case file through the code that the job runs, with either engine."""

import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from sluice.state.arithmetic.counter import Charge, EntityCounters, Outcome, bounded_wait_ms, wait_over_limit_ms
from sluice.state.arithmetic.sampled_rate import is_exceeded, padded_window_ms, wait_for_rate_ms
from sluice.state.arithmetic.token_bucket import TokenBucket, wait_for_tokens_ms
from sluice.state.decisions.charge_plan import POINTS_PER_NANOSECOND
from sluice.state.decisions.decision import Waits, clamp_throttle_ms
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, sanitize
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import UNLIMITED, Family, QuotaKind, QuotaSettings, Window
from sluice.state.quotas.resolution import PrecedenceLevel, Quotas, Resolution
from sluice.state.store.codec import decode, encode
from sluice.streaming.enforce.engine import PageToDecide, engine_of
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import ChargeRow, GrowingPageBatch, decode_group, encode_shape
from sluice_toolbox.alteration import (
    FilterComponent,
    QuotaValue,
    UnsupportedEntityTypeError,
    altered,
    check_filter,
    matches,
)
from tests.builders import DEFAULTS, Json
from tests.stored_pages import FOREVER_MS

OUT_OF_SCOPE_MODES = frozenset(
    {"none", "replication", "channel", "simple_rate", "count_rate", "windowed_count", "windowed_sum"}
)
MANAGER_KINDS = {
    "produce": QuotaKind.PRODUCER_BYTE_RATE,
    "fetch": QuotaKind.CONSUMER_BYTE_RATE,
    "request": QuotaKind.REQUEST_PERCENTAGE,
    "controller_mutation": QuotaKind.CONTROLLER_MUTATION_RATE,
}


class UnmappedCaseError(Exception):
    """A case, or a step of it, that this replay has no meaning for."""


def in_scope(case: Json) -> bool:
    """True if Sluice has the feature that a case is about; by mode, and ip entities alone are left out."""
    inputs = case["inputs"]
    if inputs["mode"] in OUT_OF_SCOPE_MODES:
        return False
    altered = [alteration for step in inputs.get("steps", []) for alteration in step.get("alter", [])]
    return not (altered and all("ip" in alteration["entity"] for alteration in altered))


def replay(case: Json, engine: "type[Engine]") -> list[Json]:
    """The answers of this engine to every event or step of a case, with all fields that its expectation could name."""
    inputs = case["inputs"]
    mode = inputs["mode"]
    if mode == "validate":
        return ControllerReplay().run(inputs["steps"])
    if mode == "throttle_formula":
        return [_formula(inputs, event, engine) for event in inputs["events"]]
    if mode == "token_bucket":
        return BucketReplay(inputs, engine).run(inputs["events"])
    if mode == "rate":
        return RateReplay(inputs, engine).run(inputs["events"])
    if mode in MANAGER_KINDS:
        return ManagerReplay(inputs, engine).run(inputs["events"])
    raise UnmappedCaseError(f"unknown mode {mode!r}")


class Measured(NamedTuple):
    """A rate per second, the length of the window it covers, and the wait it asks for under a limit."""

    rate: float
    window_ms: int
    wait_ms: int


class Engine:
    """The counters of some entities, charged as the job does in Python; every operation reads and stores them."""

    padded_window_ms = staticmethod(padded_window_ms)
    """The window that a rate covers, this long after its oldest sample."""

    def __init__(self, settings: QuotaSettings) -> None:
        self.settings = settings
        self._stored: dict[str, bytes] = {}

    def charge(self, key: str, charge: Charge, now_ms: int) -> Outcome:
        """Charge an entity as the job does."""
        with self.counters(key) as counters:
            return counters.charge(charge, now_ms, self.settings)

    def record(self, key: str, kind: QuotaKind, amount: float, now_ms: int) -> None:
        """Record an amount to a rate, without a check."""
        with self.counters(key) as counters:
            counters.rate(kind).record(amount, self.settings.client_window, now_ms)

    def measure(self, key: str, kind: QuotaKind, limit: float | None, now_ms: int) -> Measured:
        """Measure a rate."""
        window = self.settings.client_window
        with self.counters(key) as counters:
            observed, window_ms = counters.rate(kind).observe(window, now_ms)
        return self.measured(kind, limit, observed, window_ms)

    def take(self, key: str, amount: float, limit: float, now_ms: int) -> None:
        """Take tokens of a bucket, without a check."""
        with self.counters(key) as counters:
            counters.bucket = counters.bucket or TokenBucket()
            counters.bucket.record(amount, limit, self.settings.controller_window, now_ms)

    def tokens(self, key: str, limit: float, now_ms: int) -> float:
        """Measure a bucket."""
        with self.counters(key) as counters:
            counters.bucket = counters.bucket or TokenBucket()
            return counters.bucket.measure(limit, self.settings.controller_window, now_ms)

    def measured(self, kind: QuotaKind, limit: float | None, observed: float, window_ms: int) -> Measured:
        if kind.family is Family.REQUEST_TIME:
            return Measured(
                observed, window_ms, bounded_wait_ms(observed, limit, window_ms, self.settings.client_window)
            )
        return Measured(observed, window_ms, wait_over_limit_ms(observed, limit, window_ms))

    @contextmanager
    def counters(self, key: str) -> Iterator[EntityCounters]:
        counters = decode(self._page_of(key), 1)[key]
        yield counters
        self._stored[key] = encode({key: counters}, 1)

    def _page_of(self, key: str) -> bytes:
        return self._stored.get(key) or encode({key: EntityCounters()}, 1)


class GivenEngine(Engine):
    """Charges as the engine of this process makes them of a stored page: native code's where its extra is there."""

    def __init__(self, settings: QuotaSettings) -> None:
        super().__init__(settings)
        self._of_page = PipelineSettings.of(DEFAULTS)._replace(
            pages=1, quota=settings, idle_expiry_ms=FOREVER_MS, job_id="0123"
        )

    def charge(self, key: str, charge: Charge, now_ms: int) -> Outcome:
        # One row of two: its waits aren't clamped, as those of a decision are.
        batch = GrowingPageBatch()
        batch.add(ChargeRow(0, 0, now_ms, key, b"{}", encode_shape([charge]), charge.amounts, b"k", b"{}", rows=2))
        page = PageToDecide(0, self._page_of(key), [batch.encoded()])
        decided = engine_of(is_native=True).decide([page], self._of_page)
        (self._stored[key],) = decided.stored
        (payload,) = (payload for made in decided.made for payload in made.partial_decisions.values)
        (partial,) = decode_group(payload or b"")
        waits, (found,) = partial.waits or Waits(), msgspec.json.decode(partial.charges)
        is_mutations = charge.kind.family is Family.MUTATIONS
        return Outcome(
            charge,
            found["value"],
            found["violated"],
            max(waits.byte_wait_ms, waits.request_wait_ms, waits.mutation_wait_ms),
            found["rate"],
            found["tokens"] if is_mutations else None,
            [*waits.refused] or [False] * len(charge.amounts) if is_mutations else (),
        )


def java_int(number: int) -> int:
    """A long cast to an int as Java does it: the low 32 bits. Shipped Kafka wraps long controller waits so."""
    return (number + 2**31) % 2**32 - 2**31


def _window(inputs: Json) -> Window:
    window_ms = inputs.get("window_ms", round(inputs.get("window_s", 1) * 1000))
    return Window(inputs["samples"], window_ms)


def max_in_window(limit: float | None, window: Window) -> float:
    """Most bytes worth fetching at once, as in Kafka: Q * (S-1) * W; without a limit the largest double."""
    if limit is None:
        return sys.float_info.max
    return limit * (window.samples - 1) * (window.window_ms / 1000.0)


def _formula(inputs: Json, event: Json, engine: type[Engine]) -> Json:
    merged = {**inputs, **event}
    if event.get("stat") == "token_bucket":
        wait_ms = wait_for_tokens_ms(event["value"], event["bound"])
    else:
        fresh_window_ms = engine.padded_window_ms(0, _window(merged))
        wait_ms = wait_for_rate_ms(event["value"], event["bound"], fresh_window_ms)
    return {"throttle_ms": min(wait_ms, merged.get("max_throttle_ms", wait_ms))}


class MeterReplay(ABC):
    """One meter with or without a quota: what a bucket and a rate have in common."""

    key = "user|"

    def __init__(self, inputs: Json, engine: type[Engine]) -> None:
        self.limit: float | None = inputs.get("quota")
        window = _window(inputs)
        self.counters = engine(QuotaSettings(client_window=window, controller_window=window))

    def run(self, events: list[Json]) -> list[Json]:
        return [self._step(event, event["t"]) for event in events]

    def _step(self, event: Json, now_ms: int) -> Json:
        operation = event["op"]
        if operation == "quota":
            self.limit = event.get("v", event.get("value"))
            return {}
        if operation in ("measure", "check"):
            return self._measure(now_ms)
        return self._record(operation, event["v"], now_ms)

    @abstractmethod
    def _measure(self, now_ms: int) -> Json:
        """The value that the meter shows."""

    @abstractmethod
    def _record(self, operation: str, amount: float, now_ms: int) -> Json:
        """Do an operation that charges the meter. Raises UnmappedCaseError for an unknown one."""


class BucketReplay(MeterReplay):
    """Mode token_bucket: one bucket. Without a limit Kafka leaves it alone."""

    def _record(self, operation: str, amount: float, now_ms: int) -> Json:
        if operation not in ("record", "record_check", "strict"):
            raise UnmappedCaseError(f"unknown operation {operation!r}")
        if self.limit is None:
            return {**self._measure(now_ms), "applied": True}
        if operation == "record" and amount < 0:
            self.counters.take(self.key, amount, self.limit, now_ms)
            return self._measure(now_ms)
        strict = operation == "strict"
        charge = Charge(QuotaKind.CONTROLLER_MUTATION_RATE, PrecedenceLevel.USER, self.limit, False, [amount], strict)
        outcome = self.counters.charge(self.key, charge, now_ms)
        return {
            "tokens": outcome.tokens,
            "violated": outcome.violated,
            "applied": outcome.refused == [False],
            "throttle_ms": outcome.wait_ms,
        }

    def _measure(self, now_ms: int) -> Json:
        if self.limit is None:
            return {"tokens": UNLIMITED, "violated": False, "throttle_ms": 0}
        tokens = self.counters.tokens(self.key, self.limit, now_ms)
        violated = tokens < 0
        wait_ms = wait_for_tokens_ms(tokens, self.limit) if violated else 0
        return {"tokens": tokens, "violated": violated, "throttle_ms": wait_ms}


class RateReplay(MeterReplay):
    """Mode rate: one sampled rate, with or without a quota."""

    kind = QuotaKind.PRODUCER_BYTE_RATE

    def __init__(self, inputs: Json, engine: type[Engine]) -> None:
        super().__init__(inputs, engine)
        self.longest_ms: float = inputs.get("max_throttle_ms", math.inf)

    def _record(self, operation: str, amount: float, now_ms: int) -> Json:
        if operation == "strict":
            checked = self._measure(now_ms)
            if checked["violated"]:
                return {**checked, "applied": False}
            self.counters.record(self.key, self.kind, amount, now_ms)
            return {**self._measure(now_ms), "violated": False, "applied": True, "throttle_ms": 0}
        if operation not in ("record", "record_check", "admit"):
            raise UnmappedCaseError(f"unknown operation {operation!r}")
        self.counters.record(self.key, self.kind, amount, now_ms)
        checked = self._measure(now_ms)
        if operation == "admit" and checked["violated"]:
            self.counters.record(self.key, self.kind, -amount, now_ms)
            return {**checked, "applied": False, "rate": self._measure(now_ms)["rate"]}
        return {**checked, "applied": True}

    def _measure(self, now_ms: int) -> Json:
        measured = self.counters.measure(self.key, self.kind, self.limit, now_ms)
        return {
            "rate": measured.rate,
            "window_ms": measured.window_ms,
            "violated": is_exceeded(self.limit, measured.rate),
            "throttle_ms": min(measured.wait_ms, self.longest_ms),
        }


@dataclass
class MutationQuotaHandle:
    """Kafka's handle on the mutations of a request: strict, permissive or unbounded."""

    strict: bool
    user: str
    client_id: str
    bounded: bool
    noted_wait_ms: int = 0
    noted_at_ms: int = 0

    def answer(self, now_ms: int) -> Json:
        names = {True: "StrictControllerMutationQuota", False: "PermissiveControllerMutationQuota"}
        return {
            "class": names[self.strict] if self.bounded else "UnboundedControllerMutationQuota",
            "exceeded": self.strict and self.noted_wait_ms > 0,
            "throttle_ms": max(0, self.noted_wait_ms - (now_ms - self.noted_at_ms)),
        }


class ManagerReplay:
    """Modes produce, fetch, request and controller_mutation: resolution, counters and waits of one quota kind."""

    def __init__(self, inputs: Json, engine: type[Engine]) -> None:
        self.window = _window(inputs)
        self.kind = MANAGER_KINDS[inputs["mode"]]
        self.counters = engine(QuotaSettings(client_window=self.window, controller_window=self.window))
        self.entries: dict[QuotaEntity, QuotaEntry] = {}
        self.quotas = Quotas()
        self.handles: dict[str, MutationQuotaHandle] = {}
        for quota in inputs.get("quotas", []):
            self._set_quota(quota)

    def run(self, events: list[Json]) -> list[Json]:
        return [self._step(event, event["t"]) for event in events]

    def _step(self, event: Json, now_ms: int) -> Json:
        operation = event["op"]
        if operation == "quota":
            self._set_quota(event)
            return {"quotas_enabled": self.quotas.enabled(self.kind)}
        if operation in ("strict", "permissive"):
            return self._open(event, now_ms)
        if operation in ("q_record", "q_throttle"):
            return self._handle_step(self.handles[event["q"]], event, now_ms)
        resolution = self.quotas.resolve_client(self.kind, event.get("user", ""), event.get("client_id", ""))
        shown = self._shown(resolution)
        if operation == "limit":
            return shown
        if operation == "max_in_window":
            return {"max_in_window": max_in_window(resolution.limit, self.window)}
        if operation == "record":
            return {**shown, **self._record(resolution, _amount(event), now_ms)}
        if operation == "record_no_throttle":
            return {**shown, **self._record_unchecked(resolution, _amount(event), now_ms)}
        if operation == "unrecord":
            return {**shown, **self._record_unchecked(resolution, -_amount(event), now_ms)}
        if operation == "check":
            return {**shown, **self._check(resolution, now_ms)}
        raise UnmappedCaseError(f"unknown operation {operation!r}")

    def _shown(self, resolution: Resolution) -> Json:
        return {
            "bound": UNLIMITED if resolution.limit is None else resolution.limit,
            "tags": {"user": sanitize(resolution.tags.user), "client-id": resolution.tags.client_id},
            "level": str(resolution.level),
        }

    def _set_quota(self, quota: Mapping[str, Any]) -> None:
        names = {
            part: DEFAULT if quota[part] is None else quota[part] for part in ("user", "client_id") if part in quota
        }
        entity = QuotaEntity(**names)
        if quota["value"] is None:
            self.entries.pop(entity, None)
        else:
            self.entries[entity] = QuotaEntry(entity, self.kind, quota["value"])
        self.quotas = Quotas(self.entries.values())

    def _charge(self, resolution: Resolution, amount: float, *, strict: bool, now_ms: int) -> Outcome:
        amounts = [amount, 0.0] if self.kind is QuotaKind.REQUEST_PERCENTAGE else [amount]
        charge = Charge(self.kind, resolution.level, resolution.limit, resolution.shadow, amounts, strict)
        return self.counters.charge(resolution.key, charge, now_ms)

    def _record(self, resolution: Resolution, amount: float, now_ms: int) -> Json:
        if not self.quotas.enabled(self.kind):
            return {"throttle_ms": 0}
        outcome = self._charge(resolution, amount, strict=True, now_ms=now_ms)
        is_mutation = self.kind is QuotaKind.CONTROLLER_MUTATION_RATE
        throttle_ms = java_int(outcome.wait_ms) if is_mutation else clamp_throttle_ms(outcome.wait_ms)
        return {
            "throttle_ms": throttle_ms,
            "rate": outcome.rate,
            "tokens": outcome.tokens,
            "violated": outcome.violated,
        }

    def _record_unchecked(self, resolution: Resolution, amount: float, now_ms: int) -> Json:
        if not self.quotas.enabled(self.kind):
            return {}
        if self.kind is not QuotaKind.CONTROLLER_MUTATION_RATE:
            self.counters.record(resolution.key, self.kind, amount, now_ms)
        elif resolution.limit is not None:
            self.counters.take(resolution.key, amount, resolution.limit, now_ms)
        return self._check(resolution, now_ms)

    def _check(self, resolution: Resolution, now_ms: int) -> Json:
        key, limit = resolution.key, resolution.limit
        if self.kind is QuotaKind.CONTROLLER_MUTATION_RATE:
            tokens = UNLIMITED if limit is None else self.counters.tokens(key, limit, now_ms)
            wait_ms = wait_for_tokens_ms(tokens, limit) if limit and tokens < 0 else 0
            return {"tokens": tokens, "violated": tokens < 0, "exceeded": tokens < 0, "throttle_ms": java_int(wait_ms)}
        measured = self.counters.measure(key, self.kind, limit, now_ms)
        violated, wait_ms = is_exceeded(limit, measured.rate), clamp_throttle_ms(measured.wait_ms)
        return {"rate": measured.rate, "violated": violated, "exceeded": violated, "throttle_ms": wait_ms}

    def _open(self, event: Json, now_ms: int) -> Json:
        handle = MutationQuotaHandle(
            strict=event["op"] == "strict",
            user=event.get("user", ""),
            client_id=event.get("client_id", ""),
            bounded=self.quotas.enabled(self.kind),
        )
        self.handles[event["q"]] = handle
        return handle.answer(now_ms)

    def _handle_step(self, handle: MutationQuotaHandle, event: Json, now_ms: int) -> Json:
        if event["op"] == "q_throttle" or not handle.bounded:
            return {**handle.answer(now_ms), "rejected": False}
        resolution = self.quotas.resolve_client(self.kind, handle.user, handle.client_id)
        outcome = self._charge(resolution, _amount(event), strict=handle.strict, now_ms=now_ms)
        rejected = any(outcome.refused)
        if outcome.violated:
            handle.noted_wait_ms, handle.noted_at_ms = java_int(outcome.wait_ms), now_ms
        answer = {**handle.answer(now_ms), "rejected": rejected, "tokens": outcome.tokens}
        return {**answer, "error_throttle_ms": java_int(outcome.wait_ms)} if rejected else answer


EntityKey = frozenset[tuple[str, str | None]]


class ControllerReplay:
    """Mode validate: alter and describe calls on the quotas of every entity."""

    def __init__(self) -> None:
        self.quotas: dict[EntityKey, dict[str, QuotaValue]] = {}

    def run(self, steps: list[Json]) -> list[Json]:
        return [self._alter(step) if "alter" in step else self._describe(step) for step in steps]

    def _alter(self, step: Json) -> Json:
        """One call for several entities. An entity that comes twice is an error for both; the first is written."""
        before = dict(self.quotas)
        answers: dict[EntityKey, Json] = {}
        for call in step["alter"]:
            entity = frozenset(call["entity"].items())
            if entity in answers:
                answers[entity] = {"error": "INVALID_REQUEST", "reason": "duplicate_entity"}
                continue
            try:
                self.quotas[entity] = altered(self.quotas.get(entity, {}), call["entity"], call["ops"])
                answers[entity] = {"error": "NONE"}
            except InvalidQuotaError as error:
                answers[entity] = {"error": "INVALID_REQUEST", "reason": error.reason}
        records = sum(_changed(before.get(entity, {}), quotas) for entity, quotas in self.quotas.items())
        if step.get("validate_only"):
            self.quotas, records = before, 0
        results = [answers[frozenset(call["entity"].items())] for call in step["alter"]]
        return {"results": results, "records": records, "state": _entries(self.quotas)}

    def _describe(self, step: Json) -> Json:
        components = [FilterComponent(part["type"], part["match"], part.get("name")) for part in step["describe"]]
        try:
            check_filter(components)
        except UnsupportedEntityTypeError:
            return {"error": "UnsupportedVersionException"}
        except InvalidQuotaError as error:
            return {"error": "InvalidRequestException", "reason": error.reason}
        found = _entries(
            {
                entity: quotas
                for entity, quotas in self.quotas.items()
                if matches(dict(entity), components, strict=step["strict"])
            }
        )
        return {"matched": len(found), "entries": found}


def _changed(before: Mapping[str, QuotaValue], after: Mapping[str, QuotaValue]) -> int:
    return sum(before.get(key) != after.get(key) for key in before.keys() | after.keys())


def _entries(quotas: Mapping[EntityKey, Mapping[str, QuotaValue]]) -> list[Json]:
    return [
        {"entity": dict(entity), "values": {key: quota.value for key, quota in values.items()}}
        for entity, values in quotas.items()
        if values
    ]


def _amount(event: Json) -> float:
    return float(event["nanos"] * POINTS_PER_NANOSECOND if "nanos" in event else event["v"])


def differences(case: Json, engine: type[Engine]) -> list[str]:
    """The fields that the case expects of a step and that this engine's answer has not."""
    expected, answers = case["expected"], replay(case, engine)

    found = list(_differences(expected["events"], answers))
    if "level" in expected:
        found += [f"level {answer['level']}" for answer in answers if answer["level"] != expected["level"]]
    if "applied_between" in expected:
        fewest, most = expected["applied_between"]
        applied = sum(answer["applied"] for answer in answers)
        found += [] if fewest <= applied <= most else [f"{applied} applied, expected {fewest} to {most}"]
    return found


def _differences(expected_events: list[Json], answers: list[Json]) -> Iterator[str]:
    for step, expected in enumerate(expected_events):
        for field, value in expected.items():
            if field.startswith("oracle_") or field == "arith":
                continue
            if field not in answers[step]:
                yield f"step {step}: no answer for {field!r}"
            elif not _equal(value, answers[step][field]):
                yield f"step {step}: {field} is {answers[step][field]!r}, expected {value!r}"


def _equal(expected: Any, actual: Any) -> bool:
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        return bool(expected == actual)
    if isinstance(expected, dict):
        return expected.keys() <= actual.keys() and all(_equal(value, actual[key]) for key, value in expected.items())
    if isinstance(expected, list):
        if expected and "entity" in expected[0]:  # entities come in no particular order
            expected, actual = sorted(expected, key=_entity), sorted(actual, key=_entity)
        return len(expected) == len(actual) and all(_equal(*pair) for pair in zip(expected, actual, strict=True))
    return math.isclose(expected, actual, rel_tol=1e-9, abs_tol=1e-9)


def _entity(entry: Json) -> str:
    return json.dumps(entry["entity"], sort_keys=True)
