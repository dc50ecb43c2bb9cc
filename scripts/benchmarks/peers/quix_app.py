"""The controller mutation quota in Quix Streams: a token bucket per user in RocksDB with a changelog.

    python quix_app.py BOOTSTRAP_SERVERS REQUESTS DECISIONS GROUP STATE_FOLDER COMMIT_S LIMIT SAMPLES WINDOW_MS

Runs until SIGTERM, by the Python of a virtual environment of its own, so it imports nothing of this project. The
requests are keyed so that all of a user have the same key.
"""

import sys
from math import floor
from typing import Any

from quixstreams import Application, State  # type: ignore[import-not-found] # only in an environment of its own


def _decider(limit: float, burst: float) -> Any:
    """The function that charges a request, by KIP-599, and returns the decision."""

    def decide(request: dict[str, Any], state: State) -> dict[str, Any]:
        now_ms = request["timestamp_ms"]
        tokens, last_ms = state.get("bucket") or (burst, now_ms)
        charged, throttle_ms = 0.0, 0
        for mutation in request["mutations"]:
            tokens, last_ms = min(burst, tokens + limit * ((now_ms - last_ms) / 1000.0)), now_ms
            if tokens < 0:
                throttle_ms = floor(-tokens / limit * 1000.0 + 0.5)
            else:
                tokens = min(burst, tokens - mutation["partitions"])
                charged += mutation["partitions"]
        state.set("bucket", (tokens, last_ms))
        return {
            "timestamp_ms": now_ms,
            "request_id": request["request_id"],
            "user": request["user"],
            "client_id": request["client_id"],
            "api": request["api"],
            "gateway": request["gateway"],
            "verdict": "THROTTLE" if throttle_ms else "ALLOW",
            "throttle_time_ms": throttle_ms,
            "charges": [
                {
                    "quota": "controller_mutation_rate",
                    "limit": limit,
                    "value": charged,
                    "tokens": tokens,
                    "throttle_ms": throttle_ms,
                    "violated": throttle_ms > 0,
                }
            ],
        }

    return decide


def main() -> None:
    """Run the application that the command line describes."""
    servers, requests, decisions, group, folder, commit_s, limit, samples, window_ms = sys.argv[1:]
    application = Application(
        broker_address=servers,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=float(commit_s),
        state_dir=folder,
        auto_create_topics=True,
    )
    burst = float(limit) * int(samples) * int(window_ms) / 1000.0
    read = application.topic(requests, key_deserializer="str", value_deserializer="json")
    written = application.topic(decisions, key_serializer="str", value_serializer="json")
    frame = application.dataframe(read).apply(_decider(float(limit), burst), stateful=True)
    frame.to_topic(written)
    application.run()


if __name__ == "__main__":
    main()
