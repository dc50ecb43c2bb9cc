"""Replays a scenario of the case file through the code that the job runs, and gives what each step answered."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from state.charge import POINTS_PER_NANOSECOND, Charge
from state.entity import DEFAULT, QuotaEntity, sanitize
from state.errors import InvalidQuotaError
from state.meters import Meters, Outcome, clamp_throttle_ms, exceeds, request_wait_ms, wait_over_limit_ms
from state.quota import UNLIMITED, QuotaKind, QuotaSettings, Window
from state.quota_control import Alteration, FilterComponent, QuotaControl, UnsupportedEntityTypeError
from state.quota_entry import QuotaEntry
from state.resolution import Quotas, Resolution, Rung, max_in_window
from state.sampled_rate import SampledRate, wait_for_rate_ms
from state.shard import Shard
from state.token_bucket import TokenBucket, wait_for_tokens_ms

Json = dict[str, Any]

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
    """Whether Sluice has the feature a case is about; by mode, and ip entities alone are left out."""
    inputs = case["inputs"]
    if inputs["mode"] in OUT_OF_SCOPE_MODES:
        return False
    altered = [alteration for step in inputs.get("steps", []) for alteration in step.get("alter", [])]
    return not (altered and all("ip" in alteration["entity"] for alteration in altered))


def replay(case: Json) -> list[Json]:
    """What every event or step of the case answered, all fields that its expectation could name."""
    inputs = case["inputs"]
    mode = inputs["mode"]
    if mode == "validate":
        return ControllerReplay().run(inputs["steps"])
    if mode == "throttle_formula":
        return [_formula(inputs, event) for event in inputs["events"]]
    if mode == "token_bucket":
        return BucketReplay(inputs).run(inputs["events"])
    if mode == "rate":
        return RateReplay(inputs).run(inputs["events"])
    if mode in MANAGER_KINDS:
        return ManagerReplay(inputs).run(inputs["events"])
    raise UnmappedCaseError(f"unknown mode {mode!r}")


def java_int(number: int) -> int:
    """A long cast to an int as Java does it: the low 32 bits. Shipped Kafka wraps long controller waits so."""
    return (number + 2**31) % 2**32 - 2**31


def _window(inputs: Json) -> Window:
    window_ms = inputs.get("window_ms", round(inputs.get("window_s", 1) * 1000))
    return Window(inputs["samples"], window_ms)


def _formula(inputs: Json, event: Json) -> Json:
    merged = {**inputs, **event}
    if event.get("stat") == "token_bucket":
        wait_ms = wait_for_tokens_ms(event["value"], event["bound"])
    else:
        window = _window(merged)
        fresh_window_ms = SampledRate().window_ms(window, now_ms=0)
        wait_ms = wait_for_rate_ms(event["value"], event["bound"], fresh_window_ms)
    return {"throttle_ms": min(wait_ms, merged.get("max_throttle_ms", wait_ms))}


class MeterReplay(ABC):
    """One meter with or without a quota: what a bucket and a rate have in common."""

    def __init__(self, inputs: Json) -> None:
        self.limit: float | None = inputs.get("quota")

    def run(self, events: list[Json]) -> list[Json]:
        return [self._step(event, event["t"]) for event in events]

    def _step(self, event: Json, now_ms: int) -> Json:
        operation = event["op"]
        if operation == "quota":
            self.limit = event.get("v", event.get("value"))
            return {}
        if operation in ("measure", "check"):
            return self._measure(now_ms)
        return self._record(operation, event, now_ms)

    @abstractmethod
    def _measure(self, now_ms: int) -> Json:
        """What the meter shows."""

    @abstractmethod
    def _record(self, operation: str, event: Json, now_ms: int) -> Json:
        """Do an operation that charges the meter. Raises UnmappedCaseError for an unknown one."""


class BucketReplay(MeterReplay):
    """Mode token_bucket: one bucket, charged through the job's meters."""

    def __init__(self, inputs: Json) -> None:
        super().__init__(inputs)
        self.settings = QuotaSettings(controller_window=_window(inputs))
        self.meters = Meters()
        self.meters.bucket = TokenBucket()

    def _record(self, operation: str, event: Json, now_ms: int) -> Json:
        if operation == "record" and event["v"] < 0:
            bucket = self.meters.bucket or TokenBucket()
            bucket.record(event["v"], self.limit, self.settings.controller_window, now_ms)
            return self._measure(now_ms)
        if operation in ("record", "record_check", "strict"):
            return self._charge(event["v"], strict=operation == "strict", now_ms=now_ms)
        raise UnmappedCaseError(f"unknown operation {operation!r}")

    def _measure(self, now_ms: int) -> Json:
        bucket = self.meters.bucket or TokenBucket()
        tokens = bucket.measure(self.limit, self.settings.controller_window, now_ms)
        violated = tokens < 0
        wait_ms = wait_for_tokens_ms(tokens, self.limit) if violated and self.limit is not None else 0
        return {"tokens": tokens, "violated": violated, "throttle_ms": wait_ms}

    def _charge(self, value: float, *, strict: bool, now_ms: int) -> Json:
        if self.limit is None:
            return {"tokens": UNLIMITED, "violated": False, "applied": True, "throttle_ms": 0}
        charge = Charge(QuotaKind.CONTROLLER_MUTATION_RATE, Rung.USER, self.limit, False, [value], strict)
        outcome = self.meters.charge(charge, now_ms, self.settings)
        return {
            "tokens": outcome.tokens,
            "violated": outcome.violated,
            "applied": outcome.refused == [False],
            "throttle_ms": outcome.wait_ms,
        }


class RateReplay(MeterReplay):
    """Mode rate: one sampled rate, with or without a quota."""

    def __init__(self, inputs: Json) -> None:
        super().__init__(inputs)
        self.window = _window(inputs)
        self.longest_ms: float = inputs.get("max_throttle_ms", math.inf)
        self.rate = SampledRate()

    def _record(self, operation: str, event: Json, now_ms: int) -> Json:
        if operation == "strict":
            checked = self._measure(now_ms)
            if checked["violated"]:
                return {**checked, "applied": False}
            self.rate.record(event["v"], self.window, now_ms)
            return {**self._measure(now_ms), "violated": False, "applied": True, "throttle_ms": 0}
        if operation not in ("record", "record_check", "admit"):
            raise UnmappedCaseError(f"unknown operation {operation!r}")
        self.rate.record(event["v"], self.window, now_ms)
        checked = self._measure(now_ms)
        if operation == "admit" and checked["violated"]:
            self.rate.record(-event["v"], self.window, now_ms)
            taken_back = self.rate.measure(self.window, now_ms)
            return {**checked, "applied": False, "rate": taken_back}
        return {**checked, "applied": True}

    def _measure(self, now_ms: int) -> Json:
        observed = self.rate.measure(self.window, now_ms)
        wait_ms = wait_over_limit_ms(self.rate, observed, self.limit, self.window, now_ms)
        return {
            "rate": observed,
            "window_ms": self.rate.window_ms(self.window, now_ms),
            "violated": exceeds(observed, self.limit),
            "throttle_ms": min(wait_ms, self.longest_ms),
        }


@dataclass
class MutationQuotaHandle:
    """What Kafka gives a request for its mutations: strict, permissive or unbounded."""

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

    def __init__(self, inputs: Json) -> None:
        window = _window(inputs)
        self.kind = MANAGER_KINDS[inputs["mode"]]
        self.settings = QuotaSettings(client_window=window, controller_window=window)
        self.window = window
        self.quotas = Quotas()
        self.shard = Shard()
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
        resolution = self.quotas.resolve(self.kind, event.get("user", ""), event.get("client_id", ""))
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
            "level": str(resolution.rung),
        }

    def _set_quota(self, quota: Mapping[str, Any]) -> None:
        names = {
            part: DEFAULT if quota[part] is None else quota[part] for part in ("user", "client_id") if part in quota
        }
        entity = QuotaEntity(**names)
        if quota["value"] is None:
            self.quotas.remove(entity, self.kind)
        else:
            self.quotas.set(QuotaEntry(entity, self.kind, quota["value"]))

    def _charge(self, resolution: Resolution, amount: float, *, strict: bool, now_ms: int) -> Outcome:
        amounts = [amount, 0.0] if self.kind is QuotaKind.REQUEST_PERCENTAGE else [amount]
        charge = Charge(self.kind, resolution.rung, resolution.limit, False, amounts, strict)
        return self.shard.meters_of(resolution.tags).charge(charge, now_ms, self.settings)

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
        meters = self.shard.meters_of(resolution.tags)
        if self.kind is QuotaKind.CONTROLLER_MUTATION_RATE:
            meters.bucket = meters.bucket or TokenBucket()
            meters.bucket.record(amount, resolution.limit, self.window, now_ms)
        else:
            meters.unrecord(self.kind, -amount, now_ms, self.settings)
        return self._check(resolution, now_ms)

    def _check(self, resolution: Resolution, now_ms: int) -> Json:
        if self.kind is QuotaKind.CONTROLLER_MUTATION_RATE:
            bucket = self.shard.meters_of(resolution.tags).bucket or TokenBucket()
            tokens = bucket.measure(resolution.limit, self.window, now_ms)
            wait_ms = wait_for_tokens_ms(tokens, resolution.limit) if resolution.limit and tokens < 0 else 0
            return {"tokens": tokens, "violated": tokens < 0, "exceeded": tokens < 0, "throttle_ms": java_int(wait_ms)}
        rate = self.shard.meters_of(resolution.tags).rate(self.kind)
        observed = rate.measure(self.window, now_ms)
        wait = request_wait_ms if self.kind is QuotaKind.REQUEST_PERCENTAGE else wait_over_limit_ms
        wait_ms = clamp_throttle_ms(wait(rate, observed, resolution.limit, self.window, now_ms))
        violated = exceeds(observed, resolution.limit)
        return {"rate": observed, "violated": violated, "exceeded": violated, "throttle_ms": wait_ms}

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
        resolution = self.quotas.resolve(self.kind, handle.user, handle.client_id)
        outcome = self._charge(resolution, _amount(event), strict=handle.strict, now_ms=now_ms)
        rejected = any(outcome.refused)
        if outcome.violated:
            handle.noted_wait_ms, handle.noted_at_ms = java_int(outcome.wait_ms), now_ms
        answer = {**handle.answer(now_ms), "rejected": rejected, "tokens": outcome.tokens}
        return {**answer, "error_throttle_ms": java_int(outcome.wait_ms)} if rejected else answer


class ControllerReplay:
    """Mode validate: alter and describe calls on the controller's quotas."""

    def __init__(self) -> None:
        self.control = QuotaControl()

    def run(self, steps: list[Json]) -> list[Json]:
        return [self._alter(step) if "alter" in step else self._describe(step) for step in steps]

    def _alter(self, step: Json) -> Json:
        alterations = [
            Alteration(call["entity"], [(key, value) for key, value in call["ops"]]) for call in step["alter"]
        ]
        result = self.control.alter(alterations, validate_only=step.get("validate_only", False))
        answers = [
            {"error": "INVALID_REQUEST", "reason": error.reason} if error else {"error": "NONE"}
            for error in result.errors
        ]
        records = 0 if step.get("validate_only") else result.records
        return {"results": answers, "records": records, "state": _entries(self.control.values_by_entity)}

    def _describe(self, step: Json) -> Json:
        components = [FilterComponent(part["type"], part["match"], part.get("name")) for part in step["describe"]]
        try:
            found = self.control.describe(components, strict=step["strict"])
        except UnsupportedEntityTypeError:
            return {"error": "UnsupportedVersionException"}
        except InvalidQuotaError as error:
            return {"error": "InvalidRequestException", "reason": error.reason}
        return {"matched": len(found), "entries": _entries(found)}


def _entries(values_by_entity: Mapping[frozenset[tuple[str, str | None]], dict[str, float]]) -> list[Json]:
    return [{"entity": dict(entity), "values": values} for entity, values in values_by_entity.items()]


def _amount(event: Json) -> float:
    return float(event["nanos"] * POINTS_PER_NANOSECOND if "nanos" in event else event["v"])
