"""The PyTorch versions to test against: Debian's, and those that DDPRUN_TEST_TORCH_PYTHONS names, separated by ":".

make_venv.sh beside this file makes one. Imported by the tests here and by bench/.
"""

import os
import subprocess
from typing import NamedTuple

DEBIAN = "/usr/bin/python3"


class Torch(NamedTuple):
    python: str
    version: str

    @property
    def old(self):
        """Speaks the dialect of 1.13."""
        return self.version.startswith("1.")


def version_of(python):
    """PyTorch's version for this Python, "" where there is none."""
    ask = "import torch, torch.distributed as d; assert d.is_available(); print(torch.__version__)"
    try:
        return subprocess.run([python, "-W", "ignore", "-c", ask], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False).stdout.strip().split("+")[0]
    except OSError:
        return ""


def torch_pythons():
    """Those that are there; a named one that is not is an error, not a skip."""
    named = list(filter(None, os.environ.get("DDPRUN_TEST_TORCH_PYTHONS", "").split(":")))
    found = [Torch(python, version_of(python)) for python in dict.fromkeys([DEBIAN, *named])]
    for torch in found:
        if torch.python in named and not torch.version:
            raise SystemExit(f"DDPRUN_TEST_TORCH_PYTHONS names {torch.python}, which has no PyTorch")
    return [torch for torch in found if torch.version]
