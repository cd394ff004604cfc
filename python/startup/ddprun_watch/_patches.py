"""Where torch is told apart into phases: its functions are wrapped, none is replaced.

A wrapper calls what it wraps with the same arguments, and passes on what that returns or raises. No
tensor is touched. Calls of other threads than the training loop's are left alone.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from typing import Any, Callable

from ._steps import EXPOSED, Steps
from ._timer import Timer


class _Watch:
    """The timer of this process and the loop that it times, once there is one."""

    def __init__(self) -> None:
        self.wants_times = False
        self.is_alone = False  # Such a program needs no group: its first phase is the start.
        self.steps: Steps | None = None
        self._timer: Timer | None = None
        self._thread = 0
        self._is_joined = False
        self._is_on_gpu = False
        self._is_blind = False  # There is no timer; the program continues without it.

    def start(self) -> None:
        """Inform the agent from now on. Before torch's own groups, which would do so themselves."""
        if self._timer is not None or self._is_blind:
            return
        try:
            self._timer = Timer()
        except (AttributeError, RuntimeError, OSError) as error:
            self._is_blind = True
            self.is_alone = False
            if os.environ.get("LOCAL_RANK", "0") == "0":
                print(f"ddprun: warning: no times of steps: {error}", file=sys.stderr)
            return
        self._thread = threading.get_ident()
        self.steps = Steps(self._timer)
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def checkpoint(self, stall: float) -> None:
        """Count `stall` seconds of this thread for a checkpoint, if it is the training loop's."""
        if self._timer is not None and threading.get_ident() == self._thread:
            self._timer.checkpoint(stall)

    def saved(self, ago: float) -> None:
        """Count what was computed until `ago` seconds before now as safe. From any thread."""
        if self._timer is not None:
            self._timer.saved(ago)

    def follow(self, torch: Any, device: Any) -> None:
        """Take times by the GPU's clock from now on, if it is one of NVIDIA's."""
        if self._timer is None or not self.wants_times or self._is_on_gpu:
            return
        if device.type != "cuda" or not torch.version.cuda:
            return
        self._is_on_gpu = True
        self._timer.follow(device.index, lambda index: torch.cuda.current_stream(index).cuda_stream)

    def join(self) -> None:
        """Exchange times with the other ranks, which do so, too."""
        if self._timer is None or self._is_joined or not self.wants_times:
            return
        self._is_joined = True
        why = self._timer.join()
        if why:
            print(f"ddprun: warning: no times of steps: {why}", file=sys.stderr)

    def close(self) -> None:
        """Leave in order, unless the program ends by an exception: its peers see that then."""
        self.steps = None
        self.is_alone = False
        if self._timer is not None and getattr(sys, "last_value", None) is None:
            self._timer.close()

    def _forget(self) -> None:
        self.steps = None
        self.is_alone = False
        if self._timer is not None:
            self._timer.forget()

    def mine(self) -> Steps | None:
        """Return the loop if it is this thread's."""
        if self.is_alone and self.steps is None:
            self.start()
            self.join()
        return self.steps if threading.get_ident() == self._thread else None


_watch = _Watch()


def _wrap(holder: Any, name: str, around: Callable[[Any], Any]) -> None:
    """Replace an attribute by a wrapper of it, if there is one and it is not wrapped yet."""
    inner = holder.__dict__.get(name) if isinstance(holder, type) else getattr(holder, name, None)
    if inner is None or hasattr(inner, "ddprun_watches"):
        return
    outer: Any = functools.wraps(inner)(around(inner))
    outer.ddprun_watches = True
    setattr(holder, name, outer)


def _is_whole_job(dist: Any) -> bool:
    """Whether the ranks of the group are those that ddprun has started."""
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    return bool(rank == str(dist.get_rank()) and size == str(dist.get_world_size()))


def _around_init(dist: Any) -> Callable[[Any], Any]:
    def around(inner: Any) -> Any:
        def init_process_group(*arguments: Any, **options: Any) -> Any:
            _watch.start()
            result = inner(*arguments, **options)
            if _is_whole_job(dist):
                _watch.join()
            return result

        return init_process_group

    return around


def _around_fetch(inner: Any) -> Any:
    def __next__(self: Any) -> Any:
        steps = _watch.mine()
        if steps is None:
            return inner(self)
        steps.begin_data()
        try:
            return inner(self)
        finally:
            steps.end_data()

    return __next__


def _around_model(torch: Any) -> Callable[[Any], Any]:
    def around(inner: Any) -> Any:
        def __init__(self: Any, *arguments: Any, **options: Any) -> None:
            inner(self, *arguments, **options)
            steps = _watch.mine()
            if steps is None:
                return
            steps.knows_forward = True
            parameters = [each for each in self.parameters() if each.requires_grad]
            steps.gradient_bytes += sum(p.numel() * p.element_size() for p in parameters)
            _watch.follow(torch, parameters[0].device)

        return __init__

    return around


def _around_forward(torch: Any) -> Callable[[Any], Any]:
    def around(inner: Any) -> Any:
        def forward(self: Any, *arguments: Any, **options: Any) -> Any:
            steps = _watch.mine()
            if steps is not None and torch.is_grad_enabled():
                steps.begin_forward()
            return inner(self, *arguments, **options)

        return forward

    return around


def _first_with_gradient(tensors: Any) -> Any:
    several = tensors if isinstance(tensors, (list, tuple)) else (tensors,)
    return next((each for each in several if getattr(each, "requires_grad", False)), None)


def _around_backward(torch: Any) -> Callable[[Any], Any]:
    engine = torch.autograd.Variable._execution_engine

    def note_end(steps: Steps, root: Any) -> Any:
        # Callbacks at the end of the pass run in the order of their registration: this one runs
        # before those that wait for the other ranks.
        def begin(_: Any) -> None:
            engine.queue_callback(steps.computed)

        return root.register_hook(begin)

    def around(inner: Any) -> Any:
        def backward(tensors: Any, *arguments: Any, **options: Any) -> Any:
            steps = _watch.mine()
            if steps is None:
                return inner(tensors, *arguments, **options)
            is_outermost = steps.begin_backward()
            root = _first_with_gradient(tensors) if is_outermost else None
            if root is not None:
                _watch.follow(torch, root.device)
            hook = note_end(steps, root) if root is not None else None
            try:
                return inner(tensors, *arguments, **options)
            finally:
                if hook is not None:
                    hook.remove()
                steps.end_backward()

        return backward

    return around


def _around_wait(inner: Any) -> Any:
    def wait(*arguments: Any, **options: Any) -> Any:
        steps = _watch.mine()
        if steps is None or steps.phase == EXPOSED:
            return inner(*arguments, **options)
        before = steps.begin_wait()
        try:
            return inner(*arguments, **options)
        finally:
            steps.end_wait(before)

    return wait


def _around_entry(inner: Any) -> Any:
    """Of ddprun.torch: a call whose last argument says whether it waits for the other ranks."""
    waiting = _around_wait(inner)

    def enter(*arguments: Any) -> Any:
        return (waiting if arguments[-1] else inner)(*arguments)

    return enter


def _begin_optimizer(*_: Any) -> None:
    steps = _watch.mine()
    if steps is not None:
        steps.begin_optimizer()


def _end_optimizer(*_: Any) -> None:
    steps = _watch.mine()
    if steps is not None:
        steps.end_optimizer()


def _around_step(inner: Any) -> Any:
    def step(*arguments: Any, **options: Any) -> Any:
        _begin_optimizer()
        try:
            return inner(*arguments, **options)
        finally:
            _end_optimizer()

    return step


def _around_profile(inner: Any) -> Any:
    """Of torch 1, whose optimizers have no hooks: it wraps step() of each class here itself."""

    def _hook_for_profile(self: Any) -> None:
        inner(self)
        _wrap(type(self), "step", _around_step)

    return _hook_for_profile


def _watch_optimizers(torch: Any) -> None:
    optimizer = sys.modules["torch.optim.optimizer"]
    if hasattr(optimizer, "register_optimizer_step_pre_hook"):
        optimizer.register_optimizer_step_pre_hook(_begin_optimizer)
        optimizer.register_optimizer_step_post_hook(_end_optimizer)
    else:
        _wrap(torch.optim.Optimizer, "_hook_for_profile", _around_profile)


def _watch_loop(torch: Any) -> None:
    from torch.utils.data import dataloader

    _wrap(dataloader._BaseDataLoaderIter, "__next__", _around_fetch)
    _wrap(torch.autograd, "backward", _around_backward(torch))
    _watch_optimizers(torch)


def _watch_distributed(torch: Any) -> None:
    dist = torch.distributed
    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d

    _wrap(distributed_c10d, "init_process_group", _around_init(dist))
    dist.init_process_group = distributed_c10d.init_process_group
    data_parallel = torch.nn.parallel.DistributedDataParallel
    _wrap(data_parallel, "__init__", _around_model(torch))
    _wrap(data_parallel, "forward", _around_forward(torch))
    _wrap(torch._C._distributed_c10d.Work, "wait", _around_wait)


def checkpoint(stall: float) -> None:
    """Count `stall` seconds for a checkpoint: called by ddprun.checkpoint."""
    _watch.checkpoint(stall)


def saved(ago: float) -> None:
    """Count what was computed until `ago` seconds ago as safe: called by ddprun.checkpoint."""
    _watch.saved(ago)


def watch_torch(what: str) -> None:
    """Wrap what a training loop calls. `what`: "times", or "phases" only."""
    _watch.wants_times = what == "times"
    torch = sys.modules["torch"]
    try:
        _watch_loop(torch)
        _watch_distributed(torch)
        _watch.is_alone = os.environ.get("WORLD_SIZE") == "1"
    except Exception as error:  # The program goes on.
        print(f"ddprun: warning: PyTorch's steps are not watched: {error!r}", file=sys.stderr)
        _watch.steps = None


def watch_backend() -> None:
    """Wrap what waits in ddprun.torch, in calls and in works of its own.

    The package may be of another version than the program that watches it.
    """
    for module, holder, name, around in (
        ("_engine", "Engine", "_enter", _around_entry),
        ("_works", "OperationWork", "wait", _around_wait),
    ):
        found = getattr(sys.modules.get("ddprun.torch." + module), holder, None)
        if found is not None:
            _wrap(found, name, around)
