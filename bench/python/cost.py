"""A rank of compare.py: what Python adds to an all_reduce of 4 bytes. Rank 0 prints one JSON object.

In turns of 200: ddprun_submit by ctypes alone, the backend called directly, torch.distributed.all_reduce, the same
asynchronously, and asynchronously with a future, as DistributedDataParallel does. Medians of the turns' means.
"""

import ctypes
import json
import statistics
import time

import torch
import torch.distributed as dist

import ddprun.torch
from ddprun._library import library
from ddprun._c_api import Buffer, Call
from ddprun.torch._backend import backend_of


def bare(engine, values):
    """One ctypes call with everything prepared."""
    buffer = Buffer(ctypes.sizeof(Buffer), values.data_ptr(), values.numel(), 0, 0)
    call = Call()
    call.size, call.operation, call.out, call.outs = ctypes.sizeof(Call), 1, ctypes.pointer(buffer), 1
    submit, handle, at = library().ddprun_submit, engine._handle, ctypes.byref(call)

    def run():
        assert submit(handle, at, None) == 0, buffer
    return run


def main():
    dist.init_process_group("ddprun")
    values = torch.zeros(1)
    engine = backend_of()._engine
    contestants = {
        "ctypes": bare(engine, values),
        "backend": lambda: engine.in_place(1, values, 0, -1, 0, waits=True),
        "torch": lambda: dist.all_reduce(values),
        "torch, async": lambda: dist.all_reduce(values, async_op=True).wait(),
        "torch, future": lambda: dist.all_reduce(values, async_op=True).get_future().wait(),
    }
    times = {name: [] for name in contestants}
    for _ in range(15):
        for name, run in contestants.items():
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(200):
                run()
            times[name].append((time.perf_counter() - begun) / 200 * 1e6)
    if dist.get_rank() == 0:
        print(json.dumps({name: statistics.median(found) for name, found in times.items()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
