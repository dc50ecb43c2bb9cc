"""A gateway that was made before a fork: as under a server that loads the application before it forks its workers."""

import subprocess
import sys

PROGRAM = """
import logging, os, sys, threading
from sluice import Gateway, GatewayOptions, WhenFull

logging.basicConfig(format="%(message)s", level=logging.WARNING)
logging.getLogger("kafka").setLevel(logging.CRITICAL)
options = GatewayOptions(name="edge", max_unsent=2, when_full=WhenFull.DROP, close_timeout_s=0)
event = {"api": "Metadata", "user": "alice"}
gateway = Gateway({"bootstrap.servers": "127.0.0.1:1"}, options)  # where nobody answers: all stays unsent
for _ in range(2):
    gateway.admit(event)
if child := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    untouched = os.fork()
    if not untouched:
        gateway.close()
        sys.exit()
    assert os.waitstatus_to_exitcode(os.waitpid(untouched, 0)[1]) == 0
    print("parent", gateway.instance, gateway.stats().unsent, flush=True)
else:
    instance = gateway.instance
    called = [threading.Thread(target=gateway.throttle_of, args=("alice", "app")) for _ in range(8)]
    for each in called:
        each.start()
    for each in called:
        each.join()
    gateway.admit(event)
    assert gateway.instance.startswith("edge-") and gateway.instance != instance
    alive = [each.name for each in threading.enumerate()]
    assert "sluice-event-publisher" in alive and sum("quota-" in each for each in alive) == 3, alive
    print("child", gateway.stats().unsent, flush=True)
gateway.close()
"""


def test_a_gateway_that_was_made_before_a_fork_begins_anew_in_the_child_and_says_so() -> None:
    """With threads and a name of its own; what the parent has is the parent's, and a child without a call ends."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=600)

    assert ended.returncode == 0, ended.stderr
    child, parent = ended.stdout.splitlines()
    assert child == "child 1"
    assert parent.startswith("parent edge-")
    assert parent.endswith(" 2")
    assert ended.stderr.count("the gateway was made before a fork; it begins anew in process ") == 1
