"""Server of `sluice_lab.testbed.object_store`: `PYTHON object_store_server.py PORT FOLDER`, in a Python with moto.

It makes a bucket and users, writes their keys into FOLDER/credentials, and from then on checks each signature and
right. FOLDER/faults.json says how it misbehaves. FOLDER/requests.log has a line for each request: epoch seconds, method
and URL.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

_HOST, _REGION, _BUCKET = "127.0.0.1", "eu-west-1", "sluice"
_POLL_S = 0.1
_SETUP_ACTIONS = 9
"""Requests before keys are checked: those of `_prepare`."""

_RIGHTS = {
    "default": ["s3:*"],
    "reader": ["s3:Get*", "s3:List*"],
    "without-list": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
    "without-rights": ["sns:Publish"],
}
"""The users, and what each may do."""

_REFUSALS = {
    "AccessDenied": ("403 Forbidden", "Access Denied"),
    "ExpiredToken": ("400 Bad Request", "The provided token has expired."),
    "NoSuchBucket": ("404 Not Found", "The specified bucket does not exist"),
}
"""Codes of S3, each with the status and message that it has there."""

os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = str(_SETUP_ACTIONS)

import boto3  # noqa: E402 - moto reads the variable when it is loaded
from moto.core import DEFAULT_ACCOUNT_ID  # noqa: E402
from moto.iam.models import iam_backends  # noqa: E402
from moto.s3.models import s3_backends  # noqa: E402
from moto.server import DomainDispatcherApplication, create_backend_app  # noqa: E402
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server  # noqa: E402


class _Quiet(WSGIRequestHandler):  # type: ignore[misc] # mypy's Python has no werkzeug
    """Keeps connections, and writes no line for each request."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *arguments: Any) -> None:
        pass


class _Store:
    def __init__(self, folder: Path) -> None:
        self._faults_file = folder / "faults.json"
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._conditional = threading.Lock()
        self._requests = (folder / "requests.log").open("a", buffering=1)

    @property
    def faults(self) -> dict[str, Any]:
        try:
            faults: dict[str, Any] = json.loads(self._faults_file.read_text())
            return faults
        except (FileNotFoundError, ValueError):  # none yet, or it is being written
            return {}

    def __call__(self, request: dict[str, Any], answer: Callable[..., Any]) -> Iterable[bytes]:
        method, path, query = (request[name] for name in ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING"))
        self._requests.write(f"{time.time():.3f} {method} {path}?{query}\n")
        time.sleep(self.faults.get("delay_s", 0.0))
        if self.faults.get("unconditional") and "HTTP_IF_NONE_MATCH" in request:
            _forget(request["PATH_INFO"].removeprefix(f"/{_BUCKET}/"))
        if request.get("CONTENT_LENGTH"):
            # before the lock, which a client that is stopped would hold else
            request["wsgi.input"] = BytesIO(request["wsgi.input"].read(int(request["CONTENT_LENGTH"])))
        if refusal := self.faults.get("refusal"):
            return _refuse(request["REQUEST_METHOD"], refusal, answer)
        # moto looks first and writes then
        with self._conditional if "HTTP_IF_NONE_MATCH" in request else nullcontext():
            content: Iterable[bytes] = self._moto(request, answer)
        return content


def _refuse(method: str, code: str, answer: Callable[..., Any]) -> list[bytes]:
    """Answer as S3 does to who may not; without content, if it is asked for none."""
    status, message = _REFUSALS[code]
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    answer(status, [("Content-Type", "application/xml")])
    return [] if method == "HEAD" else [f'<?xml version="1.0" encoding="UTF-8"?>{error}'.encode()]


def _forget(key: str) -> None:
    """Remove an object, so that a write finds none; the header is signed, and can't be left out."""
    for account in s3_backends.values():
        for backend in account.values():
            if _BUCKET in backend.buckets and key in backend.buckets[_BUCKET].keys:
                backend.buckets[_BUCKET].keys.pop(key)


def _prepare(port: int, folder: Path) -> None:
    """A bucket, and users with their keys."""
    connection = {"endpoint_url": f"http://{_HOST}:{port}", "region_name": _REGION}
    keys = {"aws_access_key_id": "setup", "aws_secret_access_key": "setup"}
    s3, iam = (boto3.client(name, **connection, **keys) for name in ("s3", "iam"))
    s3.create_bucket(Bucket=_BUCKET, CreateBucketConfiguration={"LocationConstraint": _REGION})
    for user, actions in _RIGHTS.items():
        statement = [{"Effect": "Allow", "Action": actions, "Resource": "*"}]
        policy = json.dumps({"Version": "2012-10-17", "Statement": statement})
        iam.create_user(UserName=user)
        iam.put_user_policy(UserName=user, PolicyName="own", PolicyDocument=policy)
    _renew_keys(folder)


def _renew_keys(folder: Path) -> None:
    """Give each user new keys, which the file has from then on; the old ones are refused."""
    backend, lines = iam_backends[DEFAULT_ACCOUNT_ID]["aws"], []
    for user in _RIGHTS:
        for old in backend.list_access_keys(user)[:]:
            backend.delete_access_key(old.access_key_id, user)
        key = backend.create_access_key(user)
        lines += [f"[{user}]", f"aws_access_key_id = {key.access_key_id}"]
        lines += [f"aws_secret_access_key = {key.secret_access_key}", ""]
    draft = folder / "credentials.draft"
    draft.write_text("\n".join(lines))
    draft.rename(folder / "credentials")


def main(port: int, folder: Path) -> None:
    store, server, keys = _Store(folder), None, 0
    while True:
        faults = store.faults
        away, wanted = faults.get("away", False), faults.get("keys", keys)
        if away and server is not None:
            server.shutdown()
            server.server_close()
            server = None
        elif not away and server is None:
            server = _started(port, store)
            if not (folder / "credentials").exists():
                _prepare(port, folder)
        if wanted != keys:
            _renew_keys(folder)
            keys = wanted
        time.sleep(_POLL_S)


def _started(port: int, store: _Store) -> BaseWSGIServer:
    server = make_server(_HOST, port, store, threaded=True, request_handler=_Quiet)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
