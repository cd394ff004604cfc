"""The backend ddprun and CUDA tensors, without a GPU: a stand-in takes the place of torch's NCCL, and tensors say that they
are on a GPU. What is shown: which of the two backends gets an operation, that torch's own dispatch agrees, when NCCL's
object is made, over which store, and when it ends. Not shown: NCCL itself, streams; tests/gpu/run.sh runs those."""

import textwrap

import torch_case

STAND_IN = """
from ddprun.torch import _nccl
NEW = VERSION >= (2, 14)
c10d = torch._C._distributed_c10d
torch.cuda.is_available = dist.is_nccl_available = lambda: True
torch.cuda.get_device_capability = lambda *_: (9, 0)
made, calls = [], []

class Options:  # Where torch was built without NCCL.
    pass

class StandIn(c10d.Backend if NEW else object):
    Options = c10d.ProcessGroupNCCL.Options if hasattr(c10d, "ProcessGroupNCCL") else Options
    def __init__(self, store, rank, size, options):
        if NEW:
            super().__init__(rank, size)
        self.options_given, self.size_given = options, size
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout=options._timeout)  # Reads the memory behind the tensors.
        made.append(self)
    def getBackendName(self):
        return "stand-in"
    def shutdown(self):
        calls.append("shutdown")

def behind(each):
    return each.memory if isinstance(each, OnCard) else [behind(one) for one in each] if isinstance(each, list) else each

def recording(name):
    def call(self, *arguments):
        calls.append(name)
        if "coalescing" not in name:  # Which Gloo lacks.
            return getattr(self.gloo, name)(*map(behind, arguments))
    return call

for name in ("allreduce", "broadcast", "allgather", "gather", "send", "recv", "barrier",
             *(["all_gather_single"] if NEW else ["_allgather_base", "_start_coalescing", "_end_coalescing"])):
    setattr(StandIn, name, recording(name))

class Place:
    ProcessGroupNCCL = ProcessGroupNCCL2 = StandIn
_nccl._c10d = Place

class OnCard(torch.Tensor):
    "A tensor that torch takes for one on a GPU; what a GPU would hold is in `memory`."
    @staticmethod
    def __new__(cls, memory):
        tensor = torch.Tensor._make_wrapper_subclass(cls, memory.shape, dtype=memory.dtype, device="cuda:0")
        tensor.memory = memory
        return tensor
    __torch_function__ = torch._C._disabled_torch_function_impl
    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(torch._C.DispatchKey.PythonTLSSnapshot)
        with torch._C._ExcludeDispatchKeyGuard(python):  # On to what torch has for CUDA.
            return function(*arguments, **(options or {}))

def called(*names):
    assert calls == list(names), calls
    del calls[:]
"""


class Nccl(torch_case.TorchCase):
    """Two ranks."""

    def right(self, code, nproc=2, **more):
        return super().right(STAND_IN + textwrap.dedent(code), nproc, **more)

    def test_each_operation_goes_to_the_backend_of_its_tensors(self):
        self.right("""
            me, n = start()
            assert dist.get_backend() == "ddprun"
            values = torch.tensor([me + 1.0])
            dist.all_reduce(values), dist.barrier()
            gathered = [None] * n
            dist.all_gather_object(gathered, me)
            same(values, torch.tensor([3.0])), same(gathered, [0, 1]), called()
            card = OnCard(torch.tensor([me + 1.0, 2.0]))
            dist.all_reduce(card)
            same(card.memory, torch.tensor([3.0, 4.0])), called("allreduce")
            dist.all_reduce(card, async_op=True).wait()
            same(card.memory, torch.tensor([6.0, 8.0])), called("allreduce")
            card = OnCard(torch.tensor([me + 5.0]))
            dist.broadcast(card, src=1)
            same(card.memory, torch.tensor([6.0])), called("broadcast")
            outs = [OnCard(torch.zeros(1)) for _ in range(n)]
            dist.all_gather(outs, OnCard(torch.tensor([float(me)])))
            same([out.memory.item() for out in outs], [0.0, 1.0]), called("allgather")
            if VERSION >= (2, 0):  # Before, Gloo lacks it.
                out = OnCard(torch.zeros(2))
                dist.all_gather_into_tensor(out, OnCard(torch.tensor([me + 1.0])))
                same(out.memory, torch.tensor([1.0, 2.0])), called("all_gather_single" if NEW else "_allgather_base")
            if VERSION >= (2, 0) and not NEW:
                outs = [OnCard(torch.zeros(2)), OnCard(torch.zeros(2))]
                group = dist.distributed_c10d._get_default_group()
                group.allgather_into_tensor_coalesced(outs, [OnCard(torch.tensor([me + k])) for k in (1.0, 7.0)])
                called("_start_coalescing", "_allgather_base", "_allgather_base", "_end_coalescing")
            outs = [OnCard(torch.zeros(1)) for _ in range(n)] if me == 1 else None
            dist.gather(OnCard(torch.tensor([me + 1.0])), outs, dst=1)  # Rank 0 has no tensor to receive into.
            assert me == 0 or [out.memory.item() for out in outs] == [1.0, 2.0]
            called("gather")
            card = OnCard(torch.tensor([float(me)]))
            dist.send(card, 1) if me == 0 else dist.recv(card, 0)
            same(card.memory, torch.tensor([0.0])), called("send" if me == 0 else "recv")
            dist.all_reduce(values)
            same(values, torch.tensor([6.0])), called()
        """)

    def test_nccl_connects_with_the_first_tensor_and_ends_with_the_group(self):
        self.right("""
            for turn in range(2 if VERSION >= (2, 0) else 1):  # The same names in the same store, where torch can do that.
                me, n = start()
                if NEW:
                    (nccl,) = made
                    assert nccl.options_given.lazy_init  # torch makes the communicator as late.
                else:
                    assert made == []
                dist.all_reduce(OnCard(torch.ones(1))), called("allreduce")
                child = os.fork()
                if child == 0:  # Its end is not that of its parent's group.
                    ddprun.torch._backend._leave()
                    ddprun.torch._backend.backend_of().shutdown()
                    os._exit(len(calls))
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                (nccl,) = made
                assert nccl.options_given._timeout == LIMIT and nccl.size_given == 2
                alone = [dist.new_group([rank], timeout=timedelta(seconds=77)) for rank in (0, 1)][me]
                card = OnCard(torch.ones(1))
                dist.all_reduce(card, group=alone), called("allreduce")
                assert card.memory.item() == 1.0 and made[1].size_given == 1
                assert made[1].options_given._timeout == timedelta(seconds=77)
                dist.destroy_process_group(alone)
                dist.destroy_process_group()
                if VERSION < (2, 0):  # Forgets groups; we end them before the next one begins, or with the process.
                    ddprun.torch._backend._close_forgotten()
                called("shutdown", "shutdown")
                del made[:]
        """)

    def test_a_backend_for_cuda_that_was_named_is_the_one(self):
        self.needs(2, 14)
        self.right("""
            me, n = start("cpu:ddprun,cuda:gloo")
            group = dist.distributed_c10d._get_default_group()
            assert group._get_backend(torch.device("cuda")).name() == "gloo" and made == []
            values = torch.ones(1)
            dist.all_reduce(values)
            assert values.item() == 2.0
        """)

    def test_without_gpus_nothing_changes(self):
        self.right("""
            torch.cuda.is_available = lambda: False
            me, n = start()
            try:
                dist.all_reduce(OnCard(torch.ones(1)))
                raise AssertionError("not refused")
            except RuntimeError as error:
                assert ("device type cuda" if NEW else "is for CPU tensors, the tensor is on cuda:0") in str(error), error
            assert made == [] and not hasattr(ddprun.torch._backend.backend_of(), "_nccl")
            dist.barrier()
        """)


if __name__ == "__main__":
    torch_case.main()
