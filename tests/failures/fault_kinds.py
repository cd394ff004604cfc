"""The kinds of fault of fault_campaign.py: what is done, and what the verdict should say of it."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

TESTS = os.path.join(os.path.dirname(os.environ.get("DDPRUN_BIN", "build/dev/bin").rstrip("/")), "tests")
WORKER = os.path.abspath(os.path.join(TESTS, "fault_worker"))
NEEDS_LIBRARY = os.path.abspath(os.path.join(TESTS, "fault_needs_library"))


@dataclass
class Kind:
    name: str
    fault: str              # The word that the verdict should have for it.
    code: int               # What ddprun should end with; None: any failure.
    worker: list            # The command of every worker.
    lockstep: bool = False  # The others use the SDK with the culprit, and become its victims.
    culprits: int = 1
    any_rank: bool = False  # All ranks fail alike, whichever is named is right.
    where: str = "local"    # "local": two nodes as one command; "hosts": two commands; "wire": two namespaces.
    disturb: str = ""       # What the campaign itself does: "kill agent", "cut cable", "skew clock".
    env: dict = field(default_factory=dict)
    missing: str = ""       # Why this machine cannot make it.
    says: str = ""          # A pattern that the verdict's text should match.
    shutdown: float = 2     # The value of --shutdown-timeout.


def sdk_kinds():
    """Each once among ranks that wait, and, if it is by itself, once among ranks in lockstep."""
    table = [("exit_1", "exit", 1), ("exit_3", "exit", 3), ("exit_255", "exit", 255), ("sigkill", "signal", 137),
             ("sigterm", "signal", 143), ("sigint", "signal", 130), ("sighup", "signal", 129),
             ("sigquit", "signal", 131), ("sigusr1", "signal", 138), ("sigpipe", "signal", 141),
             ("abort", "crash", 134), ("segfault", "crash", 139), ("sigbus", "crash", 135), ("sigfpe", "crash", 136),
             ("sigill", "crash", 132), ("cpp_exception", "exception", 134), ("bad_alloc", "no_memory", 134),
             ("stack_overflow", "stack_overflow", 139), ("descriptors", "no_descriptors", 134),
             ("disk_full", "no_space", 134), ("cpu_limit", "signal", 152), ("file_limit", "signal", 153),
             ("cuda_memory", "gpu_memory", 134), ("cuda_access", "gpu_access", 134), ("no_file", "no_file", 134),
             ("atexit_fails", "exit", 9), ("setsid_child", "exit", 9), ("oom_kill", "out_of_memory", 137)]
    for name, fault, code in table:
        # A second of CPU time can take a starved machine long enough for the others to give up first.
        for lockstep in (False, True) if name != "cpu_limit" else (False,):
            yield Kind(name + (", peers in lockstep" if lockstep else ""), fault, code, [WORKER], lockstep,
                       env={"FAULT": name})
    for name, says in (("sigstop", "it is stopped"), ("endless_loop", ""), ("hang_in_exit", "")):
        yield Kind(f"{name}, until a deadline", "stuck", 97, [WORKER], True, env={"FAULT": name, "OP_SECONDS": "8"},
                   says=says)
    for name, fault, code in (("held_pipe", "exit", 9), ("exit_3", "exit", 3), ("sigkill", "signal", 137)):
        yield Kind(f"{name}, peers die of it at once", fault, code, [WORKER], env={"FAULT": name, "PEERS": "watch"})
    for name, fault, says in (("leave", "left_early", "collective #4, and rank . waited for it in collective #5.*batches"),
                              ("group_abort", "aborted", r"called abort\(\)"), ("other_size", "mismatch", "")):
        seconds = "8" if name == "other_size" else "60"  # Gloo sees a mismatch at the deadline only.
        yield Kind(f"{name}, peers in lockstep", fault, 97, [WORKER], True,
                   env={"FAULT": name, "OP_SECONDS": seconds}, says=says)
    # The culprit's peers lose it at once, and die before it has ended.
    early = "ended with 0 while others still needed it: .*batches"
    for name, code, fault, ends_with, says in (
            ("unwind_slowly", "3", "exit", 3, "failed first: it exited with 3"), ("unwind_slowly", "0", "left_early", 97, early),
            ("exit_slowly", "3", "exit", 3, "failed first: it exited with 3"), ("exit_slowly", "0", "left_early", 97, early)):
        yield Kind(f"{name} with {code}, peers in lockstep", fault, ends_with, [WORKER], True, says=says, shutdown=60,
                   env={"FAULT": name, "CODE": code})
    yield Kind("unwind_and_hang, peers in lockstep", "left_early", 97, [WORKER], True, env={"FAULT": "unwind_and_hang", "CODE": "0"},
               says="left the job while others still needed it, and had not ended")
    yield Kind("two ranks at once", "exit", 3, [WORKER], culprits=2, env={"FAULT": "exit_3"})
    yield Kind("two ranks at once, peers in lockstep", "crash", 134, [WORKER], True, 2, env={"FAULT": "abort"})


PYTHON = {
    "python: exception": ("exception", 1, "raise ValueError('loss is NaN')"),
    "python: sys.exit": ("exit", 5, "sys.exit(5)"),
    "python: os._exit": ("exit", 6, "os._exit(6)"),
    "python: import error": ("import_error", 1, "import no_such_module"),
    "python: MemoryError": ("no_memory", 1, "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
                            "    block = bytearray(1 << 31)"),
    "python: disk full": ("no_space", 1, "open('/dev/full', 'w', buffering=1).write('x\\n')"),
    "python: descriptors": ("no_descriptors", 1, "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
                            "    files = [open('/dev/null') for _ in range(100)]"),
    "python: segfault": ("crash", 139, "import ctypes; ctypes.string_at(0)"),
    "python: KeyboardInterrupt": ("signal", 130, "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"),
    "python: exception after a logged one": ("exit", 4, "import traceback\n    try: 1 / 0\n"
                                             "    except ZeroDivisionError: traceback.print_exc()\n"
                                             "    print('going on', file=sys.stderr); sys.exit(4)"),
}

# The last words of PyTorch 2.14 and of NCCL, of which tests/unit/agent/pytorch_words_test.cc has more.
CUDA = ("\\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
        "\\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
        "\\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\\n")
OOM = ("CUDA out of memory. Tried to allocate 226.00 MiB. GPU 0 has a total capacity of 15.70 GiB of which 210.38 MiB is free. "
       "Including non-PyTorch memory, this process has 15.48 GiB memory in use.")
NCCL = "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, "
PYTHON.update({
    "python: CUDA out of memory": ("gpu_memory", 1, f"class OutOfMemoryError(RuntimeError): pass\n    raise OutOfMemoryError('{OOM}')"),
    "python: CUDA out of memory, survived": ("exit", 4, "import traceback\n"
                                             f"    try: raise RuntimeError('{OOM}')\n"
                                             "    except RuntimeError: traceback.print_exc()\n"
                                             "    print('halving the batch', file=sys.stderr); sys.exit(4)"),
    "python: CUDA out of memory, killed later": ("signal", 137, f"print('RuntimeError: {OOM}', file=sys.stderr, flush=True)\n"
                                                 "    os.kill(os.getpid(), signal.SIGKILL)"),
    "python: device-side assert": ("gpu_assert", 1, f"raise RuntimeError('CUDA error: device-side assert triggered{CUDA}')"),
    "python: illegal memory access": ("gpu_access", 1, f"raise RuntimeError('CUDA error: an illegal memory access was encountered{CUDA}')"),
    "python: ECC error": ("gpu_broken", 1, f"raise RuntimeError('CUDA error: uncorrectable ECC error encountered{CUDA}')"),
    "python: no such GPU": ("no_gpu", 1, f"raise RuntimeError('CUDA error: invalid device ordinal{CUDA}')"),
    "python: NCCL, one GPU twice": ("nccl", 1, f"raise RuntimeError('{NCCL}invalid usage, NCCL version 2.27.7\\n"
                                    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\\nLast error:\\n"
                                    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000')"),
    "python: NCCL, two versions": ("nccl_version", 1, f"raise RuntimeError('{NCCL}invalid usage, NCCL version 2.27.7\\n"
                                   "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\\nLast error:\\n"
                                   "Mismatched NCCL version detected : rank 0 version 22105 rank 3 version 22707')"),
    "python: port in use": ("address_in_use", 1, "import socket\n    one, two = socket.socket(), socket.socket()\n"
                            "    one.bind(('127.0.0.1', 0)); one.listen(); two.bind(one.getsockname())"),
    "python: no such file": ("no_file", 1, "open('/data/no/such/shard')"),
    "python: quota": ("quota", 1, "import errno; raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), '/home/me/checkpoint.pt')"),
})

PYTHON_FRAME = """import os, signal, sys, time
if os.environ['RANK'] in os.environ['CULPRITS'].split(','):
    {}
time.sleep(600)
"""

# Its sockets close, and only then, after a while, does it end: its peers are faster.
SLOW_TEARDOWN = """import atexit, os, socket, sys, time
rank, world, folder = int(os.environ['RANK']), int(os.environ['WORLD_SIZE']), os.environ['D']
culprit = int(os.environ['CULPRITS'])
def path(r): return os.path.join(folder, f'{r}.socket')
if rank == culprit:
    listener = socket.socket(socket.AF_UNIX); listener.bind(path('new')); listener.listen(world)
    os.rename(path('new'), path(culprit))
    peers = [listener.accept()[0] for _ in range(world - 1)]
    atexit.register(time.sleep, 0.3)
    atexit.register(lambda: [p.close() for p in peers])
    raise ValueError('loss is NaN')
while not os.path.exists(path(culprit)): time.sleep(0.005)
peer = socket.socket(socket.AF_UNIX); peer.connect(path(culprit))
if not peer.recv(1):
    print('RuntimeError: Connection closed by peer [10.0.0.1]:1234', file=sys.stderr, flush=True)
    os._exit(1)
"""

# The package and, with TORCH, the backend of PyTorch. What is registered first runs last: the group is gone by then.
LEAVER = """import atexit, os, sys, time
culprit = os.environ['RANK'] in os.environ['CULPRITS'].split(',')
if culprit: atexit.register(time.sleep, 1.0)
if 'TORCH' in os.environ:
    import torch, torch.distributed as dist
    import ddprun.torch
    dist.init_process_group('ddprun')
    step = lambda: dist.all_reduce(torch.ones(4))
else:
    import array, ddprun
    group, values = ddprun.init(), array.array('f', [1.0] * 4)
    step = lambda: group.all_reduce(values)
for number in range(100):
    if number == 3 and culprit: sys.exit(int(os.environ['CODE']))
    step()
"""

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python")
LIBRARY = os.environ.get("DDPRUN_LIB") or os.path.abspath(os.path.join(os.path.dirname(TESTS), "worker_sdk", "libddprun.so"))

RECORD = """import os, time
if os.environ['RANK'] in os.environ['CULPRITS'].split(','):
    from torch.distributed.elastic.multiprocessing.errors import record
    @record
    def main(): raise ValueError('loss is NaN')
    main()
time.sleep(600)
"""


def torch_python():
    for python in ("/usr/bin/python3", sys.executable):
        probe = [python, "-c", "import importlib.util as u; exit(u.find_spec('torch') is None)"]
        if shutil.which(python) and subprocess.run(probe, timeout=60).returncode == 0:
            return python
    return None


def python_kinds(folder):
    def script(name, text):
        path = os.path.join(folder, name.replace(": ", "_").replace(" ", "_") + ".py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return [path]

    env = {"PYTHON_EXEC": sys.executable}
    for name, (fault, code, text) in PYTHON.items():
        yield Kind(name, fault, code, script(name, PYTHON_FRAME.format(text)), env=env)
    yield Kind("python: time limit of a batch system", "time_limit", 143,
               script("limit", PYTHON_FRAME.format("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)")),
               env={**env, "SLURM_JOB_ID": "4711", "SLURM_JOB_END_TIME": "now"}, says="time limit of Slurm job 4711 is reached")
    yield Kind("python: syntax error", "syntax_error", 1, script("syntax", "def f(:\n"), any_rank=True, env=env)
    yield Kind("python: ends after its victims", "exception", 1, script("slow", SLOW_TEARDOWN), env=env)
    torch = torch_python()
    package = {"PYTHONPATH": PACKAGE, "DDPRUN_LIB": LIBRARY, "OMP_NUM_THREADS": "1"}
    for what, more, missing in (("ddprun", env, ""),
                                ("torch", {"PYTHON_EXEC": torch or "", "TORCH": "1"}, "" if torch else "there is no PyTorch")):
        for code, fault, ends_with, says in (("3", "exit", 3, "failed first: it exited with 3"),
                                             ("0", "left_early", 1, "ended with 0 while others still needed it")):
            yield Kind(f"python: sys.exit({code}) with a group of {what}, a tracker flushes", fault, ends_with,
                       script(f"leaver_{what}", LEAVER), says=says, shutdown=60, missing=missing,
                       env={**package, **more, "CODE": code})
    yield Kind("python: exception under @record", "exception", 1, script("record", RECORD),
               env={"PYTHON_EXEC": torch or ""}, missing="" if torch else "there is no PyTorch")


def start_kinds(folder):
    """Programs that cannot be started, by ddprun itself and by a script."""
    def file(name, text, mode=0o755):
        path = os.path.join(folder, name)
        with open(path, "wb") as f:
            f.write(text)
        os.chmod(path, mode)
        return path

    garbage = file("garbage", b"\x7fELF nonsense")
    no_interpreter = file("no_interpreter", b"#!/nonexistent/python\n")
    forbidden = file("forbidden", b"#!/bin/sh\n", 0o644)
    yield Kind("exec format error", "cannot_start", 127, [garbage], any_rank=True)
    yield Kind("missing interpreter", "cannot_start", 127, [no_interpreter], any_rank=True)
    for name, program, fault, code in (
            ("exec format error", garbage, "cannot_start", None), ("no such program", "/nonexistent/train", "cannot_start", 127),
            ("missing interpreter", no_interpreter, "cannot_start", None), ("permission denied", forbidden, "cannot_start", 126),
            ("missing shared library", NEEDS_LIBRARY, "missing_library", 127)):
        case = 'case ",$CULPRITS," in *",$RANK,"*) exec "$0";; esac; exec sleep 600'
        yield Kind(f"in a script: {name}", fault, code, ["/bin/sh", "-c", case, program])


def host_kinds(cannot_name_hosts, cannot_make_networks):
    yield Kind("an agent is killed", "node_lost", 3, ["/bin/sleep", "600"], where="hosts", disturb="kill agent",
               missing=cannot_name_hosts)
    yield Kind("a cable is pulled", "node_lost", 3, ["/bin/sleep", "600"], where="wire", disturb="cut cable",
               missing=cannot_make_networks)
    for name, fault, code in (("exit_3", "exit", 3), ("cpp_exception", "exception", 134), ("sigkill", "signal", 137)):
        yield Kind(f"{name}, clocks 3 s apart, peers in lockstep", fault, code, [WORKER], True, where="hosts",
                   disturb="skew clock", env={"FAULT": name}, missing=cannot_name_hosts)
