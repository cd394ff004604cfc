"""``python3 -m ddprun ...`` is the program ddprun, with this interpreter for scripts."""

from __future__ import annotations

import os
import sys

from ._errors import LibraryError
from ._library import program


def main() -> None:
    """Become the program."""
    try:
        path = program()
    except LibraryError as error:
        sys.exit(f"ddprun: error: {error}")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(path, [path, *sys.argv[1:]])


main()
