"""Collectives and messages of ddprun.ProcessGroup: asynchronous, of uneven parts, with tags, reductions and deadlines."""

import subprocess
import sys

import package_case
import ddprun_case  # pylint: disable=wrong-import-order


class Operations(package_case.PackageCase):
    # Every blocking operation and its asynchronous form with the same arguments; `run` is both.
    EACH = """
        def run(name, *arguments, **options):
            if ASYNC:
                work = getattr(group, name + "_async")(*arguments, **options)
                work.wait(60)
                assert work.done() and work.exception() is None
                started, took = work.times()
                assert 0 < started < time.monotonic() and 0 <= took < 60
            else:
                getattr(group, name)(*arguments, **options)
        def ints(*values):
            return array.array("i", values)
        group = ddprun.init()
        me = group.rank
        assert group.backend == os.environ["WANTED"], group
        for ASYNC in (False, True):
            values = ints(me, 5)
            run("all_reduce", values, op="max")
            same(values, [2, 5])
            run("reduce", ints(me, 1), out := ints(0, 0) if me == 1 else None, 1)
            assert me != 1 or out.tolist() == [3, 3], out
            run("reduce", values := ints(me + 1), values, 0, "prod")
            assert me != 0 or values.tolist() == [6], values
            run("reduce_scatter", ints(*range(6)), part := ints(0, 0))
            same(part, [6 * me, 6 * me + 3])
            run("reduce_scatter", [ints(*[1] * n) for n in (1, 2, 0)], part := ints(*[0] * (1, 2, 0)[me]))
            same(part, [3] * len(part))
            run("broadcast", values := ints(me), 2)
            same(values, [2])
            run("all_gather", ints(me), out := ints(0, 0, 0))
            same(out, [0, 1, 2])
            run("all_gather", ints(*[me] * (me + 1)), outs := [ints(*[9] * (r + 1)) for r in range(3)])
            assert [list(each) for each in outs] == [[0], [1, 1], [2, 2, 2]], outs
            run("all_to_all", ints(*(10 * me + r for r in range(3))), out := ints(0, 0, 0))
            same(out, [10 * r + me for r in range(3)])
            run("all_to_all", [ints(*[me] * r) for r in range(3)], outs := [ints(*[9] * me) for _ in range(3)])
            assert [list(each) for each in outs] == [[r] * me for r in range(3)], outs
            run("gather", ints(me), out := ints(0, 0, 0) if me == 1 else None, 1)
            assert me != 1 or out.tolist() == [0, 1, 2], out
            run("gather", ints(me), outs := [ints(9) for _ in range(3)] if me == 0 else None)
            assert me != 0 or [list(each) for each in outs] == [[0], [1], [2]], outs
            run("scatter", ints(5, 6, 7) if me == 2 else None, part := ints(0), 2)
            same(part, [5 + me])
            run("scatter", [ints(5 + r) for r in range(3)] if me == 0 else None, part)
            same(part, [5 + me])
            run("barrier")
            run("all_reduce", bits := array.array("q", [1 << me, 7]), "bxor")
            same(bits, [7, 7])
            run("all_reduce", bits := array.array("q", [1 << me, 6]), "bor")
            same(bits, [7, 6])
            run("all_reduce", bits := array.array("q", [8 | 1 << me, 6]), "band")
            same(bits, [8, 6])
            run("all_reduce", values := array.array("d", [1, 10]), "premul_sum", factor=[0.5, 0.25, 1][me])
            same(values, [1.75, 17.5])
    """

    def test_each_operation_blocking_and_not(self):
        self.right(self.EACH, 3, WANTED="shm")

    def test_each_operation_over_the_network(self):
        self.right(self.EACH, 3, WANTED="gloo", DDPRUN_BACKEND="gloo")

    def test_messages_with_tags_match_by_tag_and_wait_for_nothing_else(self):
        self.right("""
            with ddprun.init() as group:
                if group.rank == 0:
                    held = group.recv_async(late := bytearray(1), 1)  # Holds up what comes after it in the queue.
                    works = {tag: group.recv_async(bytearray(2), 1, tag=tag) for tag in (7, 3)}
                    group.send(b"go", 1, tag=0)
                    for tag in (3, 7):
                        works[tag].wait()
                    held.wait()
                    assert late == b"z"
                    group.recv(first := bytearray(2), 1, tag=5)
                    group.recv(second := bytearray(2), 1, tag=5)
                    assert (first, second) == (b"k1", b"k2"), (first, second)
                else:
                    group.recv(bytearray(2), 0, tag=0)
                    group.send(b"c3", 0, tag=3)
                    group.send_async(b"c7", 0, tag=7).wait()
                    group.send(b"z", 0)
                    for word in (b"k1", b"k2"):
                        group.send(word, 0, tag=5)
        """)

    def test_arrays_live_as_long_as_the_operation(self):
        self.right("""
            import gc, weakref
            class Values(array.array):
                pass
            group = ddprun.init()
            values = Values("i", [group.rank + 1] * 1000)
            watched = weakref.ref(values)
            if group.rank == 0:
                work = group.all_reduce_async(values)
                refused(BufferError, "", values.append, 1)
                del values
                refused(ddprun.TimedOut, "it continues", work.wait, 0.01)
                gc.collect()
                assert watched() is not None
                group.send(b"1", 1, tag=1)
                work.wait()
                gc.collect()
                assert watched() is None
                work.wait()  # Once more does no harm.
            else:
                group.recv(bytearray(1), 0, tag=1)
                group.all_reduce(values)
                same(values, [3] * 1000)
        """)

    def test_a_wait_with_a_limit_leaves_the_operation_under_way(self):
        self.right("""
            group = ddprun.init()
            values = array.array("d", [1.0])
            if group.rank == 0:
                work = group.all_reduce_async(values, timeout=100)
                late = refused(ddprun.TimedOut, "all_reduce has not ended within 0.1 s given to wait(); it continues",
                               work.wait, 0.1)
                assert (late.operation, late.rank) == ("all_reduce", 0) and isinstance(late, TimeoutError)
                assert not work.done() and work.exception() is None and work.times() is None
                refused(ddprun.BadArgument, "timeout must be a positive number", work.wait, 0)
                group.send(b"1", 1, tag=1)
                work.wait(60)
            else:
                group.recv(bytearray(1), 0, tag=1)
                group.all_reduce(values)
            same(values, [2.0])
            group.barrier()
        """)

    def test_a_failure_is_the_works(self):
        self.right("""
            group = ddprun.init()
            work = group.all_reduce_async(array.array("d", [1.0] * (1 + group.rank)), timeout=60)
            error = refused(ddprun.Mismatch, "all_reduce", work.wait)
            assert (error.rank, error.operation) == (group.rank, "all_reduce")
            assert isinstance(work.exception(), ddprun.Mismatch)
            error = refused(ddprun.Aborted, "", group.barrier_async().wait)
            assert error.operation == "barrier", error.operation
        """)

    def test_a_call_has_its_own_deadline(self):
        self.right("""
            group = ddprun.init()
            if group.rank == 0:
                begun = time.monotonic()
                work = group.recv_async(bytearray(1), 1, timeout=0.2, tag=1)
                assert isinstance(refused(ddprun.TimedOut, "recv", work.wait), TimeoutError)
                assert time.monotonic() - begun < 60
                open(os.environ["MARK"], "w").close()
            come(os.environ["MARK"])
        """, MARK=self.path("mark"))

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
            from ddprun import _arguments
            class Halves(np.ndarray):  # As ml_dtypes has arrays of bfloat16, without a buffer.
                @property
                def dtype(self):
                    return type("dtype", (), {"name": "bfloat16"})
                def view(self, kind):
                    assert kind == "uint16"
                    return np.asarray(self)
            with ddprun.init() as group:
                for name in _arguments.NUMBERS:
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

    def test_a_deadline_passes(self):
        done = self.ranks("""
            group = ddprun.init()
            if group.rank == 0:
                try:
                    group.barrier(timeout=0.2)
                except TimeoutError as error:
                    print("late:", type(error).__name__)
                open(os.environ["MARK"], "w").close()
            come(os.environ["MARK"])
        """, MARK=self.path("mark"))
        self.assertIn("late: TimedOut", done.stdout, done.stderr)


if __name__ == "__main__":
    ddprun_case.main()
