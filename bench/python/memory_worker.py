"""A rank of bench/memory.py: saves the same state with each contestant, which take turns; rank 0 writes what each round took.

Ranks of two nodes are played: each has the folder of its node. "stall" is the time that the slowest rank's loop stands still, "safe"
until what was saved is whole, wherever the contestant puts it.
"""

import json
import os
import shutil
import sys
import time
import warnings

warnings.filterwarnings("ignore")
RANK, SIZE, LOCAL_RANK, LOCAL_SIZE = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

TENSORS = 48


class Copy:
    """A rank's part, from memory to memory that is there already: the floor."""

    def __init__(self, state, _memory, _disk):
        self.parts = [each[: len(each) // LOCAL_SIZE] for each in state.values()]
        self.target = [each.clone() for each in self.parts]

    def save(self, _step):
        for one, other in zip(self.target, self.parts):
            one.copy_(other)

    def wait(self):
        pass


class Ours:
    def __init__(self, state, memory, _disk):
        from ddprun.checkpoint import Memory
        os.environ["DDPRUN_MEMORY"] = memory
        self.state, self.memory = state, Memory(every=1)
        self.memory.load({})

    def save(self, step):
        self.memory.save(self.state, step, now=True)

    def wait(self):
        self.memory._wait_for_pending()  # pylint: disable=protected-access


class OursDcp:
    def __init__(self, state, memory, _disk):
        from ddprun.checkpoint.dcp import MemoryWriter
        os.environ["DDPRUN_MEMORY"] = memory
        self.state, self.writer = state, MemoryWriter()

    def save(self, step):
        import torch.distributed.checkpoint as dcp
        dcp.save(self.state, checkpoint_id=str(step), storage_writer=self.writer)

    def wait(self):
        self.writer._memory._wait_for_pending()  # pylint: disable=protected-access


class TorchSave:
    """As scripts do it: written aside, renamed. In memory one rank of each node, on the disk one rank."""

    def __init__(self, state, folder, writes, durable):
        self.state, self.path, self.writes, self.durable = state, os.path.join(folder, "checkpoint.pt"), writes, durable

    def save(self, _step):
        if self.writes:
            with open(self.path + ".tmp", "wb") as file:
                torch.save(self.state, file)
                if self.durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(self.path + ".tmp", self.path)
        dist.barrier()  # All wait for it: their next step does.

    def wait(self):
        pass


class DcpAsync:
    def __init__(self, state, _memory, disk):
        self.state, self.disk, self.future = state, disk, None
        self.group = dist.new_group(backend="gloo")  # Its thread communicates while the loop does.

    def save(self, step):
        import torch.distributed.checkpoint as dcp
        self.folder = os.path.join(self.disk, f"dcp-{step}")
        self.future = dcp.async_save(self.state, checkpoint_id=self.folder, process_group=self.group)

    def wait(self):
        self.future.result()
        dist.barrier()
        if RANK == 0:
            shutil.rmtree(self.folder)


class Nvrx:
    """nvidia-resiliency-ext: local checkpoints, each rank all of its state, by a process of its own."""

    def __init__(self, state, memory, _disk):
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue
        from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
        from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
        self.state, self.wrap = state, BasicTensorAwareStateDict
        self.manager, self.queue = LocalCheckpointManager(os.path.join(memory, "nvrx")), AsyncCallsQueue()

    def save(self, step):
        request = self.manager.save(self.wrap(dict(self.state)), step, is_async=True)
        self.queue.schedule_async_request(request)

    def wait(self):
        self.queue.maybe_finalize_async_calls(blocking=True)


class Dlrover:
    """dlrover's flash checkpoint: into shared memory, from where an agent writes it to the disk."""

    def __init__(self, state, _memory, disk):
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType
        self.state, self.kind, self.disk = state, StorageType.MEMORY, os.path.join(disk, "dlrover")
        self.checkpointer = DdpCheckpointer(self.disk)

    def save(self, step):
        self.checkpointer.save_checkpoint(step, self.state, os.path.join(self.disk, f"{step}.pt"), self.kind)
        dist.barrier()

    def wait(self):
        pass


CONTESTANTS = {
    "copy": Copy,
    "ddprun": Ours,
    "ddprun-dcp": OursDcp,
    "torch.save-memory": lambda state, memory, disk: TorchSave(state, memory, LOCAL_RANK == 0, False),
    "torch.save-disk": lambda state, memory, disk: TorchSave(state, disk, RANK == 0, True),
    "dcp-async-disk": DcpAsync,
    "nvrx": Nvrx,
    "dlrover": Dlrover,
}


def slowest(seconds):
    found = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


def everybody(yes):
    found = torch.tensor(int(yes))
    dist.all_reduce(found, op=dist.ReduceOp.MIN)
    return bool(found.item())


def note(text):
    if RANK == 0:
        print("# " + text, file=sys.stderr, flush=True)


def measure(contestant, step):
    dist.barrier()
    begin = time.monotonic()
    contestant.save(step)
    stall = slowest(time.monotonic() - begin)
    contestant.wait()
    return stall, slowest(time.monotonic() - begin)


def restored(state):
    """How long it takes to load what was saved into tensors that are there."""
    from ddprun.checkpoint import Memory
    dist.barrier()
    begin = time.monotonic()
    assert Memory().load(state) > 0
    return slowest(time.monotonic() - begin)


def main():
    names, rounds, size = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])
    memory, disk = os.environ["BENCH_MEMORY"], os.environ["BENCH_DISK"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.environ["BENCH_MEETING"], rank=RANK, world_size=SIZE)
    torch.manual_seed(1)
    state = {f"tensor {n}": torch.randn(size * 1_000_000 // 4 // TENSORS) for n in range(TENSORS)}
    contestants = {}
    for name in names:
        problem = ""
        note(f"{name} begins")
        try:
            contestants[name] = CONTESTANTS[name](state, memory, disk)
            for step in range(1, 4):  # Files and buffers are made with the first ones.
                measure(contestants[name], step)
        except Exception as error:  # pylint: disable=broad-except
            problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if not everybody(not problem):
            contestants.pop(name, None)
            if RANK == 0:
                print(f"without {name}: {problem}", file=sys.stderr, flush=True)
    found = {name: [] for name in contestants}
    order = list(contestants)
    for number in range(rounds):
        shift = number % len(order)
        for name in order[shift:] + order[:shift]:
            for each in state.values():
                each.add_(1)
            found[name].append(measure(contestants[name], 10 + number))
            note(f"{name}: stall {found[name][-1][0]:.3f} s, safe {found[name][-1][1]:.3f} s")
    loads = [restored(state) for _ in range(rounds)] if "ddprun" in found else []
    if RANK == 0:
        with open(os.environ["BENCH_RESULTS"], "w", encoding="ascii") as file:
            json.dump({"saves": found, "loads": loads}, file)
    dist.barrier()
    os._exit(0)  # Threads and processes of the contestants may not end by themselves.


if __name__ == "__main__":
    main()
