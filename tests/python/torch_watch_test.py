"""ddprun --report and --on-stall with PyTorch programs that know nothing of ddprun."""

import glob
import json
import os
import re
import textwrap

import torch_case
import ddprun_case  # pylint: disable=wrong-import-order

# A user's training script. SLEEPS: "0:data,1:forward" has rank 0 sleep in every n-th step where it gets its data, and so on.
TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

backend = os.environ.get("BACKEND", "gloo")
if backend == "ddprun":
    import ddprun.torch
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
sleeps = dict(pair.split(":") for pair in os.environ.get("SLEEPS", "").split(",") if pair)
step, STEPS, PAUSE = 0, int(os.environ.get("STEPS", "32")), float(os.environ.get("PAUSE", "0.15"))

def pause(phase):
    if sleeps.get(str(rank)) == phase and step % (2 * size) == 2 * rank:
        time.sleep(PAUSE)
    if step == int(os.environ.get("STUCK_STEP", "-1")) and rank == 1 and phase == os.environ["STUCK"]:
        time.sleep(100000)
    if step == int(os.environ.get("RAISE_STEP", "-1")) and rank == 1 and phase == "forward":
        raise ValueError("loss is NaN")

class Samples(Dataset):
    def __len__(self):
        return STEPS * 4
    def __getitem__(self, i):
        if i % 4 == 0:
            pause("data")
        return torch.full((8,), i % 7 / 7), torch.ones(1)

class Lazy(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 1
    @staticmethod
    def backward(context, gradient):
        pause("backward")
        return gradient

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 64), torch.nn.Linear(64, 1)
    def forward(self, x):
        pause("forward")
        return self.b(Lazy.apply(self.a(x)))

class Slow(torch.optim.SGD):
    def step(self, closure=None):
        pause("optimizer")
        return super().step(closure)

torch.manual_seed(1)
net = torch.nn.parallel.DistributedDataParallel(Net())
sgd = Slow(net.parameters(), 0.01)
for x, y in DataLoader(Samples(), batch_size=4):
    sgd.zero_grad()
    torch.nn.functional.mse_loss(net(x), y).backward()
    sgd.step()
    step += 1
print("trained", rank, float(sum(p.detach().double().sum() for p in net.parameters())))
"""

LATE = re.compile(r"rank (\d) was last in (\d+) of (\d+) steps, ([\d.]+) ms each, in (\w+)")


class Watch(torch_case.TorchCase):
    def train(self, *flags, code=TRAIN, nproc=2, **more):
        script = self.path("train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(code))
        return self.launched([ddprun_case.DDPRUN, "--nproc-per-node", str(nproc), *flags, script], **more)

    def table(self, done):
        """By rank: its shares by column."""
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("rank      wall s", done.stdout, done.stderr)
        lines = done.stdout[done.stdout.index("rank      wall s"):].splitlines()
        names = lines[0].split()[4:lines[0].split().index("per")]
        rows = {}
        for line in lines[1:]:
            cells = line.split()
            if not cells or not cells[0].isdigit():
                break
            shares = [float(cell) for cell in cells[3:3 + len(names)]]
            self.assertAlmostEqual(sum(shares), 100, places=6, msg=line)
            rows[int(cells[0])] = {**dict(zip(names, shares)), "wall": float(cells[1]), "steps": int(cells[2])}
        return rows

    def late(self, done):
        return {int(rank): (phase, int(steps)) for rank, steps, _, _, phase in LATE.findall(done.stdout)}

    def test_the_report_names_each_rank_that_is_late_and_its_phase(self):
        done = self.train("--report", nproc=3, SLEEPS="0:data,1:forward,2:optimizer", STEPS="37")
        rows = self.table(done)
        self.assertEqual(sorted(rows), [0, 1, 2])
        found = self.late(done)
        self.assertEqual({rank: phase for rank, (phase, _) in found.items()}, {0: "data", 1: "forward", 2: "optimizer"}, done.stdout)
        for rank, phase in ((0, "data"), (1, "forward"), (2, "optimizer")):
            self.assertEqual(rows[rank]["steps"], 37)
            self.assertGreaterEqual(found[rank][1], 4, done.stdout)  # 5 or 6 of 32.
            self.assertGreaterEqual(rows[rank][phase] / 100 * rows[rank]["wall"], 6 * 0.15 - 0.1, done.stdout)
            self.assertGreater(rows[rank]["waiting"], 0, done.stdout)
        self.assertRegex(done.stdout, r"goodput [\d.]+ % [^\n]*\n(?:.*\n)*  forward ", "the ledger knows nothing of it")

    def test_a_rank_that_sleeps_50_ms_in_one_phase_is_named_in_it(self):
        for phase in ("data", "forward", "backward", "optimizer"):
            done = self.train("--report", SLEEPS=f"1:{phase}", PAUSE="0.05")
            rows = self.table(done)
            self.assertEqual(self.late(done).get(1, ("nobody",))[0], phase, done.stdout)
            slept = 8 * 0.05  # Seconds, in 8 of 32 steps.
            self.assertGreaterEqual(rows[1][phase] / 100 * rows[1]["wall"], slept - 0.02, done.stdout)
            self.assertGreaterEqual(rows[0]["waiting"] / 100 * rows[0]["wall"], slept / 2, done.stdout)

    def test_the_report_on_the_backend_of_ddprun(self):
        done = self.train("--report", SLEEPS="1:backward", BACKEND="ddprun")
        self.table(done)
        self.assertEqual(self.late(done)[1][0], "backward", done.stdout)

    def test_a_loop_that_averages_gradients_by_hand(self):
        code = TRAIN.replace("torch.nn.parallel.DistributedDataParallel(Net())", "Net()").replace("    sgd.step()\n    step", """
    works = [dist.all_reduce(p.grad, async_op="ASYNC" in os.environ) for p in net.parameters()]
    for work in filter(None, works):
        work.wait()
    sgd.step()
    step""")
        for how in ({"BACKEND": "gloo"}, {"BACKEND": "ddprun"}, {"BACKEND": "ddprun", "ASYNC": "1"}):
            done = self.train("--report", code=code, SLEEPS="1:data", **how)
            self.table(done)
            self.assertIn(1, self.late(done), done.stdout)
            self.assertEqual(self.late(done)[1][0], "data", done.stdout)

    def test_steps_of_accumulated_gradients_count_once(self):
        done = self.train("--report", code=TRAIN.replace("    sgd.step()\n    step += 1\n", """
    step += 1
    if step % 4 == 0:
        sgd.step()
""").replace("    torch.nn.functional", "    with contextlib.nullcontext() if step % 4 == 3 else net.no_sync():\n      torch.nn.functional").replace(
            "import os,", "import contextlib, os,"))
        for row in self.table(done).values():
            self.assertEqual(row["steps"], 8)

    # A program whose GPU is the fake CUDA runtime's, and whose tensors say that they are on it: a pass takes the stream
    # a while, and the host none; it waits where it asks for the next batch.
    ON_A_GPU = """
        import ctypes, os, time, types
        import torch, torch.distributed as dist
        from torch.utils.data import DataLoader
        cuda = ctypes.CDLL(os.environ["DDPRUN_CUDART_LIB"])
        stream, memory, event = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cudaStreamCreateWithPriority(ctypes.byref(stream), 1, 0)
        cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(8))
        cuda.cudaEventCreateWithFlags(ctypes.byref(event), 2)
        torch.version.cuda = os.environ["CUDA"] or None
        torch.cuda.current_stream = lambda index: types.SimpleNamespace(cuda_stream=stream.value)

        class OnCard(torch.Tensor):
            device = property(lambda self: torch.device("cuda", 0))
            __torch_function__ = torch._C._disabled_torch_function_impl

        class Net(torch.nn.Linear):
            def forward(self, x):
                cuda.cudaMemsetAsync(memory, 1, ctypes.c_size_t(8), stream)  # Takes it a while.
                return super().forward(x)

        class Wrapped(torch.nn.parallel.DistributedDataParallel):
            def parameters(self, recurse=True):
                return [each.as_subclass(OnCard) for each in super().parameters(recurse)]

        waited = 0
        def synchronize():
            global waited
            began = time.monotonic()
            cuda.cudaEventRecord(event, stream)
            while cuda.cudaEventQuery(event) == 600:
                time.sleep(0.001)
            waited += time.monotonic() - began

        class Batches(torch.utils.data.Dataset):
            def __len__(self):
                return 24
            def __getitem__(self, i):
                synchronize()
                return torch.ones(8)

        dist.init_process_group("gloo")
        by_hand = "BY_HAND" in os.environ
        net = Net(8, 1)
        sgd = torch.optim.SGD(net.parameters(), 0.01)
        model = net if by_hand else Wrapped(net)
        for x in DataLoader(Batches()):
            sgd.zero_grad()
            loss = model(x).sum()
            (loss.as_subclass(OnCard) if by_hand else loss).backward()
            if by_hand:
                for each in net.parameters():
                    dist.all_reduce(each.grad)
            sgd.step()
        print("waited for batches", waited)
        synchronize()
    """
    LONG_MS = 40

    def on_a_gpu(self, cuda="13.0", **how):
        fake = os.path.join(os.path.dirname(ddprun_case.BIN), "tests", "libfake_cudart.so")
        done = self.train("--report", code=self.ON_A_GPU, DDPRUN_CUDART_LIB=fake, FAKE_CUDA=f"memset_ms={self.LONG_MS}",
                          CUDA=cuda, **how)
        rows = self.table(done).values()
        for row in rows:
            self.assertEqual(row["steps"], 24)
        self.assertEqual(len(rows), 2)
        waited = float(re.search(r"\[default0\]:waited for batches (\S+)", done.stdout)[1])
        first = next(iter(rows))
        return {**{phase: first[phase] / 100 * first["wall"] for phase in ("data", "forward")}, "waited": waited}

    def test_on_a_gpu_phases_are_those_of_its_stream(self):
        for how in ({}, {"BY_HAND": "1"}):
            seconds = self.on_a_gpu(**how)
            self.assertGreater(seconds["forward"], 0.9 * 24 * self.LONG_MS / 1000)
            self.assertLess(seconds["data"], seconds["forward"])

    def test_on_a_gpu_that_is_not_nvidias_phases_are_those_of_the_host(self):
        seconds = self.on_a_gpu(cuda="")
        self.assertGreater(seconds["waited"], 0.1)
        self.assertGreater(seconds["data"], seconds["waited"] - 0.02)  # The table's last digit.
        self.assertLess(seconds["forward"], seconds["data"])

    def test_a_program_with_other_loops_and_hidden_modules_runs_as_before(self):
        """A sharded optimizer, several backward passes a step, evaluation, a group made anew, a forked data loader."""
        code = """
            import os, sys
            import sitecustomize
            import torch, torch.distributed as dist
            from torch.utils.data import DataLoader, TensorDataset
            assert sitecustomize.THEIRS and os.environ["PYTHONPATH"] == os.environ["THEIRS"], os.environ["PYTHONPATH"]
            assert "DDPRUN_WATCH" not in os.environ
            from torch.distributed.optim import ZeroRedundancyOptimizer
            store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, False)
            for turn in range(2):  # With keys of its own: the first group's addresses stay in the store.
                dist.init_process_group("gloo", store=dist.PrefixStore(str(turn), store), rank=int(os.environ["RANK"]), world_size=2)
                net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
                adam = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.1)
                for (x,) in DataLoader(TensorDataset(torch.ones(24, 4)), batch_size=2, num_workers=1):
                    adam.zero_grad()
                    out = net(x)
                    (out[0] * 2).sum().backward(retain_graph=True)
                    with torch.no_grad():
                        net.module(x)
                    dist.barrier()
                    adam.step()
                everybody = [None] * 2
                dist.all_gather_object(everybody, [float(p.sum()) for p in net.parameters()])
                assert everybody[0] == everybody[1], everybody
                del net, adam, out  # Before the group: its destructor needs the interpreter's lock to be free.
                dist.destroy_process_group()
            print("trained")
        """
        hidden = self.path("hidden")
        os.mkdir(hidden)
        with open(hidden + "/sitecustomize.py", "w", encoding="utf-8") as file:
            file.write("THEIRS = True\n")
        theirs = hidden + os.pathsep + torch_case.PACKAGE
        done = self.train("--report", code=code, PYTHONPATH=theirs, THEIRS=theirs)
        self.assertEqual(done.stdout.count("trained"), 2, done.stdout + done.stderr)
        for row in self.table(done).values():
            self.assertEqual(row["steps"], 24)

    def test_results_are_the_same_with_and_without(self):
        def results(done):
            return sorted(re.findall(r"trained (\d) (\S+)", done.stdout))
        plain, watched = self.train(STEPS="8"), self.train("--report", STEPS="8")
        self.assertEqual(len(results(plain)), 2, plain.stdout + plain.stderr)
        self.assertEqual(results(plain), results(watched))

    def test_a_rank_that_raises_ends_the_run_as_before(self):
        done = self.train("--report", RAISE_STEP="3")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"rank 1 [^\n]* failed first")
        self.assertIn("ValueError: loss is NaN", done.stderr)

    def test_a_stuck_rank_is_named_with_its_phase(self):
        for phase, backend in (("data", "gloo"), ("forward", "ddprun")):
            done = self.train("--on-stall", "kill", "--stall-timeout", "2", STUCK_STEP="20", STUCK=phase, BACKEND=backend)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, rf"rank 1 \(local rank 1, pid \d+\) has been in {phase} for [^\n]*"
                                          r"; local rank 0 waits for it in all_reduce #21; it sleeps")
            self.assertNotRegex(done.stderr, r"rank 0 \(local rank 0, pid \d+\) has ")
            self.assertRegex(done.stderr, r"rank 1 [^\n]* at train.py:\d+ in pause", "where it is")

    def dumps(self, logs):
        """What the ranks have left, by local rank."""
        found = {}
        for path in glob.glob(logs + "/*/attempt_0/*/flight_recorder.json"):
            with open(path, encoding="utf-8") as file:
                found[os.path.basename(os.path.dirname(path))] = json.load(file)
        return found

    def test_the_flight_recorder_names_who_is_missing_in_which_call(self):
        self.needs(2, 8)
        logs = self.path("logs")
        done = self.train("--on-stall", "kill", "--stall-timeout", "8", "--log-dir", logs, STUCK_STEP="20", STUCK="data")
        said = (r"it sleeps; PyTorch's flight recorder: rank 0 is in all_reduce #\d+ of \[\d+\] Float at train.py:\d+; rank 1 has not "
                r"reached it: its last is all_reduce #\d+, and it is at train.py:\d+ in pause; dumps: "
                + re.escape(logs) + r"/\S+/attempt_0/\*/flight_recorder.json")
        self.assertEqual(len(re.findall(said, done.stderr)), 2, done.stderr)  # The warning, and the verdict.
        dumps = self.dumps(logs)
        self.assertEqual(sorted(dumps), ["0", "1"])
        for dump in dumps.values():
            self.assertTrue(dump["recorders"]["gloo"]["entries"])
            self.assertTrue(any("train.py" in line for line in dump["stacks"]["MainThread"]), dump["stacks"])

    def test_after_a_failure_it_says_where_the_others_are(self):
        logs = self.path("logs")
        code = """
            import os, time
            import torch, torch.distributed as dist
            from ddprun.elastic.torch._distributed import end_connections, sockets
            dist.init_process_group("gloo")
            for _ in range(3):
                dist.all_reduce(torch.ones(8))
            def work():
                if dist.get_rank() == 1:
                    end_connections(sockets()); open(os.environ["ASLEEP"], "x").close(); time.sleep(100000)
                while not os.path.exists(os.environ["ASLEEP"]):
                    time.sleep(0.01)
                dist.all_reduce(torch.ones(9))
            work()
        """
        done = self.train("--on-stall", "log", "--log-dir", logs, code=code, ASLEEP=self.path("asleep"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"rank 0 [^\n]* failed first")
        missing = (r"PyTorch's flight recorder: rank 0 ended in all_reduce #4 of \[9\] Float at train.py:13 in work; rank 1 has not reached it: "
                   r"its last is all_reduce #3, and it is at train.py:10 in work")
        places = "rank 0 ended at train.py:13 in work; rank 1 is at train.py:10 in work"
        self.assertRegex(done.stderr, missing if torch_case.torch_version() >= (2, 8) else places)
        dumps = self.dumps(logs)
        self.assertEqual(sorted(dumps), ["0", "1"])
        for rank, line in (("0", 13), ("1", 10)):  # The stack of the exception, not of what writes it down.
            stack = dumps[rank]["stacks"]["MainThread"]
            self.assertTrue(any(f"train.py:{line} work" in frame for frame in stack), stack)

    def test_a_rank_that_cannot_answer_is_named(self):
        code = """
            import os, signal, time
            import torch
            if os.environ["RANK"] == "1":
                with open(os.environ["PID"] + ".new", "w") as file:
                    file.write(str(os.getpid()))
                os.rename(file.name, os.environ["PID"])
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(100000)
            while not os.path.exists(os.environ["PID"]):
                time.sleep(0.01)
            stat = "/proc/" + open(os.environ["PID"]).read() + "/stat"
            while open(stat).read().rsplit(")", 1)[1].split()[0] != "T":
                time.sleep(0.01)
            raise ValueError("enough")
        """
        done = self.train("--on-stall", "log", code=code, PID=self.path("pid"))
        self.assertRegex(done.stderr, "rank 1 does not answer: stopped, or in a call that holds Python's lock", done.stderr)
        self.assertIn("ValueError: enough", done.stderr)

    # torch 2.4 and later have handlers and a server; for older ones these stand in, which speak as that does.
    HANDLERS = """
        import http.server, os, socketserver, threading, time
        import torch
        c10d = getattr(torch._C, "_distributed_c10d")
        class Handler(http.server.BaseHTTPRequestHandler):
            def address_string(self):
                return "ddprunctl"
            def do_POST(self):
                known = self.path == "/handler/ping"
                said = b"pong" if known else b"Handler nope not found"
                self.send_response(200 if known else 404)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)
        class Server(socketserver.ThreadingUnixStreamServer):
            def __init__(self, path):
                super().__init__(path, Handler)
                threading.Thread(target=self.serve_forever, daemon=True).start()
        if not hasattr(c10d, "_WorkerServer"):
            c10d._WorkerServer, c10d._get_handler_names = Server, lambda: ["ping"]
        with open(os.path.join(os.environ["HERE"], os.environ["RANK"]), "w"):
            pass
        while not os.path.exists(os.path.join(os.environ["HERE"], "end")):
            time.sleep(0.01)
    """

    def test_torchs_debug_handlers_are_served_where_only_their_user_comes(self):
        with open(self.path("train.py"), "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(self.HANDLERS))
        env = torch_case.environment(HERE=self.dir, XDG_STATE_HOME=self.path("state"))
        job = self.start("--nproc-per-node", "2", "--rdzv-id", "job7", "--on-stall", "log", self.path("train.py"), env=env)
        for rank in "01":
            ddprun_case.wait_until(lambda rank=rank: os.path.exists(self.path(rank)), "the ranks to be there")

        def debug(*argv, code=0):
            done = self.launched([os.path.join(ddprun_case.BIN, "ddprunctl"), "debug", "job7", *argv],
                                 XDG_STATE_HOME=self.path("state"))
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            return done

        for rank in "01":
            self.assertIn("ping", debug(rank).stdout.split())
            self.assertEqual(debug(rank, "ping").stdout, "pong")
        self.assertRegex(debug("0", "nope", code=1).stderr, "asked for nope: status 404: Handler nope not found[^;]*; without a handler")
        if "fr_trace_json" in debug("1").stdout:
            self.assertIn("pg_status", json.loads(debug("1", "fr_trace_json?backend=gloo").stdout))
        with open(self.path("end"), "w", encoding="utf-8"):
            pass
        self.finish(job)

    def test_one_rank_without_a_group(self):
        done = self.train("--report", nproc=1, code="""
            import torch
            net = torch.nn.Linear(4, 2)
            sgd = torch.optim.SGD(net.parameters(), 0.1)
            for _ in range(5):
                net(torch.ones(1, 4)).sum().backward()
                sgd.step()
        """)
        self.assertEqual(self.table(done)[0]["steps"], 5)


if __name__ == "__main__":
    torch_case.main()
