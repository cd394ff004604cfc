"""The structs and functions of ``ddprun/c/c_elastic.h`` and ``ddprun/c/c_functions.h``.

Each struct begins with its own size.
"""

from __future__ import annotations

import ctypes

from ._structs import STORE_ADD, STORE_ERASE, STORE_GET, STORE_SET, InitOptions


class DataSet(ctypes.Structure):
    """``ddprun_data_set``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("length", ctypes.c_int64),
        ("per_batch", ctypes.c_int64),
    )


class BatchOptions(ctypes.Structure):
    """``ddprun_batch_options``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("sets", ctypes.POINTER(DataSet)),
        ("set_count", ctypes.c_size_t),
        ("global_batch", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("shards", ctypes.c_int32),
        ("shuffle", ctypes.c_int32),
        ("last", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class SumOptions(ctypes.Structure):
    """``ddprun_sum_options``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("bucket_bytes", ctypes.c_size_t),
        ("equal", ctypes.c_uint64),
        ("inexact", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class SumResult(ctypes.Structure):
    """``ddprun_sum_result``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("kind", ctypes.c_int64),
        ("note", ctypes.c_int64),
        ("shards", ctypes.c_int64),
        ("tensor", ctypes.c_size_t),
    )


class JobOptions(ctypes.Structure):
    """``ddprun_job_options``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("init", ctypes.POINTER(InitOptions)),
        ("skip_poison", ctypes.c_int32),
        ("min_world", ctypes.c_int32),
        ("check_every", ctypes.c_int64),
    )


class JobCounters(ctypes.Structure):
    """``ddprun_job_counters``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("rounds", ctypes.c_int64),
        ("planned", ctypes.c_int64),
        ("repeated_steps", ctypes.c_int64),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("lost_us", ctypes.c_int64),
    )


# Functions of the program that a job calls; the last argument but for the state is `user`.
STEP_BODY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
BETWEEN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
APPLY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
SAVE_STATE = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
)
LOAD_STATE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

NOT_ENDED = -(2**31)  # The result of a function that has not set one.


class ProgramFunctions(ctypes.Structure):
    """``ddprun_functions``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("body", STEP_BODY),
        ("between", BETWEEN),
        ("apply", APPLY),
        ("save", SAVE_STATE),
        ("load", LOAD_STATE),
        ("set", STORE_SET),
        ("get", STORE_GET),
        ("add", STORE_ADD),
        ("erase", STORE_ERASE),
    )


_HANDLE = ctypes.c_void_p
_NEW = ctypes.POINTER(ctypes.c_void_p)
_STATUS, _INT, _I64, _TEXT = ctypes.c_int32, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_ADDRESSES = ctypes.POINTER(ctypes.c_void_p)
_SIZE, _SIZES = ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
_COUNT = ctypes.POINTER(ctypes.c_int64)
_INTS = ctypes.POINTER(ctypes.c_int)

# name: (result, arguments), as in these headers.
FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "batches_create": (_STATUS, [ctypes.POINTER(BatchOptions), _NEW]),
    "batches_destroy": (None, [_HANDLE]),
    "batches_steps_per_epoch": (_STATUS, [_HANDLE, _COUNT]),
    "batches_size": (_STATUS, [_HANDLE, _I64, _COUNT]),
    "batches_samples": (_STATUS, [_HANDLE, _I64, _INT, _ADDRESSES, _SIZES]),
    "shards_of": (_STATUS, [_INT, _INT, _INT, _INTS, _INTS]),
    "stream_seed": (
        ctypes.c_uint64,
        [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32],
    ),
    "sums_create": (_STATUS, [_SIZES, _SIZE, ctypes.POINTER(SumOptions), _NEW]),
    "sums_destroy": (None, [_HANDLE]),
    "sums_use": (_STATUS, [_HANDLE, _HANDLE]),
    "sums_begin": (_STATUS, [_HANDLE]),
    "sums_add": (_STATUS, [_HANDLE, _ADDRESSES]),
    "sums_reduce": (
        _STATUS,
        [_HANDLE, _HANDLE, _ADDRESSES, ctypes.c_double, _I64, ctypes.POINTER(SumResult)],
    ),
    "sums_commit": (_STATUS, [_HANDLE]),
    "sums_state": (_STATUS, [_HANDLE, _ADDRESSES, _SIZES]),
    "sums_restore": (_STATUS, [_HANDLE, ctypes.c_char_p, _SIZE]),
    "functions_with_results": (ctypes.POINTER(ProgramFunctions), []),
    "job_create_with": (_STATUS, [ctypes.POINTER(JobOptions), _NEW]),
    "job_destroy": (None, [_HANDLE]),
    "job_keep": (_STATUS, [_HANDLE, _TEXT, ctypes.c_void_p]),
    "job_keep_state": (_STATUS, [_HANDLE, _TEXT, SAVE_STATE, LOAD_STATE, ctypes.c_void_p]),
    "job_resume": (_STATUS, [_HANDLE, _I64]),
    "job_between": (_STATUS, [_HANDLE, _I64, BETWEEN, ctypes.c_void_p]),
    "job_run": (_STATUS, [_HANDLE, _I64, STEP_BODY, ctypes.c_void_p]),
    "job_committed": (_I64, [_HANDLE]),
    "job_rank": (_INT, [_HANDLE]),
    "job_world_size": (_INT, [_HANDLE]),
    "job_counters_of": (_STATUS, [_HANDLE, ctypes.POINTER(JobCounters)]),
    "step_number": (_I64, [_HANDLE]),
    "step_is_repeated": (_INT, [_HANDLE]),
    "step_round": (_INT, [_HANDLE]),
    "step_group": (ctypes.c_void_p, [_HANDLE]),
    "step_begin_shard": (_STATUS, [_HANDLE, _INT, _TEXT, _INTS]),
    "step_skips": (_INT, [_HANDLE, _INT]),
    "step_samples": (_STATUS, [_HANDLE, _HANDLE, _INT, _ADDRESSES, _SIZES]),
    "step_commit": (_STATUS, [_HANDLE, APPLY, ctypes.c_void_p]),
    "step_vote": (_STATUS, [_HANDLE, ctypes.POINTER(ctypes.c_int32)]),
    "step_voted": (_STATUS, [_HANDLE, _INT]),
}
