"""How far the requests topic was filled when a micro-batch of the audit query began: what comes later has no answer."""

from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from sluice.configs.settings import Settings
from sluice.kafka_io.topic_reader import TopicReader
from sluice.streaming.checkpoint.folder import Checkpoint

_FILE = "request_ends.json"


class _Ends(msgspec.Struct):
    batch_id: int
    ends: list[int]


class RequestEnds:
    """The ends of the requests topic for the last micro-batch, kept so that a repeated one is judged as before."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if its file is damaged."""
        self._files = checkpoint.sluice
        content = self._files.read(_FILE)
        try:
            self._last = _Ends(-1, []) if content is None else msgspec.json.decode(content, type=_Ends)
        except msgspec.MsgspecError as error:
            raise self._files.damaged_file(_FILE, str(error)) from error

    def of_batch(self, batch_id: int, now: Sequence[int]) -> list[int]:
        """The ends by partition for this micro-batch: those of its first attempt, else the ends `now`.

        They never fall: of a topic that was deleted and made again there may be decisions that are still unread.
        """
        if batch_id != self._last.batch_id:
            ends = [max(pair) for pair in zip_longest(self._last.ends, now, fillvalue=0)]
            self._last = _Ends(batch_id, ends)
            self._files.write(_FILE, msgspec.json.encode(self._last))
        return self._last.ends


def current_ends(settings: Settings) -> list[int]:
    """The offset after the newest record of each partition of the requests topic; none if there is no topic.

    Raises KafkaUnavailableError, or KafkaError.
    """
    with TopicReader(settings.kafka, settings.topics.requests) as reader:
        offsets = reader.offsets()
    return [offsets[partition].end for partition in sorted(offsets)]
