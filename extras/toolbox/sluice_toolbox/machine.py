"""A Java virtual machine for Python to call, by py4j, which comes with pyspark."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from sluice.jvm.errors import JavaError
from sluice.jvm.java import find_java


class Jvm(AbstractContextManager["Jvm"]):
    """Java with this class path, and py4j before it if it has none. It ends with this process. Raises JavaError."""

    def __init__(
        self, class_path: Sequence[Path] = (), options: Sequence[str] = ("-Xmx256m", "-XX:+UseSerialGC")
    ) -> None:
        java, _ = find_java()
        has_py4j = any(file.name.startswith("py4j") for file in class_path)  # an archive of classes needs the same path
        try:
            port, secret, self._process = launch_gateway(
                java_path=java,
                jarpath=str(class_path[0]) if has_py4j else "",
                classpath=os.pathsep.join(map(str, class_path[has_py4j:])),
                javaopts=list(options),
                die_on_exit=True,
                enable_auth=True,
                return_proc=True,
            )
        except ValueError as error:  # it printed no port
            raise JavaError("Java ended at its start; check JAVA_HOME, and the memory of this machine") from error
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret))
        self.packages: Any = self._gateway.jvm
        """Java's packages, such as `packages.java.util.HashMap`."""

    def __exit__(self, *_: object) -> None:
        self._gateway.shutdown()
        self._process.stdin.close()
        self._process.wait()  # nothing is written any more

    def array(self, kind: Any, values: Sequence[object]) -> Any:
        """A Java array."""
        array = self._gateway.new_array(kind, len(values))
        for index, value in enumerate(values):
            array[index] = value
        return array
