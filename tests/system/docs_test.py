"""What README.md, docs/from-pytorch.md, docs/from-data-parallel.md, docs/from-elastic.md, docs/memory.md and docs/operations.md show in
code blocks is true: every block is run, or checked as far as one machine can. BLOCKS lists each by its first line; one
that is new or changed there turns the first test red."""

import glob
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import unittest

import ddprun_case
import ras_test
from ddprun_case import ALL_HERE, BIN, DDPRUN, PATIENCE, DdprunCase, env_to, free_port, shell, wait_until

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "interop"))
from torch_pythons import torch_pythons  # noqa: E402

README, FROM_PYTORCH, OPERATIONS = "README.md", "docs/from-pytorch.md", "docs/operations.md"
MEMORY = "docs/memory.md"
FROM_ELASTIC, FROM_DATA_PARALLEL = "docs/from-elastic.md", "docs/from-data-parallel.md"
EVERY = None  # All blocks of that language on that page.

# (page, language, first line): which test runs it.
BLOCKS = {
    (README, "sh", "deploy/wheel.sh && pip install build/wheels/ddprun-*.whl            # into a Python environment"):
        "the stage packages of deploy/test.sh builds, installs and uses both; installed_sdk_test.cmake",
    (README, "sh", "deploy/quickstart.sh      # installs what is missing, builds, and trains a model with two workers"):
        "deploy_test.sh and test_the_scripts_of_readme; what quickstart compiles, the stage packages and examples/ do, too",
    (README, "sh", "ddprun --nproc-per-node 2 train.py --epochs 3       # your PyTorch script, unchanged"):
        "test_the_command_lines_of_readme",
    (README, "", "$ ddprun --nproc-per-node 4 ./trainer"): "test_the_failure_of_readme",
    (README, "", "$ ddprun --nproc-per-node 4 --max-restarts 100 --chaos 2 elastic"): "system_reseat and system_elastic_campaign have such runs",
    (README, "cpp", EVERY): "readme_program and readme_elastic in tests/ddp.cmake",
    (README, "cmake", EVERY): "installed_sdk_test.cmake",
    (FROM_PYTORCH, "python", EVERY): "test_the_tutorial_is_one_program",
    (FROM_PYTORCH, "cpp", EVERY): "from_pytorch_1 and the like in tests/ddp.cmake",
    (FROM_ELASTIC, "cpp", EVERY): "from_elastic_1 and the like in tests/ddp.cmake",
    (FROM_DATA_PARALLEL, "python", EVERY): "torch_habits_test.py",
    (FROM_DATA_PARALLEL, "cpp", EVERY): "test_ranks_that_no_launcher_starts",
    (FROM_DATA_PARALLEL, "sh", "python3 one_process.py"): "torch_habits_test.py",
    (FROM_DATA_PARALLEL, "sh", "ddprun --nproc-per-node 2 process_per_gpu.py"): "torch_habits_test.py",
    (FROM_DATA_PARALLEL, "sh", "ddprun --nproc-per-node 4 train --lr-scale linear --warmup 100 --schedule cosine"):
        "train_parts_test.cc has the same line from train --help",
    (FROM_DATA_PARALLEL, "sh", "python3 by_hand.py tcp://127.0.0.1:29500 0 2 & python3 by_hand.py tcp://127.0.0.1:29500 1 2; wait"):
        "torch_habits_test.py",
    (FROM_DATA_PARALLEL, "sh", "python3 by_hand.py file:///tmp/meeting 0 2 & python3 by_hand.py file:///tmp/meeting 1 2; wait"):
        "torch_habits_test.py",
    (FROM_DATA_PARALLEL, "sh", "g++ -std=c++20 by_hand.cc $(pkg-config --cflags --libs ddprun) -o by_hand"):
        "test_ranks_that_no_launcher_starts",
    (README, "python", "checkpoint = ddprun.checkpoint.Memory(every=10)"): "test_readme_and_its_page_show_the_same_lines",
    (README, "", "ddprun --memory-folder 256M --preload auto --max-restarts 20 --nproc-per-node 2 --chaos 5 train_memory.py --steps 2000"):
        "test_the_command_lines_of_memory",
    (MEMORY, "python", EVERY): "torch_checkpoint_test.py",
    (MEMORY, "cpp", EVERY): "memory_program in tests/ddp.cmake",
    (MEMORY, "sh", "ddprun --memory-folder 4G --preload auto --max-restarts 3 --nproc-per-node 4 train_memory.py"):
        "test_the_command_lines_of_memory",
    (MEMORY, "", "$DDPRUN_MEMORY/"): "checkpoint_test.py",
    (OPERATIONS, "", "$ ddprunctl logs job7"): "watch_test.py, MuteAgent",
    (OPERATIONS, "sh", "ddprun-rendezvous --address 0.0.0.0 --token-file /etc/ddprun/token \\"): "test_the_daemons_on_etcd",
    (OPERATIONS, "sh", "install -d -m 0700 /etc/ddprun"): "test_the_service",
    (OPERATIONS, "", "ddprunctl [-e HOST[:PORT]] [--token-file FILE | --no-auth] status [--run ID] [--json]"):
        "test_the_synopsis_of_ddprunctl",
    (OPERATIONS, "", "$ ddprunctl debug job7 3 fr_trace_json?backend=nccl > rank3.json"): "torch_watch_test.py, with gloo",
    (OPERATIONS, "", "$ ddprunctl history"): "tests/unit/watch/history_test.cc has the table, watch_test.py runs",
    (OPERATIONS, "", "$ ddprunctl ras"): "test_what_ddprunctl_ras_prints",
    (OPERATIONS, "", "$ ddprunctl status"): "test_what_ddprunctl_status_prints",
}

VERBS = ("status", "nodes", "drain", "resize", "cancel", "report", "top", "ras", "history", "logs", "stacks", "capture", "debug", "preload")

# What Debian's PyTorch 1.13 or a machine without GPUs has not, for the tutorial's lines to run all the same.
STAND_INS = """
import sys, types
import torch, torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
if not torch.cuda.is_available():
    torch.nn.SyncBatchNorm.convert_sync_batchnorm = staticmethod(lambda module: module)
    default_hooks.bf16_compress_hook = default_hooks.fp16_compress_hook
if not hasattr(torch.amp, "GradScaler"):
    torch.amp.GradScaler = lambda device: torch.cuda.amp.GradScaler(enabled=False)
try:
    import torch.distributed.checkpoint as dcp
    assert dcp.async_save
except (ImportError, AttributeError):
    dcp = types.ModuleType("torch.distributed.checkpoint")
    dcp.async_save = lambda state, checkpoint_id: types.SimpleNamespace(result=lambda: None)
    sys.modules[dcp.__name__] = torch.distributed.checkpoint = dcp
"""

# README's ./trainer: its third rank dies as a C++ program does.
TRAINER = """#!/bin/sh
if [ "$RANK" = 2 ]; then
  echo "terminate called after throwing an instance of 'std::runtime_error'" >&2
  kill -ABRT $$
fi
exec sleep 600
"""


def text_of(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        return f.read()


def blocks(page):
    """(language, text) of each fenced block."""
    return re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", text_of(page))


def block(page, first_line):
    """The one that begins so."""
    (found,) = [text for _, text in blocks(page) if text.startswith(first_line)]
    return found


def plain(text, *replaced):
    """On one line, with what is another's on each machine made equal."""
    for pattern, by in replaced:
        text = re.sub(pattern, by, text)
    return re.sub(r"\s+", " ", text).strip()


class Pages(unittest.TestCase):
    def test_every_block_is_listed_with_its_test(self):
        shown = set()
        for page in (README, FROM_PYTORCH, FROM_ELASTIC, FROM_DATA_PARALLEL, MEMORY, OPERATIONS):
            self.assertEqual(len(re.findall("(?m)^```", text_of(page))), 2 * len(blocks(page)))
            for language, text in blocks(page):
                key = (page, language, text.splitlines()[0])
                shown.add((page, language, EVERY) if (page, language, EVERY) in BLOCKS else key)
        self.assertEqual(shown, set(BLOCKS))
        for test in BLOCKS.values():
            if test.startswith("test_"):
                self.assertTrue(hasattr(Blocks, test), test)

    def test_no_table_is_cut_in_two(self):
        for page in [README, "CHANGELOG.md", *glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True)]:
            lines = ["", *text_of(page).splitlines(), ""]
            for number, line in enumerate(lines):
                if line.startswith("|") and not lines[number - 1].startswith("|"):
                    self.assertRegex(lines[number + 1], r"^\|[ :|-]+\|$", f"{page}:{number}: {line}")


class Blocks(DdprunCase):
    def setUp(self):
        super().setUp()
        for name in ("train", "trainer", "train.py"):
            self.program(name, "#!/bin/sh\nexit 0\n" if name != "train.py" else "import sys; print(sys.argv[1:])\n")

    def program(self, name, text):
        with open(self.path(name), "w", encoding="ascii") as f:
            f.write(text)
        os.chmod(self.path(name), 0o755)

    def ctl(self, *argv, env=None):
        return subprocess.run([os.path.join(BIN, "ddprunctl"), *argv], capture_output=True, text=True, timeout=PATIENCE,
                              env={**ddprun_case.clean_environment(), **(env or {})}, check=False)

    # README.md

    def test_the_scripts_of_readme(self):
        """deploy_test runs some of them on a machine of stand-ins."""
        seen = []
        for first in ("deploy/quickstart.sh ", "deploy/wheel.sh "):
            for line in block(README, first).splitlines():
                script = shlex.split(line, comments=True)[0]
                done = subprocess.run([os.path.join(ROOT, script), "--help"], capture_output=True, text=True, timeout=PATIENCE)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(script, done.stdout)
                seen.append(script)
        self.assertEqual(seen, [f"deploy/{name}.sh" for name in ("quickstart", "test", "wheel", "package", "quickstart")])

    def test_the_command_lines_of_readme(self):
        lines = [shlex.split(line, comments=True) for line in block(README, "ddprun --nproc-per-node 2").splitlines()]
        self.assertGreaterEqual(len(lines), 7)
        env = {"DDPRUN_TOKEN": "t"}
        slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1",
                 "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
        for line in lines:
            with self.subTest(line=shlex.join(line)):
                at = line.index("ddprun")
                self.assertIn(line[:at], ([], ["srun", "--ntasks-per-node=1"]))
                job = self.start("--dry-run", *line[at + 1:], env={**env, **(slurm if at else {})})
                if job.wait() != 0:
                    self.assertIn("gpu", line)
                    self.assertIn("no NVIDIA GPU on this node", job.err())
                    continue
                self.assertRegex(job.out(), r"(?m)^rendezvous: ")
                if not at and not {"--nnodes", "--hosts", "gpu"} & set(line):
                    self.run_ddprun(*line[at + 1:])
        (pasted,) = [line for line in lines if line[1:3] == ["--nnodes", "2"]]
        first = self.start(*pasted[1:])
        words = first.wait_for(r"run:\n\n  (.*\S)\n").group(1)
        second = self.start_program(["/bin/sh", "-c", f"cd {shlex.quote(self.dir)} && exec env {words}"])
        self.finish(first)
        self.finish(second)

    def test_the_failure_of_readme(self):
        self.program("trainer", TRAINER)
        _, command, *expected = re.split(r"(?m)^\$ (.*)\n", block(README, "$ ddprun --nproc-per-node 4 ./trainer"))
        shown, asked, code = expected[0], expected[1], expected[2]
        self.assertEqual(asked, "echo $?")
        terminal = {"CI": "", "GITHUB_ACTIONS": "", "NO_COLOR": "", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        typed = f"stty cols 200; exec {shlex.quote(DDPRUN)} {command.split(' ', 1)[1]}"
        job = self.start_program(["script", "-qec", typed, "/dev/null"], env=terminal)
        self.finish(job, int(code))
        # Without colours, and without the status line, which is erased before each line of others.
        said = "\n".join(re.sub(r".*\x1b\[K", "", line) for line in job.out().splitlines())
        own = ((r"\x1b\[[\d;]*m", ""), (r"pid \d+", "pid N"), (r" on \S+ failed", " on HOST failed"), (r"after [\d.]+ m?s", "after T"))
        self.assertEqual(plain(said, *own), plain(shown, *own))

    # docs/from-pytorch.md

    def test_the_tutorial_is_one_program(self):
        pythons = torch_pythons()
        if not pythons:
            raise unittest.SkipTest("there is no PyTorch")
        self.program("tutorial.py", STAND_INS + "".join(text for language, text in blocks(FROM_PYTORCH)
                                                        if language == "python"))
        for torch in pythons:
            with self.subTest(torch=torch.version):
                job = self.run_ddprun("--nproc-per-node", "2", "tutorial.py",
                                      env={"PYTHON_EXEC": torch.python, "GLOO_SOCKET_IFNAME": "lo"})
                self.assertEqual(len(re.findall(r"epoch [01] loss \d", job.out())), 2, job.text())

    # docs/from-data-parallel.md

    def test_ranks_that_no_launcher_starts(self):
        """By the program of the page, which CMake compiled; linking_test and examples/external have the compiler's line."""
        built = os.path.join(os.path.dirname(BIN), "tests", "started_by_hand")
        if not os.access(built, os.X_OK):
            raise unittest.SkipTest(built + " is not built")
        os.symlink(built, self.path("by_hand"))
        compile_line, *lines = block(FROM_DATA_PARALLEL, "g++ ").splitlines()
        self.assertIn("by_hand.cc $(pkg-config --cflags --libs ddprun) -o by_hand", compile_line)
        self.assertEqual(len(lines), 3)
        for line, said in zip(lines, ("sum 3 over shm", "sum 3 over shm", "sum 1 over self")):
            line = line.replace("29500", str(free_port())).replace("/tmp/", self.dir + "/")
            done = subprocess.run(["bash", "-c", line], cwd=self.dir, capture_output=True, text=True, timeout=2 * PATIENCE,
                                  env=ddprun_case.clean_environment(), check=False)
            self.assertEqual((done.returncode, done.stdout), (0, said + "\n"), done.stderr)

    # docs/memory.md

    def test_the_command_lines_of_memory(self):
        self.program("train_memory.py", "import os; assert os.path.isdir(os.environ['DDPRUN_MEMORY'])\n")
        for page in (MEMORY, README):
            line = block(page, "ddprun --memory-folder").splitlines()[0].replace("4G", "4M").replace("256M", "4M")
            self.run_ddprun(*shlex.split(line)[1:])

    def test_readme_and_its_page_show_the_same_lines(self):
        lines = "checkpoint = ddprun.checkpoint.Memory(every=10)"
        self.assertEqual(block(README, lines), block(MEMORY, lines))

    # docs/operations.md

    def test_the_daemons_on_etcd(self):
        """As far as without an etcd: each flag is known, and what is missing first is the token's file."""
        line = block(OPERATIONS, "ddprun-rendezvous --address").replace("\\\n", " ").replace("/etc/ddprun", self.dir)
        program, *argv = shlex.split(line)
        done = subprocess.run([os.path.join(BIN, program), *argv], capture_output=True, text=True, timeout=PATIENCE, check=False,
                              env=ddprun_case.clean_environment())
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("no token can be read from the first line of " + self.path("token"), done.stderr)

    def test_the_service(self):
        install, token, cmake, systemctl = [shlex.split(line, comments=True) and line.split("#")[0].strip()
                                            for line in block(OPERATIONS, "install -d").splitlines()]
        done = subprocess.run(["/bin/sh", "-ec", "\n".join((install, token)).replace("/etc/ddprun", self.path("etc"))],
                              capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.stat(self.path("etc")).st_mode & 0o777, 0o700)
        self.assertEqual(os.stat(self.path("etc/token")).st_mode & 0o777, 0o600)
        with open(self.path("etc/token"), encoding="ascii") as f:
            self.assertRegex(f.read(), r"\A[0-9a-f]{64}\n\Z")
        self.assertEqual(shlex.split(cmake), ["cmake", "--install", "build/release", "--prefix", "/usr"])
        *verbs, unit = shlex.split(systemctl)
        self.assertEqual(verbs, ["systemctl", "enable", "--now"])
        done = subprocess.run(["cmake", "--install", os.path.dirname(BIN), "--prefix", self.path("usr")],
                              capture_output=True, text=True, timeout=4 * PATIENCE)
        if done.returncode != 0 and "cannot find" in done.stderr:
            raise unittest.SkipTest("not all of this build folder is built: " + done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(os.access(self.path("usr/bin/ddprun-rendezvous"), os.X_OK))
        found = glob.glob(f"**/{unit}.service", root_dir=self.path("usr"), recursive=True)
        self.assertEqual(len(found), 1, found)  # operations_test has systemd-analyze read it.

    def test_the_synopsis_of_ddprunctl(self):
        """With all that is optional in it, each line is understood: nobody answers at that port, code 1."""
        lines = re.sub(r"\n +", " ", block(OPERATIONS, "ddprunctl [-e")).splitlines()  # Long ones go on in the next.
        common = lines[0][lines[0].index("["):lines[0].index("] status") + 1]
        seen = []
        for line in lines:
            words = line.replace("ddprunctl ...", "ddprunctl " + common).replace("--token-file FILE |", "").replace("RUN |", "")
            for name, value in (("HOST[:PORT]", "127.0.0.1:1"), ("HOST:PORT", "127.0.0.1:1"), ("SECONDS", "1"), ("RANK", "0"), ("NODES", "2"),
                                ("TIME", "6h"), ("PERCENT", "50"), ("N|MIN:MAX,...", "2"), ("auto|MINUTES,...", "auto"), ("N,...", "1"), ("PID|all", "1")):
                words = words.replace(name, value)
            argv = re.sub(r"[][]", "", words).split()[1:]
            done = self.ctl(*argv)
            self.assertEqual(done.returncode, 1, f"{argv}: {done.stderr}")
            seen += [word for word in argv if word in VERBS]
        self.assertEqual(sorted(seen), sorted(VERBS))

    def test_what_ddprunctl_ras_prints(self):
        shown = block(OPERATIONS, "$ ddprunctl ras").split("\n", 1)[1]
        run_id = f"docs-{os.getpid()}"
        report = ras_test.report([120, 120, 119], "")
        for old, new in (('"0xab"', '"0xae94423cfbb2ef4a"'), ('"host": "10.0.0.1",\n "pid": 103', '"host": "10.0.0.4",\n "pid": 4713'),
                         ('"nvml_dev": 3', '"nvml_dev": 1')):
            self.assertIn(old, report)
            report = report.replace(old, new)
        self.program("server.py", ras_test.SERVER)
        self.program("report", report)
        job = self.start("--rdzv-id", run_id, "--nproc-per-node", "2", self.path("server.py"), self.path("report"))
        job.wait_for("ras serves")
        said = self.ctl("ras", "--run", run_id).stdout.replace(run_id, "job7")
        port = (r"localhost:\d+", "localhost:PORT")
        self.assertEqual(plain(said, port), plain(shown, port))
        job.signal(15)
        job.wait()

    def test_what_ddprunctl_status_prints(self):
        shown = block(OPERATIONS, "$ ddprunctl status").split("\n", 1)[1]
        env = {"DDPRUN_ENDPOINT": f"127.0.0.1:{free_port()}", "DDPRUN_TOKEN": "t"}
        daemon = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--port",
                                     env["DDPRUN_ENDPOINT"].split(":")[1]], env=env)
        wait_until(lambda: self.ctl("status", env=env).returncode == 0, daemon.text)
        fails_once = shell(env_to() + f'if [ "$RANK.$TORCHELASTIC_RESTART_COUNT" = 0.0 ]; then {ALL_HERE} exit 1; fi; '
                           "exec sleep 600")
        conf = ["--rdzv-conf", "is_host=0,join_timeout=600"]
        for _ in range(4):
            self.start("--rdzv-id", "job7", "--nnodes", "2:4", "--max-restarts", "3", "--nproc-per-node", "8", *conf, *fails_once,
                       env=env)
        self.start("--rdzv-id", "job8", "--nnodes", "2", *conf, "true", env=env)
        own = ((rf"\((node5|{re.escape(socket.gethostname())})\)", "(HOST)"), (r"in [\d.]+ s", "in N s"))

        def said():
            return self.ctl("status", env=env).stdout

        wait_until(lambda: "1 of 3" in said() and " running " in said() and "HOST" in plain(said(), *own),
                   lambda: said() + "".join(job.text() for job in self.jobs))
        self.assertEqual(plain(said(), *own), plain(shown, *own))


if __name__ == "__main__":
    ddprun_case.main()
