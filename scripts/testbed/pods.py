"""A stand-in for the API server of Kubernetes, as far as Spark's scheduler asks it for executors.

A pod is a process that runs the entrypoint of the image with the variables and arguments of its container. Each has an
address of its own of the loopback network. Nothing is mounted or isolated, and nobody can watch: Spark has to poll.
"""

import json
import re
import signal
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from scripts.testbed.processes import Child

Json = dict[str, Any]

POLLING = {
    "spark.kubernetes.executor.enableApiWatcher": "false",
    "spark.kubernetes.executor.apiPollingInterval": "1s",
}
"""Section `spark` for a job that uses this server."""

_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?")
_STOP_S = 30
_MADE = "2026-01-01T00:00:00Z"


class Pods:
    """The server, and the processes of the pods. `command` is what a container's arguments are added to.

    `variables` are those that the image has. Logs are in `folder`, one for each pod.
    """

    def __init__(self, folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._folder, self._command, self._variables = folder, command, variables
        self._lock = Lock()
        self._objects: dict[tuple[str, str], Json] = {}
        self._processes: dict[str, Child] = {}
        self._addresses: dict[str, str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for name in list(self._processes):
            self.end(name, signal.SIGKILL)

    @property
    def master(self) -> str:
        """The value of `spark.master`."""
        return f"k8s://http://127.0.0.1:{self._server.server_port}"

    def add_driver(self, name: str) -> None:
        """Add the pod of the driver, which is ready; its process is somebody else's."""
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        driver = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": name}, "status": ready}
        self._objects["pods", name] = driver | {"spec": {"containers": []}}

    def manifests(self) -> list[Json]:
        """The pods that were asked for and not deleted, without the driver's."""
        with self._lock:
            return [each for (_, name), each in self._objects.items() if name in self._processes]

    def running(self) -> list[str]:
        """The names of the pods whose process runs, oldest first."""
        with self._lock:
            return [name for name, process in self._processes.items() if process.alive]

    def end(self, name: str, sign: signal.Signals) -> None:
        """End a pod's process by a signal."""
        process = self._processes[name]
        if process.alive:
            process.end(sign, _STOP_S)

    def answer(self, method: str, target: str, body: Json) -> tuple[HTTPStatus, Json]:
        """Status and body of an answer."""
        url = urlsplit(target)
        query = parse_qs(url.query)
        found = _PATH.fullmatch(url.path)
        if found is None or "watch" in query:
            return _status(HTTPStatus.FORBIDDEN)
        _, kind, name = found.groups()
        if method == "POST":
            return HTTPStatus.CREATED, self._create(kind, body)
        if name is None:
            return HTTPStatus.OK, self._list(kind, query.get("labelSelector", [""])[0])
        if method == "DELETE":
            self._delete(kind, name)
            return _status(HTTPStatus.OK)
        with self._lock:
            known = self._objects.get((kind, name))
        return (HTTPStatus.OK, self._shown(known)) if known else _status(HTTPStatus.NOT_FOUND)

    def _create(self, kind: str, made: Json) -> Json:
        name = made["metadata"]["name"]
        made["metadata"] |= {"uid": name, "resourceVersion": "1", "creationTimestamp": _MADE}
        with self._lock:
            self._objects[kind, name] = made
            if kind == "pods":
                self._addresses[name] = f"127.0.0.{len(self._addresses) + 2}"
                self._processes[name] = self._start(name, made["spec"]["containers"][0])
        return made

    def _start(self, name: str, container: Json) -> Child:
        given = {each["name"]: each.get("value") or self._addresses[name] for each in container["env"]}
        variables = dict(self._variables) | given
        variables.pop("SPARK_LOCAL_DIRS", None)  # a volume that nobody mounts here
        folder = self._folder / name
        folder.mkdir()
        # an executor copies the jars of its driver into the current directory
        set_all = ["/usr/bin/env", "-i", "-C", str(folder), *(f"{each}={value}" for each, value in variables.items())]
        return Child([*set_all, *self._command, *container["args"]], self._folder / f"{name}.log")

    def _list(self, kind: str, selector: str) -> Json:
        wanted = dict(re.findall(r"([^,=!]+)=([^,=]+)", selector))
        with self._lock:
            of_kind = [each for (each_kind, _), each in self._objects.items() if each_kind == kind]
        items = [each for each in of_kind if wanted.items() <= each["metadata"].get("labels", {}).items()]
        kind_name = {"pods": "PodList"}.get(kind, "List")
        return {"kind": kind_name, "apiVersion": "v1", "metadata": {}, "items": [self._shown(each) for each in items]}

    def _shown(self, known: Json) -> Json:
        """A pod with the phase of its process."""
        name = known["metadata"]["name"]
        process = self._processes.get(name)
        if process is None:
            return known
        phase = "Running" if process.alive else "Failed"
        state = {"running": {"startedAt": _MADE}} if process.alive else {"terminated": {"exitCode": 1}}
        container = known["spec"]["containers"][0]["name"]
        status = {"phase": phase, "podIP": self._addresses[name]}
        return known | {"status": status | {"containerStatuses": [{"name": container, "state": state}]}}

    def _delete(self, kind: str, name: str) -> None:
        with self._lock:
            self._objects.pop((kind, name), None)
        if kind == "pods" and name in self._processes:
            Thread(target=self.end, args=(name, signal.SIGTERM), daemon=True).start()


def _status(code: HTTPStatus) -> tuple[HTTPStatus, Json]:
    success = "Success" if code < HTTPStatus.BAD_REQUEST else "Failure"
    return code, {"kind": "Status", "apiVersion": "v1", "status": success, "code": int(code), "reason": code.phrase}


def _handler(pods: Pods) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing."""

        def _answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, body = pods.answer(self.command, self.path, json.loads(sent or b"{}"))
            content = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer  # noqa: N815 # the names that the base class calls

    return Handler
