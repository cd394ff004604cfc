"""A rank of bench/memory.py --death: DDP, 25 MB of model and AdamW, steps of 50 ms, a checkpoint each ten steps.

SAVES is "memory" (ddprun.checkpoint) or a file on a disk, for torch.save. Writes lines "what rank step when" to LOG. The last rank is
killed once, after the step that DIES names.
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


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size, dies = dist.get_rank(), dist.get_world_size(), int(os.environ["DIES"])
    log = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND)

    def note(what, step):
        os.write(log, f"{what} {rank} {step} {time.monotonic()}\n".encode())

    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(840, 840) for _ in range(3)]))
    adam = torch.optim.AdamW(ddp.parameters())
    state = {"model": ddp, "optimizer": adam}
    if os.environ["SAVES"] == "memory":
        import ddprun.checkpoint
        checkpoint = ddprun.checkpoint.Memory(every=10)
    else:
        checkpoint = Disk(os.environ["SAVES"])
    restarted = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0
    first = checkpoint.load(state)
    for step in range(first, dies + 5):
        begin = time.monotonic()
        adam.zero_grad()
        ddp(torch.randn(2, 840)).square().mean().backward()
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
