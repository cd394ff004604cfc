"""torch.distributed's part of all_reduce.py: its gloo backend, timed as programs/all_reduce.cc does. One rank; env:// variables."""
import statistics
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
for size in (4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20):
    array, times, begin = torch.zeros(size // 4), [], time.monotonic()
    for run in range(-2, 300):
        dist.barrier()
        dist.barrier()
        start = time.monotonic()
        dist.all_reduce(array)
        took = torch.tensor([time.monotonic() - start])
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        if run >= 0:
            times.append(float(took))
        enough = torch.tensor([int(run >= 7 and time.monotonic() - begin > float(sys.argv[1]))])
        dist.broadcast(enough, 0)
        if int(enough):
            break
    if dist.get_rank() == 0:
        print(f"{size}\t{statistics.median(times) * 1e6:.3f}", flush=True)
