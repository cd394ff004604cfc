"""The Python package against this build's library and program: what ranks exchange, what errors carry, and what
becomes of bad input. deploy/wheel.sh --check uses the wheel itself."""

import array
import copy
import os
import re
import pickle
import subprocess
import sys
import textwrap
import unittest

import ddprun_case
from ddprun_case import BIN, PATIENCE, DdprunCase

PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../python"))
LIBRARY = os.path.join(os.path.dirname(BIN), "worker_sdk", "libddprun.so")

sys.path.insert(0, PACKAGE)
os.environ.setdefault("DDPRUN_LIB", LIBRARY)

import ddprun  # noqa: E402  pylint: disable=wrong-import-position
from ddprun import _errors, _library, _types  # noqa: E402  pylint: disable=wrong-import-position


def environment(**more):
    return {**ddprun_case.clean_environment(), "PYTHONPATH": PACKAGE, "DDPRUN_LIB": LIBRARY,
            "PATH": BIN + os.pathsep + os.environ["PATH"], **more}


def run_python(code, *arguments, **more):
    return subprocess.run([sys.executable, "-B", "-c", textwrap.dedent(code), *arguments], env=environment(**more),
                          capture_output=True, text=True, timeout=PATIENCE, check=False)


class TwoRanks(DdprunCase):
    """Each test's script is run by two ranks under ddprun."""

    def ranks(self, code, nproc=2, **more):
        script = self.path("script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import array, os, sys, time\nimport ddprun\n" + textwrap.dedent(code))
        error_file = self.path("verdict.json")
        env = environment(PYTHON_EXEC=sys.executable, **more)
        return subprocess.run([ddprun_case.DDPRUN, "--nproc-per-node", str(nproc), "--error-file", error_file, script],
                              env=env, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)

    def test_every_operation_moves_what_it_promises(self):
        done = self.ranks("""
            with ddprun.init() as group:
                me, other = group.rank, 1 - group.rank
                assert (group.world_size, group.local_rank, group.restart_count) == (2, me, 0), group
                assert "rank" in repr(group) and group.backend == "shm"
                for code in "fdilqBbhHILQ":
                    values = array.array(code, [me + 1] * 5)
                    group.all_reduce(values)
                    assert values.tolist() == [3] * 5, values
                flags = memoryview(bytearray([me, 1, 0])).cast("?")
                group.all_reduce(flags)
                assert flags.tolist() == [True, True, False], flags.tolist()
                group.all_reduce(bits := array.array("H", [1 << me, 3, me]), op="bxor")
                assert bits.tolist() == [3, 0, 1], bits
                group.reduce(array.array("h", [me + 1, 5]), total := array.array("h", [0, 0]), root=1, op="prod")
                assert total.tolist() == ([2, 25] if me == 1 else [0, 0]), total
                group.reduce(total, total if me == 1 else None, root=1)
                assert total.tolist() == ([2, 25] if me == 1 else [0, 0]), total
                part = ddprun.init("file://" + os.environ["MEETING"], rank=me, world_size=2, host=f"host{me}")
                assert part.backend != "shm", part.backend  # As of two machines.
                part.close()
                values = array.array("d", [me, 10.0])
                group.all_reduce(values, op="avg")
                assert values.tolist() == [0.5, 10.0]
                group.all_reduce(memoryview(bytearray(0)), op="max")
                work = group.all_reduce_async(values, op="max")
                work.wait()
                assert work.done() and values.tolist() == [0.5, 10.0]
                text = bytearray(b"root" if me == 1 else b"none")
                group.broadcast(text, root=1)
                assert text == b"root"
                both = bytearray(4)
                group.all_gather(b"ab" if me == 0 else b"cd", both)
                assert both == b"abcd"
                group.all_to_all(b"xy" if me == 0 else b"zw", two := bytearray(2))
                assert two == (b"xz" if me == 0 else b"yw"), two
                group.reduce_scatter(array.array("i", [1, 2, 3, 4]), part := array.array("i", [0, 0]))
                assert part.tolist() == ([2, 4] if me == 0 else [6, 8])
                group.gather(bytes([me]), both[:2] if me == 0 else None)
                group.gather(bytes([me] * 2), both if me == 0 else None)
                assert me or both == bytes([0, 0, 1, 1])
                group.scatter(b"pqrs" if me == 0 else None, two)
                assert two == (b"pq" if me == 0 else b"rs")
                if me == 0:
                    group.send(b"hello", 1)
                else:
                    group.recv(five := bytearray(5), 0)
                    assert five == b"hello"
                part = group.split(0, key=-me)
                assert part.rank == other and group.split(-1) is None
                part.close()
                group.barrier(timeout=30)
            print("right", me)
        """, MEETING=self.path("meeting"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("right 0", done.stdout)
        self.assertIn("right 1", done.stdout)

    def test_every_operation_can_be_begun(self):
        done = self.ranks("""
            with ddprun.init() as group:
                me, other = group.rank, 1 - group.rank
                root = me == 1
                works = [
                    group.all_reduce_async(total := array.array("q", [me + 1]), op="prod"),
                    group.reduce_async(array.array("h", [me + 3]), least := array.array("h", [0]), root=1, op="min"),
                    group.reduce_scatter_async(array.array("i", [1, 10]), part := array.array("i", [0])),
                    group.broadcast_async(told := bytearray(b"abc" if root else b"..."), root=1),
                    group.all_gather_async(bytes([me]), both := bytearray(2)),
                    group.all_to_all_async(bytes([me, me + 10]), swapped := bytearray(2)),
                    group.gather_async(bytes([me + 5]), gathered := bytearray(2) if root else None, root=1),
                    group.scatter_async(b"xy" if root else None, scattered := bytearray(1), root=1),
                    group.barrier_async(timeout=60),
                    group.recv_async(first := bytearray(1), other, tag=7),  # Before the sends of either side.
                    group.recv_async(second := bytearray(1), other, tag=8),
                    group.send_async(bytes([20 + me]), other, tag=8),
                    group.send_async(bytes([10 + me]), other, tag=7),
                    group.send_async(b"s", 1) if me == 0 else group.recv_async(plain := bytearray(1), 0),
                ]
                for work in reversed(works):
                    work.wait(timeout=60)
                assert all(work.done() for work in works)
                assert total[0] == 2 and least[0] == (3 if root else 0), (total, least)
                assert part[0] == (20 if root else 2) and told == b"abc" and both == b"\\0\\1"
                assert swapped == bytes([0, 1] if me == 0 else [10, 11]), swapped
                assert gathered is None or gathered == bytes([5, 6])
                assert scattered == (b"y" if root else b"x"), scattered
                assert (first[0], second[0]) == (10 + other, 20 + other), (first, second)
                assert me == 0 or plain == b"s"
                try:
                    group.send_async(b"s", me)
                    print("sent")
                except ddprun.BadArgument as error:
                    assert error.operation == "send" and "itself" in str(error)
            print("right", me)
        """)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("right"), 2, done.stdout)
        self.assertNotIn("sent", done.stdout)

    def test_arrays_of_numpy_of_every_type(self):
        if subprocess.run([sys.executable, "-c", "import numpy"], capture_output=True, check=False).returncode != 0:
            self.skipTest("there is no numpy")
        done = self.ranks("""
            import numpy as np
            from ddprun import _types
            class Halves(np.ndarray):  # As ml_dtypes has arrays of bfloat16, without a buffer.
                @property
                def dtype(self):
                    return type("dtype", (), {"name": "bfloat16"})
                def view(self, kind):
                    assert kind == "uint16"
                    return np.asarray(self)
            with ddprun.init() as group:
                for name in _types.NUMBERS:
                    if name == "bfloat16":
                        continue
                    values = np.array([1, 0, 2 + group.rank]).astype(name)
                    both = np.array([1, 0, 2]).astype(name) + np.array([1, 0, 3]).astype(name)
                    group.all_reduce(values)
                    assert values.dtype.name == name and (values == both).all(), (name, values)
                turned = np.array([1j, 2], "complex64")
                group.all_reduce(turned, op="prod")
                assert (turned == [-1, 4]).all(), turned
                halves = np.array([0x3f80, 0x4000], "uint16").view(Halves)  # 1 and 2.
                group.all_reduce(halves)
                assert np.asarray(halves).tolist() == [0x4000, 0x4080], halves  # 2 and 4.
                for kind in ("longdouble", ">f4", "datetime64[s]", "S3"):
                    try:
                        group.all_reduce(np.zeros(2, kind))
                        print("taken", kind)
                    except ddprun.BadArgument as error:
                        assert "complex128" in str(error) or "no buffer protocol" in str(error), error
                print("right", group.rank)
        """)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("right"), 2, done.stdout)
        self.assertNotIn("taken", done.stdout)

    def test_what_ranks_tell_each_other_outside_collectives(self):
        done = self.ranks("""
            ddprun.install_crash_report()
            group = ddprun.init(host=f"host{os.environ['RANK']}")
            me, store = group.rank, group.store
            assert (group.local_world_size, group.group_rank) == (2, 0) and len(group.run_id) > 0
            assert [group.host_of(r) for r in (0, 1)] == ["host0", "host1"]
            if me == 0:
                store.set("key", b"a\\0b")
                assert not store.erase("no such key")
            assert store.get("key") == b"a\\0b"
            store.wait(["key"], timeout=60)
            store.add("sum", 1 << 40)
            group.barrier()
            assert store.add("sum", 0) == 2 << 40 and store.check(["key", "sum"]) and not store.check(["none"])
            try:
                store.get("none", timeout=0.05)
                print("found")
            except ddprun.TimedOut as error:
                assert error.operation == "store_get", error.operation
            assert group.broadcast_bytes(b"x\\0y" if me == 1 else b"ignored", root=1) == b"x\\0y"
            assert group.all_gather_bytes(b"ab"[:me]) == [b"", b"a"]
            assert group.gather_bytes(bytearray([me] * (2 - me))) == ([bytes(2), bytes([1])] if me == 0 else [])
            assert group.broadcast_bytes() == b""
            assert group.average(me) == 0.5
            seeds = group.all_gather_bytes(str(group.shared_seed()).encode())
            assert seeds[0] == seeds[1], seeds
            group.set_phase("evaluate")
            group.expect_steps(10)
            metrics = ddprun.Metrics()
            metrics.add("loss", me, weight=1 + 2 * me)
            if me == 0:
                metrics.add("accuracy", 0.5)
            found = metrics.reduce(group)
            assert list(found) == ["accuracy", "loss"], found
            assert found["loss"] == ddprun.Metric(average=0.75, sum=3, weight=4, min=0, max=1), found
            assert metrics.reduce(group) == {}
            if me == 1:
                store.wait(["go on"])
            work = group.all_reduce_async(values := array.array("i", [1]))
            if me == 0:
                try:
                    work.wait(timeout=0.05)
                    print("ended")
                except ddprun.TimedOut as error:
                    assert "all_reduce has not ended within 0.05 s" in str(error)
                store.set("go on", b"")
            work.wait(timeout=60)
            assert values[0] == 2
            smaller = group.shrink(lost=[1]) if me == 0 else None
            assert me or (smaller.world_size, smaller.all_gather_bytes(b"me")) == (1, [b"me"])
            print("right", me)
        """)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("right"), 2, done.stdout)
        self.assertNotIn("found", done.stdout)
        self.assertNotIn("ended", done.stdout)

    def test_an_error_carries_rank_host_operation_and_peer(self):
        done = self.ranks("""
            group = ddprun.init()
            try:
                group.all_reduce(array.array("f", [0] * (4 + group.rank)), timeout=60)
            except ddprun.Mismatch as error:
                print(f"got {error.rank} {error.host} {error.operation} {error.peer}")
                assert isinstance(error, ddprun.Error) and "all_reduce" in str(error)
            try:
                group.barrier()
            except ddprun.Aborted as error:
                print("then", error.operation)
        """, DDPRUN_HOST="here")
        for rank in (0, 1):
            self.assertIn(f"got {rank} here all_reduce ", done.stdout, done.stderr)
        self.assertIn("then barrier", done.stdout)

    def test_a_program_that_ends_completes_what_is_under_way(self):
        done = self.ranks("""
            group = ddprun.init()
            values = array.array("f", [1.0] * 4)
            if group.rank == 0:
                work = group.all_reduce_async(values)
                open(os.environ["MARK"], "w").close()
            else:
                while not os.path.exists(os.environ["MARK"]):
                    time.sleep(0.01)
                group.all_reduce(values)
                print("sum", values[0])
        """, MARK=self.path("mark"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sum 2.0", done.stdout)

    def test_a_group_is_not_freed_while_another_thread_is_in_a_call(self):
        done = self.ranks("""
            import threading
            group = ddprun.init()
            into = bytearray(5)
            def waits_in(name):
                return any(frame.f_code.co_name == name for frame in sys._current_frames().values())
            def receive():
                group.recv(into, 1)
                print("received", bytes(into))
            if group.rank == 0:
                thread = threading.Thread(target=receive)
                thread.start()
                while not waits_in("_call"):
                    time.sleep(0.01)
                closing = threading.Thread(target=group.close)
                closing.start()
                while "closed" not in repr(group):
                    time.sleep(0.01)
                try:
                    group.barrier()
                except ddprun.BadArgument as error:
                    print("refused:", error)
                closing.join(0.3)  # It cannot end now.
                assert closing.is_alive()
                open(os.environ["MARK"], "w").close()
                closing.join(), thread.join()
            else:
                while not os.path.exists(os.environ["MARK"]):
                    time.sleep(0.01)
                group.send(b"hello", 0)
        """, MARK=self.path("mark"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("received b'hello'", done.stdout, done.stderr)
        self.assertIn("refused: the group is closed", done.stdout)

    def test_a_program_may_end_while_a_thread_of_it_is_in_a_call(self):
        done = self.ranks("""
            import threading
            group = ddprun.init()
            def receive():
                try:
                    group.recv(bytearray(1), 1)
                except ddprun.Aborted:
                    print("aborted")
            if group.rank == 0:
                threading.Thread(target=receive, daemon=True).start()
                while not any(frame.f_code.co_name == "_call" for frame in sys._current_frames().values()):
                    time.sleep(0.01)
            else:
                while not os.path.exists(os.environ["MARK"]):
                    time.sleep(0.01)
            import atexit
            atexit._run_exitfuncs()
            open(os.environ["MARK"], "w").close()
            print("ended", group)
        """, MARK=self.path("mark"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("aborted", done.stdout)
        self.assertEqual(done.stdout.count("ended <ddprun.ProcessGroup closed>"), 2, done.stdout)

    def test_a_rank_that_exits_with_work_under_way_ends_soon_and_is_the_first_cause(self):
        done = self.ranks("""
            from ddprun import _handle
            _handle.EXIT_LIMIT_S = 0.5
            group = ddprun.init(op_timeout=20)
            while group.rank == 0:
                time.sleep(1)  # Until it is stopped.
            work = group.all_reduce_async(array.array("f", [0] * 4))
            sys.exit(3)
        """)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("which other ranks did not complete within 0.5 s; they are aborted", done.stdout + done.stderr)
        self.assertRegex(done.stderr, "rank 1 .* failed first: .* exited with 3")

    def test_a_rank_that_raises_ends_at_once_and_is_the_first_cause(self):
        done = self.ranks("""
            group = ddprun.init()
            while group.rank == 0:
                time.sleep(1)  # Until it is stopped.
            values = array.array("f", [0] * 4)
            work = group.all_reduce_async(values, timeout=3000)
            raise ValueError("no such data")
        """)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("rank 1", done.stderr)
        self.assertIn("no such data", done.stderr)

    def test_a_rank_that_raises_does_not_wait_for_its_peers(self):
        """Without a launcher that would stop them."""
        code = """
            import array, sys, ddprun
            rank = int(sys.argv[1])
            group = ddprun.init("file://" + sys.argv[2], rank=rank, world_size=2, op_timeout=3000)
            if rank == 0:
                sys.stdin.read()  # Until the other has ended.
            else:
                work = group.all_reduce_async(array.array("f", [0] * 4))
                raise ValueError("no such data")
        """
        meeting = self.path("meeting")
        command = [sys.executable, "-B", "-c", textwrap.dedent(code)]
        with subprocess.Popen([*command, "0", meeting], env=environment(), stdin=subprocess.PIPE) as first:
            try:
                second = run_python(code, "1", meeting)
            finally:
                first.kill()
        self.assertEqual(second.returncode, 1)
        self.assertIn("no such data", second.stderr)

    def test_a_deadline_passes(self):
        done = self.ranks("""
            group = ddprun.init()
            if group.rank == 0:
                try:
                    group.barrier(timeout=0.2)
                except TimeoutError as error:
                    print("late:", type(error).__name__)
                open(os.environ["MARK"], "w").close()
            while not os.path.exists(os.environ["MARK"]):
                time.sleep(0.01)
        """, MARK=self.path("mark"))
        self.assertIn("late: TimedOut", done.stdout, done.stderr)

    def test_launch_returns_results_and_raises_the_verdict(self):
        module = self.path("jobs.py")
        with open(module, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent("""
                import os, sys
                import ddprun

                def square(value):
                    with ddprun.init() as group:
                        group.barrier()
                    return int(os.environ["RANK"]), value * value

                def leave(rank):
                    if int(os.environ["RANK"]) == rank:
                        sys.exit(9)

                if __name__ == "__main__":
                    print(ddprun.launch(square, (7,), nproc=3))
                    try:
                        ddprun.launch(leave, (1,))
                    except ddprun.RunError as error:
                        print("failed:", error.rank, error.fault, error.exit_code, str(error)[:6])
                    try:
                        ddprun.launch(os._exit, (0,))
                    except ddprun.RunError as error:
                        print("nothing:", error)
                    try:
                        ddprun.launch(lambda: 0)
                    except ValueError as error:
                        print("refused:", error)
            """))
        done = subprocess.run([sys.executable, "-B", module], env=environment(), capture_output=True, text=True,
                              timeout=2 * PATIENCE, check=False)
        self.assertIn("[(0, 49), (1, 49), (2, 49)]", done.stdout, done.stderr)
        self.assertIn("failed: 1 exit 9 rank 1", done.stdout)
        self.assertIn("nothing: rank 0 ended without a result", done.stdout)
        self.assertIn("refused: the function and its arguments must be picklable", done.stdout)

    def test_launch_from_a_notebook(self):
        """Whatever of a notebook the call refers to, it is taken by value, or refused before a process starts."""
        code = """
            import builtins, functools, sys
            import ddprun
            class Point:
                def __init__(self, x):
                    self.x = x
            def twice(value):
                return 2 * value
            def moved(point):
                point.x += 1
                return point
            for call in ((builtins.id, (Point(1),)), (functools.partial(twice, 4), ()), (twice, (4,))):
                try:
                    print("got", ddprun.launch(*call, nproc=1))
                except ValueError as error:
                    print("refused:", error)
            print("plain", ddprun.launch(functools.partial(max, 3), (5,), nproc=2))
            if "cloudpickle" in sys.modules and hasattr(sys.modules["cloudpickle"], "CloudPickler"):
                found, = ddprun.launch(moved, (Point(1),), nproc=1)
                print("point", found.x, type(found) is Point)
        """
        done = run_python("import sys; sys.modules['cloudpickle'] = None\n" + textwrap.dedent(code))
        for name in ("Point", "twice", "twice"):
            self.assertIn(f"refused: {name} was defined interactively: put it into a module, or install cloudpickle",
                          done.stdout, done.stderr)
        self.assertIn("plain [5, 5]", done.stdout, done.stderr)
        os.mkdir(self.path("site"))
        with open(self.path("site/cloudpickle.py"), "w", encoding="utf-8") as file:
            file.write("import operator, pickle\ndef dumps(call):\n    return pickle.dumps((operator.mul, (6, 7)))\n"
                       "if 'RANK' in __import__('os').environ:\n    dumps = pickle.dumps\n")
        done = run_python(code, PYTHONPATH=PACKAGE + os.pathsep + self.path("site"))
        self.assertEqual(done.stdout.count("got [42]"), 3, done.stdout + done.stderr)
        try:
            import cloudpickle  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
        except ImportError:
            return
        done = run_python(code)
        self.assertEqual(done.stdout.count("got [8]"), 2, done.stdout + done.stderr)
        self.assertIn("point 2 True", done.stdout)

    def test_a_ddprun_of_an_environment_runs_its_interpreter(self):
        bin_folder = self.path("env/bin")
        os.makedirs(bin_folder)
        open(self.path("env/pyvenv.cfg"), "w", encoding="utf-8").close()
        copy = os.path.join(bin_folder, "ddprun")
        try:
            os.link(ddprun_case.DDPRUN, copy)
        except OSError:
            subprocess.run(["cp", ddprun_case.DDPRUN, copy], check=True)
        own = os.path.join(bin_folder, "python3")
        with open(own, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho own\n")
        os.chmod(own, 0o755)
        script = self.path("script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("print('of PATH')")
        said = [subprocess.run([copy, script], env={**environment(), **more}, capture_output=True, text=True,
                               timeout=PATIENCE, check=False).stdout for more in ({}, {"PYTHON_EXEC": sys.executable})]
        self.assertIn("own", said[0])
        self.assertIn("of PATH", said[1])


class Tables(unittest.TestCase):
    """What the package repeats of the C interface."""

    def test_element_types_are_those_of_the_header(self):
        with open(os.path.join(PACKAGE, "../worker_sdk/include/ddprun/c/c_base.h"), encoding="utf-8") as file:
            text = file.read()
        listed = re.search(r"DDPRUN_F32 = 0.*?}", text, flags=re.S).group()
        short = {"float": "F", "bfloat": "BF", "int": "I", "uint": "U", "bool": "BOOL", "complex": "C"}
        named = [short[name.rstrip("0123456789")] + name.lstrip("abcdefghijklmnopqrstuvwxyz") for name in _types.NUMBERS]
        self.assertEqual(re.findall(r"DDPRUN_(\w+) = ", listed), named)


class BadInput(unittest.TestCase):
    """A rank alone: whatever it passes is refused with a sentence before anything is sent."""

    @classmethod
    def setUpClass(cls):
        cls.group = ddprun.init()

    @classmethod
    def tearDownClass(cls):
        cls.group.close()

    def refused(self, sentence, call, *arguments, **options):
        with self.assertRaises(ddprun.BadArgument) as caught:
            call(*arguments, **options)
        self.assertIn(sentence, str(caught.exception))

    def test_arrays(self):
        reduce = self.group.all_reduce
        self.refused("list has no buffer protocol", reduce, [1.0])
        self.refused("the bytes cannot be written to", reduce, b"abc")
        self.refused("not contiguous", reduce, memoryview(bytearray(8))[::2])
        self.refused("elements of format 'P' and 8 bytes are not supported; supported are float32, float64",
                     reduce, memoryview(bytearray(8)).cast("P"))
        self.refused("an average of integers is not defined", reduce, memoryview(bytearray(1)).cast("?"), op="avg")
        self.refused("op 'mean' is not one of sum, avg", reduce, bytearray(1), op="mean")
        self.refused("timeout must be a positive number", self.group.barrier, timeout=0)
        self.refused("rank 0 was passed without world_size", ddprun.init, rank=0)
        self.refused("world_size must not be negative", ddprun.init, rank=0, world_size=-2)
        self.refused("init_method must be a string without a zero character", ddprun.init, "file:///tmp/a\0b")
        self.refused("there is no rank 7", self.group.host_of, 7)
        self.refused("a key must be a string without a zero character, not b'key'", self.group.store.get, b"key")
        self.refused("delta must be a whole number of 64 bits", self.group.store.add, "key", 1 << 63)
        values = array.array("d", [4.0])
        reduce(values)  # The group is as good as before.
        self.assertEqual(values[0], 4.0)

    def test_ranks(self):
        self.refused("root must be a whole number of 32 bits, not 'x'", self.group.broadcast, bytearray(1), root="x")
        self.refused("color must be a whole number", self.group.split, 2**40)
        with self.assertRaises(ddprun.Error):
            self.group.broadcast(bytearray(1), root=5)

    def test_times(self):
        for limit in (0, -1.5, float("nan"), float("inf"), 1e17, 10**400, "3"):
            self.refused("timeout must be a positive number of seconds, at most 1e+09, not", self.group.barrier, timeout=limit)
        self.group.barrier(timeout=1e9)

    def test_numbers_that_do_not_fit_are_not_cut(self):
        elastic = ddprun.elastic
        batches = elastic.GlobalBatches(100, 4, shards=2)
        for sentence, call, *arguments in (
                ("rank 3 was passed without world_size", ddprun.init, None, None, 3),
                ("world_size must not be negative", ddprun.init, None, None, 0, -2),
                ("there is no rank 2 in a world_size of 2", ddprun.init, None, None, 2, 2),
                ("init_method must be a string", ddprun.init, b"env://"),
                ("init_method must be a string without a zero", ddprun.init, "file:///x\0y"),
                ("shards must be a whole number of 32 bits", elastic.GlobalBatches, 100, 4, 2**32 + 1),
                ("global_batch must be from", elastic.GlobalBatches, 100, 2**64 + 4),
                ("the length of a data set must be a whole number", elastic.GlobalBatches, [(7.5, 1)], 4),
                ("the shard must be a whole number of 32 bits", batches.shard, 0, 2**32),
                ("step must be from", batches.shard, 2**64, 0),
                ("step must be from", batches.batch_size, 2**64),
                ("shards must be a whole number of 32 bits", elastic.shards_of, 0, 4, 2**32 + 4),
                ("shard must be from 0", elastic.stream_seed, 1, 2, 2**32, 4),
                ("seed must be from", elastic.stream_seed, 2**64, 2, 1, 4),
                ("a size must be from 0", elastic.GradientSums, [4, -1]),
                ("nproc must be a whole number", ddprun.launch, len, ([],), 2.0),
                ("nproc must be from 1", ddprun.launch, len, ([],), 0)):
            self.refused(sentence, call, *arguments)
        self.assertEqual(elastic.stream_seed(-1, 2, 3, 4), elastic.stream_seed(2**64 - 1, 2, 3, 4))

    def test_closed_groups_and_forked_ones(self):
        done = run_python("""
            import os, ddprun
            group = ddprun.init()
            child = os.fork()
            if child == 0:
                try:
                    group.barrier()
                except ddprun.BadArgument as error:
                    os.write(1, str(error).encode())
                group.close()
                os._exit(0)
            os.waitpid(child, 0)
            group.close()
            group.close()
            try:
                group.barrier()
            except ddprun.BadArgument as error:
                print(error, group)
        """)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("from which this one was forked", done.stdout)
        self.assertIn("the group is closed <ddprun.ProcessGroup closed>", done.stdout)

    def test_init(self):
        self.refused("init_timeout must be", ddprun.init, init_timeout=-1)
        with self.assertRaises(ddprun.Error):
            ddprun.init(backend="carrier pigeon")


class Libraries(unittest.TestCase):
    """What is loaded, or not."""

    def test_importing_loads_nothing(self):
        done = run_python("""
            import sys, ddprun
            print("libddprun" in open("/proc/self/maps").read(), "torch" in sys.modules, ddprun.__version__ != "")
        """)
        self.assertEqual(done.stdout, "False False True\n", done.stderr)

    def test_a_missing_or_foreign_library_is_named(self):
        for path, sentence in (("/no/such.so", "/no/such.so does not exist: install ddprun's wheel"),
                               ("/etc/passwd", "/etc/passwd cannot be loaded")):
            done = run_python("import ddprun; ddprun.init()", DDPRUN_LIB=path)
            self.assertIn("LibraryError: " + sentence, done.stderr)

    def test_another_version_is_refused(self):
        class Fake:
            """A library with some of the functions."""

            def __init__(self, version):
                self.ddprun_c_api_version = lambda: version

        for fake, sentence in ((object(), "is not ddprun's library"), (Fake(99), "has version 99 of the C interface"),
                               (Fake(_library.C_API_VERSION), "lacks ddprun_version: it is older")):
            with self.assertRaisesRegex(ddprun.LibraryError, sentence):
                _library._declare(fake, "lib.so")  # pylint: disable=protected-access

    def test_a_library_whose_structs_are_smaller_is_refused(self):
        done = run_python("""
            import ctypes
            from ddprun import _group, _library, _structs
            class Longer(ctypes.Structure):
                _fields_ = (*_structs.InitOptions._fields_, ("later", ctypes.c_int64))
            _group.InitOptions = Longer
            _library._FUNCTIONS["group_init"][1][0] = ctypes.POINTER(Longer)
            _group.init()
        """)
        self.assertRegex(done.stderr, r"LibraryError: .*libddprun.so is of ddprun \d+\.\d+\.\d+, whose structs lack fields that "
                                      "this package, of .*, uses: install both from one wheel")

    def test_each_status_has_its_exception(self):
        header = os.path.join(PACKAGE, "../worker_sdk/include/ddprun/c/c_base.h")
        with open(header, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("DDPRUN_CORRUPT = 10,", text)
        self.assertIn(f"#define DDPRUN_C_API_VERSION {_library.C_API_VERSION}\n", text)
        self.assertEqual(sorted(_errors.BY_STATUS), list(range(1, 11)))

    def test_exceptions_pass_between_processes(self):
        parts = {"rank": 1, "host": "here", "operation": "send", "peer": 2}
        verdict = {"text": "rank 1 failed", "first_cause": {"rank": 1, "host": "here", "fault": "exit"}}
        made = [kind("a text", **parts) for kind in (*_errors.BY_STATUS.values(), ddprun.Error)]
        made += [ddprun.RunError("a text", verdict, 7),
                 ddprun.elastic.MembershipChanged("a text", status=11, **parts)]
        for error in made:
            for passed in (copy.copy(error), *(pickle.loads(pickle.dumps(error, n)) for n in range(2, 6))):
                self.assertIs(type(passed), type(error))
                self.assertEqual((str(passed), passed.args, vars(passed)), ("a text", ("a text",), vars(error)))

    def test_the_module_becomes_the_program(self):
        done = subprocess.run([sys.executable, "-B", "-m", "ddprun", "--version"], env=environment(),
                              capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertTrue(done.stdout.startswith("ddprun "), done.stdout + done.stderr)


if __name__ == "__main__":
    ddprun_case.main()
