"""A worker for elastic.py beside this file: a job whose ranks are killed.

    elastic_worker.py job      what bench_elastic_worker job does: a gradient of 1 MiB, a large state
    elastic_worker.py torch    a small model, exact sums, and what its weights are after every 20 steps
    elastic_worker.py gloo     the same on torch's own Gloo, by ddprun.elastic.torch.Distributed

Writes into the folder STAMPS, in files named by its pid: .stamps "<rank> <world size> <step> <CLOCK_MONOTONIC in ns>" of each
committed step; .samples, which tests/failures/sample_count.py judges; and .bits "<step> <checksum of the weights>".
"""
import array
import os
import sys
import time
import zlib

import ddprun.elastic

STEPS, STEP_MS = int(os.environ.get("STEPS", 1 << 40)), int(os.environ["STEP_MS"])
LENGTH, SHARDS, BATCH, EVERY = 1000, 16, 48, 20


class Lines:
    """Each is written at once, for the process may be killed."""

    def __init__(self, ending):
        path = os.path.join(os.environ["STAMPS"], f"{os.getpid()}{ending}")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *words):
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


SAMPLES, STAMPS, BITS = Lines(".samples"), Lines(".stamps"), Lines(".bits")
BATCHES = ddprun.elastic.GlobalBatches(LENGTH, BATCH, SHARDS, seed=3)


def note(step, shard):
    samples = [f"{epoch}:{index}" for epoch, index in zip(shard.epochs, shard.indices)]
    SAMPLES.write("shard", step.round, step.rank, step.number, shard.number, *samples)


def committed(step):
    SAMPLES.write("commit", step.round, step.rank, step.number)
    STAMPS.write(step.rank, step.world_size, step.number, time.monotonic_ns())


def run_job():
    state = array.array("f", bytes(int(os.environ["STATE_MB"]) << 20))
    gradient = array.array("f", [1.0]) * (1 << 18)

    def body(step):
        for shard in step.shards(BATCHES):
            note(step, shard)
        time.sleep(STEP_MS / 1000)
        step.group.all_reduce(gradient)

        def apply():
            state[step.number % len(state)] += gradient[0]
            gradient[0] = 1.0
        step.commit(apply)
        committed(step)

    ddprun.elastic.Job().keep(state=state).run(STEPS, body)


def model(torch):
    """A data set, a perceptron of 82,000 weights, and its optimizer: the same on all ranks."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    x = torch.randn(LENGTH, 64)
    y = x.sum(1, keepdim=True).sign()
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(),
                              torch.nn.Linear(256, 1))
    return x, y, net, torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)


def write_bits_of(torch, net, job):
    """What the weights are after every EVERY steps."""
    def write_bits(_group):
        flat = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
        BITS.write(job.committed, zlib.crc32(flat.numpy().tobytes()))

    return job.between(EVERY, write_bits)


def run_torch():
    import torch  # pylint: disable=import-outside-toplevel
    from ddprun.elastic.torch import Gradients  # pylint: disable=import-outside-toplevel

    x, y, net, sgd = model(torch)
    job = ddprun.elastic.Job().keep(net=net, sgd=sgd)
    gradients = Gradients(job, net, BATCHES)

    def body(step):
        time.sleep(STEP_MS / 1000)

        def loss(shard):
            note(step, shard)
            return torch.nn.functional.mse_loss(net(x[shard.indices]), y[shard.indices])
        gradients.backward(step, loss)
        gradients.commit(step, sgd.step)
        committed(step)

    write_bits_of(torch, net, job).run(STEPS, body)


def run_gloo():
    """Gradients of shards are rounded to multiples of 2**-30: their float64 sums have the same bits in any order."""
    import torch  # pylint: disable=import-outside-toplevel
    from ddprun.elastic.torch import Distributed  # pylint: disable=import-outside-toplevel

    x, y, net, sgd = model(torch)
    parameters = list(net.parameters())
    job = ddprun.elastic.Job().keep(net=net, sgd=sgd)
    world = Distributed("gloo")

    def gradient_of(step):
        total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        for shard in step.shards(BATCHES):
            note(step, shard)
            net.zero_grad()
            torch.nn.functional.mse_loss(net(x[shard.indices]), y[shard.indices], reduction="sum").backward()
            total += torch.round(torch.cat([p.grad.flatten() for p in parameters]).double() * 2.0**30)
        return total

    def body(step):
        time.sleep(STEP_MS / 1000)
        with world.over(step):
            total = gradient_of(step)
            torch.distributed.all_reduce(total)

        def apply():
            whole = (total / 2.0**30 / BATCHES.batch_size(step.number)).float()
            for parameter, piece in zip(parameters, whole.split([p.numel() for p in parameters])):
                parameter.grad = piece.view_as(parameter).clone()
            sgd.step()
        step.commit(apply)
        committed(step)

    write_bits_of(torch, net, job).run(STEPS, body)


if __name__ == "__main__":
    {"job": run_job, "torch": run_torch, "gloo": run_gloo}[sys.argv[1]]()
