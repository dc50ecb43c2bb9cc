"""The controller mutation quota of every user as an application of Quix Streams: python quix_peer.py APPLICATION

APPLICATION is the JSON of `measure.Application`. It runs in the Python of `quix_python`, without
Sluice's packages, until SIGTERM.
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quixstreams import State

Json = dict[str, Any]

_QUOTA = "controller_mutation_rate"
_EXCEEDED = 89
_EXCEEDED_MESSAGE = "The throttling quota has been exceeded."
_MAX_THROTTLE_MS = 2**31 - 1
_COMMIT_S = 0.1  # as Kafka Streams'; Quix Streams' own 5 s would be the latency of a decision


class Enforcer:
    """Decides: tokens refill at the limit up to the burst; a mutation is refused while there are fewer than none.

    State is kept by the key of the record, which is user and client: the bench's users have one client each.
    """

    def __init__(self, limit: float, burst: float) -> None:
        self._limit = limit
        self._burst = burst

    def decide(self, request: Json, state: "State") -> Json:
        """The decision on a request."""
        now_ms = request["timestamp_ms"]
        tokens, last_ms = state.get("bucket") or (self._burst, now_ms)
        tokens = min(self._burst, tokens + self._limit * ((now_ms - last_ms) / 1000.0))
        charged, results = 0.0, []
        for mutation in request["mutations"]:
            refused = tokens < 0
            if not refused:
                tokens = min(self._burst, tokens - mutation["partitions"])
                charged += mutation["partitions"]
            results.append(_topic_result(mutation["topic"], refused))
        state.set("bucket", (tokens, now_ms))
        return self._decision(request, charged, tokens, results)

    def _decision(self, request: Json, charged: float, tokens: float, results: list[Json]) -> Json:
        refused = [result for result in results if result["error_code"]]
        rejected = bool(refused) and len(refused) == len(results)
        throttle_ms = self._throttle_ms(tokens) if refused else 0
        return {
            "request_id": request["request_id"],
            "timestamp_ms": request["timestamp_ms"],
            "user": request["user"],
            "client_id": request["client_id"],
            "api": request["api"],
            "gateway": request["gateway"],
            "verdict": "REJECT" if rejected else "THROTTLE" if throttle_ms else "ALLOW",
            "throttle_time_ms": throttle_ms,
            "mute_until_ms": request["timestamp_ms"] + throttle_ms if throttle_ms else None,
            "error_code": _EXCEEDED if rejected else 0,
            "topic_results": results,
            "decided_by": _QUOTA if throttle_ms else None,
            "charges": [
                {
                    "quota": _QUOTA,
                    "entity": {"user": request["user"]},
                    "limit": self._limit,
                    "value": charged,
                    "tokens": tokens,
                    "throttle_ms": throttle_ms,
                    "violated": bool(refused),
                }
            ],
            "decided_at_ms": time.time_ns() // 1_000_000,
        }

    def _throttle_ms(self, tokens: float) -> int:
        """Milliseconds until the tokens are back at 0, halves up; a refusal never has 0."""
        wait_ms = -tokens / self._limit * 1000.0
        whole_ms = math.floor(wait_ms)
        return min(max(1, whole_ms + (wait_ms - whole_ms >= 0.5)), _MAX_THROTTLE_MS)


def _topic_result(topic: str, refused: bool) -> Json:
    if refused:
        return {"topic": topic, "error_code": _EXCEEDED, "error_message": _EXCEEDED_MESSAGE}
    return {"topic": topic, "error_code": 0, "error_message": None}


def main() -> None:
    """Run the application that the command line describes."""
    from quixstreams import Application  # Sluice's own Python, whose tests import this module, doesn't have it

    wanted = json.loads(sys.argv[1])
    # Quix Streams looks for the folder and then makes it; of two processes at once the second one would fail.
    Path(wanted["state_folder"], wanted["name"]).mkdir(parents=True, exist_ok=True)
    application = Application(
        broker_address=wanted["servers"],
        consumer_group=wanted["name"],
        state_dir=wanted["state_folder"],
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=_COMMIT_S,
        consumer_poll_timeout=_COMMIT_S,
        producer_extra_config={"linger.ms": 5},
        loglevel="WARNING",
    )
    requests = application.topic(wanted["requests"], value_deserializer="json")
    decisions = application.topic(wanted["decisions"], value_serializer="json")
    enforcer = Enforcer(wanted["limit"], wanted["burst"])
    application.dataframe(requests).apply(enforcer.decide, stateful=True).to_topic(decisions)
    application.run()


if __name__ == "__main__":
    main()
