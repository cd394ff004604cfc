"""Which generation of torch this is."""

from __future__ import annotations

import torch

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

# Python classes can be backends proper since 2.14.
IS_BACKEND = TORCH >= (2, 14)
# Before 2.14, torch's C++ code called the methods of a work's Python half without keeping it.
KEEPS_WORKS = TORCH >= (2, 1)
