"""The environment of the job's Java and Python workers: that of this process without what is another program's.

A shell, a container's image or a company's profile may have variables of another Spark, Hadoop or Java. Sluice sets
what its own processes need; section `spark` of the settings has what operators want to change.
"""

import os
import re
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Final

_OF_JAVA = r"_JAVA_OPTIONS|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|CLASSPATH"
_OF_PYTHON = r"PYTHON(STARTUP|INSPECT|WARNINGS|DEVMODE|IOENCODING|BREAKPOINT|TRACEMALLOC|PROFILEIMPORTTIME)"
_OF_SPARK = r"_?(PYSPARK|SPARK)_\w+|MASTER"
_OF_HADOOP = r"(HADOOP|YARN|HIVE)_\w+"

OWN: Final = MappingProxyType(
    {
        # Paths are UTF-8, and no case of a letter goes by the country.
        "LC_ALL": "C.UTF-8",
        "PYTHONUTF8": "1",
        # Spark starts workers with -m, which would put the working directory first: its random.py in place of Python's.
        "PYTHONSAFEPATH": "1",
    }
)
"""Variables of the job's Java, and of the workers that it starts."""


def foreign_variables(environment: Mapping[str, str], *, one_machine: bool, hadoop: bool) -> list[str]:
    """The variables that the job's processes don't get, sorted.

    A cluster's Spark has its own, unless all is on `one_machine`; Hadoop's say where HDFS is, if files are on `hadoop`.

    >>> foreign_variables({"SPARK_HOME": "/opt/spark", "HOME": "/root"}, one_machine=True, hadoop=False)
    ['SPARK_HOME']
    """
    patterns = [_OF_JAVA, _OF_PYTHON]
    if one_machine:
        patterns += [_OF_SPARK] if hadoop else [_OF_SPARK, _OF_HADOOP]
    return sorted(name for name in environment if re.fullmatch("|".join(patterns), name))


def without_java_options(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a Java that gets no options by variables."""
    return {name: value for name, value in environment.items() if not re.fullmatch(_OF_JAVA, name)}


def leave_out(names: list[str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Remove variables from this process."""
    for name in names:
        environment.pop(name, None)
