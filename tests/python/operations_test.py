"""Collectives and messages of ddprun.ProcessGroup: asynchronous, of uneven parts, with tags, reductions and deadlines."""

import unittest

import package_case
import ddprun_case  # pylint: disable=wrong-import-order
import ddprun


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


class BadInput(unittest.TestCase):
    """A rank alone."""

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

    def test_parts_and_single_arrays(self):
        one = bytearray(2)
        for call in (self.group.all_reduce, self.group.all_reduce_async, self.group.broadcast):
            self.refused("list has no buffer protocol", call, [one])
        self.refused("one array here, or one for each rank", self.group.all_to_all, [one] * 3, [one] * 3)
        self.refused("one array here, or one for each rank", self.group.all_gather_async, one, [])
        self.refused("float has no buffer protocol", self.group.reduce_scatter, [1.0], one)
        self.refused("one array here", self.group.gather, one)
        self.refused("the bytes cannot be written to", self.group.all_gather, one, [b"ab"])

    def test_reductions(self):
        values = bytearray(2)
        self.refused("op 'mean' is not one of sum", self.group.reduce_async, values, values, op="mean")
        self.refused("premul_sum needs a factor", self.group.all_reduce, values, "premul_sum")
        self.refused("a factor is not for sum", self.group.all_reduce, values, factor=2)

    def test_messages(self):
        self.refused("the tag -1 is negative", self.group.send, b"a", 0, tag=-1)
        self.refused("tag must be a whole number", self.group.recv, bytearray(1), 0, tag="x")
        self.refused("source must be a whole number", self.group.recv_async, bytearray(1), None)
        self.refused("destination must be a whole number", self.group.send, b"a", 2**31)


if __name__ == "__main__":
    ddprun_case.main()
