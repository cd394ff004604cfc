"""The C interface of libddprun.so: its numbers, structs, and functions.

Made by python/generate_c_api.py from the headers ddprun/c/*.h, which document it; names lack their
``ddprun_``. Pointers to handles, to bytes, and to pointers are addresses. Most structs begin with
their own size.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

C_API_VERSION = 1
MISSING_MAX = 64
OK = 0
BAD_ARGUMENT = 1
BAD_ENVIRONMENT = 2
UNREACHABLE = 3
TIMED_OUT = 4
PEER_LOST = 5
MISMATCH = 6
ABORTED = 7
UNSUPPORTED = 8
SYSTEM = 9
CORRUPT = 10
MEMBERSHIP_CHANGED = 11
STATE_LOST = 12
WRONG_RESULT = 13
INTERNAL = 100
F32 = 0
F64 = 1
F16 = 2
BF16 = 3
I32 = 4
I64 = 5
U8 = 6
I8 = 7
I16 = 8
U16 = 9
U32 = 10
U64 = 11
BOOL = 12
C64 = 13
C128 = 14
SUM = 0
AVG = 1
MIN = 2
MAX = 3
PROD = 4
BAND = 5
BOR = 6
BXOR = 7
PREMUL_SUM = 8
LAST_SMALLER = 0
LAST_DROPPED = 1
LAST_CONTINUES = 2
SUMS_GOOD = 0
SUMS_OVER = 1
SUMS_NOT_FINITE = 2
ALL_REDUCE = 1
BROADCAST = 2
ALL_GATHER = 3
SEND = 4
RECV = 5
BARRIER = 6
REDUCE_SCATTER = 8
ALL_TO_ALL = 9
GATHER = 10
SCATTER = 11
REDUCE = 12
IN_STREAM = 1
ON_HOST = 2
NOT_ENDED = -2147483648
PHASE_OUTSIDE = 0
PHASE_DATA = 1
PHASE_FORWARD = 2
PHASE_BACKWARD = 3
PHASE_OPTIMIZER = 4
PHASE_EXPOSED = 5
HOOK_ALL_REDUCE = 0
HOOK_FP16 = 1
HOOK_BF16 = 2
HOOK_NOOP = 3
HOOK_POWER_SGD = 4


class Buffer(Structure):
    """``ddprun_buffer``."""

    _fields_ = (
        ("size", c_size_t),
        ("data", c_void_p),
        ("count", c_size_t),
        ("type", c_int32),
        ("reserved", c_int32),
    )


class ErrorInfo(Structure):
    """``ddprun_error_info``."""

    _fields_ = (
        ("size", c_size_t),
        ("status", c_int32),
        ("rank", c_int32),
        ("peer", c_int32),
        ("missing_count", c_int32),
        ("waited_ms", c_int64),
        ("missing", c_int32 * 64),
        ("host", c_char * 256),
        ("operation", c_char * 256),
        ("text", c_char * 1024),
        ("message", c_char * 2048),
    )


class InitOptions(Structure):
    """``ddprun_init_options``."""

    _fields_ = (
        ("size", c_size_t),
        ("init_method", c_char_p),
        ("backend", c_char_p),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("init_timeout_ms", c_int64),
        ("op_timeout_ms", c_int64),
        ("host", c_char_p),
        ("device_given", c_int32),
        ("device", c_int32),
        ("max_ctas", c_int32),
        ("may_shrink", c_int32),
    )


class StoreCalls(Structure):
    """``ddprun_store_calls``."""

    _fields_ = (
        ("size", c_size_t),
        ("user", c_void_p),
        ("set", CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)),
        ("get", CFUNCTYPE(c_int, c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_size_t))),
        ("add", CFUNCTYPE(c_int, c_void_p, c_char_p, c_int64, POINTER(c_int64))),
        ("erase", CFUNCTYPE(c_int, c_void_p, c_char_p)),
    )


class CreateOptions(Structure):
    """``ddprun_create_options``."""

    _fields_ = (
        ("size", c_size_t),
        ("prefix", c_char_p),
        ("backend", c_char_p),
        ("host", c_char_p),
        ("address", c_char_p),
        ("job_ranks", POINTER(c_int32)),
        ("init_timeout_ms", c_int64),
        ("op_timeout_ms", c_int64),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("device_given", c_int32),
        ("device", c_int32),
        ("max_ctas", c_int32),
        ("may_shrink", c_int32),
    )


class DataSet(Structure):
    """``ddprun_data_set``."""

    _fields_ = (
        ("size", c_size_t),
        ("length", c_int64),
        ("per_batch", c_int64),
    )


class BatchOptions(Structure):
    """``ddprun_batch_options``."""

    _fields_ = (
        ("size", c_size_t),
        ("sets", POINTER(DataSet)),
        ("set_count", c_size_t),
        ("global_batch", c_int64),
        ("seed", c_uint64),
        ("shards", c_int32),
        ("shuffle", c_int32),
        ("last", c_int32),
        ("reserved", c_int32),
    )


class Sample(Structure):
    """``ddprun_sample``."""

    _fields_ = (
        ("set", c_int64),
        ("index", c_int64),
        ("epoch", c_int64),
    )


class SumOptions(Structure):
    """``ddprun_sum_options``."""

    _fields_ = (
        ("size", c_size_t),
        ("bucket_bytes", c_size_t),
        ("equal", c_uint64),
        ("inexact", c_int32),
        ("reserved", c_int32),
    )


class SumResult(Structure):
    """``ddprun_sum_result``."""

    _fields_ = (
        ("size", c_size_t),
        ("kind", c_int64),
        ("note", c_int64),
        ("shards", c_int64),
        ("tensor", c_size_t),
    )


StepBody = CFUNCTYPE(c_int32, c_void_p, c_void_p)

Apply = CFUNCTYPE(c_int32, c_void_p)

Between = CFUNCTYPE(c_int32, c_void_p, c_void_p)

SaveState = CFUNCTYPE(c_int32, c_void_p, POINTER(c_void_p), POINTER(c_size_t))

LoadState = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t)


class JobOptions(Structure):
    """``ddprun_job_options``."""

    _fields_ = (
        ("size", c_size_t),
        ("init", POINTER(InitOptions)),
        ("skip_poison", c_int32),
        ("min_world", c_int32),
        ("check_every", c_int64),
        ("even_shards", c_int32),
        ("audit_per_million", c_int32),
        ("memory_every", c_int64),
    )


class JobCounters(Structure):
    """``ddprun_job_counters``."""

    _fields_ = (
        ("size", c_size_t),
        ("rounds", c_int64),
        ("planned", c_int64),
        ("repeated_steps", c_int64),
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("lost_us", c_int64),
        ("moved_shards", c_int64),
        ("audited_shards", c_int64),
    )


FillShards = CFUNCTYPE(c_int32, c_void_p, c_size_t, POINTER(Buffer))


class ShardedOptions(Structure):
    """``ddprun_sharded_options``."""

    _fields_ = (
        ("size", c_size_t),
        ("count", c_size_t),
        ("fill", FillShards),
        ("user", c_void_p),
        ("type", c_int32),
        ("shards", c_int32),
    )


class CheckpointPiece(Structure):
    """``ddprun_checkpoint_piece``."""

    _fields_ = (
        ("size", c_size_t),
        ("name", c_char_p),
        ("data", c_void_p),
        ("count", c_size_t),
        ("offset", c_size_t),
        ("total", c_size_t),
        ("type", c_int32),
        ("reserved", c_int32),
    )


class CheckpointPlace(Structure):
    """``ddprun_checkpoint_place``."""

    _fields_ = (
        ("size", c_size_t),
        ("folder", c_char_p),
        ("copies", c_char_p),
        ("within", c_char_p),
        ("shared", c_int32),
        ("reserved", c_int32),
    )


class Call(Structure):
    """``ddprun_call``."""

    _fields_ = (
        ("size", c_size_t),
        ("operation", c_int32),
        ("op", c_int32),
        ("in_", POINTER(Buffer)),
        ("ins", c_size_t),
        ("out", POINTER(Buffer)),
        ("outs", c_size_t),
        ("root", c_int32),
        ("tag", c_int32),
        ("timeout_ms", c_int64),
        ("factor", c_double),
        ("stream", c_void_p),
        ("flags", c_uint32),
        ("reserved", c_int32),
    )


class Functions(Structure):
    """``ddprun_functions``."""

    _fields_ = (
        ("size", c_size_t),
        ("body", StepBody),
        ("between", Between),
        ("apply", Apply),
        ("save", SaveState),
        ("load", LoadState),
        ("set", CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)),
        ("get", CFUNCTYPE(c_int, c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_size_t))),
        ("add", CFUNCTYPE(c_int, c_void_p, c_char_p, c_int64, POINTER(c_int64))),
        ("erase", CFUNCTYPE(c_int, c_void_p, c_char_p)),
    )


RankBody = CFUNCTYPE(c_int, c_int, c_void_p)


class Metric(Structure):
    """``ddprun_metric``."""

    _fields_ = (
        ("size", c_size_t),
        ("name", c_char_p),
        ("average", c_double),
        ("sum", c_double),
        ("weight", c_double),
        ("min", c_double),
        ("max", c_double),
    )


class Parameter(Structure):
    """``ddprun_parameter``."""

    _fields_ = (
        ("size", c_size_t),
        ("name", c_char_p),
        ("data", c_void_p),
        ("count", c_size_t),
        ("shape", POINTER(c_int64)),
        ("dimensions", c_size_t),
        ("type", c_int32),
        ("reserved", c_int32),
    )


class PowerSgdOptions(Structure):
    """``ddprun_power_sgd_options``."""

    _fields_ = (
        ("size", c_size_t),
        ("rank", c_int64),
        ("start_step", c_int64),
        ("min_compression_rate", c_double),
        ("orthogonalization_epsilon", c_double),
        ("seed", c_uint64),
        ("no_error_feedback", c_int32),
        ("cold_start", c_int32),
    )


class DdpOptions(Structure):
    """``ddprun_ddp_options``."""

    _fields_ = (
        ("size", c_size_t),
        ("first_bucket_bytes", c_size_t),
        ("bucket_bytes", c_size_t),
        ("checksum_every", c_int64),
        ("find_unused", c_int32),
        ("static_graph", c_int32),
        ("keep_at_start", c_int32),
        ("uneven_inputs", c_int32),
        ("hook", c_int32),
        ("print", c_int32),
        ("window", c_int64),
        ("json_file", c_char_p),
        ("trace_folder", c_char_p),
        ("power_sgd", POINTER(PowerSgdOptions)),
    )


class SyncReport(Structure):
    """``ddprun_sync_report``."""

    _fields_ = (
        ("size", c_size_t),
        ("steps", c_int64),
        ("comm_ns", c_int64),
        ("exposed_ns", c_int64),
        ("contended_ns", c_int64),
        ("outside_ns", c_int64),
        ("forward_ns", c_int64),
        ("backward_ns", c_int64),
        ("waited_ns", c_int64),
        ("unknown_ns", c_int64),
        ("bytes", c_uint64),
        ("buckets", c_int64),
        ("dropped", c_int64),
        ("data_ns", c_int64),
        ("optimizer_ns", c_int64),
    )


class SamplerOptions(Structure):
    """``ddprun_sampler_options``."""

    _fields_ = (
        ("size", c_size_t),
        ("length", c_int64),
        ("seed", c_uint64),
        ("world_size", c_int32),
        ("rank", c_int32),
        ("shuffle", c_int32),
        ("drop_last", c_int32),
    )


class ScalerOptions(Structure):
    """``ddprun_scaler_options``."""

    _fields_ = (
        ("size", c_size_t),
        ("init_scale", c_double),
        ("growth_factor", c_double),
        ("backoff_factor", c_double),
        ("growth_interval", c_int32),
        ("disabled", c_int32),
    )


# name: (result, arguments)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "c_api_version": (c_int, []),
    "version": (c_char_p, []),
    "last_error": (c_char_p, []),
    "last_error_peer": (c_int, []),
    "last_error_info": (c_int32, [POINTER(ErrorInfo)]),
    "group_init": (c_int32, [POINTER(InitOptions), POINTER(c_void_p)]),
    "group_create": (c_int32, [POINTER(StoreCalls), POINTER(CreateOptions), POINTER(c_void_p)]),
    "group_destroy": (None, [c_void_p]),
    "group_shutdown": (c_int32, [c_void_p, c_int64]),
    "group_split": (c_int32, [c_void_p, c_int, c_int, POINTER(c_void_p)]),
    "group_shrink": (c_int32, [c_void_p, POINTER(c_int32), c_size_t, c_int64, POINTER(c_void_p)]),
    "group_abort": (None, [c_void_p]),
    "rank": (c_int, [c_void_p]),
    "world_size": (c_int, [c_void_p]),
    "local_rank": (c_int, [c_void_p]),
    "local_world_size": (c_int, [c_void_p]),
    "group_rank": (c_int, [c_void_p]),
    "restart_count": (c_int, [c_void_p]),
    "run_id": (c_char_p, [c_void_p]),
    "backend": (c_char_p, [c_void_p]),
    "device": (c_int, [c_void_p]),
    "host_of": (c_char_p, [c_void_p, c_int]),
    "set_phase": (c_int32, [c_void_p, c_char_p]),
    "use_stream": (c_int32, [c_void_p, c_void_p, c_int]),
    "copy": (c_int32, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "zero": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "group_completion_fd": (c_int32, [c_void_p, POINTER(c_int)]),
    "allocate": (c_int32, [c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_void_p)]),
    "memory_destroy": (None, [c_void_p]),
    "batches_create": (c_int32, [POINTER(BatchOptions), POINTER(c_void_p)]),
    "batches_destroy": (None, [c_void_p]),
    "batches_steps_per_epoch": (c_int32, [c_void_p, POINTER(c_int64)]),
    "batches_size": (c_int32, [c_void_p, c_int64, POINTER(c_int64)]),
    "batches_samples": (c_int32, [c_void_p, c_int64, c_int, POINTER(c_void_p), POINTER(c_size_t)]),
    "shards_of": (c_int32, [c_int, c_int, c_int, POINTER(c_int), POINTER(c_int)]),
    "stream_seed": (c_uint64, [c_uint64, c_uint64, c_uint32, c_uint32]),
    "sums_create": (c_int32, [POINTER(c_size_t), c_size_t, POINTER(SumOptions), POINTER(c_void_p)]),
    "sums_destroy": (None, [c_void_p]),
    "sums_use": (c_int32, [c_void_p, c_void_p]),
    "sums_begin": (c_int32, [c_void_p]),
    "sums_add": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "sums_reduce": (
        c_int32,
        [c_void_p, c_void_p, POINTER(c_void_p), c_double, c_int64, POINTER(SumResult)],
    ),
    "sums_commit": (c_int32, [c_void_p]),
    "sums_hash": (c_int32, [c_void_p, POINTER(c_void_p), POINTER(c_uint64)]),
    "sums_is_finite": (c_int, [c_void_p]),
    "sums_state": (c_int32, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "sums_restore": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "job_create": (c_int32, [POINTER(InitOptions), POINTER(c_void_p)]),
    "job_create_with": (c_int32, [POINTER(JobOptions), POINTER(c_void_p)]),
    "job_destroy": (None, [c_void_p]),
    "job_keep": (c_int32, [c_void_p, c_char_p, POINTER(Buffer)]),
    "job_keep_state": (c_int32, [c_void_p, c_char_p, SaveState, LoadState, c_void_p]),
    "job_keep_sharded": (c_int32, [c_void_p, c_char_p, POINTER(ShardedOptions), POINTER(c_void_p)]),
    "sharded_now": (c_int32, [c_void_p, POINTER(c_size_t), POINTER(Buffer)]),
    "sharded_next": (c_int32, [c_void_p, POINTER(c_size_t), POINTER(Buffer)]),
    "sharded_gather": (c_int32, [c_void_p, c_void_p, POINTER(Buffer)]),
    "sharded_gather_next": (c_int32, [c_void_p, c_void_p, POINTER(Buffer)]),
    "job_resume": (c_int32, [c_void_p, c_int64]),
    "job_between": (c_int32, [c_void_p, c_int64, Between, c_void_p]),
    "job_run": (c_int32, [c_void_p, c_int64, StepBody, c_void_p]),
    "job_committed": (c_int64, [c_void_p]),
    "job_rank": (c_int, [c_void_p]),
    "job_world_size": (c_int, [c_void_p]),
    "job_counters_of": (c_int32, [c_void_p, POINTER(JobCounters)]),
    "step_number": (c_int64, [c_void_p]),
    "step_is_repeated": (c_int, [c_void_p]),
    "step_round": (c_int, [c_void_p]),
    "step_group": (c_void_p, [c_void_p]),
    "step_shards": (
        c_int32,
        [c_void_p, c_void_p, c_int, POINTER(c_double), POINTER(c_int), POINTER(c_int)],
    ),
    "step_begin_shard": (c_int32, [c_void_p, c_int, c_char_p, POINTER(c_int)]),
    "step_skips": (c_int, [c_void_p, c_int]),
    "step_samples": (c_int32, [c_void_p, c_void_p, c_int, POINTER(c_void_p), POINTER(c_size_t)]),
    "step_audits": (c_int32, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "step_is_audited": (c_int, [c_void_p, c_int]),
    "step_audit": (c_int32, [c_void_p, c_int, c_uint64]),
    "step_capture": (c_int32, [c_void_p, c_int, c_char_p, c_uint64]),
    "step_commit": (c_int32, [c_void_p, Apply, c_void_p]),
    "step_reduce": (
        c_int32,
        [c_void_p, c_void_p, POINTER(c_void_p), c_double, c_int64, POINTER(SumResult)],
    ),
    "step_vote": (c_int32, [c_void_p, POINTER(c_int32)]),
    "step_voted": (c_int32, [c_void_p, c_int]),
    "has_memory_folder": (c_int32, []),
    "checkpoint_in_memory": (c_int32, [c_char_p, POINTER(CheckpointPlace)]),
    "checkpoint_writer_create_at": (
        c_int32,
        [c_void_p, POINTER(CheckpointPlace), c_int, POINTER(c_void_p)],
    ),
    "checkpoint_latest_of": (
        c_int32,
        [c_void_p, POINTER(CheckpointPlace), c_size_t, POINTER(c_char_p)],
    ),
    "checkpoint_writer_create": (c_int32, [c_void_p, c_char_p, c_int, POINTER(c_void_p)]),
    "checkpoint_writer_destroy": (None, [c_void_p]),
    "checkpoint_save_async": (c_int32, [c_void_p, c_int64, POINTER(CheckpointPiece), c_size_t]),
    "checkpoint_wait": (c_int32, [c_void_p]),
    "checkpoint_latest": (c_int32, [c_void_p, c_char_p, POINTER(c_char_p)]),
    "checkpoint_open": (c_int32, [c_char_p, POINTER(c_void_p)]),
    "checkpoint_destroy": (None, [c_void_p]),
    "checkpoint_step": (c_int64, [c_void_p]),
    "checkpoint_world_size": (c_int, [c_void_p]),
    "checkpoint_arrays": (c_int64, [c_void_p]),
    "checkpoint_array": (
        c_int32,
        [c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_int32), POINTER(c_size_t)],
    ),
    "checkpoint_read": (c_int32, [c_void_p, c_char_p, POINTER(Buffer), c_size_t]),
    "submit": (c_int32, [c_void_p, POINTER(Call), POINTER(c_void_p)]),
    "work_wait": (c_int32, [c_void_p]),
    "work_wait_for": (c_int32, [c_void_p, c_int64, POINTER(c_int)]),
    "work_synchronize": (c_int32, [c_void_p]),
    "work_done": (c_int, [c_void_p]),
    "work_error": (c_int32, [c_void_p, POINTER(ErrorInfo)]),
    "work_times": (c_int32, [c_void_p, POINTER(c_int64), POINTER(c_int64)]),
    "work_destroy": (None, [c_void_p]),
    "all_reduce": (c_int32, [c_void_p, POINTER(Buffer), c_int32, c_int64]),
    "reduce": (c_int32, [c_void_p, POINTER(Buffer), POINTER(Buffer), c_int32, c_int, c_int64]),
    "reduce_scatter": (c_int32, [c_void_p, POINTER(Buffer), POINTER(Buffer), c_int32, c_int64]),
    "broadcast": (c_int32, [c_void_p, POINTER(Buffer), c_int, c_int64]),
    "all_gather": (c_int32, [c_void_p, POINTER(Buffer), POINTER(Buffer), c_int64]),
    "all_to_all": (c_int32, [c_void_p, POINTER(Buffer), POINTER(Buffer), c_int64]),
    "gather": (c_int32, [c_void_p, POINTER(Buffer), POINTER(Buffer), c_int, c_int64]),
    "scatter": (c_int32, [c_void_p, POINTER(Buffer), POINTER(Buffer), c_int, c_int64]),
    "send": (c_int32, [c_void_p, POINTER(Buffer), c_int, c_int64]),
    "recv": (c_int32, [c_void_p, POINTER(Buffer), c_int, c_int64]),
    "barrier": (c_int32, [c_void_p, c_int64]),
    "all_reduce_async": (c_int32, [c_void_p, POINTER(Buffer), c_int32, c_int64, POINTER(c_void_p)]),
    "broadcast_bytes": (
        c_int32,
        [c_void_p, c_void_p, c_size_t, c_int, POINTER(c_void_p), POINTER(c_size_t)],
    ),
    "all_gather_bytes": (
        c_int32,
        [c_void_p, c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_void_p)],
    ),
    "gather_bytes": (
        c_int32,
        [c_void_p, c_void_p, c_size_t, c_int, POINTER(c_void_p), POINTER(c_void_p)],
    ),
    "functions_with_results": (POINTER(Functions), []),
    "install_crash_report": (None, []),
    "install_crash_report_before": (None, []),
    "spawn": (c_int32, [c_int, RankBody, c_void_p, c_int64, POINTER(c_int)]),
    "shared_seed": (c_int32, [c_void_p, POINTER(c_uint64)]),
    "expect_steps": (c_int32, [c_void_p, c_int64]),
    "metrics_create": (c_int32, [POINTER(c_void_p)]),
    "metrics_destroy": (None, [c_void_p]),
    "metrics_add": (c_int32, [c_void_p, c_char_p, c_double, c_double]),
    "metrics_reduce": (c_int32, [c_void_p, c_void_p, POINTER(c_size_t)]),
    "metrics_get": (c_int32, [c_void_p, c_size_t, POINTER(Metric)]),
    "average": (c_int32, [c_void_p, c_double, POINTER(c_double)]),
    "store_set": (c_int32, [c_void_p, c_char_p, c_void_p, c_size_t]),
    "store_get": (c_int32, [c_void_p, c_char_p, c_int64, POINTER(c_void_p), POINTER(c_size_t)]),
    "store_add": (c_int32, [c_void_p, c_char_p, c_int64, POINTER(c_int64)]),
    "store_check": (c_int32, [c_void_p, POINTER(c_char_p), c_size_t, POINTER(c_int)]),
    "store_wait": (c_int32, [c_void_p, POINTER(c_char_p), c_size_t, c_int64]),
    "store_erase": (c_int32, [c_void_p, c_char_p, POINTER(c_int)]),
    "timer_create": (c_int32, [POINTER(c_void_p)]),
    "timer_join": (c_int32, [c_void_p, POINTER(InitOptions)]),
    "timer_use_stream": (c_int32, [c_void_p, c_int32, c_void_p]),
    "timer_enter": (c_int32, [c_void_p, c_int32]),
    "timer_end_step": (c_int32, [c_void_p, c_size_t]),
    "timer_checkpoint": (c_int32, [c_void_p, c_int64]),
    "timer_saved": (c_int32, [c_void_p, c_int64]),
    "timer_destroy": (None, [c_void_p]),
    "ddp_create": (
        c_int32,
        [c_void_p, POINTER(Parameter), c_size_t, POINTER(DdpOptions), POINTER(c_void_p)],
    ),
    "ddp_destroy": (None, [c_void_p]),
    "ddp_gradient": (c_int32, [c_void_p, c_size_t, POINTER(Buffer)]),
    "ddp_zero_gradients": (c_int32, [c_void_p]),
    "ddp_begin_backward": (c_int32, [c_void_p, c_int]),
    "ddp_mark_ready": (c_int32, [c_void_p, c_size_t]),
    "ddp_finish_backward": (c_int32, [c_void_p]),
    "ddp_cancel_backward": (c_int32, [c_void_p]),
    "ddp_begin_backward_without": (c_int32, [c_void_p, c_int, POINTER(c_size_t), c_size_t]),
    "ddp_used": (c_int32, [c_void_p, c_size_t, POINTER(c_int)]),
    "ddp_rebuild": (c_int32, [c_void_p, POINTER(c_int)]),
    "ddp_join": (c_int32, [c_void_p]),
    "ddp_set_value": (c_int32, [c_void_p, c_size_t, POINTER(Buffer)]),
    "ddp_reconfigure": (c_int32, [c_void_p, c_void_p]),
    "ddp_last_step": (c_int32, [c_void_p, POINTER(c_int64), POINTER(c_int64)]),
    "ddp_report": (c_int32, [c_void_p, c_int, POINTER(SyncReport)]),
    "ddp_begin_forward": (c_int32, [c_void_p]),
    "ddp_end_forward": (c_int32, [c_void_p]),
    "ddp_window_json": (c_int32, [c_void_p, POINTER(c_char_p)]),
    "sampler_create": (c_int32, [POINTER(SamplerOptions), POINTER(c_void_p)]),
    "sampler_destroy": (None, [c_void_p]),
    "sampler_set_epoch": (c_int32, [c_void_p, c_int64]),
    "sampler_indices": (c_int32, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "sampler_advance": (c_int32, [c_void_p, c_int64]),
    "sampler_state": (c_int32, [c_void_p, POINTER(c_int64), POINTER(c_int64)]),
    "sampler_load": (c_int32, [c_void_p, c_int64, c_int64]),
    "sampler_counts": (c_int32, [c_void_p, POINTER(c_int64), POINTER(c_int64)]),
    "clip_grad_norm": (
        c_int32,
        [POINTER(Buffer), c_size_t, c_double, c_double, c_int, POINTER(c_double)],
    ),
    "clip_grad_norm_of_parts": (
        c_int32,
        [c_void_p, POINTER(Buffer), c_size_t, c_double, c_double, c_int, POINTER(c_double)],
    ),
    "scaler_create": (c_int32, [POINTER(ScalerOptions), POINTER(c_void_p)]),
    "scaler_destroy": (None, [c_void_p]),
    "scaler_scale": (c_int32, [c_void_p, POINTER(c_double)]),
    "scaler_unscale": (c_int32, [c_void_p, c_void_p, POINTER(Buffer), c_size_t, POINTER(c_int)]),
    "scaler_unscaled": (c_int32, [c_void_p, c_int]),
    "scaler_may_step": (c_int, [c_void_p]),
    "scaler_update": (c_int32, [c_void_p]),
    "scaler_state": (c_int32, [c_void_p, POINTER(c_double), POINTER(c_int)]),
    "scaler_load": (c_int32, [c_void_p, c_double, c_int]),
}
