"""Which generation of torch this is."""

from __future__ import annotations

import torch

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

# Python classes can be backends proper since 2.14.
IS_BACKEND = TORCH >= (2, 14)
# Before, torch's C++ code did not keep the Python half of a work, whose methods it calls.
KEEPS_WORKS = TORCH >= (2, 1)
