"""The facts that the job polls for what is wrong now."""

from sluice.state.troubles import Facts
from sluice_toolbox.troubles_watch import TroublesWatch
from tests.builders import DEFAULTS


def test_no_broker_is_silent_to_a_job_that_has_just_begun_to_read_or_was_suspended() -> None:
    """After a suspension of six minutes all brokers were said to be silent, and the cure to restart them."""
    at_s = [0.0]
    watch = TroublesWatch(DEFAULTS, lambda _: Facts(beats={}, heard_s=60), tuple, clock_s=lambda: at_s[0])
    heard_s = {}
    for at_s[0] in (5.0, 34.0, 63.0, 423.0, 452.0, 481.0, 484.0):
        watch.note_poll()
        heard_s[at_s[0]] = watch.facts().heard_s

    assert heard_s == {5.0: 0, 34.0: 0, 63.0: 60, 423.0: 0, 452.0: 0, 481.0: 0, 484.0: 60}
