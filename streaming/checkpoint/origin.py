"""The settings a checkpoint was created with, and the comparison with the current settings."""

import secrets
from dataclasses import replace

import msgspec
from msgspec import structs

from sluice.configs.settings import Settings
from sluice.process.clock import now_ms
from sluice.streaming.checkpoint.folder import ORIGIN, Checkpoint
from sluice.streaming.errors import CheckpointError
from sluice.streaming.workers.engine_start import are_batched

BATCHED_PAGES = 256
"""Pages that a checkpoint begins with: each page that a micro-batch charges has a fixed cost."""

MOST_SPLIT_PAGES, _MOST_SPLITS = 4_096, 16
"""Pages are split until there are so many, or so many times those that the checkpoint began with."""

_ENTITIES_OF_PAGE = 256
"""Entities of a page, 33 kB, above which pages are split: a choice, no measured optimum."""

PAGES = 32
"""PySpark's own workers take a millisecond for a page."""


def new_pages(settings: Settings) -> int:
    """The pages that the settings ask for; null asks for what fits the workers."""
    if settings.state.pages is not None:
        return settings.state.pages
    return BATCHED_PAGES if are_batched(settings.enforce.batched_workers) else PAGES


def grown_pages(pages: int, first_pages: int, entities: int) -> int:
    """The pages that a checkpoint needs which has `pages`, began with `first_pages`, and has so many entities.

    >>> grown_pages(256, 256, 65_536), grown_pages(256, 256, 65_537), grown_pages(256, 256, 1_000_000)
    (256, 512, 4096)
    """
    most = min(MOST_SPLIT_PAGES, first_pages * _MOST_SPLITS)
    while entities > pages * _ENTITIES_OF_PAGE and 2 * pages <= most:
        pages *= 2
    return pages


class Origin(msgspec.Struct, frozen=True):
    """The settings a checkpoint was created with. State created with other settings can't be used."""

    pages: int
    requests_topic: str
    quota_window: tuple[int, int]
    controller_window: tuple[int, int]

    @classmethod
    def of(cls, settings: Settings) -> "Origin":
        """The origin that these settings would give a new checkpoint."""
        quota = settings.quota
        return cls(
            new_pages(settings),
            settings.topics.requests,
            (quota.client_window.samples, quota.client_window.window_ms),
            (quota.controller_window.samples, quota.controller_window.window_ms),
        )

    def difference(self, settings: Settings) -> str | None:
        """The first setting, in words, that differs from this origin; None if none does."""
        wanted = Origin.of(settings)
        for name, setting in _SETTING_NAMES.items():
            was, value = getattr(self, name), getattr(wanted, name)
            if was != value:
                return f"{setting} = {was}, the settings say {value}"
        return None

    def difference_but_pages(self, settings: Settings) -> str | None:
        """Like `difference`, without the pages: balances can move to other pages, but not to anything else."""
        return structs.replace(self, pages=new_pages(settings)).difference(settings)


_SETTING_NAMES = {
    "pages": "state.pages",
    "requests_topic": "topics.requests",
    "quota_window": "quota.window.num and quota.window.size.seconds (in ms)",
    "controller_window": "controller.quota.window.num and controller.quota.window.size.seconds (in ms)",
}


def check_origin(checkpoint: Checkpoint, settings: Settings) -> None:
    """Record the settings of a new checkpoint. Raises CheckpointError if an old one was made with other settings."""
    stored = read_origin(checkpoint)
    if stored is None:
        write_origin(checkpoint, Origin.of(settings))
        return
    difference = stored.difference(settings)
    if difference is not None:
        way_on = (
            "name a new enforce.checkpoint (`sluice state export` and `import` move the balances)"
            if stored.pages != new_pages(settings)
            else "name a new enforce.checkpoint (balances start from zero)"
        )
        raise CheckpointError(
            f"the checkpoint {settings.enforce.checkpoint} was made with {difference}; set it back, or {way_on}"
        )


def with_pages(settings: Settings) -> Settings:
    """The settings with the pages of their checkpoint if `state.pages` is null. Raises CheckpointError."""
    if settings.state.pages is not None:
        return settings
    origin = read_origin(Checkpoint(settings.enforce.checkpoint))
    pages = origin.pages if origin else new_pages(settings)
    return replace(settings, state=replace(settings.state, pages=pages))


def read_origin(checkpoint: Checkpoint) -> Origin | None:
    """The settings the checkpoint was made with, None for a new one. Raises CheckpointError if they can't be read."""
    return checkpoint.sluice.read_json(ORIGIN, Origin)


def write_origin(checkpoint: Checkpoint, origin: Origin) -> None:
    """Record the settings a checkpoint is made with."""
    checkpoint.sluice.write(ORIGIN, msgspec.json.encode(origin))


_FILE = "job.json"


class JobIdentity(msgspec.Struct, frozen=True):
    """The id of the job on a checkpoint, and when the checkpoint got it, in epoch milliseconds."""

    job_id: str
    made_at_ms: int


def job_identity(checkpoint: Checkpoint) -> JobIdentity:
    """The identity of the job on this checkpoint; the first call makes it. Raises CheckpointError."""
    identity = checkpoint.sluice.read_json(_FILE, JobIdentity)
    if identity is None:
        identity = JobIdentity(secrets.token_hex(8), now_ms())
        checkpoint.sluice.write(_FILE, msgspec.json.encode(identity))
    return identity


_TOPIC_FILE = "requests_topic.json"


def charged_topic_id(checkpoint: Checkpoint) -> str | None:
    """Kafka's id of the topic that balances were charged from; None if it isn't known. Raises CheckpointError."""
    return checkpoint.sluice.read_json(_TOPIC_FILE, str)


def write_topic_id(checkpoint: Checkpoint, topic_id: str) -> None:
    """Note the id of the topic that balances are charged from. Raises CheckpointError."""
    checkpoint.sluice.write(_TOPIC_FILE, msgspec.json.encode(topic_id))
