"""The system calls of Linux 4.18, as RHEL 8 has: those that came later are answered as that kernel answers them.

With DDPRUN_TEST_OLD_KERNEL in its environment a test file runs so, with all that it starts (ddprun_case.main()). It is a
filter, not that kernel: what is not a call, such as the files of cgroups, is this machine's.
"""

import ctypes
import errno
import os
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ERRNO, _ALLOW = 0x00050000, 0x7fff0000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_NUMBER, _FIRST_ARGUMENT = 0, 16  # In seccomp_data.
_FIRST_NEW = 424  # pidfd_send_signal, of 5.1: since then all machines number alike.
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PIDFD = 0x1000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("rules", ctypes.c_void_p)]


def install(rules):
    """Have the kernel judge all system calls of this process, and of what it starts, by these (code, jt, jf, k).
    False: it has no such filters."""
    code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
    buffer = ctypes.create_string_buffer(code, len(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    program = _Program(len(rules), ctypes.addressof(buffer))
    return libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program)) == 0


def refuse(number, error):
    return install([(_LOAD, 0, 0, _NUMBER), (_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error),
                    (_RETURN, 0, 0, _ALLOW)])


def become():
    """False: this machine cannot play that one."""
    clone = _CLONE.get(os.uname().machine)
    return clone is not None and install([
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 3, 0, _FIRST_NEW),      # To the first answer.
        (_EQUAL, 0, 3, clone),              # Else to the second.
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 2, 1, _CLONE_PIDFD),     # That kernel would ignore it: no code may rely on it.
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EINVAL),
    ])
