"""Clients that operators have stopped (`sluice quotas hold`), each for a time from when the job takes it. Pure."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.overrides.decider import DecidedOverrides, Decider
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.limits import OPERATOR
from sluice_reading.operator_holds import MAX_LASTING_MS, OperatorHold, last_commands

MAX_HOLDS = 100
"""Most holds at a time: all are in one record. An operator who needs more lowers quotas."""

REMEMBERED_MS = 30 * 86_400_000
"""Time for which a command is remembered after its end, in which a job that was away takes it; not the last one."""

NONE_TAKEN = 1
"""Number of the last command while there is none, so that the record says that the job knows of none."""


def remembered(holds: Sequence[OperatorHold], now_ms: int) -> list[OperatorHold]:
    """The commands that ended less than REMEMBERED_MS ago, and the last one, whose number all others are compared with.

    A number is at least the time of some earlier command, so one by a clock that is far behind is remembered as well.

    >>> why, month_ms = ("it floods", "carol", "root", "laptop", None), REMEMBERED_MS
    >>> holds = [OperatorHold("", "app", "", *numbers, 1_000, *why) for numbers in ((5, 5), (99, 6), (7, 7))]
    >>> [[each.number for each in remembered(holds, now_ms)] for now_ms in (0, month_ms + 1_006, 9 * month_ms)]
    [[5, 99, 7], [99, 7], [99]]
    """
    last = max((hold.number for hold in holds), default=0)
    since_ms = now_ms - REMEMBERED_MS
    return [hold for hold in holds if max(hold.number, hold.until_ms) > since_ms or hold.number == last]


def too_many_text(held: int) -> str:
    """Tells of more holds than MAX_HOLDS, as two operators at once or one whose clock is ahead can make.

    >>> too_many_text(102)
    'of 102 clients that are held only the last 100 are stopped; release some, or lower quotas'
    """
    return f"of {held} clients that are held only the last {MAX_HOLDS} are stopped; release some, or lower quotas"


class OperatorHolds(Decider):
    """Stops the producers and consumers that an operator named. `holds` gives all commands; None until they were read.

    A hold lasts from when its command is taken, by the job's clock, also if its row is lost. After a restart it lasts
    as the record that was published last says, and until the commands could be read, all holds of that record do.
    """

    name = OPERATOR
    fresh_ms = 600_000

    def __init__(self, holds: Callable[[], Sequence[OperatorHold] | None]) -> None:
        self._holds = holds
        self._before = Overrides(0, 0, 1)
        self.published: Overrides | None = None  # the last record by an earlier process; None before that is known
        self._taken: dict[Tags, tuple[OperatorHold, int]] | None = None  # the last command of each client, and its end
        self._command = NONE_TAKEN
        self._decided_ms = 0

    def remember(self, said: Overrides) -> None:
        """Take over what was published last, before a restart. No command holds for longer than MAX_LASTING_MS."""
        self.published = said
        longest_ms = said.at_ms + MAX_LASTING_MS
        holds = [
            replace(each, until_ms=longest_ms if each.until_ms is None else min(each.until_ms, longest_ms))
            for each in said.overrides
            if each.kind == "hold"
        ]
        self._before = replace(said, overrides=holds)

    def decide(self, now_ms: int) -> DecidedOverrides:
        """Stop them; the newest MAX_HOLDS count."""
        holds = self._holds()
        if holds is None:
            left = [each for each in self._before.overrides if each.until_ms is None or now_ms < each.until_ms]
            return DecidedOverrides(left, command=self._before.command)
        back_ms, self._decided_ms = min(0, now_ms - self._decided_ms), now_ms  # the job's clock was set back
        if self._taken is not None and back_ms:
            self._taken = {client: (hold, end_ms + back_ms) for client, (hold, end_ms) in self._taken.items()}
        last = last_commands(holds)
        newest = max((hold.number for hold in last.values()), default=NONE_TAKEN)
        taken = {client: (hold, self._end_ms(hold, newest, now_ms)) for client, hold in last.items()}
        lost = {client: known for client, known in (self._taken or {}).items() if client not in last}
        self._taken = {client: known for client, known in lost.items() if now_ms < known[1]} | taken
        self._command = newest
        held = [(hold, until_ms) for hold, until_ms in self._taken.values() if now_ms < until_ms]
        self.trouble = too_many_text(len(held)) if len(held) > MAX_HOLDS else None
        return DecidedOverrides(
            [
                Override("hold", entity=hold.client.entity(), reason=hold.why, until_ms=until_ms, consumers=True)
                for hold, until_ms in held[-MAX_HOLDS:]
            ],
            command=newest,
        )

    def _end_ms(self, hold: OperatorHold, newest: int, now_ms: int) -> int:
        """The end of a hold: as it was when it was taken, or from now on, and never later than that.

        Of one from a backup, or after a record that is lost or of another table, the operator's clock is all there is.
        """
        longest_ms = now_ms + hold.lasting_ms
        if self._taken is None:
            before, entity = self._before, hold.client.entity()
            command, is_of_table = before.command, 0 < before.command <= newest
            ends_ms = [each.until_ms or 0 for each in before.overrides if each.entity == entity]
            end_ms = max(ends_ms, default=0 if is_of_table else hold.until_ms)
        else:
            command, end_ms = self._command, hold.until_ms
            known = self._taken.get(hold.client)
            if known is not None and known[0] == hold:
                return known[1]
        return longest_ms if hold.number > command > 0 else min(end_ms, longest_ms)
