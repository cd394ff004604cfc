"""ddprun.checkpoint: checkpoints in memory that outlive the processes, and a disk behind them.

::

    checkpoint = ddprun.checkpoint.Memory(every=10)
    state = {"model": model, "optimizer": optimizer}
    for step in range(checkpoint.load(state), steps):
        train(step)
        checkpoint.save(state, step + 1)

Run it with ``ddprun --memory-folder 4G --max-restarts 3 train.py``. docs/memory.md describes what
is promised. :mod:`ddprun.checkpoint.dcp` is for torch.distributed.checkpoint. Importing this
package imports neither torch nor ddprun's library.
"""

from __future__ import annotations

from ._memory import Memory

__all__ = ["Memory"]
