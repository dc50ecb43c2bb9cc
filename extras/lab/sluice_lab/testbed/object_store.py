"""A real S3 on loopback that checks signatures and rights and knows conditional writes; it ends with this process."""

import json
import os
import signal
from configparser import ConfigParser
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sluice.state.errors import SluiceError
from sluice_demo.job import Json, wait_until
from sluice_lab.testbed.locked_python import locked_python
from sluice_proxy.processes import Child, free_ports, last_line

_FOLDER = Path(__file__).resolve().parent
_START_S, _STOP_S = 60, 5


class ObjectStoreError(SluiceError):
    """The store has ended."""


class ObjectStore(AbstractContextManager["ObjectStore"]):
    """moto in a process of its own, as a context manager. Its objects are in its memory, and go with it."""

    def __init__(self, folder: Path) -> None:
        """Start it, with a bucket. Raises LockedPythonError and ObjectStoreError."""
        folder.mkdir(parents=True)
        os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # no client of a test asks the machine for credentials
        self._folder = folder
        self._port = free_ports(1)[0]
        self._keys = 0
        python = locked_python("moto", _FOLDER / "object-store.lock")
        command = [str(python), str(_FOLDER / "object_store_server.py"), str(self._port), str(folder)]
        self._server = Child(command, folder / "server.log")
        wait_until(self._is_ready, _START_S)

    def __exit__(self, *_: object) -> None:
        self._server.end(signal.SIGTERM, _STOP_S)

    @property
    def url(self) -> str:
        """The URI of the bucket."""
        return "s3://sluice"

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def secret(self) -> str:
        """The secret key of the user who may do all."""
        profiles = ConfigParser(interpolation=None)
        profiles.read(self._folder / "credentials")
        return profiles["default"]["aws_secret_access_key"]

    def requests(self) -> list[str]:
        """Method and path of each request so far."""
        lines = (self._folder / "requests.log").read_text().splitlines()
        return [line.partition(" ")[2].partition("?")[0] for line in lines]

    def settings(self, profile: str = "default") -> dict[str, Json]:
        """The settings of a job that has its keys from a file, as a `profile` of it: a user of the server."""
        file = str(self._folder / "credentials")
        return {"s3": {"endpoint": self.endpoint, "region": "eu-west-1", "credentials_file": file, "profile": profile}}

    def misbehave(self, **faults: Any) -> None:
        """Behave so from now on; without any fault, well.

        `away` refuses connections, `delay_s` answers each request late, and `refusal` answers with this code of S3's.
        An `unconditional` store passes over `If-None-Match`, as older ones do.
        """
        self._write(faults | {"keys": self._keys})

    def renew_keys(self) -> None:
        """Give all users new keys, with which the file changes; the old ones are refused."""
        old, self._keys = self.secret, self._keys + 1
        self._write({"keys": self._keys})
        wait_until(lambda: self.secret != old, _START_S)

    def _write(self, faults: Json) -> None:
        draft = self._folder / "faults.draft"
        draft.write_text(json.dumps(faults))
        draft.rename(self._folder / "faults.json")

    def _is_ready(self) -> bool:
        if not self._server.alive:
            log = self._folder / "server.log"
            raise ObjectStoreError(f"the object store ended: {last_line(log)}; all of it: {log}")
        return (self._folder / "credentials").exists()
