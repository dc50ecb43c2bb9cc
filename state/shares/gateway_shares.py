"""Inline charging of one gateway: its share of each counter that its clients touch, fed with sums of decisions."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from sys import float_info

import msgspec

from sluice.state.arithmetic.counter import Charge, Outcome, charge_mutations
from sluice.state.contract.gateway_topics import CounterSum
from sluice.state.contract.records import MAX_APPLIED_WAITS, MAX_SHARES, AppliedWait, CountedEntity, Request, Share
from sluice.state.decisions.charge_plan import plan_limited
from sluice.state.decisions.waits import CounterKey
from sluice.state.quotas.entity import Tags, entity_text
from sluice.state.quotas.kinds import KINDS_BY_NAME, MAX_THROTTLE_MS, Family, QuotaSettings
from sluice.state.quotas.overrides import HELD_MS, TIGHT_BURST_S, Hold, bound_of_share
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.alive import AliveGateways
from sluice.state.shares.counter_share import CounterShare, InlineCharge, Metering
from sluice.state.shares.read_sums import ReadEntity, ReadSums

RECENT_COUNTERS = 100
"""Number of counters, those used last, among which the busiest are searched: a search of all would take too long."""

MAX_SHOWN_CHARACTERS = 500
"""Longest names of a counter in a heartbeat: clients choose theirs, and a heartbeat has to fit into a Kafka record."""

MAX_DOUBLE = float_info.max

HEARD_MS = 10_000
"""Time that sums of counters are kept which own clients don't use: as long as a new gateway looks back."""

THROTTLED_LOOKED_AT = 10
"""Most throttled counters that are passed over when one has to be forgotten."""


class ThrottledCounter(msgspec.Struct, frozen=True, gc=False):
    """A counter that is throttled inline until a time, because of this limit.

    `asked_ms` is the wait that this request asks for; 0 if an earlier one did, whose wait may have been ended since.
    """

    counter: CounterKey
    limit: float
    until_ms: int
    asked_ms: int


class Admission(msgspec.Struct, frozen=True, gc=False):
    """Answer of a gateway's shares to a request.

    The client waits `throttle_ms` after the response, 0 if it needn't. `refused` has one flag for each topic of a
    mutation request. With `withhold` a Fetch is to be answered empty. `quota`, `limit` and `share` are those of
    the counter that asked for the wait, in units of the quota per second; None if none did. `throttled`
    are the throttled counters of the request, `throttled_by` the same for the event: at most MAX_APPLIED_WAITS.
    """

    throttle_ms: int
    refused: tuple[bool, ...] = ()
    withhold: bool = False
    quota: str | None = None
    limit: float | None = None
    share: float | None = None
    throttled_by: tuple[AppliedWait, ...] = ()
    throttled: tuple[ThrottledCounter, ...] = ()


_NO_WAIT = Admission(0)
_NO_OUTCOMES: Mapping[CounterKey, Outcome] = {}


def held(admission: Admission, hold: Hold, client: CountedEntity) -> Admission:
    """The same for a client under a hold. A longer wait of a quota stays. A hold of all is told of the client.

    >>> from sluice.state.contract.gateway_topics import Override
    >>> hold = Hold("stored_bytes", Override("hold", entity=CountedEntity(tenant="shop")), until_ms=60_000)
    >>> admission = held(_NO_WAIT, hold, CountedEntity("etl", "app"))
    >>> admission.throttle_ms, admission.quota, admission.throttled_by[0].entity.tenant
    (10000, 'stored_bytes', 'shop')
    """
    by = AppliedWait(hold.decider, hold.override.entity or client, HELD_MS)
    throttled_by = (*admission.throttled_by[: MAX_APPLIED_WAITS - 1], by)
    if admission.throttle_ms >= by.ms:
        return msgspec.structs.replace(admission, throttled_by=throttled_by)
    return msgspec.structs.replace(
        admission, throttle_ms=by.ms, quota=by.quota, limit=None, share=None, throttled_by=throttled_by
    )


_HeardSums = tuple[ReadEntity, ReadSums, int]


_Charged = tuple[CounterKey, Charge, CounterShare, InlineCharge]
"""A charge that was made: its counter, the charge, the counter's state, and the result."""


class GatewayShares:
    """The shares of one gateway. Not thread-safe; reads no clock: `now_ms` is epoch milliseconds.

    It keeps at most `max_counters` counters that its own clients touched. Those used least recently are forgotten
    first, throttled ones last; `forgotten` counts them.
    """

    def __init__(
        self, instance: str, settings: QuotaSettings, max_counters: int, max_wait_ms: int, expected_gateways: int = 1
    ) -> None:
        self.gateways = AliveGateways(instance, expected_gateways)
        self.forgotten = 0
        self._settings = settings
        self.metering = self._strict = Metering.of(settings)
        self._factor = 1.0
        self._fractions: dict[CounterKey, float | None] = {}
        self._fractions_of: Quotas | None = None
        self._max_counters = max_counters
        self._max_wait_ms = max_wait_ms
        self.touched: OrderedDict[CounterKey, CounterShare] = OrderedDict()
        self._touched_entities: Counter[bytes] = Counter()  # as JSON
        self._heard = _Heard(max_counters)

    def __len__(self) -> int:
        return len(self.touched)

    def charge_shares(self, request: Request, quotas: Quotas, now_ms: int, delivered: bool = False) -> Admission:
        """Charge a request whose response is ready, or whose mutations are to be executed, under these quotas.

        A Fetch that has to wait is taken back, because its response goes out empty, unless it was `delivered`.
        """
        charged, is_free = [], True
        planned = plan_limited(request, quotas, self._settings)
        outcomes = self._charge_mutations(planned, now_ms) if request.mutations else _NO_OUTCOMES
        for tags, charge in planned:
            counter = (charge.kind, tags)
            if not any(charge.amounts) and counter not in self.touched:
                continue  # a Fetch may name any partition, and must not take the place of counters in use
            share, inline = self._charge(counter, charge, now_ms, quotas, outcomes.get(counter))
            charged.append((counter, charge, share, inline))
            is_free = is_free and share.throttled_until_ms <= now_ms and not inline.refused
        return _NO_WAIT if is_free else self._admission(request, charged, now_ms, delivered)

    def _charge_mutations(self, planned: Sequence[tuple[Tags, Charge]], now_ms: int) -> Mapping[CounterKey, Outcome]:
        """Charge the mutations of a request to its client's counter and its tenant's: both are asked first."""
        charges = {(charge.kind, tags): charge for tags, charge in planned if charge.kind.family is Family.MUTATIONS}
        pairs = []
        for counter, charge in charges.items():
            share = self.touched.get(counter) or self.begin(counter, now_ms)
            limit = share.share(charge.limit or 0.0, self.gateways, self.metering, now_ms)
            pairs.append(share.mutations(charge, limit))
        outcomes = charge_mutations(pairs, now_ms, self._settings.controller_window) if pairs else []
        return dict(zip(charges, outcomes, strict=True))

    def _admission(self, request: Request, charged: Sequence[_Charged], now_ms: int, delivered: bool) -> Admission:
        refused = tuple(map(any, zip(*(inline.refused for *_, inline in charged if inline.refused), strict=True)))
        _, deciding, _, longest = max(charged, key=lambda each: each[3].wait_ms)
        least_ms = 1 if any(refused) else 0  # with 0 ms a refusal would look like success
        wait_ms = min(max(longest.wait_ms, least_ms), MAX_THROTTLE_MS, self._max_wait_ms)
        withhold = wait_ms > 0 and request.api == "Fetch" and not delivered
        if withhold:
            for _, charge, share, _ in charged:
                if charge.kind.consumer:
                    share.take_back(charge, self.metering, now_ms)
        throttled = tuple(_throttled(charged, now_ms))
        throttled_by = _applied(throttled, now_ms)
        if not wait_ms:
            return Admission(0, refused, throttled_by=throttled_by, throttled=throttled)
        quota = deciding.kind.value
        return Admission(wait_ms, refused, withhold, quota, longest.limit, longest.share, throttled_by, throttled)

    def tighten(self, factor: float) -> None:
        """Let this fraction of the shares through from now on, as `bound_of_share` has it; 1 is all."""
        if factor == self._factor:
            return  # it is asked several times a second, and the fractions are kept
        self._factor, self._fractions = factor, {}
        self.metering = self._strict
        if factor < 1.0:
            self.metering = msgspec.structs.replace(self._strict, burst_s=TIGHT_BURST_S)

    def _fraction(self, counter: CounterKey, quotas: Quotas) -> float | None:
        """The fraction of its share that a counter has while it is tightened; None for one that doesn't give way."""
        if quotas is not self._fractions_of or len(self._fractions) >= self._max_counters:
            self._fractions, self._fractions_of = {}, quotas
        if counter not in self._fractions:
            kind, factor, fraction = KINDS_BY_NAME[counter[0]], self._factor, None
            found = quotas.resolve_counter(kind, counter[1]) if kind.family.gives_way else None
            if found is not None and found.limit is not None:
                fraction = bound_of_share(factor, found.limit, found.reservation)
            self._fractions[counter] = fraction
        return self._fractions[counter]

    def charge_decided(self, counter: CounterKey, value: float, limit: float, now_ms: int) -> None:
        """Charge a decided amount of this gateway's own traffic that hadn't been charged inline.

        A value below 0 takes back an excess of inline charges.
        """
        kind = KINDS_BY_NAME[counter[0]]
        amounts = [value, 0.0] if kind.family is Family.REQUEST_TIME else [value]
        self._charge(counter, Charge(kind, "", limit, False, amounts), now_ms)

    def on_sums(self, entity: ReadEntity, of: ReadSums, now_ms: int, uncharged: int | None = None) -> list[CounterKey]:
        """Apply the sums of an entity, of a record that arrived at `now_ms`, to the counters that own clients use.

        Those of other counters are kept, for up to twice HEARD_MS. An operator's reset comes before the charges.
        Requests that this gateway hasn't charged inline are charged now: it has the place `uncharged` in the record.
        Returns the counters that were reset, of which one that was forgotten may have a wait; a repeated micro-batch
        resets none that is kept. Raises msgspec's errors for sums that can't be read.
        """
        resets: list[CounterKey] = []
        text = bytes(entity.entity)
        self._heard.note(text, entity, of, now_ms)
        if uncharged is None and not entity.has_waits and text not in self._touched_entities:
            return resets
        tags = entity.tags()
        for kind, decided in of.counters(entity):
            counter = (kind, tags)
            share = self.touched.get(counter)
            if share is not None and not self._apply(share, decided, of, now_ms):
                continue
            if decided.is_reset:
                resets.append(counter)
            for charged in decided.by_gateway:
                if charged.gateway == uncharged and charged.value and decided.limit is not None:
                    self.charge_decided(counter, charged.value, decided.limit, now_ms)
        return resets

    def _apply(self, share: CounterShare, decided: CounterSum, of: ReadSums, now_ms: int) -> bool:
        """Apply a sum, unless it was applied before: a micro-batch may be repeated. Returns False then."""
        if not share.is_new(of.job_id, of.batch or 0, of.decided_at_ms):
            return False
        if decided.is_reset:
            share.reset()
        share.on_sum(decided, of, self.gateways, self.metering, now_ms, self._max_wait_ms)
        return True

    def clear(self) -> None:
        """Forget all counters, because the sums are read from their beginning again."""
        self.touched.clear()
        self._touched_entities.clear()
        self._heard.clear()

    def step_back(self, now_ms: int) -> None:
        """Forget all counters: the gateway's clock was set back to now, and their times would come again much later."""
        self.clear()
        self.gateways.step_back(now_ms)

    def busiest(self, quotas: Quotas, now_ms: int) -> list[Share]:
        """The shares of the MAX_SHARES counters that use the most of their limit, among the RECENT_COUNTERS used last.

        Each is of the limit under these quotas, which no charge may have seen yet: a share grows in time (RAMP_S), and
        not by charges. Counters with names of more than MAX_SHOWN_CHARACTERS are passed over, and those that nothing
        was charged to since their reset.
        """
        recent = islice(reversed(self.touched.items()), RECENT_COUNTERS)
        shares = [self._shown(*each, quotas, now_ms) for each in recent if each[1].limit and _is_shown(each[0][1])]
        return nlargest(MAX_SHARES, shares, key=lambda share: share.charged / share.limit)

    def _shown(self, counter: CounterKey, known: CounterShare, quotas: Quotas, now_ms: int) -> Share:
        found = quotas.resolve_counter(KINDS_BY_NAME[counter[0]], counter[1])
        limit = known.limit if found is None or not found.limit else found.limit
        return Share(
            counter[0],
            counter[1].entity(),
            limit,
            min(known.share(limit, self.gateways, self.metering, now_ms), MAX_DOUBLE),  # JSON has no infinity
            known.rate(self.metering, now_ms),
            max(0, known.throttled_until_ms - now_ms),
        )

    def _charge(
        self,
        counter: CounterKey,
        charge: Charge,
        now_ms: int,
        quotas: Quotas | None = None,
        charged: Outcome | None = None,
    ) -> tuple[CounterShare, InlineCharge]:
        share = self.touched.get(counter)
        if share is None:
            share = self.begin(counter, now_ms)
        else:
            self.touched.move_to_end(counter)  # used most recently from now on
        fraction = None
        if quotas is not None and self._factor < 1.0:
            fraction = self._fraction(counter, quotas)
        inline = share.charge(charge, self.gateways, self.metering, now_ms, fraction, charged)
        if share.throttled_until_ms > now_ms:
            share.throttled_until_ms = min(share.throttled_until_ms, now_ms + self._max_wait_ms)
        return share, inline

    def begin(self, counter: CounterKey, now_ms: int) -> CounterShare:
        """The state of a counter that our clients touch for the first time."""
        if len(self.touched) >= self._max_counters:
            self._forget_one(now_ms)
        share = self.touched[counter] = CounterShare()
        text = entity_text(counter[1].entity())
        self._touched_entities[text] += 1
        for entity, of, heard_ms in self._heard.of(text):
            with suppress(msgspec.MsgspecError, RecursionError):  # what isn't readable was never used
                for kind, decided in of.counters(entity):
                    if kind == counter[0]:
                        self._apply(share, decided, of, heard_ms)
        return share

    def _forget_one(self, now_ms: int) -> None:
        """Forget the counter that was used least recently, if possible one that isn't throttled.

        A throttled counter isn't used: a client would get rid of its wait by touching many other counters.
        """
        for _ in range(THROTTLED_LOOKED_AT):
            counter, share = next(iter(self.touched.items()))
            if share.throttled_until_ms <= now_ms:
                break
            self.touched.move_to_end(counter)
        (_, tags), _ = self.touched.popitem(last=False)
        self.forgotten += 1
        text = entity_text(tags.entity())
        self._touched_entities[text] -= 1
        if not self._touched_entities[text]:
            del self._touched_entities[text]


class _Heard:
    """Sums of the last HEARD_MS at least, of the entities that had any: at most twice `most`, the newest ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._new: dict[bytes, list[_HeardSums]] = {}
        self._old: dict[bytes, list[_HeardSums]] = {}
        self._new_since_ms = 0

    def note(self, text: bytes, entity: ReadEntity, of: ReadSums, now_ms: int) -> None:
        """Keep the sums of an entity, given as JSON too, that arrived now."""
        if now_ms - self._new_since_ms >= HEARD_MS or len(self._new) >= self._most:
            self._old, self._new, self._new_since_ms = self._new, {}, now_ms
        known = self._new.get(text)
        if known is None:
            self._new[text] = [(entity, of, now_ms)]
        else:
            known.append((entity, of, now_ms))

    def of(self, text: bytes) -> list[_HeardSums]:
        """The sums of an entity, given as JSON, in their order, each with its record and the time of its arrival."""
        return self._old.get(text, []) + self._new.get(text, [])


def _throttled(charged: Sequence[_Charged], now_ms: int) -> Iterator[ThrottledCounter]:
    for counter, _, share, inline in charged:
        if share.throttled_until_ms > now_ms:
            asked_ms = min(inline.wait_ms, share.throttled_until_ms - now_ms)
            yield ThrottledCounter(counter, inline.limit, share.throttled_until_ms, asked_ms)


def _applied(throttled: Sequence[ThrottledCounter], now_ms: int) -> tuple[AppliedWait, ...]:
    if len(throttled) > MAX_APPLIED_WAITS:
        throttled = nlargest(MAX_APPLIED_WAITS, throttled, key=attrgetter("until_ms"))
    return tuple([AppliedWait(each.counter[0], each.counter[1].entity(), each.until_ms - now_ms) for each in throttled])


def _is_shown(tags: Tags) -> bool:
    return len(tags.user) + len(tags.client_id) + len(tags.topic or tags.tenant) <= MAX_SHOWN_CHARACTERS
