"""Trains a small model for one epoch, with PyTorch if it is installed, else with numpy.

What check_wheel.sh times. Run it with ddprun: every rank has a part of the samples.
"""

import importlib.util

import ddprun

SAMPLES, FEATURES, HIDDEN, BATCH = 8192, 8, 32, 32


def with_numpy() -> None:
    """Train a network of one hidden layer by hand."""
    import numpy

    random = numpy.random.default_rng(1)
    x = random.standard_normal((SAMPLES, FEATURES))
    y = numpy.tanh(x @ random.standard_normal((FEATURES, 1)))
    first = random.standard_normal((FEATURES, HIDDEN)) / FEATURES**0.5
    second = random.standard_normal((HIDDEN, 1)) / HIDDEN**0.5
    with ddprun.init() as group:
        shared = numpy.frombuffer(group.allocate(8 * (first.size + second.size)))
        gradients = shared[: first.size].reshape(first.shape), shared[first.size :, None]
        sampler = ddprun.DistributedSampler(SAMPLES, group.rank, group.world_size)
        losses = []
        for batch in numpy.array(sampler.indices()).reshape(-1, BATCH):
            hidden = numpy.tanh(x[batch] @ first)
            wrong = hidden @ second - y[batch]
            gradients[1][:] = hidden.T @ wrong / BATCH
            gradients[0][:] = x[batch].T @ (wrong @ second.T * (1 - hidden**2)) / BATCH
            group.all_reduce(shared, op="avg")
            first -= 0.2 * gradients[0]
            second -= 0.2 * gradients[1]
            losses.append(group.average(float((wrong**2).mean())))
        report("numpy", group.rank, losses)


def with_torch() -> None:
    """Train the same with DistributedDataParallel."""
    import ddprun.torch
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("ddprun")
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES)
    data = torch.utils.data.TensorDataset(x, torch.tanh(x @ torch.randn(FEATURES, 1)))
    layers = torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    sampler = ddprun.torch.DistributedSampler(data)
    losses = []
    for inputs, wanted in torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        dist.all_reduce(average := loss.detach().clone(), op=dist.ReduceOp.AVG)
        losses.append(average.item())
    report(f"torch {torch.__version__}", dist.get_rank(), losses)
    dist.destroy_process_group()


def report(library: str, rank: int, losses: list[float]) -> None:
    """Say on rank 0 what became of the loss; fail if it did not fall."""
    first, last = sum(losses[:4]) / 4, sum(losses[-4:]) / 4
    if not last < first / 4:
        raise SystemExit(f"the loss went from {first:.3f} to {last:.3f}")
    if rank == 0:
        print(f"trained with {library}: {len(losses)} steps, loss {first:.3f} to {last:.3f}")


if __name__ == "__main__":
    if importlib.util.find_spec("torch"):
        with_torch()
    else:
        with_numpy()
