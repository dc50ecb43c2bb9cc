"""The command `sluice notices`: a record, and a line, for each limit that is nearly used up."""

import signal
from collections.abc import Iterator
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import json, structs

from sluice.cli.errors import UsageError
from sluice.cli.options import BootstrapServersOption, ConfigOption, job_settings
from sluice.configs.settings import Settings
from sluice.kafka_io.topic_needs import lease_needs, needs
from sluice_reading.output import print_json

if TYPE_CHECKING:
    from sluice_insight.notices import NoticesTopic, State

_LOOKBACK_MS = 120_000
"""The mean of a minute is that of whole points."""

_POLL_S = 5.0


def notices(
    config: ConfigOption = None,
    bootstrap_servers: BootstrapServersOption = None,
    topic: Annotated[str, typer.Option(help="Compacted topic; made if it isn't there.")] = "quota-notices",
) -> None:
    """Publish a notice when a limit is used by 50, 90 or 100 %, or its clients begin to wait, until Ctrl-C or SIGTERM.

    Each is a record of the topic, and a line of JSON here. It comes once for each crossing, and at most once in ten
    minutes for a counter and a threshold; shadow quotas have none. Run one process: two would say all twice.
    """
    settings, ended = job_settings(config, bootstrap_servers), Event()
    if topic in {**needs(settings.topics), **lease_needs(settings.topics)}:
        raise UsageError(f"--topic {topic} is one of the job's own topics; expected one of notices alone")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    from sluice.process.background import BackgroundService
    from sluice_insight.notices import NoticesTopic

    told = NoticesTopic(settings.kafka, topic, settings.topics.replicas)
    steps = NoticeSteps(settings, told, told.made())  # without brokers an error of the start, and an outage later
    with BackgroundService("notices", steps, _POLL_S, failure="notices can't be published", retry_s=_POLL_S):
        ended.wait()


class NoticeSteps:
    """Reads decisions, and publishes what they cross; after an error it begins anew with what the topic has."""

    def __init__(self, settings: Settings, told: "NoticesTopic", known: "State") -> None:
        """`known` is what the topic has now."""
        self._settings, self._told = settings, told
        self._known: State | None = known

    def __call__(self) -> Iterator[None]:
        from sluice.kafka_io.topic_reader import TopicReader
        from sluice.process.clock import now_ms
        from sluice_insight.live import LiveModel
        from sluice_insight.notices import notices, usages_of

        kafka, topics, told = self._settings.kafka, self._settings.topics, self._told
        known, self._known = self._known, None
        state = told.made() if known is None else known
        model, since_ms = LiveModel(self._settings.quota), now_ms() - _LOOKBACK_MS
        with TopicReader(kafka, topics.decisions, since_ms, fenced=True, on_restart=model.forget) as reader:
            while True:
                for _, record in reader.read_to_end():
                    model.on_record(record.value, now_ms())
                at_ms = now_ms()
                found, state_then = notices(state, usages_of(model, at_ms), at_ms)
                if found:
                    told.publish(found)
                    for key, notice in found.items():
                        print_json(json.decode(key.encode()) | structs.asdict(notice))
                state = state_then
                yield
