"""What the Python package refuses before anything is sent: each with a sentence, and the group is as good as before."""

import array
import unittest

import package_case  # noqa: F401  pylint: disable=unused-import
import ddprun_case  # pylint: disable=wrong-import-order
import ddprun


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

    def test_init(self):
        self.refused("init_timeout must be", ddprun.init, init_timeout=-1)
        with self.assertRaises(ddprun.Error):
            ddprun.init(backend="carrier pigeon")

    def test_parts_and_single_arrays(self):
        one = bytearray(2)
        for call in (self.group.all_reduce, self.group.all_reduce_async, self.group.broadcast):
            self.refused("list has no buffer protocol", call, [one])
        self.refused("must be one array, or one for each rank", self.group.all_to_all, [one] * 3, [one] * 3)
        self.refused("must be one array, or one for each rank", self.group.all_gather_async, one, [])
        self.refused("float has no buffer protocol", self.group.reduce_scatter, [1.0], one)
        self.refused("must be one array", self.group.gather, one)
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

    def test_the_store(self):
        store = self.group.store
        self.refused("a key must be a string without a zero character", store.set, "a\0b", b"")
        self.refused("a key must be a string without a zero character", store.get, 7)
        self.refused("timeout must be a positive number", store.get, "a", timeout=0)
        self.refused("delta must be a whole number of 64 bits", store.add, "a", 2**63)

    def test_numbers(self):
        metrics = ddprun.Metrics()
        self.refused("name must be a string without a zero character", metrics.add, "a\0", 1)
        self.refused("weight", metrics.add, "a", 1, weight=-1)
        self.assertEqual(metrics.reduce(self.group), {})
        self.refused("the name of a phase must be a string", self.group.set_phase, "a\0")
        self.refused("size must be a number of bytes", self.group.allocate, -1)
        self.refused("size must be a number of bytes", self.group.allocate, 1.5)
        self.assertEqual(len(self.group.allocate(0)), 0)
        self.refused("a lost rank must be a whole number", self.group.shrink, ["x"])
        self.refused("patience must be a positive number", self.group.shrink, patience=0)
        self.refused("phase 'away' is not one of outside, data", ddprun.StepTimer().enter, "away")


if __name__ == "__main__":
    ddprun_case.main()
