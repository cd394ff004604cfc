#!/usr/bin/env python3
"""Searches for differences between workers that are forked (ddprun --preload) and workers that are started cold.

    tests/python/preload_differences.py [--seed N] [--count N] [--torch] [--keep-going]

Each script of SCRIPTS, and --count scripts that are put together from PIECES at random, runs cold and preloaded, alone and with two
ranks. Standard output, standard error and exit code must be equal, but for numbers of processes and addresses. The modules are
those that the script itself imports, and some more. Used as a test by preload_test.py (Differences), which runs a few.
"""

import argparse
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../system"))

from ddprun_case import DDPRUN, clean_environment  # noqa: E402  pylint: disable=wrong-import-position

LIMIT_S = 240
KEEP = ("--preload-keep", "5")
# More than any of the scripts imports, so that a module that is there too early has its chance to be seen.
MODULES = ("json,decimal,random,socket,subprocess,multiprocessing,multiprocessing.pool,concurrent.futures,threading,logging,"
           "argparse,pickle,tempfile,asyncio,ctypes,signal,warnings,unittest,traceback,faulthandler,xml.dom.minidom,sqlite3,"
           "email.message,http.client,dataclasses,typing,inspect,uuid,hashlib,secrets,importlib.metadata")
MODULES += ",numpy" if importlib.util.find_spec("numpy") else ""

SCRIPTS = {
    "prints": "print('a'); print('b', end=''); import sys; sys.stdout.write('c\\n'); print('d', file=sys.stderr)",
    "no newline": "import sys; sys.stdout.write('half a line')",
    "bytes": "import sys; sys.stdout.buffer.write(bytes(range(1, 9)) + b'\\n')",
    "C output": "import ctypes; libc = ctypes.CDLL(None); libc.puts(b'from C'); libc.fflush(None)",
    "C output at exit": "import ctypes; ctypes.CDLL(None).puts(b'from C')",
    "writes to descriptors": "import os; os.write(1, b'one\\n'); os.write(2, b'two\\n')",
    "closes standard output": "import os, sys; print('x'); sys.stdout.close(); os._exit(4)",
    "exit 0": "raise SystemExit",
    "exit 3": "import sys; sys.exit(3)",
    "exit text": "import sys; sys.exit('a reason')",
    "exit None": "import sys; sys.exit(None)",
    "exit by os": "import os; print('x'); os._exit(9)",
    "exit 256": "import sys; sys.exit(256)",
    "exit -1": "import sys; sys.exit(-1)",
    "exception": "def f(n):\n    return f(n - 1) if n else 1 / 0\nf(3)",
    "chained exceptions": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e",
    "exception in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='worker')\nt.start(); t.join()",
    "exception with notes": "class E(Exception):\n    def __str__(self): return 'odd \\x1b text'\nraise E",
    "recursion": "import sys\nsys.setrecursionlimit(60)\ndef f(): f()\ntry:\n    f()\nexcept RecursionError as e:\n    print(e)",
    "recursion depth": "def f(n):\n    try:\n        return f(n + 1)\n    except RecursionError:\n        return n\nprint(f(0))",
    "syntax error": "print('x'\n",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0",
    "unraisable": "class A:\n    def __del__(self): 1 / 0\na = A(); del a; print('here')",
    "interrupt": "raise KeyboardInterrupt",
    "SIGINT": "import os, signal; os.kill(os.getpid(), signal.SIGINT); signal.pause()",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "SIGPIPE": "import os\nr, w = os.pipe(); os.close(r)\ntry:\n    os.write(w, b'x')\nexcept BrokenPipeError:\n    print('EPIPE')",
    "alarm": "import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('alarm'))\nsignal.setitimer(signal.ITIMER_REAL, .01)\nsignal.pause()",
    "dispositions": "import signal\nprint([str(signal.getsignal(n)) for n in range(1, 65) if n not in (32, 33)])",
    "mask": "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    "faulthandler": "import faulthandler, os; faulthandler.enable(); print(faulthandler.is_enabled()); os.abort()",
    "dump of threads": "import faulthandler, sys; faulthandler.dump_traceback(file=sys.stdout)",
    "stack": "import traceback; traceback.print_stack()",
    "stack level of a warning": "import warnings\ndef f(): warnings.warn('w', stacklevel=9)\nf()",
    "warning": "import warnings; warnings.warn('careful'); warnings.warn('old', DeprecationWarning)",
    "warning filters": "import warnings; warnings.simplefilter('error')\nwarnings.warn('careful')",
    "atexit": "import atexit; atexit.register(print, 'first'); atexit.register(print, 'second'); print('body')",
    "atexit that fails": "import atexit; atexit.register(lambda: 1 / 0)",
    "finalizer at the end": "class C:\n    def __del__(self): print('del')\nc = C()",
    "finalizers of a cycle": "class C:\n    def __del__(self): print('del', hasattr(self, 'other'))\na, b = C(), C(); a.other = b; b.other = a",
    "a thread at the end": "import threading\nmain = threading.main_thread()\nt = threading.Thread(target=lambda: (main.join(), print('late')))\nt.start(); print('main ends')",
    "a daemon thread": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start(); print('end')",
    "threads": "import threading; print(threading.current_thread().name, threading.active_count(), threading.main_thread() is threading.current_thread())",
    "thread numbers": "import os, threading; print(threading.get_native_id() == os.getpid(), threading.main_thread().native_id == os.getpid())",
    "main": "import sys; m = sys.modules['__main__']; print(sorted(vars(m)), m.__name__, m.__package__, m.__spec__, m.__doc__, m.__builtins__)",
    "globals": "print(sorted(globals())); print(__file__, __name__)",
    "docstring": "'''The text.'''\nprint(__doc__, __annotations__ if '__annotations__' in dir() else None)",
    "path": "import sys; print([p for p in sys.path]); print(sys.argv, sys.orig_argv)",
    "flags": "import sys; print(sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.pycache_prefix)",
    "frames": "import sys\nf, n = sys._getframe(), 0\nwhile f: f, n = f.f_back, n + 1\nprint(n)",
    "streams": "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr): print(s, s.isatty(), s.line_buffering, s.write_through)",
    "stdin": "import sys; print(repr(sys.stdin.read()))\ntry:\n    input()\nexcept EOFError:\n    print('EOF')",
    "hooks": "import sys; print(sys.displayhook, sys.excepthook, sys.breakpointhook, sys.getprofile(), sys.gettrace(), len(sys.path_hooks))",
    "meta path": "import sys; print(sys.meta_path)",
    "recursion limit": "import sys; print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags())",
    "gc": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.garbage)",
    "collecting cycles": "import gc, weakref\nclass A: pass\na = A(); a.a = a; r = weakref.ref(a); del a; gc.collect(); print(r())",
    "locale": "import locale; print(locale.getlocale(), locale.setlocale(locale.LC_ALL))",
    "encoding": "import sys; print(sys.getfilesystemencoding(), sys.getdefaultencoding(), 'ü')",
    "folder": "import os; print(os.getcwd(), os.listdir('.') != [])",
    "chdir": "import os; os.chdir('/'); print(os.getcwd(), __file__)",
    "umask": "import os; print(oct(os.umask(0)))",
    "limits": "import resource; print([resource.getrlimit(n) for n in range(16)])",
    "processors": "import os; print(sorted(os.sched_getaffinity(0)), os.getpriority(0, 0))",
    "name": "print(open('/proc/self/comm').read(), open('/proc/self/cmdline').read().split('\\0'))",
    "open files": "import os; print(sorted(n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)))",
    "an own link": "import os; print(os.fstat(3).st_mode, os.environ['DDPRUN_WORKER_LINK'])",
    "groups": "import os; print(os.getpid() == os.getpgrp() == os.getsid(0), os.getuid(), os.getgroups())",
    "no children": "import os\ntry:\n    os.wait()\nexcept ChildProcessError:\n    print('none')",
    "times of children": "import os; print(os.times()[2:4])",
    "variables": "import os; print(sorted(n for n in os.environ if not n.startswith('DDPRUN_PRELOAD')))",
    "variables in C": "import ctypes, os\ng = ctypes.CDLL(None).getenv; g.restype = ctypes.c_char_p\nprint(g(b'RANK'), g(b'LOCAL_RANK'), g(b'DDPRUN_PRELOAD'), g(b'PYTHONPATH'))",
    "variables of children": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import os, sys; print(os.environ[\"RANK\"], \"PYTHONPATH\" in os.environ, \"json\" in sys.modules)'], capture_output=True, text=True).stdout)",
    "sets a variable": "import os, subprocess; os.environ['X'] = '1'; os.environ.pop('RANK'); print(subprocess.run('echo $X $RANK', shell=True, capture_output=True).stdout)",
    "a subprocess": "import subprocess; print(subprocess.run(['echo', 'hi'], capture_output=True).stdout); subprocess.run(['echo', 'there'])",
    "a subprocess with a shell": "import os; print(os.system('exit 3'))",
    "exec": "import os; os.execvp('echo', ['echo', 'replaced'])",
    "exec of itself": "import os, sys\nif 'again' in sys.argv:\n    print('again', sys.argv[1:])\nelse:\n    os.execv(sys.executable, [sys.executable, __file__, 'again'])",
    "fork": "import os\npid = os.fork()\nif pid == 0:\n    print('child', flush=True); os._exit(5)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    "fork hooks": "import os\nos.register_at_fork(before=lambda: print('before'), after_in_parent=lambda: print('parent'))\npid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)",
    "multiprocessing fork": "import multiprocessing as m\nif __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(abs, [-1, -2]))",
    "multiprocessing spawn": "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p: print(p.map(f, [2, 3]))",
    "multiprocessing forkserver": "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    with m.get_context('forkserver').Pool(1) as p: print(p.map(f, [2, 3]))",
    "multiprocessing names": "import multiprocessing as m; print(m.current_process(), m.parent_process(), m.active_children(), m.get_start_method())",
    "shared memory": "from multiprocessing import shared_memory as s\nm = s.SharedMemory(create=True, size=9); m.buf[0] = 7; print(m.buf[0]); m.close(); m.unlink()",
    "futures": "from concurrent.futures import ThreadPoolExecutor as T, ProcessPoolExecutor as P\nif __name__ == '__main__':\n    print(list(T(2).map(abs, [-1])), list(P(1).map(abs, [-4])))",
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    p = await asyncio.create_subprocess_exec('true')\n    return await p.wait()\nprint(asyncio.run(f()))",
    "sockets": "import socket\na, b = socket.socketpair(); a.send(b'x'); print(b.recv(1), socket.getdefaulttimeout())",
    "a server": "import socket\ns = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); print(s.accept()[0].fileno() > 3)",
    "files": "import tempfile\nwith tempfile.NamedTemporaryFile() as f: print(f.write(b'x'), tempfile.gettempdir())",
    "logging": "import logging; logging.basicConfig(); logging.warning('w'); logging.getLogger('a').info('i'); print(logging.root.handlers)",
    "pickle of main": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A, A.__module__)",
    "inspect": "import inspect\ndef f(): return 1\nprint(inspect.getsource(f), inspect.getmodule(f))",
    "seeded random": "import random; random.seed(1); print(random.random())",
    "seeded numpy": "try:\n    import numpy\n    numpy.random.seed(1); print(numpy.random.rand(3), numpy.get_printoptions())\nexcept ImportError:\n    print('none')",
    "numpy errors": "try:\n    import numpy\n    print(numpy.geterr(), numpy.float32(1) / numpy.float32(0))\nexcept ImportError:\n    print('none')",
    "decimal": "import decimal; print(decimal.getcontext(), decimal.Decimal(1) / 7)",
    "uuid": "import uuid; print(uuid.uuid5(uuid.NAMESPACE_DNS, 'a'), uuid.uuid4().version)",
    "sqlite": "import sqlite3; print(sqlite3.connect(':memory:').execute('select 1+1').fetchone())",
    "argparse": "import argparse; p = argparse.ArgumentParser(); p.add_argument('--x', required=True); p.parse_args()",
    "argparse help": "import argparse, sys; sys.argv.append('-h'); argparse.ArgumentParser().parse_args()",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(1, 1)\ntry:\n    unittest.main()\nexcept SystemExit as e:\n    print(e.code)",
    "import of its own": "import beside; print(beside.__file__, beside.VALUE)",
    "import that is missing": "import not_there_at_all",
    "reload": "import importlib, json; print(importlib.reload(json) is json)",
    "a fresh import": "import sys\nfor n in [n for n in sys.modules if n.startswith('json')]: del sys.modules[n]\nimport json; print(json.dumps([1]))",
    "replaces a module": "import sys, types; sys.modules['json'] = types.ModuleType('json'); import json; print(hasattr(json, 'dumps'))",
    "code": "exec(compile('print(1 + 1)', '<text>', 'exec')); print(eval('2 * 3'))",
    "runpy": "import runpy; print(runpy.run_path('beside.py')['VALUE'])",
    "tracemalloc": "import tracemalloc; tracemalloc.start(); x = [1] * 1000; print(tracemalloc.is_tracing())",
    "profile": "import cProfile; cProfile.run('1 + 1')",
    "tracing": "import sys\nlines = []\nsys.settrace(lambda f, e, a: lines.append(e))\ndef g(): pass\ng(); sys.settrace(None); print(lines)",
    "daemonizes": "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os._exit(0)\n    os._exit(0)\nos.wait(); print('parent')",
    "session": "import os\ntry:\n    os.setsid()\nexcept OSError as e:\n    print(e)",
    "oom score": "print(open('/proc/self/oom_score_adj').read(), open('/proc/self/timerslack_ns').read())",
    "much memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))\ntry:\n    b'x' * (1 << 33)\nexcept MemoryError:\n    print('MemoryError')",
    "much output": "for i in range(20000): print('line', i)",
    "long lines": "print('x' * 200000)",
    "reads itself": "print(open(__file__).read().count('open'))",
    "type hints": "import typing, dataclasses\n@dataclasses.dataclass\nclass A:\n    a: int = 1\nprint(A(), typing.get_type_hints(A))",
    "virtual environment": "import sys, site; print(sys.prefix, sys.base_prefix, sys.executable, site.ENABLE_USER_SITE, site.getsitepackages())",
}
TORCH = {
    "torch seeded": "import torch; torch.manual_seed(1); print(torch.rand(3), torch.nn.Linear(2, 2).weight)",
    "torch threads": "import torch; print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.__config__.parallel_info()[:200])",
    "torch defaults": "import torch; print(torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), torch.initial_seed() != 0)",
    "torch trains": "import torch\ntorch.manual_seed(3)\nm = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))\no = torch.optim.AdamW(m.parameters())\nfor _ in range(5):\n    o.zero_grad(); m(torch.randn(16, 4)).pow(2).mean().backward(); o.step()\nprint([float(p.double().sum()) for p in m.parameters()])",
    "torch loads data": "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\ntorch.manual_seed(1)\nif __name__ == '__main__':\n    print([b[0].tolist() for b in DataLoader(TensorDataset(torch.arange(8)), 2, shuffle=True, num_workers=2)])",
    "torch loads data, spawned": "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nif __name__ == '__main__':\n    print([b[0].tolist() for b in DataLoader(TensorDataset(torch.arange(4)), 2, num_workers=1, multiprocessing_context='spawn')])",
    "torch DDP": "import os, torch, torch.distributed as d\nd.init_process_group('gloo'); torch.manual_seed(1)\nm = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2)); o = torch.optim.SGD(m.parameters(), .1)\nfor i in range(3):\n    m(torch.ones(2, 4) * (d.get_rank() + i)).sum().backward(); o.step()\nprint(d.get_rank(), d.get_world_size(), [p.tolist() for p in m.parameters()])",
    "torch saves": "import io, torch\nf = io.BytesIO(); torch.save({'a': torch.ones(2)}, f); f.seek(0); print(torch.load(f))",
    "torch scripts": "import torch\n@torch.jit.script\ndef f(x): return x * 2\nprint(f(torch.ones(2)))",
    "torch multiprocessing": "import torch, torch.multiprocessing as m\ndef f(i, t): t += 1\nif __name__ == '__main__':\n    t = torch.zeros(2).share_memory_(); m.spawn(f, (t,), 2); print(t)",
    "torch error": "import torch; torch.ones(2) @ torch.ones(3)",
    "torch hub dir": "import torch; print(torch.hub.get_dir(), torch.version.__version__)",
    "torch loads data, forkserver": "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nif __name__ == '__main__':\n    print([b[0].tolist() for b in DataLoader(TensorDataset(torch.arange(4)), 2, num_workers=2, multiprocessing_context='forkserver')])",
    "torch loads data, persistent": "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nif __name__ == '__main__':\n    d = DataLoader(TensorDataset(torch.arange(8)), 2, num_workers=2, persistent_workers=True, prefetch_factor=2)\n    for _ in range(2): print([b[0].tolist() for b in d])",
    "torch compiles": "import torch\ntorch.manual_seed(1)\nf = torch.compile(lambda x: (x.sin() + x.cos()).sum())\nprint(f(torch.ones(8)).item())",
    "torch compiles for aot_eager": "import torch\ntorch.manual_seed(1)\nm = torch.compile(torch.nn.Linear(4, 2), backend='aot_eager')\nm(torch.ones(2, 4)).sum().backward(); print([p.grad.tolist() for p in m.parameters()])",
    "torch exports": "import torch\nprint(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)).graph_module.code[:200]) if hasattr(torch, 'export') else print('none')",
    "torch profiles": "import torch\nwith torch.profiler.profile() as p: torch.ones(3).sum()\nprint(sorted({e.key for e in p.key_averages()}))",
    "torch saves a checkpoint": "import os, tempfile, torch, torch.distributed as d, torch.distributed.checkpoint as c\nd.init_process_group('gloo')\nf = [tempfile.mkdtemp()] if d.get_rank() == 0 else [None]\nd.broadcast_object_list(f)\ns = {'a': torch.ones(3) * 2}\n(c.save if hasattr(c, 'save') else c.save_state_dict)(s, storage_writer=c.FileSystemWriter(f[0]))\nd.barrier(); print(sorted(os.listdir(f[0])))",
    "torch FSDP": "import torch, torch.distributed as d\nd.init_process_group('gloo')\ntry:\n    from torch.distributed.fsdp import fully_shard\nexcept ImportError:\n    fully_shard = lambda m: m\ntorch.manual_seed(1)\nm = torch.nn.Linear(4, 4); fully_shard(m); o = torch.optim.AdamW(m.parameters())\nfor _ in range(2):\n    o.zero_grad(); m(torch.ones(2, 4)).sum().backward(); o.step()\nprint([float(getattr(p, 'full_tensor', lambda p=p: p)().double().sum()) for p in m.parameters()])",
    "torch generators": "import torch, random\nprint(torch.initial_seed() == torch.initial_seed(), torch.rand(1).shape, 0 <= random.random() < 1)",
    "torch threads are set": "import torch\ntorch.set_num_threads(2); print(torch.get_num_threads(), (torch.ones(512, 512) @ torch.ones(512, 512)).sum().item())",
    "torch pins deterministic": "import torch; torch.use_deterministic_algorithms(True); torch.manual_seed(0); print(torch.nn.functional.dropout(torch.ones(9)).tolist())",
    "torch excepthook": "import torch, sys; print(sys.excepthook is sys.__excepthook__); raise RuntimeError('x')",
    "torch is killed": "import os, torch; torch.ones(3).sum(); os.kill(os.getpid(), 9)",
    "torch warns": "import torch, warnings; warnings.warn('careful'); torch.tensor(torch.ones(2))",
    "torch lightning": "import logging, torch\ntry:\n    import lightning as L\nexcept ImportError:\n    L = None\nif L:\n    logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)\n    class M(L.LightningModule):\n        def __init__(self): super().__init__(); self.l = torch.nn.Linear(4, 1)\n        def training_step(self, b, i): return self.l(b[0]).pow(2).mean()\n        def configure_optimizers(self): return torch.optim.SGD(self.parameters(), .1)\n    L.seed_everything(1)\n    m = M()\n    t = L.Trainer(accelerator='cpu', devices='auto', max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)\n    t.fit(m, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), 2))\n    print([p.tolist() for p in m.parameters()])",
    "torch transformers": "import torch\ntry:\n    import transformers as t\nexcept ImportError:\n    t = None\nif t:\n    torch.manual_seed(1)\n    m = t.BertModel(t.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=99)).eval()\n    print(float(m(torch.tensor([[1, 2, 3]])).last_hidden_state.double().sum()))",
}
TORCH_MODULES = ",torch,torch.distributed,torch.utils.data,torch.optim,torch.nn.parallel"
LIBRARIES = {"torch lightning": "lightning", "torch transformers": "transformers.models.bert.modeling_bert"}
OF_RANKS = ("lightning, torchmetrics",)  # They read LOCAL_RANK, and so are left out.
# Of which scripts are put together.
PIECES = [
    "print('{n}')", "import json; print(json.dumps({{'n': {n}}}))", "import sys; print({n}, file=sys.stderr)",
    "import threading; t = threading.Thread(target=print, args=({n},)); t.start(); t.join()",
    "import os; print(len(os.environ['RANK']), {n})", "import subprocess; subprocess.run(['echo', '{n}'])",
    "import atexit; atexit.register(print, 'exit {n}')", "import random; random.seed({n}); print(random.random())",
    "import signal; signal.signal(signal.SIGUSR1, lambda *a: print('usr', {n})); signal.raise_signal(signal.SIGUSR1)",
    "import warnings; warnings.warn('w{n}')", "import logging; logging.error('e{n}')",
    "import os; p = os.fork() or (print('c{n}', flush=True), os._exit(0)); os.waitpid(p, 0)",
    "import gc; gc.collect(); print(gc.isenabled())", "import tempfile; print(tempfile.mkdtemp() != '')",
    "class C{n}:\n    def __del__(self): print('del {n}')\nc{n} = C{n}()",
    "try:\n    raise ValueError({n})\nexcept ValueError:\n    import traceback; traceback.print_exc()",
    "import decimal; decimal.getcontext().prec = {n} % 9 + 2; print(decimal.Decimal(1) / 3)",
    "import asyncio; print(asyncio.run(asyncio.sleep(0, {n})))", "import hashlib; print(hashlib.sha256(b'{n}').hexdigest())",
]
LAST = ["", "import sys; sys.exit({n} % 200)", "raise RuntimeError('{n}')", "import os; os.kill(os.getpid(), {n} % 15 + 1)", "1 / 0"]

# Of each process its own.
_OWN = ((re.compile(r"0x[0-9a-f]{6,}"), "ADDRESS"), (re.compile(r"pid \d+"), "pid N"), (re.compile(r"ddprun_\w+"), "RUN"),
        (re.compile(r"Thread-\d+|thread \d+|Process-\d+"), "THREAD"), (re.compile(r"\b1[0-9]{14}\b"), "ADDRESS"),
        (re.compile(r"ddprun-differences-\w+"), "FOLDER"), (re.compile(r"\d\.\d{3}s"), "TIME"),
        # The list of loaded extension modules at the end of a dump: those that were preloaded are among them.
        (re.compile(r"\[default\d+\]:\n\[default\d+\]:Extension modules: .*\n"), ""))


def made_at_random(seed, number):
    source = random.Random(f"{seed} {number}")
    pieces = [source.choice(PIECES) for _ in range(source.randint(1, 5))] + [source.choice(LAST)]
    return "\n".join(piece.format(n=source.randint(1, 999)) for piece in pieces)


def end_kept(folder):
    """Ends what runs of scripts in the folder have kept."""
    ctl = os.path.join(os.path.dirname(DDPRUN), "ddprunctl")
    rows = subprocess.run([ctl, "preload"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout.splitlines()
    for row in rows:
        if folder in row:
            subprocess.run([ctl, "preload", "--end", row.split()[0]], capture_output=True, timeout=LIMIT_S, check=False)


def outcome(script, ranks, modules, folder, flags=(), wanted="preloaded ", may_be_cold=False):
    """(exit code, lines of output by rank, lines of errors by rank) of a run."""
    environment = {**clean_environment(), "DDPRUN_CONFIG": "", "PYTHON_EXEC": sys.executable, "TMPDIR": folder,
                   "XDG_CACHE_HOME": folder, "XDG_STATE_HOME": folder, "PYTHONHASHSEED": "0"}
    flags = [*flags, "--preload", modules, "-v"] if modules else ["-v"]
    done = subprocess.run([DDPRUN, *flags, "--nproc-per-node", str(ranks), script], cwd=os.path.dirname(script),
                          env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
    if modules:
        text = done.stderr.decode(errors="replace")
        left_out = re.search("left out: (.*)", text)
        is_cold = "started cold" in text and not may_be_cold
        if wanted not in text or is_cold or (left_out and left_out.group(1) not in OF_RANKS):
            raise AssertionError(f"{script} was not preloaded:\n{text}")
    return done.returncode, by_rank(done.stdout), by_rank(done.stderr)


def by_rank(data):
    """Lines of each rank in its order; ddprun's own lines are left out, as ranks end in any order."""
    text = data.decode(errors="replace")
    for pattern, word in _OWN:
        text = pattern.sub(word, text)
    lines = {}
    for line in text.split("\n"):
        rank = re.match(r"\[default\d+\]:", line)
        if rank:
            lines.setdefault(rank.group(), []).append(line)
    return lines


def difference(text, ranks, folder, modules=MODULES, kept=False):
    """What differs between the two ways to start this script; None: nothing. `kept`: the forks are those of an earlier run's server."""
    script = os.path.join(folder, "script.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(text)
    with open(os.path.join(folder, "beside.py"), "w", encoding="utf-8") as file:
        file.write("VALUE = 7\n")
    cold = outcome(script, ranks, "", folder)
    if kept:
        # On a busy machine an import takes longer than the first workers wait for it.
        outcome(script, ranks, modules, folder, KEEP, "are kept in memory", may_be_cold=True)
        forked = outcome(script, ranks, modules, folder, KEEP, "kept by an earlier run")
        end_kept(folder)
    else:
        forked = outcome(script, ranks, modules, folder)
    # Where one rank's failure ends another, how far that one came is not the same twice.
    if cold == forked or (ranks > 1 and cold[0] == forked[0] != 0):
        return None
    return f"cold   {cold}\nforked {forked}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=80, help="scripts that are put together at random")
    parser.add_argument("--torch", action="store_true", help="those with torch, too")
    parser.add_argument("--kept", action="store_true", help="forks of a server that an earlier run has kept (--preload-keep)")
    parser.add_argument("--only", help="scripts whose names contain this")
    options = parser.parse_args()
    scripts = {**SCRIPTS, **(TORCH if options.torch else {})}
    scripts.update({f"random {n}": made_at_random(options.seed, n) for n in range(options.count)})
    if options.only:
        scripts = {name: text for name, text in scripts.items() if options.only in name}
    differing = 0
    for name, text in scripts.items():
        for ranks in (1, 2):
            modules = MODULES + (TORCH_MODULES if name in TORCH else "")
            library = LIBRARIES.get(name, "")
            modules += f",{library}" if library and importlib.util.find_spec(library.partition(".")[0]) else ""
            folder = tempfile.mkdtemp(prefix="ddprun-differences-")
            try:
                found = difference(textwrap.dedent(text) + "\n", ranks, folder, modules, options.kept)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                found = f"{error}\n{getattr(error, 'stderr', None) or b''!r}"
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if found:
                differing += 1
                print(f"{name}, {ranks} ranks:\n{found}\n", flush=True)
    print(f"{len(scripts)} scripts, each with 1 and 2 ranks: {differing} runs differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
