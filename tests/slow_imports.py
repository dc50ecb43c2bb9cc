"""The modules that take long to import, among those that a program imports."""

import subprocess
import sys

SLOW = {"pyspark", "pandas", "numpy", "pyarrow", "deltalake", "kafka", "jinja2", "starlette", "uvicorn", "httpx"}

SHOW = "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
SLUICE = f"""
import sys
sys.argv = ["sluice", *sys.argv[1:]]
from sluice.cli.main import main
try:
    main()
finally:
    {SHOW}
"""


def slow_imports(program: str, *arguments: str) -> set[str]:
    """The modules of SLOW that a Python program has imported when it ends."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return SLOW & set(done.stderr.splitlines()[-1].split())
