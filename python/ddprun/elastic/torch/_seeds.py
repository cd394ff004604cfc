"""The generators that a shard's pass draws from, as a function of (seed, step, shard)."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch


def seed_all(seed: int) -> None:
    """Seed the global generators of torch on the CPU, of `random`, and of numpy if it is loaded."""
    torch.default_generator.manual_seed(seed % 2**63)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed them within, and restore them afterwards."""
    numpy = sys.modules.get("numpy")
    before = torch.get_rng_state(), random.getstate()
    numpys = numpy.random.get_state() if numpy is not None else None
    seed_all(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        if numpy is not None:
            numpy.random.set_state(numpys)
