"""The process of one rank of ``ddprun.launch``."""

import sys
from pathlib import Path

from ._launch import work

work(Path(sys.argv[1]))
