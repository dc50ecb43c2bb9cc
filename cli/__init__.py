"""The command line of the job. `command` is what the installed `sluice` runs."""

import sys
import warnings
from importlib.util import find_spec


def command() -> None:
    """Run the command line; without the extra `job`, one line that says how to get it, and exit 1."""
    if find_spec("pyspark") is None:
        sys.exit("sluice: error: the commands need the extra job; pip install 'sluice-kafka[job]'")
    if sys.warnoptions:  # of PYTHONWARNINGS: `error` would end a command at a library's first remark
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
    from sluice.process.surroundings import foreign_python, open_standard_streams

    open_standard_streams()
    from sluice.process.processes import leaving_at_once

    with leaving_at_once():  # an interrupted import has a traceback
        try:
            from sluice.cli.main import main  # what it imports comes with the extra
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            unknown = f"Sluice can't be loaded ({said}); install it again, or run ./scripts/setup in a checkout"
            sys.exit(f"sluice: error: {foreign_python() or unknown}")

    main()
