"""A state as bytes: what is no tensor is pickled, tensors are copied as they lie in memory.

All ranks of a node that have the same state divide its large tensors evenly; the rest is in the
first piece. What is pickled is read by programs of the same user only, as with torch.load().
"""

from __future__ import annotations

import importlib
import io
import mmap
import pickle
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from .._errors import BadArgument, Corrupt
from ._pieces import Piece, aligned, as_tensor

LARGE = 1 << 18  # Buffers of a model, which may differ between ranks, are never as large.
_HUGE = 4 << 20


class Spec(NamedTuple):
    """A tensor without its elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    """If it is dense but in another order than its shape's, as with channels_last."""
    size: int
    """In bytes."""


class Flat(NamedTuple):
    """A state, taken apart."""

    specs: tuple[Spec, ...]
    tensors: list[Any]
    rest: bytes
    """Pickled."""


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for step, extent in sorted(zip(stride, shape)):
        if extent != 1:
            if step != expected:
                return False
            expected *= extent
    return True


class _Pickler(pickle.Pickler):
    """Leaves the elements of tensors out."""

    def __init__(self, file: io.BytesIO, torch: Any) -> None:
        super().__init__(file, protocol=5)
        self._plain = (torch.Tensor, torch.nn.Parameter) if torch else ()
        self._torch = torch
        self.specs: list[Spec] = []
        self.tensors: list[Any] = []

    def reducer_override(self, value: Any) -> Any:
        torch = self._torch
        if torch is None or not isinstance(value, torch.Tensor):
            return NotImplemented
        if hasattr(value, "placements") or hasattr(value, "local_shards"):
            raise BadArgument(
                "the state has a tensor that is divided among ranks (DTensor): "
                "ddprun.checkpoint.dcp saves those, for any number of ranks"
            )
        plain = type(value) in self._plain and value.layout == torch.strided
        if not plain or value.is_quantized or value.device.type == "meta":
            return NotImplemented
        tensor = value.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        stride = None
        if not tensor.is_contiguous():
            if _is_dense(tensor.shape, tensor.stride()):
                stride = tuple(tensor.stride())
            else:
                tensor = tensor.contiguous()
        size = tensor.numel() * tensor.element_size()
        self.specs.append(Spec(str(tensor.dtype)[6:], tuple(tensor.shape), stride, size))
        self.tensors.append(tensor)
        return _tensor, (len(self.tensors) - 1,)


def _tensor(number: int) -> Any:
    """Stand in a pickle for a tensor."""
    raise Corrupt(f"tensor {number} of a checkpoint is read without its elements")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tensor: Any) -> None:
        super().__init__(io.BytesIO(data))
        self._tensor = tensor

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, _tensor.__name__):
            return self._tensor
        return super().find_class(module, name)


def flatten(state: Mapping[str, Any]) -> Flat:
    """Take a state apart. Of values that have a state_dict(), that is saved."""
    torch = sys.modules.get("torch")  # A state without it has no tensors.
    shared: tuple[list[Spec], list[Any]] = [], []
    parts = []
    for name, value in state.items():
        file = io.BytesIO()
        pickler = _Pickler(file, torch)
        pickler.specs, pickler.tensors = shared
        pickler.dump(value.state_dict() if hasattr(value, "state_dict") else value)
        parts.append((name, file.getvalue()))
    specs = tuple(shared[0])
    return Flat(specs, shared[1], pickle.dumps((parts, specs), protocol=5))


class Layout:
    """Where each tensor lies in the pieces of a state that `count` ranks divide."""

    def __init__(self, specs: Sequence[Spec], count: int) -> None:
        self.offsets: list[tuple[bool, int]] = []
        """Whether it is divided, and its place among those that are, or are not."""
        totals = {True: 0, False: 0}
        for spec in specs:
            divided = count == 1 or spec.size >= LARGE
            self.offsets.append((divided, totals[divided]))
            totals[divided] += aligned(spec.size)
        self.divided, self.small = totals[True], totals[False]
        self.bounds = [aligned(self.divided * at // count) for at in range(count)] + [self.divided]

    def share(self, index: int) -> tuple[int, int]:
        """Return where the share of a piece begins and ends, among all that is divided."""
        return self.bounds[index], self.bounds[index + 1]


class Plan:
    """The copies that fill a mapping with piece `index` of `count` of states of one form."""

    def __init__(self, specs: Sequence[Spec], index: int, count: int) -> None:
        self.key = (specs, index, count)
        self._layout = Layout(specs, count)
        first, end = self._layout.share(index)
        self.fixed = end - first + (self._layout.small if index == 0 else 0)
        """The bytes before what is pickled."""
        self._whole: list[tuple[int, Any]] = []
        self._parts: list[tuple[int, Any, int, int]] = []

    def bind(self, memory: Any) -> None:
        """Prepare the copies into a mapping."""
        specs, index, _ = self.key
        layout = self._layout
        first, end = layout.share(index)
        if not specs:
            return
        data = as_tensor(memory)
        for number, (spec, (divided, offset)) in enumerate(zip(specs, layout.offsets)):
            if divided:
                low, high = max(first, offset), min(end, offset + spec.size)
                at = low - first
            else:
                low, high = offset, offset + (spec.size if index == 0 else 0)
                at = end - first + offset
            if low >= high:
                continue
            target = data[at : at + high - low]
            if high - low == spec.size and spec.stride is None:
                self._whole.append((number, shaped(target, spec)))
            else:
                self._parts.append((number, target, low - offset, high - offset))

    def copy(self, tensors: Sequence[Any]) -> None:
        """Copy this rank's part; from a GPU, too."""
        for number, target in self._whole:
            target.copy_(tensors[number])
        for number, target, low, high in self._parts:
            tensor = tensors[number]
            flat = tensor.as_strided((tensor.numel(),), (1,))
            target.copy_(flat.view(target.dtype)[low:high])


def shaped(data: Any, spec: Spec) -> Any:
    """Return a view of bytes as the tensor that they are."""
    torch = importlib.import_module("torch")
    typed = data.view(getattr(torch, spec.dtype))
    return (
        typed.view(spec.shape) if spec.stride is None else typed.as_strided(spec.shape, spec.stride)
    )


def _fresh(size: int) -> Any:
    """Return new memory: of huge pages if it is large, which cost a third of small ones."""
    torch = importlib.import_module("torch")
    if size < _HUGE:
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return as_tensor(memory)


class Stored:
    """A state as its pieces hold it. `pieces`: all of it, in order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        first = pieces[0].description
        begin, length = int(first["fixed"]), int(first["rest"])
        rest = bytes(pieces[0].memory[begin : begin + length])
        parts, specs = pickle.loads(rest)
        self.parts: dict[str, bytes] = dict(parts)
        self._specs: Sequence[Spec] = specs
        self._layout = Layout(specs, len(pieces))
        self._data = [as_tensor(piece.memory) for piece in pieces] if specs else []

    def value(self, name: str, own: bool) -> Any:
        """Return a value. own: its tensors have memory of their own, not that of the file."""
        return _Unpickler(self.parts[name], lambda number: self._read(number, own)).load()

    def _read(self, number: int, own: bool) -> Any:
        spec = self._specs[number]
        divided, offset = self._layout.offsets[number]
        if not divided:
            first, end = self._layout.share(0)
            places = [(0, end - first + offset, spec.size)]
        else:
            places = list(self._places(offset, offset + spec.size))
        views = [self._data[piece][at : at + size] for piece, at, size in places]
        if len(views) == 1 and not own:
            return shaped(views[0], spec)
        target, at = _fresh(spec.size), 0
        for view in views:
            target[at : at + len(view)].copy_(view)
            at += len(view)
        return shaped(target, spec)

    def _places(self, low: int, high: int) -> Any:
        for piece in range(len(self._data)):
            first, end = self._layout.share(piece)
            begin, until = max(low, first), min(high, end)
            if begin < until:
                yield piece, begin - first, until - begin


def restore(stored: Stored, state: MutableMapping[str, Any]) -> None:
    """Put what was saved into the values of `state`, and names that it lacks into `state`."""
    missing = [name for name in state if name not in stored.parts]
    if missing:
        raise BadArgument(f"the checkpoint has no {missing[0]!r}, only {sorted(stored.parts)}")
    for name in stored.parts:
        target: Any = state.get(name)
        if hasattr(target, "load_state_dict"):
            # A module copies what it is given; others, such as optimizers, keep it.
            torch = importlib.import_module("torch") if stored._specs else None
            module = torch is not None and isinstance(target, torch.nn.Module)
            target.load_state_dict(stored.value(name, own=not module))
        elif hasattr(target, "copy_") and hasattr(target, "detach"):
            target.detach().copy_(stored.value(name, own=False))
        else:
            state[name] = stored.value(name, own=True)
