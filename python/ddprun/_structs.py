"""The structs and numbers of ``ddprun/c_api.h``. Each struct begins with its own size."""

from __future__ import annotations

import ctypes


class Buffer(ctypes.Structure):
    """``ddprun_buffer``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("type", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class InitOptions(ctypes.Structure):
    """``ddprun_init_options``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("init_method", ctypes.c_char_p),
        ("backend", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("world_size", ctypes.c_int32),
        ("init_timeout_ms", ctypes.c_int64),
        ("op_timeout_ms", ctypes.c_int64),
        ("host", ctypes.c_char_p),
        ("device_given", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("max_ctas", ctypes.c_int32),
        ("may_shrink", ctypes.c_int32),
    )


class Call(ctypes.Structure):
    """``ddprun_call``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("operation", ctypes.c_int32),
        ("op", ctypes.c_int32),
        ("in_data", ctypes.c_void_p),
        ("ins", ctypes.c_size_t),
        ("out_data", ctypes.c_void_p),
        ("outs", ctypes.c_size_t),
        ("root", ctypes.c_int32),
        ("tag", ctypes.c_int32),
        ("timeout_ms", ctypes.c_int64),
        ("factor", ctypes.c_double),
        ("stream", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_int32),
    )


class ErrorInfo(ctypes.Structure):
    """``ddprun_error_info``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("status", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("peer", ctypes.c_int32),
        ("missing_count", ctypes.c_int32),
        ("waited_ms", ctypes.c_int64),
        ("missing", ctypes.c_int32 * 64),
        ("host", ctypes.c_char * 256),
        ("operation", ctypes.c_char * 256),
        ("text", ctypes.c_char * 1024),
        ("message", ctypes.c_char * 2048),
    )


class Metric(ctypes.Structure):
    """``ddprun_metric``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("average", ctypes.c_double),
        ("sum", ctypes.c_double),
        ("weight", ctypes.c_double),
        ("min", ctypes.c_double),
        ("max", ctypes.c_double),
    )


STORE_SET = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
)
STORE_GET = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
)
STORE_ADD = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int64),
)
STORE_ERASE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)


class StoreCalls(ctypes.Structure):
    """``ddprun_store_calls``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("user", ctypes.c_void_p),
        ("set", STORE_SET),
        ("get", STORE_GET),
        ("add", STORE_ADD),
        ("erase", STORE_ERASE),
    )


class CreateOptions(ctypes.Structure):
    """``ddprun_create_options``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("prefix", ctypes.c_char_p),
        ("backend", ctypes.c_char_p),
        ("host", ctypes.c_char_p),
        ("address", ctypes.c_char_p),
        ("job_ranks", ctypes.POINTER(ctypes.c_int32)),
        ("init_timeout_ms", ctypes.c_int64),
        ("op_timeout_ms", ctypes.c_int64),
        ("rank", ctypes.c_int32),
        ("world_size", ctypes.c_int32),
        ("device_given", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("max_ctas", ctypes.c_int32),
        ("may_shrink", ctypes.c_int32),
    )
