"""A rank that srun or mpirun starts without ddprun: it meets the others and says with whom."""

import array
import os

import ddprun

with ddprun.init(init_timeout=50) as group:
    total = array.array("f", [group.rank])
    group.all_reduce(total)
    line = f"rank {group.rank} of {group.world_size} local {group.local_rank} on {os.uname().nodename}: sum {total[0]:g}"
    os.write(1, (line + "\n").encode())  # At once: other ranks write to the same file.
