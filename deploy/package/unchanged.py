"""A script of PyTorch's that knows nothing of ddprun, for use_package.sh and check_wheel.sh."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
sgd = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(40):
    sgd.zero_grad()
    net(torch.ones(4, 8)).sum().backward()
    sgd.step()
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has trained")
