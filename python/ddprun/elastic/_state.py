"""What a job keeps, of whatever type: arrays in place, or functions that save and load.

Knows torch's and numpy's types by their methods, and imports neither.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .._arguments import BY_FORMAT, ELEMENT_TYPES, NUMBERS, Lent, _view_of, lend
from .._c_api import Buffer
from .._core import check
from .._errors import BadArgument
from .._group import ProcessGroup
from .._library import library

_BYTES = NUMBERS["uint8"]


class Array(NamedTuple):
    """Memory that stays where it is.

    address, bytes: of it.
    kind: the ``ddprun_type`` of its elements, by which what is not finite is found; else bytes.
    owner: keeps it there.
    now: returns where it is now, which must be `address`.
    """

    name: str
    address: int
    bytes: int
    owner: Any
    now: Callable[[], int]
    kind: int = _BYTES


class Functions(NamedTuple):
    """State of variable size: `save` returns bytes, which `load` takes on another rank."""

    name: str
    save: Callable[[], bytes]
    load: Callable[[bytes], None]


Kept = Iterator["Array | Functions"]

_ZIP = b"PK"  # The beginning of torch.save()'s files; pickles differ.


def dumps(value: Any) -> bytes:
    torch = sys.modules.get("torch")
    if torch is None:
        return pickle.dumps(value)
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def loads(state: bytes) -> Any:
    # The data is from a rank of this job, which runs this program. torch may have been imported
    # since or not.
    if not state.startswith(_ZIP):
        return pickle.loads(state)
    torch = importlib.import_module("torch")
    return torch.load(io.BytesIO(state), map_location="cpu", weights_only=False)


def _pickled(name: str, get: Callable[[], Any], put: Callable[[Any], Any]) -> Functions:
    def load(state: bytes) -> None:
        put(loads(state))

    return Functions(name, lambda: dumps(get()), load)


def _is_torch(value: Any, *path: str) -> bool:
    kind: Any = sys.modules.get("torch")
    for name in path:
        kind = getattr(kind, name, None)
    return kind is not None and isinstance(value, kind)


def is_dense_on_host(tensor: Any) -> bool:
    """Return whether the tensor's elements are one piece of this process's memory."""
    return bool(
        tensor.device.type == "cpu"
        and str(tensor.layout) == "torch.strided"
        and (tensor.is_contiguous() or _is_permuted(tensor))
    )


def _is_permuted(tensor: Any) -> bool:
    """Return whether it is contiguous in another order of its dimensions, as channels_last is."""
    length = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != length:
            return False
        length *= size
    return True


def _tensor(name: str, tensor: Any) -> Array:
    if not is_dense_on_host(tensor):
        raise BadArgument(
            f"{name} is not one piece of host memory; keep what has a state_dict() instead, or a "
            "contiguous tensor"
        )
    length = tensor.numel() * tensor.element_size()
    kind = NUMBERS.get(str(tensor.dtype).replace("torch.", ""), _BYTES)
    return Array(name, tensor.data_ptr(), length, tensor, tensor.data_ptr, kind)


def _of_module(name: str, module: Any) -> Kept:
    """In place, if it is all in host memory, with what modules add to their state_dict()."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if not all(is_dense_on_host(tensor) for _, tensor in tensors):
        yield _pickled(name, module.state_dict, module.load_state_dict)
        return
    for part, tensor in tensors:
        if tensor.numel():
            yield _tensor(f"{name}.{part}", tensor)
    base = sys.modules["torch"].nn.Module
    if any(type(each).get_extra_state is not base.get_extra_state for each in module.modules()):
        yield _pickled(
            name + " (extra state)",
            lambda: _extra(module),
            lambda state: module.load_state_dict(state, strict=False),
        )


def _extra(module: Any) -> dict[str, Any]:
    """Those entries of the state_dict() that are no tensors."""
    ending = "_extra_state"
    return {key: value for key, value in module.state_dict().items() if key.endswith(ending)}


def _of_numpy_generator(name: str, generator: Any) -> Functions:
    bits = generator.bit_generator

    def put(state: Any) -> None:
        bits.state = state

    return _pickled(name, lambda: bits.state, put)


def _of_dict(name: str, kept: dict[Any, Any]) -> Functions:
    def put(state: dict[Any, Any]) -> None:
        kept.clear()
        kept.update(state)

    return _pickled(name, lambda: kept, put)


def _of_buffer(name: str, array: Any) -> Array:
    view = _view_of(array)
    if view.readonly or not view.nbytes:
        raise BadArgument(f"{name}: the {type(array).__name__} is empty or cannot be written to")
    place = ctypes.c_char.from_buffer(view)
    address = ctypes.addressof(place)
    kind = BY_FORMAT.get(((view.format or "B").lstrip("@=<"), view.itemsize), _BYTES)
    return Array(name, address, view.nbytes, place, lambda: address, kind)


def kept_of(name: str, value: Any) -> Kept:
    """Yield what of `value` is to be kept, under names that begin with `name`."""
    if _is_torch(value, "nn", "Module"):
        yield from _of_module(name, value)
    elif _is_torch(value, "Tensor"):
        yield _tensor(name, value)
    elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        yield _pickled(name, value.state_dict, value.load_state_dict)
    elif hasattr(value, "bit_generator"):
        yield _of_numpy_generator(name, value)
    elif hasattr(value, "get_state") and hasattr(value, "set_state"):
        yield _pickled(name, value.get_state, value.set_state)
    elif hasattr(value, "getstate") and hasattr(value, "setstate"):
        yield _pickled(name, value.getstate, value.setstate)
    elif isinstance(value, dict):
        yield _of_dict(name, value)
    else:
        yield _of_buffer(name, value)


FORMATS = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "uint8": "B"}


class Sharded:
    """Elements that are divided among the ranks, with a copy of each part on another rank.

    Created by :meth:`Job.keep_sharded`. Only for bodies of steps and functions of ``between()``;
    what is returned is valid until the step is committed.
    """

    def __init__(
        self, handle: int, count: int, held: Any, live: Callable[[], Any] = lambda: None
    ) -> None:
        self._handle = handle
        self._live = live  # Raises if the job is closed, and with it the handle.
        self._held = held  # What the library calls.
        self.count = count
        self.first = 0
        """The number of this rank's first element, as of the last call of now() or next()."""

    def now(self) -> memoryview:
        """Return this rank's elements as of the last committed step, not to be written to."""
        return self._part("sharded_now").toreadonly()

    def next(self) -> memoryview:
        """Return this rank's elements after this step, to be written before ``commit()``."""
        return self._part("sharded_next")

    def gather(self, group: ProcessGroup, whole: Any) -> None:
        """Write all elements as of now() into the array `whole`; collective."""
        self._live()
        lent: Lent = lend(whole, writable=True)
        buffer, held = lent
        function = library().ddprun_sharded_gather
        status = function(self._handle, group._live(), ctypes.byref(buffer))
        group._settle(status, "Sharded.gather")
        del held

    def _part(self, name: str) -> memoryview:
        self._live()
        first, part = ctypes.c_size_t(), Buffer(ctypes.sizeof(Buffer))
        function = getattr(library(), f"ddprun_{name}")
        check(function(self._handle, ctypes.byref(first), ctypes.byref(part)), "Sharded")
        self.first = first.value
        return view_of(part)


def view_of(part: Buffer) -> memoryview:
    """Return the elements that the library has described."""
    kind = ELEMENT_TYPES[part.type]
    form: Any = FORMATS[kind.name]
    if not part.count:
        return memoryview(bytearray()).cast("B").cast(form)
    memory = (ctypes.c_char * (part.count * kind.size)).from_address(part.data)
    return memoryview(memory).cast("B").cast(form)
