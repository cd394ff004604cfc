"""What ``ddprun/c/c_training.h`` and ``c_checkpoint.h`` declare, as far as it is called."""

from __future__ import annotations

import ctypes

from .._structs import Buffer


class SamplerOptions(ctypes.Structure):
    """``ddprun_sampler_options``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("length", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("world_size", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shuffle", ctypes.c_int32),
        ("drop_last", ctypes.c_int32),
    )


class CheckpointPiece(ctypes.Structure):
    """``ddprun_checkpoint_piece``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("offset", ctypes.c_size_t),
        ("total", ctypes.c_size_t),
        ("type", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


_HANDLE = ctypes.c_void_p
_NEW = ctypes.POINTER(ctypes.c_void_p)
_STATUS, _INT, _TEXT = ctypes.c_int32, ctypes.c_int, ctypes.c_char_p
_I64, _SIZE, _DOUBLE = ctypes.c_int64, ctypes.c_size_t, ctypes.c_double
_SIZES, _COUNT = ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_int64)
_NUMBER = ctypes.POINTER(ctypes.c_double)
_BUFFERS, _TEXTS = ctypes.POINTER(Buffer), ctypes.POINTER(ctypes.c_char_p)

# name: (result, arguments), as in the headers.
FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "device": (_INT, [_HANDLE]),
    "sampler_create": (_STATUS, [ctypes.POINTER(SamplerOptions), _NEW]),
    "sampler_destroy": (None, [_HANDLE]),
    "sampler_set_epoch": (_STATUS, [_HANDLE, _I64]),
    "sampler_indices": (_STATUS, [_HANDLE, ctypes.POINTER(ctypes.c_void_p), _SIZES]),
    "sampler_advance": (_STATUS, [_HANDLE, _I64]),
    "sampler_state": (_STATUS, [_HANDLE, _COUNT, _COUNT]),
    "sampler_load": (_STATUS, [_HANDLE, _I64, _I64]),
    "clip_grad_norm": (_STATUS, [_BUFFERS, _SIZE, _DOUBLE, _DOUBLE, _INT, _NUMBER]),
    "checkpoint_writer_create": (_STATUS, [_HANDLE, _TEXT, _INT, _NEW]),
    "checkpoint_writer_destroy": (None, [_HANDLE]),
    "checkpoint_save_async": (_STATUS, [_HANDLE, _I64, ctypes.POINTER(CheckpointPiece), _SIZE]),
    "checkpoint_wait": (_STATUS, [_HANDLE]),
    "checkpoint_latest": (_STATUS, [_HANDLE, _TEXT, _TEXTS]),
    "checkpoint_open": (_STATUS, [_TEXT, _NEW]),
    "checkpoint_destroy": (None, [_HANDLE]),
    "checkpoint_step": (_I64, [_HANDLE]),
    "checkpoint_world_size": (_INT, [_HANDLE]),
    "checkpoint_arrays": (_I64, [_HANDLE]),
    "checkpoint_array": (
        _STATUS,
        [_HANDLE, _SIZE, _TEXTS, ctypes.POINTER(ctypes.c_int32), _SIZES],
    ),
    "checkpoint_read": (_STATUS, [_HANDLE, _TEXT, _BUFFERS, _SIZE]),
}
