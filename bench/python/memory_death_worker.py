"""A rank of bench/memory.py --death and --lost: 25 MB of model and AdamW, steps of 50 ms, a checkpoint each ten steps.

KIND is "ddp" or "fsdp2". SAVES is "memory" (ddprun.checkpoint) or a path on a disk, for torch.save or DCP. Writes lines "what rank step
when" to LOG. The last rank kills itself once, after the step that DIES names; 0: not at all.
"""

import os
import signal
import time

import torch
import torch.distributed as dist

STEP_S = 0.05


class Disk:
    def __init__(self, path):
        self.path = path

    def load(self, state):
        if not os.path.exists(self.path):
            return 0
        saved = torch.load(self.path, map_location="cpu")
        for name, value in state.items():
            value.load_state_dict(saved[name])
        return saved["step"]

    def save(self, state, step):
        if step % 10 == 0 and dist.get_rank() == 0:
            with open(self.path + ".tmp", "wb") as file:
                torch.save({**{name: value.state_dict() for name, value in state.items()}, "step": step}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(self.path + ".tmp", self.path)


class Parts:
    """The state is divided: torch.distributed.checkpoint saves it."""

    def __init__(self, path):
        import torch.distributed.checkpoint as dcp
        self.dcp, self.path = dcp, path
        if path == "memory":
            from ddprun.checkpoint.dcp import MemoryReader, MemoryWriter
            self.reader, self.writer = MemoryReader(), MemoryWriter()
            self.step = self.reader.step
        else:
            saved = sorted((int(name) for name in os.listdir(path)) if os.path.isdir(path) else [])
            self.step = next((step for step in reversed(saved) if os.path.exists(f"{path}/{step}/.metadata")), 0)

    @staticmethod
    def of(state):
        from torch.distributed.checkpoint.state_dict import get_state_dict
        return dict(zip(("model", "optimizer"), get_state_dict(state["model"], state["optimizer"])))

    def load(self, state):
        if self.step:
            from torch.distributed.checkpoint.state_dict import set_state_dict
            found = self.of(state)
            if self.path == "memory":
                self.dcp.load(found, storage_reader=self.reader)
            else:
                self.dcp.load(found, checkpoint_id=f"{self.path}/{self.step}")
            set_state_dict(state["model"], state["optimizer"], model_state_dict=found["model"], optim_state_dict=found["optimizer"])
        return self.step

    def save(self, state, step):
        if step % 10 == 0:
            if self.path == "memory":
                self.dcp.save(self.of(state), checkpoint_id=str(step), storage_writer=self.writer)
            else:
                self.dcp.save(self.of(state), checkpoint_id=f"{self.path}/{step}")


def model_of(kind):
    layers = torch.nn.Sequential(*[torch.nn.Linear(840, 840) for _ in range(3)])
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(layers)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*layers, layers):
        fully_shard(part, mesh=mesh)
    return layers


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size, dies = dist.get_rank(), dist.get_world_size(), int(os.environ["DIES"])
    log = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND)

    def note(what, step):
        os.write(log, f"{what} {rank} {step} {time.monotonic()}\n".encode())

    model = model_of(os.environ["KIND"])
    adam = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": adam}
    if os.environ["KIND"] == "fsdp2":
        checkpoint = Parts(os.environ["SAVES"])
    elif os.environ["SAVES"] == "memory":
        import ddprun.checkpoint
        checkpoint = ddprun.checkpoint.Memory(every=10)
    else:
        checkpoint = Disk(os.environ["SAVES"])
    restarted = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0
    first = checkpoint.load(state)
    last = dies + 5 if dies else first + 5 if first else 1_000_000
    for step in range(first, last):
        begin = time.monotonic()
        adam.zero_grad()
        model(torch.randn(2, 840)).square().mean().backward()
        adam.step()
        note("step", step + 1)
        if not restarted and step + 1 == dies and rank == size - 1:
            note("death", step + 1)
            os.kill(os.getpid(), signal.SIGKILL)
        checkpoint.save(state, step + 1)
        time.sleep(max(0.0, begin + STEP_S - time.monotonic()))
    os._exit(0)


if __name__ == "__main__":
    main()
