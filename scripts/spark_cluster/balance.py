"""Whether the books balance after kills: in the table each answer once, in the topic each at least once."""

import json
from collections import Counter
from dataclasses import dataclass

from scripts.testbed.reconciliation import Reconciliation, reconcile, records
from sluice.configs.settings import Settings
from sluice.state.decisions.epochs import Fence


@dataclass(frozen=True)
class Balance:
    """`copies` are further records of an answer, of which those that differ from the first are `different_copies`.

    `fenced` counts decisions that no reader counts.
    """

    counts: Reconciliation
    copies: int
    different_copies: int
    fenced: int

    @property
    def balanced(self) -> bool:
        """Whether each request has one answer in the tables, as `simulate` gives it, and all copies are the same."""
        counts = self.counts
        return (
            counts.simulated
            and counts.requests == counts.decisions + counts.dead_letters
            and counts.decision_rows == counts.decisions
            and counts.dead_letter_rows == counts.dead_letters
            and counts.metered_charges == counts.charges
            and not (counts.different or counts.unaccounted or self.different_copies)
        )

    def __str__(self) -> str:
        """All of it in two lines."""
        return (
            f"{self.counts.requests} requests = {self.counts.decisions} decisions + {self.counts.dead_letters} dead"
            f" letters; in Delta {self.counts.decision_rows} decisions, {self.counts.dead_letter_rows} dead letters,"
            f" {self.counts.metered_charges} of {self.counts.charges} charges; {self.counts.different} different from"
            f" simulate\nin the topics {self.copies} copies, {self.different_copies} of them different,"
            f" {self.fenced} fenced; {self.counts.unaccounted} records unaccounted for:"
            f" {'balanced' if self.balanced else 'NOT BALANCED'}"
        )


def balance(settings: Settings) -> Balance:
    """Read topics and tables, and simulate. The requests topic has one partition, the quotas haven't changed."""
    fence, seen = Fence(), Counter[str]()
    first: dict[str, bytes] = {}
    different = 0
    for topic in (settings.topics.decisions, settings.topics.dead_letters):
        for record in records(settings, topic):
            if topic == settings.topics.decisions and not fence.passes_record(record):
                continue
            answer = _answered(record.value)
            seen[answer] += 1
            different += first.setdefault(answer, record.value) != record.value
    return Balance(reconcile(settings), seen.total() - len(seen), different, fence.fenced)


def _answered(value: bytes) -> str:
    """The event that an answer is of."""
    answer = json.loads(value)
    return str(answer.get("decision_id") or answer["source"])
