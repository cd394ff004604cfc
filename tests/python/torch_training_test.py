"""The backend ddprun under what trains: DDP and its options, ddprun's own, FSDP2, DTensor, DCP, ZeRO."""

import torch_case

# A ConvNet whose losses are the result; the same on every backend.
CONVNET = """
import functools
me, n = start()
def losses_of(wrap, backend):
    group = dist.new_group(backend=backend, timeout=LIMIT)
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
                              torch.nn.Linear(4 * 36, 10))
    if me == 1:
        for parameter in net.parameters():
            torch.nn.init.zeros_(parameter)  # Rank 0's are taken.
    ddp = wrap(net, process_group=group)
    sgd = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(10 + me)
    losses = []
    for step in range(12):
        sgd.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(torch.randn(8, 1, 8, 8)), torch.randint(10, (8,)))
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    total = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(total)
    sums = [float(parameter.double().sum()) for parameter in net.parameters()]
    everybody = [None] * n
    dist.all_gather_object(everybody, sums)
    assert everybody[0] == everybody[1], everybody
    return total, sums
"""


class Training(torch_case.TorchCase):
    """Two ranks."""

    def test_ddp_trains_as_on_gloo(self):
        self.right(CONVNET + """
DDP = torch.nn.parallel.DistributedDataParallel
wraps = [DDP, functools.partial(DDP, static_graph=True, gradient_as_bucket_view=True, bucket_cap_mb=0.001),
         functools.partial(DDP, find_unused_parameters=True)]
wanted = losses_of(DDP, "gloo")
for wrap in wraps:
    found = losses_of(wrap, "ddprun")
    assert torch.allclose(found[0], wanted[0], rtol=1e-5) and torch.allclose(
        torch.tensor(found[1]), torch.tensor(wanted[1]), atol=1e-4), (found, wanted)
""")

    def test_own_ddp_trains_as_torchs(self):
        self.right(CONVNET + """
wanted = losses_of(torch.nn.parallel.DistributedDataParallel, "gloo")
for megabytes in (25, 0.001):
    found = losses_of(functools.partial(ddprun.torch.DistributedDataParallel, bucket_cap_mb=megabytes), "ddprun")
    assert torch.allclose(found[0], wanted[0], rtol=1e-5) and torch.allclose(
        torch.tensor(found[1]), torch.tensor(wanted[1]), atol=1e-4), (found, wanted)
""")

    def test_own_ddp_with_unused_parameters_and_no_sync(self):
        self.right("""
            me, n = start()
            class Two(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.a, self.b, self.c = (torch.nn.Linear(2, 2, bias=False) for _ in range(3))
                def forward(self, x, which):
                    return getattr(self, which)(x).sum()
            net = Two()
            ddp = ddprun.torch.DistributedDataParallel(net, find_unused_parameters=True, bucket_cap_mb=1e-5)
            ones = torch.ones(1, 2)
            ddp(ones, "ab"[me]).backward()
            for each in (net.a, net.b):
                same(each.weight.grad, torch.full((2, 2), 0.5))
            assert net.c.weight.grad is None
            ddp.zero_grad()
            with ddp.no_sync():
                ddp(ones * (me + 1), "a").backward()
            same(net.a.weight.grad, torch.full((2, 2), me + 1.0))
            ddp(ones, "a").backward()
            same(net.a.weight.grad, torch.full((2, 2), 2.5))
            strict = ddprun.torch.DistributedDataParallel(Two())
            try:
                strict(ones, "a").backward()
                raise AssertionError("not refused")
            except RuntimeError as error:
                assert "2 parameters have no gradient" in str(error) and "find_unused_parameters" in str(error), error
            try:
                ddprun.torch.DistributedDataParallel(torch.nn.Linear(2 + me, 2))
                raise AssertionError("not refused")
            except RuntimeError as error:
                assert "differ between ranks" in str(error), error
            big = ddprun.torch.shared_zeros([1000])
            big += me
            dist.all_reduce(big)
            same(big, torch.ones(1000))
        """)

    def test_own_ddp_after_a_pass_with_unused_parameters(self):
        self.right("""
            me, n = start()
            class Two(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.first, self.last = (torch.nn.Linear(2, 2, bias=False) for _ in range(2))
                def forward(self, x, both):
                    return self.last(self.first(x) if both else x).sum()
            ddp = ddprun.torch.DistributedDataParallel(Two(), bucket_cap_mb=1e-5)
            ones = torch.ones(1, 2)
            try:
                ddp(ones, False).backward()
                raise AssertionError("not refused")
            except RuntimeError as error:
                assert "1 parameters have no gradient" in str(error), error
            left = [bucket.work for bucket in ddp._buckets if bucket.work is not None]
            assert len(left) == 1, left
            loss = ddp(ones * (me + 1), True)
            assert left[0].is_completed() and not any(bucket.work for bucket in ddp._buckets)
            ddp.zero_grad()
            loss.backward()
            module = ddp.module
            same(module.last.weight.grad, (module.first(ones) * 1.5).expand(2, 2).detach())
        """)

    def test_own_ddp_after_a_pass_that_an_exception_has_ended(self):
        self.right("""
            me, n = start()
            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
                def forward(self, x, fails):
                    x = self.first(x)
                    if fails:
                        x.register_hook(self.fail)
                    return self.last(x)
                def fail(self, _):
                    raise ArithmeticError("between the layers")
            ddp = ddprun.torch.DistributedDataParallel(Net(), bucket_cap_mb=1e-5)
            found = []
            for fails in (True, False, False):
                ddp.zero_grad(set_to_none=False)
                try:
                    ddp(torch.full((2, 4), me + 1.0), fails).sum().backward()
                    found.append(torch.cat([each.grad.flatten() for each in ddp.parameters()]))
                except ArithmeticError:
                    assert fails
            all = [torch.empty_like(found[0]) for _ in range(n)]
            for each in found:
                dist.all_gather(all, each)
                same(all[0], all[1])
            same(found[0], found[1])
        """)

    def test_hooks_join_and_zero(self):
        self.right("""
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
            from torch.distributed.algorithms.join import Join
            from torch.distributed.optim import ZeroRedundancyOptimizer
            me, n = start()
            DDP = torch.nn.parallel.DistributedDataParallel
            def train(ddp, steps, sgd=None):
                sgd = sgd or torch.optim.SGD(ddp.parameters(), 0.1)
                for _ in range(steps):
                    sgd.zero_grad()
                    ddp(torch.randn(4, 6)).square().mean().backward()
                    sgd.step()
                everybody = [None] * n
                dist.all_gather_object(everybody, [float(p.sum()) for p in ddp.parameters()])
                assert everybody[0] == everybody[1], everybody
            net = lambda: torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))
            hooked = DDP(net())
            hooked.register_comm_hook(None, default_hooks.allreduce_hook)
            train(hooked, 3)
            compressed = DDP(net())
            compressed.register_comm_hook(None, default_hooks.fp16_compress_hook)
            train(compressed, 3)
            low = DDP(net())
            low.register_comm_hook(powerSGD_hook.PowerSGDState(dist.group.WORLD, start_powerSGD_iter=2),
                                   powerSGD_hook.powerSGD_hook)
            train(low, 5)
            sharded = DDP(net())
            train(sharded, 3, ZeroRedundancyOptimizer(sharded.parameters(), torch.optim.Adam, lr=0.1))
            uneven = DDP(net())
            with Join([uneven]):
                for _ in range(3 + 2 * me):
                    uneven(torch.randn(4, 6)).sum().backward()
        """)

    def test_fsdp_dtensor_and_checkpoints(self):
        self.needs(2, 6)
        self.right("""
            import torch.distributed.checkpoint as dcp
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard
            from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
            me, n = start()
            mesh = init_device_mesh("cpu", (n,))
            whole = torch.arange(12.0).reshape(4, 3)
            spread = distribute_tensor(whole, mesh, [Shard(0)])
            same(spread.redistribute(mesh, [Replicate()]).to_local(), whole)
            same(distribute_tensor(whole, mesh, [Shard(1)]).full_tensor(), whole)
            torch.manual_seed(3)
            net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
            for part in net:
                if isinstance(part, torch.nn.Linear):
                    fully_shard(part, mesh=mesh)
            fully_shard(net, mesh=mesh)
            adam = torch.optim.Adam(net.parameters(), 0.01)
            for _ in range(3):
                adam.zero_grad()
                net(torch.randn(4, 8)).square().mean().backward()
                adam.step()
            state = {"net": net.state_dict()}
            dcp.save(state, checkpoint_id=os.environ["FOLDER"])
            before = [p.full_tensor().clone() for p in net.parameters()]
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.to_local().zero_()
            dcp.load(state, checkpoint_id=os.environ["FOLDER"])
            for parameter, wanted in zip(net.parameters(), before):
                same(parameter.full_tensor(), wanted)
        """, FOLDER=self.path("checkpoint"))


if __name__ == "__main__":
    torch_case.main()
