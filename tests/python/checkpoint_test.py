"""Checkpoints in memory: the newest whole generation is found, the same on all ranks, whatever dies or is damaged. Ranks of
several nodes are played: each has the variables and the folder of its node."""

import contextlib
import fcntl
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from unittest import mock

import package_case
import ddprun_case  # pylint: disable=wrong-import-order
import ddprun
from ddprun.checkpoint import Memory

HAS_TORCH = subprocess.run([sys.executable, "-W", "ignore", "-c", "import torch.distributed"], capture_output=True,
                           check=False).returncode == 0
KILLS = int(os.environ.get("DDPRUN_TEST_KILLS", "40"))

# Imports torch once, and forks the ranks. When one has failed, the others would wait for it.
FORK = """
import json, os, signal, sys
import torch, torch.distributed
ranks, code = json.loads(sys.argv[1]), sys.argv[2]
children = []
for variables in ranks:
    child = os.fork()
    if child == 0:
        os.environ.update(variables)
        exec(compile(code, f"rank {variables['RANK']}", "exec"), {"__name__": "__main__"})
    children.append(child)
failed = 0
while children:
    child, status = os.wait()
    children.remove(child)
    if status and not failed:
        failed = 1
        for each in children:
            os.kill(each, signal.SIGKILL)
sys.exit(failed)
"""

# What every script of ranks begins with.
HEAD = r"""
import os, sys
import torch
import torch.distributed as dist
import ddprun.checkpoint
torch.set_num_threads(1)
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if SIZE > 1:
    dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=RANK, world_size=SIZE)
def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert sentence in str(error), str(error)
        return
    raise AssertionError(f"not refused: {sentence}")
def numbers(step, count=300_000):
    return torch.arange(count, dtype=torch.float32) + step
def end():
    os.write(1, b"right\n")
    os._exit(0)  # A thread of gloo's may still free a tensor, which aborts PyTorch 1.13 while the interpreter ends.
"""


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = self.enterContext(tempfile.TemporaryDirectory(prefix="ddprun-checkpoint-"))
        self.node = self.folder("a node")
        clean = {key: value for key, value in ddprun_case.clean_environment().items()}
        self.enterContext(mock.patch.dict(os.environ, clean, clear=True))
        os.environ["DDPRUN_MEMORY"] = self.node
        made = []  # They may still write as a test ends, and would disturb the removal of its folder.
        make = Memory.__init__
        self.enterContext(mock.patch.object(Memory, "__init__", lambda memory, *a, **k: made.append(memory) or make(memory, *a, **k)))
        self.addCleanup(lambda: [memory._writer.shutdown() for memory in made if getattr(memory, "_writer", None)])

    def folder(self, *names):
        path = os.path.join(self.dir, *names)
        os.makedirs(path, exist_ok=True)
        return path

    def pieces(self, node=None):
        """The files of all pieces, the oldest generation first."""
        found = []
        for folder, _, names in os.walk(node or self.node):
            found += [os.path.join(folder, name) for name in names if name.startswith("piece-")]
        return sorted(found)

    def steps(self, node=None):
        return [int(path.split("-step-")[1].split("/")[0]) for path in self.pieces(node)]

    @staticmethod
    def saved(*steps, **options):
        """As a process does that then ends."""
        memory = Memory(**{"every": 1, **options})
        with contextlib.redirect_stderr(io.StringIO()):
            memory.load({})
            for step in steps:
                memory.save({"step": step, "text": b"x" * 100_000 + str(step).encode()}, step, now=True)
            memory.wait()
        return memory

    def loaded(self, wanted, **options):
        """What the next process finds; the lines that it prints."""
        state, said = {}, io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(Memory(**options).load(state), wanted)
        if wanted:
            self.assertEqual(state, {"step": wanted, "text": b"x" * 100_000 + str(wanted).encode()})
        return said.getvalue()


class OneProcess(Case):
    """Without torch."""

    def test_the_newest_is_loaded_and_two_are_kept(self):
        self.assertEqual(self.loaded(0), "")
        self.saved(1, 2, 3, 4, 5)
        self.assertEqual(self.steps(), [4, 5])
        self.assertRegex(self.loaded(5), r"\Addprun: checkpoint: restored step 5 from memory in \d+\.\d\d s\n\Z")

    def test_it_is_saved_when_it_is_due(self):
        memory = Memory(every=3)
        memory.load({})
        self.assertEqual([step for step in range(1, 10) if memory.save({"a": step}, step)], [3, 6, 9])
        self.assertTrue(memory.save({"a": 10}, 10, now=True))
        self.assertEqual([step for step in range(11, 15) if memory.save({"a": step}, step)], [13])
        memory.wait()
        memory = Memory(every=3)
        memory.load({})
        self.assertEqual([step for step in range(14, 20) if memory.save({"a": step}, step)], [16, 19])

    def test_values_have_the_last_word_on_how_they_are_loaded(self):
        class Counter:
            def __init__(self):
                self.n = 1

            def state_dict(self):
                return {"n": self.n}

            def load_state_dict(self, state):
                self.n = state["n"]

        memory = Memory(every=1)
        memory.load({})
        saved = Counter()
        saved.n = 8
        memory.save({"counter": saved, "more": [1, {"deep": (2, 3)}]}, 1)
        memory.wait()
        state = {"counter": Counter(), "more": None}
        self.assertEqual(memory.load(state), 1)
        self.assertEqual((state["counter"].n, state["more"]), (8, [1, {"deep": (2, 3)}]))
        with self.assertRaisesRegex(ddprun.BadArgument, "the checkpoint has no 'lr'"):
            memory.load({"lr": 1})

    def test_names_with_spaces_and_newlines(self):
        state = {"a name\nof lines": 1, "": 2, "ü/..": 3}
        memory = Memory(every=1, name="my run\n2")
        memory.load({})
        memory.save(state, 7)
        memory.wait()
        self.assertEqual(os.listdir(self.node), ["my run\n2"])
        found = {}
        self.assertEqual(Memory(name="my run\n2").load(found), 7)
        self.assertEqual(found, state)
        for name in ("", "a/b", "..", ".hidden", "x.tmp", "a\0b"):
            with self.assertRaisesRegex(ddprun.BadArgument, "name must be that of one folder"):
                Memory(name=name)

    def test_bad_arguments(self):
        for every in (0, -1, 1.5, "often"):
            with self.assertRaisesRegex(ddprun.BadArgument, "every must be a number of steps"):
                Memory(every=every)
        with self.assertRaisesRegex(ddprun.BadArgument, "to_disk_every must be at least 1"):
            Memory(to_disk_every=0)
        with self.assertRaisesRegex(ddprun.BadArgument, "step must be a whole number from 0"):
            Memory().save({}, -1, now=True)

    def test_without_a_memory_folder_the_flag_is_named(self):
        del os.environ["DDPRUN_MEMORY"]
        with self.assertRaisesRegex(ddprun.BadEnvironment, "there is no memory folder: .*ddprun --memory-folder 4G"):
            Memory()
        os.environ["DDPRUN_MEMORY"] = os.path.join(self.dir, "none")
        with self.assertRaisesRegex(ddprun.BadEnvironment, "which is not a folder"):
            Memory()

    def test_ranks_that_cannot_agree_are_refused(self):
        os.environ["WORLD_SIZE"] = "2"
        with self.assertRaisesRegex(ddprun.BadEnvironment, r"call torch.distributed.init_process_group\(\)"):
            Memory().load({})

    def test_a_disk_alone_is_enough(self):
        del os.environ["DDPRUN_MEMORY"]
        disk = os.path.join(self.dir, "disk", "run 7")
        memory = Memory(every=2, disk=disk, to_disk_every=3)
        memory.load({})
        text = b"x" * 100_000
        self.assertEqual([step for step in range(1, 26)
                          if memory.save({"step": step, "text": text + str(step).encode()}, step)], [6, 12, 18, 24])
        memory.wait()
        self.assertEqual(self.steps(disk), [18, 24])
        self.assertIn("restored step 24 from disk", self.loaded(24, disk=disk))

    def test_interval_that_is_chosen(self):
        """Not how long it is, which no test knows, but that it follows from both times."""
        memory = Memory(every="auto")
        memory.load({})
        self.assertEqual(memory.every, 10)
        times = iter(range(10**6))
        with mock.patch("time.monotonic", lambda: next(times) * 0.05):  # A step or a save takes as long as a clock is read.
            saved = [step for step in range(1, 2000) if memory.save({"a": step}, step)]
        self.assertEqual(memory.every, 200)
        self.assertEqual(saved[:3], [10, 20, 220])  # The first says what one costs.

    # Damage.

    def damage(self, change, wanted=2, sentence=""):
        shutil.rmtree(os.path.join(self.node, "checkpoint"), ignore_errors=True)
        self.saved(1, 2, 3)
        path = self.pieces()[-1]
        change(path)
        said = self.loaded(wanted)
        self.assertIn(path, said)
        self.assertIn(sentence, said)
        self.assertIn("; step 3 is not whole", said)

    def test_a_torn_piece_is_not_loaded(self):
        size = os.path.getsize(self.saved(1) and self.pieces()[-1])
        for length in (0, 1, 50, size // 2, size - 1):
            with self.subTest(length=length):
                self.damage(lambda path, length=length: os.truncate(path, length), sentence="is torn")

    def test_a_flipped_bit_is_noticed_wherever_it_is(self):
        size = os.path.getsize(self.saved(1) and self.pieces()[-1])
        for at in (0, 8, 50_000, 99_999, 100_010, size - 100, size - 20, size - 1):
            with self.subTest(at=at):
                self.damage(lambda path, at=at: flip(path, at))

    def test_generations_are_never_mixed(self):
        def another(path):
            shutil.copyfile(self.pieces()[0], path)
        self.damage(another, sentence="is another piece than its name")

    def test_a_file_without_a_name_does_not_count(self):
        self.saved(1, 2, 3)
        path = self.pieces()[-1]
        os.rename(path, os.path.join(os.path.dirname(path), ".piece-0-of-1.tmp"))
        self.loaded(2)
        self.saved(4)
        self.assertEqual(self.steps(), [2, 4])

    def test_what_was_torn_does_not_come_back(self):
        """Saved again after the older one was loaded, the same steps are those of the newer session."""
        self.saved(1, 2)
        flip(self.pieces()[-1], 0)
        self.loaded(1)
        self.assertEqual(self.steps(), [1])
        self.saved(2)
        self.assertNotIn("not whole", self.loaded(2))

    def test_all_is_damaged(self):
        self.saved(1, 2)
        for path in self.pieces():
            flip(path, 0)
        self.assertIn("nothing is restored: step 2 and all before it are damaged", self.loaded(0))

    def test_a_checkpoint_of_another_kind(self):
        self.saved(1)
        with self.assertRaisesRegex(ddprun.BadArgument, "step 1 was saved with sharded=False: give the same to load it"):
            Memory(sharded=True).load({})
        self.loaded(1)  # It is still there.

    def test_nothing_is_read_through_a_symbolic_link(self):
        for target, said in (("piece", True), ("generation", False)):
            with self.subTest(target=target):
                self.saved(1, 2)
                path = self.pieces()[-1] if target == "piece" else os.path.dirname(self.pieces()[-1])
                outside = os.path.join(self.dir, target)
                os.rename(path, outside)
                os.symlink(outside, path)
                self.assertEqual("Too many levels of symbolic links" in self.loaded(1), said)
                self.assertTrue(os.path.exists(outside), "it is not removed through one either")
        shutil.rmtree(os.path.join(self.node, "checkpoint"))
        os.symlink(self.dir, os.path.join(self.node, "checkpoint"))
        with self.assertRaisesRegex(ddprun.BadArgument, "is not a folder"):
            Memory().load({})

    def test_foreign_files_are_left_alone(self):
        self.saved(1)
        for name in ("generation-x", "notes", "generation-000001-000001-abcdefab-step-3.old"):
            self.folder("a node", "checkpoint", name)
        os.mkfifo(os.path.join(os.path.dirname(self.pieces()[0]), "piece-0-of-2"))
        self.saved(2, 3, 4)
        self.assertEqual(len([n for n in os.listdir(os.path.join(self.node, "checkpoint")) if not n.startswith(".")]), 5)

    # Memory.

    def test_a_full_folder_is_a_warning_and_the_last_generation_stays(self):
        self.saved(1, 2)
        os.environ["DDPRUN_MEMORY_SIZE"] = str(230_000)
        said = io.StringIO()
        memory = Memory(every=1)
        memory.load({})
        with contextlib.redirect_stderr(said):
            for step in (3, 4, 5):
                self.assertFalse(memory.save({"text": b"x" * 100_000}, step))
        self.assertRegex(said.getvalue(), r"\Addprun: checkpoint: rank 0 on \S+ cannot save \d+ KiB: \d+ KiB of 225 KiB are used; "
                                          r"the last generation stays[^\n]*"
                                          r"--memory-folder SIZE\n\Z")
        self.loaded(2)
        os.environ["DDPRUN_MEMORY_SIZE"] = str(10**7)
        self.assertTrue(memory.save({"step": 6, "text": b"x" * 100_000 + b"6"}, 6))
        memory.wait()
        self.loaded(6)

    def test_a_full_tmpfs_is_the_same(self):
        script = textwrap.dedent("""
            import sys
            from ddprun.checkpoint import Memory
            memory = Memory(every=1)
            memory.load({})
            done = [memory.save({"text": b"x" * size}, step) for step, size in enumerate((500_000, 500_000, 3_000_000, 400_000), 1)]
            memory.wait()
            state = {}
            print(done, memory.load(state), len(state["text"]))
        """)
        mounted = f'mount -t tmpfs -o size=2m none "{self.node}" && exec "$@"'
        if subprocess.run(["unshare", "-m", "sh", "-c", mounted, "sh", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("this user may not mount a tmpfs")
        done = subprocess.run(["unshare", "-m", "sh", "-c", mounted, "sh", sys.executable, "-c", script], capture_output=True, text=True,
                              check=False, env=package_case.environment(DDPRUN_MEMORY=self.node), timeout=ddprun_case.PATIENCE)
        self.assertEqual(done.stdout, "[True, True, False, True] 4 400000\n", done.stderr)
        self.assertEqual(done.stderr.count("No space left on device"), 1, done.stderr)

    def test_memory_is_that_of_three_generations(self):
        highest = 0
        for round_ in range(3):  # Of the run: each has a process of its own.
            memory = Memory(every=1)
            with contextlib.redirect_stderr(io.StringIO()):
                memory.load({})
            for step in range(10 * round_ + 1, 10 * round_ + 6):
                memory.save({"text": os.urandom(1_000_000)}, step)
                highest = max(highest, memory._home.used())
            memory.wait()
            highest = max(highest, memory._home.used())
        self.assertLess(highest, 3.9e6)
        self.assertGreater(highest, 2.9e6)

    def test_a_file_that_gets_its_name_meanwhile_counts_once(self):
        memory = self.saved(1)
        before = memory._home.used()
        os.link(self.pieces()[0], os.path.join(self.node, "its name before"))
        self.assertEqual(memory._home.used(), before)

    def test_files_are_used_again(self):
        memory = self.saved(1, 2, 3)
        before = {os.stat(path).st_ino for path in self.pieces()}
        for step in range(4, 10):
            memory.save({"text": b"x" * 100_000}, step)
        memory.wait()
        self.assertTrue({os.stat(path).st_ino for path in self.pieces()} & before)

    def test_a_file_that_is_being_copied_is_not_written(self):
        """The agent locks what it copies to another node."""
        memory = self.saved(1, 2)
        with open(self.pieces()[0], "rb") as copied:
            fcntl.flock(copied, fcntl.LOCK_SH)
            before = copied.read()
            for step in range(3, 9):
                memory.save({"text": b"y" * 100_000}, step)
            memory.wait()
            copied.seek(0)
            self.assertEqual(copied.read(), before)
        self.assertEqual(self.steps(), [7, 8])

    # The disk behind the memory.

    def test_the_disk_has_what_all_memory_lost(self):
        disk = self.folder("disk")
        self.saved(*range(1, 12), disk=disk, to_disk_every=3)
        self.assertEqual(self.steps(disk), [6, 9])
        self.assertIn("step 11 from memory", self.loaded(11, disk=disk))
        shutil.rmtree(self.node)
        os.mkdir(self.node)
        self.assertIn("restored step 9 from disk", self.loaded(9, disk=disk))
        self.saved(20, disk=disk)
        self.assertIn("step 20 from memory", self.loaded(20, disk=disk))
        flip(self.pieces()[-1], 0)
        self.assertRegex(self.loaded(9, disk=disk), "restored step 9 from disk in .* s; step 20 is not whole")

    def test_a_disk_that_fails_is_a_warning(self):
        disk = os.path.join(self.dir, "disk")
        with open(disk, "w", encoding="ascii"):
            pass
        memory = Memory(every=1, disk=disk, to_disk_every=1)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            memory.load({})
            for step in (1, 2, 3):
                self.assertTrue(memory.save({"step": step}, step))
            memory.wait()
        self.assertEqual(said.getvalue().count("is not on the disk"), 1, said.getvalue())


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))


@unittest.skipUnless(HAS_TORCH, "this Python has no torch")
class Ranks(Case):
    """Of torch.distributed."""

    meetings = 0

    def run_ranks(self, code, nodes, **more):
        """The ranks of each node, a list of (local size, its variables); all they print on stderr."""
        Ranks.meetings += 1
        size = sum(local for local, _ in nodes)
        ranks = []
        for node, (local_size, variables) in enumerate(nodes):
            for local_rank in range(local_size):
                ranks.append({"RANK": str(len(ranks)), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local_rank),
                              "LOCAL_WORLD_SIZE": str(local_size), "GROUP_RANK": str(node), **variables})
        env = package_case.environment(
            MEETING=os.path.join(self.dir, f"meeting-{self.meetings}"), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
            GLOO_SOCKET_IFNAME="lo", PYTHONWARNINGS="ignore", **{"DDPRUN_MEMORY": self.node, **more})
        done = subprocess.run([sys.executable, "-c", FORK, json.dumps(ranks), HEAD + textwrap.dedent(code) + "\nend()\n"], env=env,
                              text=True, capture_output=True, timeout=2 * ddprun_case.PATIENCE, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "right\n" * size), done.stderr)
        return done.stderr

    def node_of(self, name):
        """The variables of a played node."""
        return {"DDPRUN_MEMORY": self.folder(name, "own"), "DDPRUN_MEMORY_COPIES": self.folder(name, "copies")}

    def test_what_ranks_give_each_other_may_be_short_or_long(self):
        self.run_ranks("""
            from ddprun.checkpoint._ranks import ranks_of
            for length in (0, 4000, 4096 - 8 - 20, 4096, 100_000):
                given = [b"x" * (length + rank) for rank in range(SIZE)]
                assert ranks_of().gather(given[RANK]) == given
                assert ranks_of().gather(given[RANK] if RANK else None) == [None] + given[1:]
        """, [(3, {})])

    def test_every_bit_is_loaded(self):
        self.run_ranks("""
            torch.manual_seed(3)
            def parts():
                net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 5))
                image = torch.nn.Conv2d(8, 70, 9).to(memory_format=torch.channels_last)
                tied = torch.nn.Linear(5, 5)
                tied.again = tied.weight
                adam = torch.optim.AdamW([*net.parameters(), *image.parameters()], 0.01)
                return {"net": net, "image": image, "tied": tied, "adam": adam,
                        "schedule": torch.optim.lr_scheduler.StepLR(adam, 2)}
            def train(state):
                state["adam"].zero_grad()
                loss = state["net"](torch.randn(4, 300)).square().mean() + state["image"](torch.randn(2, 8, 12, 12)).square().mean()
                loss.backward()
                state["adam"].step()
                state["schedule"].step()
            wide = torch.randn(600, 700)
            values = {
                "half": torch.randn(1000).half(), "brain": torch.randn(7, 9).bfloat16(), "bool": torch.rand(33) > 0.5,
                "complex": torch.randn(5, dtype=torch.complex64).conj(), "int8": torch.arange(-5, 5, dtype=torch.int8), "scalar": torch.tensor(3.5),
                "double": torch.randn(3, dtype=torch.float64), "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
                "none": torch.empty(0, 4), "turned": wide.t(), "part": wide[::2, ::3], "same": wide[:1].expand(500, 700),
                "parameter": torch.nn.Parameter(torch.randn(2)), "bytes": b"1", "text": "ü", "list": [torch.ones(2), {"deep": torch.zeros(1)}],
            }
            class Keeper:  # Of what it is given, as optimizers of newer torches are.
                def __init__(self):
                    self.kept = {"large": wide.clone(), "small": torch.ones(3)}
                def state_dict(self):
                    return self.kept
                def load_state_dict(self, state):
                    self.kept = state
            saved = parts()
            for _ in range(3):
                train(saved)
            saved["keeper"] = Keeper()
            memory = ddprun.checkpoint.Memory(every=1)
            memory.load({})
            for step in (1, 2):
                assert memory.save({**saved, **values}, step)
            memory.wait()
            found = {**parts(), "keeper": Keeper(), "half": torch.empty(1000).half()}
            half = found["half"]
            assert ddprun.checkpoint.Memory().load(found) == 2
            assert found["half"] is half, "in place"
            def same(one, other, path):
                if isinstance(one, torch.Tensor):
                    assert one.dtype == other.dtype and one.shape == other.shape, path
                    one, other = (each.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
                    assert torch.equal(one, other), path
                elif isinstance(one, dict):
                    assert list(one) == list(other), path
                    for key in one:
                        same(one[key], other[key], f"{path}.{key}")
                elif isinstance(one, (list, tuple)):
                    for number, (a, b) in enumerate(zip(one, other)):
                        same(a, b, f"{path}[{number}]")
                else:
                    assert one == other, path
            for name in saved:
                same(saved[name].state_dict(), found[name].state_dict(), name)
            same(values, {name: found[name] for name in values}, "values")
            assert found["image"].weight.is_contiguous(memory_format=torch.channels_last)
            # What was loaded has memory of its own: saves after it change nothing.
            moments = [each["exp_avg"].clone() for each in found["adam"].state.values()]
            later = {**parts(), "keeper": Keeper(), **values}
            later["keeper"].kept = {"large": wide + 1, "small": torch.zeros(3)}
            for step in range(3, 9):
                train(later)
                memory.save(later, step)
            memory.wait()
            same(saved["keeper"].kept, found["keeper"].kept, "keeper")
            assert all(torch.equal(a, b["exp_avg"]) for a, b in zip(moments, found["adam"].state.values()))
            # And training goes on as if nothing had been.
            torch.manual_seed(9); train(saved)
            torch.manual_seed(9); train(found)
            same(saved["net"].state_dict(), found["net"].state_dict(), "after a step")
        """, [(1, {})])

    def test_a_tensor_that_is_divided_among_ranks_is_refused(self):
        self.run_ranks("""
            class Divided(torch.Tensor):
                placements = ()
            memory = ddprun.checkpoint.Memory()
            refused(ddprun.BadArgument, "ddprun.checkpoint.dcp", memory.save, {"a": torch.ones(2).as_subclass(Divided)}, 1, now=True)
        """, [(1, {})])

    SAVES = """
        memory = ddprun.checkpoint.Memory(every=1)
        memory.load({})
        for step in (1, 2, 3):
            assert memory.save({"large": numbers(step), "small": torch.tensor([step]), "step": step}, step)
        memory.wait()
    """
    LOADS = """
        state = {}
        step = ddprun.checkpoint.Memory().load(state)
        assert step == int(os.environ["WANTED"]), step
        if step:
            assert torch.equal(state["large"], numbers(step)) and state["small"].item() == step == state["step"]
    """

    def test_each_rank_of_a_node_writes_a_part_and_any_number_reads(self):
        self.run_ranks(self.SAVES, [(3, {})])
        self.assertEqual([os.path.basename(path) for path in self.pieces()], [f"piece-{n}-of-3" for n in range(3)] * 2)
        sizes = [os.path.getsize(path) for path in self.pieces()]
        self.assertLess(max(sizes), 1_200_000 / 3 + 40_000)
        for size in (1, 2, 4):
            said = self.run_ranks(self.LOADS, [(size, {})], WANTED="3")
            self.assertEqual(said.count("restored step 3 from memory"), 1, said)
        os.unlink(self.pieces()[-2])
        self.assertIn("; step 3 is not whole", self.run_ranks(self.LOADS, [(2, {})], WANTED="2"))

    def test_ranks_go_on_together_with_another_number(self):
        self.run_ranks(self.SAVES, [(3, {})])
        self.run_ranks(self.LOADS + self.SAVES.replace("(1, 2, 3)", "(4, 5, 6, 7)"), [(2, {})], WANTED="3")
        self.assertEqual([os.path.basename(path) for path in self.pieces()], [f"piece-{n}-of-2" for n in range(2)] * 2)
        self.run_ranks(self.LOADS, [(1, {})], WANTED="7")

    def test_a_node_without_anything_gets_it_from_another(self):
        one, two, new = self.node_of("one"), self.node_of("two"), self.node_of("new")
        self.run_ranks(self.SAVES, [(2, one), (2, two)])
        self.assertEqual(len(self.pieces(two["DDPRUN_MEMORY"])), 4, "each has all")
        said = self.run_ranks(self.LOADS, [(2, new), (2, two)], WANTED="3")
        self.assertIn("restored step 3 from another node", said)

    def test_nodes_of_unequal_size(self):
        one, two = self.node_of("one"), self.node_of("two")
        self.run_ranks(self.SAVES, [(1, one), (3, two)])
        self.run_ranks(self.LOADS, [(3, one), (1, two)], WANTED="3")

    def test_damage_in_one_node_is_mended_by_another(self):
        one, two = self.node_of("one"), self.node_of("two")
        self.run_ranks(self.SAVES, [(2, one), (2, two)])
        flip(self.pieces(one["DDPRUN_MEMORY"])[-1], 100)
        said = self.run_ranks(self.LOADS, [(2, one), (2, two)], WANTED="3")
        self.assertIn("is damaged", said)
        flip(self.pieces(two["DDPRUN_MEMORY"])[-1], 100)
        self.run_ranks(self.LOADS, [(2, one), (2, two)], WANTED="2")

    SHARDED_SAVES = """
        memory = ddprun.checkpoint.Memory(every=1, sharded=True)
        memory.load({})
        for step in (1, 2, 3):
            assert memory.save({"mine": numbers(step + 100 * RANK), "step": step}, step)
        memory.wait()
    """
    SHARDED_LOADS = """
        state = {}
        step = ddprun.checkpoint.Memory(sharded=True, disk=os.environ.get("DISK")).load(state)
        assert step == int(os.environ["WANTED"]), step
        if step:
            assert torch.equal(state["mine"], numbers(step + 100 * RANK)) and state["step"] == step
    """

    def test_state_of_each_rank_and_a_node_that_is_replaced(self):
        one, two, new = self.node_of("one"), self.node_of("two"), self.node_of("new")
        self.run_ranks(self.SHARDED_SAVES, [(2, one), (2, two)])
        self.run_ranks(self.SHARDED_LOADS, [(2, one), (2, two)], WANTED="3")
        # As the agent of node one keeps it.
        shutil.copytree(two["DDPRUN_MEMORY"], os.path.join(one["DDPRUN_MEMORY_COPIES"], "node 2"))
        said = self.run_ranks(self.SHARDED_LOADS, [(2, one), (2, new)], WANTED="3")
        self.assertIn("restored step 3 from memory", said)
        # Where a piece of its newest generation is not there yet, the one before it is loaded, on all ranks.
        os.unlink(self.pieces(one["DDPRUN_MEMORY_COPIES"])[-1])
        self.run_ranks(self.SHARDED_SAVES.replace("memory.load({})", ""), [(2, one), (2, new)])
        shutil.rmtree(new["DDPRUN_MEMORY"])
        os.mkdir(new["DDPRUN_MEMORY"])
        said = self.run_ranks(self.SHARDED_LOADS, [(2, one), (2, new)], WANTED="0")
        self.assertIn("pieces are missing", said)

    def test_a_copy_that_lags_behind(self):
        one, two, new = self.node_of("one"), self.node_of("two"), self.node_of("new")
        self.run_ranks(self.SHARDED_SAVES, [(2, one), (2, two)])
        copy = os.path.join(one["DDPRUN_MEMORY_COPIES"], "node 2")
        shutil.copytree(two["DDPRUN_MEMORY"], copy)
        os.unlink(self.pieces(copy)[-1])
        said = self.run_ranks(self.SHARDED_LOADS, [(2, one), (2, new)], WANTED="2")
        self.assertIn("; step 3 is not whole", said)

    def test_another_number_of_ranks_with_states_of_their_own_is_refused(self):
        self.run_ranks(self.SHARDED_SAVES, [(2, {})])
        self.run_ranks("""
            refused(ddprun.BadArgument, "was saved by 2 ranks, each with a state of its own, and there are 3 now",
                    ddprun.checkpoint.Memory(sharded=True).load, {})
        """, [(3, {})])

    def test_sharded_state_on_the_disk(self):
        one, two = self.node_of("one"), self.node_of("two")
        disk = self.folder("disk")
        self.run_ranks(self.SHARDED_SAVES.replace("sharded=True", "sharded=True, disk=os.environ['DISK'], to_disk_every=2"),
                       [(2, one), (2, two)], DISK=disk)
        for node in (one, two):
            shutil.rmtree(node["DDPRUN_MEMORY"])
            os.mkdir(node["DDPRUN_MEMORY"])
        said = self.run_ranks(self.SHARDED_LOADS, [(2, one), (2, two)], WANTED="2", DISK=disk)
        self.assertIn("restored step 2 from disk", said)

    def test_a_folder_that_is_full_on_one_node_only(self):
        one, two = self.node_of("one"), self.node_of("two")
        two["DDPRUN_MEMORY_SIZE"] = "3000000"
        said = self.run_ranks("""
            memory = ddprun.checkpoint.Memory(every=1, sharded=True)
            memory.load({})
            for step in (1, 2):
                assert memory.save({"mine": numbers(step + 100 * RANK), "step": step}, step)
            for step in range(3, 9):
                assert not memory.save({"mine": numbers(step + 100 * RANK), "step": step}, step)
            memory.wait()
        """, [(1, one), (1, two)])
        self.assertEqual(said.count("cannot save"), 1, said)
        self.run_ranks(self.SHARDED_LOADS, [(1, one), (1, two)], WANTED="2")

    def test_a_run_under_ddprun_goes_on_where_it_was_killed(self):
        folder = self.folder("run")
        script = os.path.join(self.dir, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent("""
                import os, signal
                import torch, torch.distributed as dist
                import ddprun.checkpoint
                torch.set_num_threads(1)
                dist.init_process_group("gloo")
                torch.manual_seed(1)
                ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
                adam = torch.optim.Adam(ddp.parameters())
                checkpoint = ddprun.checkpoint.Memory(every=4)
                state = {"model": ddp, "adam": adam}
                restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
                first = checkpoint.load(state)
                for step in range(first, 20):
                    torch.manual_seed(10 * step + dist.get_rank())
                    adam.zero_grad()
                    ddp(torch.randn(2, 300)).square().mean().backward()
                    if (restarts, step, dist.get_rank()) == (0, 10, 1) and os.environ["DIE"]:
                        os.kill(os.getpid(), signal.SIGKILL)
                    adam.step()
                    checkpoint.save(state, step + 1)
                print("end", first, sum(p.double().sum().item() for p in ddp.parameters()), flush=True)
                os._exit(0)
            """))
        ends = []
        for die in ("", "1"):
            done = subprocess.run([ddprun_case.DDPRUN, "--nproc-per-node", "2", "--max-restarts", "1", script], text=True,
                                  capture_output=True, check=False, timeout=4 * ddprun_case.PATIENCE, env=package_case.environment(
                                      DIE=die, DDPRUN_MEMORY=self.folder(folder, "killed" if die else "whole"), OMP_NUM_THREADS="1",
                                      GLOO_SOCKET_IFNAME="lo", PYTHONWARNINGS="ignore", CUDA_VISIBLE_DEVICES=""))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            ends.append(set(re.findall(r"end (\d+) (\S+)", done.stdout)))
        ((first, wanted),), ((again, found),) = ends
        self.assertEqual(first, "0")
        self.assertIn(again, ("4", "8"))  # The one that was under way may have been whole on both.
        self.assertEqual(found, wanted)


# Forks children that save as fast as they can, and kills each at a moment of its own.
CAMPAIGN = """
import os, random, select, signal, sys, time
kind, seed, kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if kind == "torch":
    import torch
    torch.set_num_threads(1)
from ddprun.checkpoint import Memory
random.seed(seed)

def state_of(step):
    if kind == "torch":
        return {"step": step, "large": torch.full((200_000,), float(step)), "small": torch.full((9,), step)}
    return {"step": step, "large": step.to_bytes(8, "little") * 9000}

def check(state, step):
    assert state["step"] == step, (state["step"], step)
    if kind == "torch":
        assert bool((state["large"] == step).all()) and bool((state["small"] == step).all()), step
    else:
        assert state["large"] == step.to_bytes(8, "little") * 9000

def work(pipe):
    memory = Memory(every=1)
    state = {}
    step = memory.load(state)
    if step:
        check(state, step)
    os.write(pipe, f"loaded {step}\\n".encode())
    while True:
        step += 1
        memory.save(state_of(step), step)
        if step % 3 == 0:
            memory.wait()
            os.write(pipe, f"saved {step}\\n".encode())

safe, moved = 0, 0
for number in range(kills):
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(source)
            sys.stderr = open(os.devnull, "w")
            work(sink)
        except BaseException as error:
            os.write(sink, f"failed {error!r}\\n".encode())
        os._exit(1)
    os.close(sink)
    text = b""
    while b"loaded" not in text and b"failed" not in text:
        text += os.read(source, 4096)
    time.sleep(random.random() ** 2 * 0.1)  # The moment of the kill is what is random here.
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while part := os.read(source, 65536):
        text += part
    os.close(source)
    lines = text.decode().splitlines()
    assert not any(line.startswith("failed") for line in lines), lines
    loaded = int(lines[0].split()[1])
    assert loaded >= safe, f"kill {number}: {loaded} was loaded, and {safe} was whole"
    moved += loaded > safe
    safe = max([loaded] + [int(line.split()[1]) for line in lines[1:]])
print("kills", kills, "steps", safe, "newer", moved)
"""


class Kills(Case):
    """SIGKILL at any moment of a save leaves the newest whole generation."""

    def campaign(self, kind):
        seed = random.randrange(10**6)
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", CAMPAIGN, kind, str(seed), str(KILLS)], capture_output=True,
                              text=True, check=False, env=package_case.environment(DDPRUN_MEMORY=self.node), timeout=600)
        self.assertEqual(done.returncode, 0, f"seed {seed}: {done.stdout}{done.stderr}")
        print(kind, done.stdout.strip())
        self.assertLess(sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(self.node)
                            for name in names), 4 * 900_000)

    def test_of_bytes(self):
        self.campaign("bytes")

    def test_of_tensors(self):
        if not HAS_TORCH:
            self.skipTest("this Python has no torch")
        self.campaign("torch")


if __name__ == "__main__":
    ddprun_case.main()
