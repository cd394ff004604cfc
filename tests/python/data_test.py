"""What a training program needs beside its ranks: samplers, checkpoints, and the norm of gradients."""

import array
import math
import os
import unittest

import package_case
import ddprun_case  # pylint: disable=wrong-import-order
import ddprun


class Sampler(unittest.TestCase):
    """Sends nothing, so no ranks are needed."""

    def refused(self, sentence, call, *arguments, **options):
        with self.assertRaises(ddprun.BadArgument) as caught:
            call(*arguments, **options)
        self.assertIn(sentence, str(caught.exception))

    @staticmethod
    def samplers(length, size, **options):
        return [ddprun.DistributedSampler(length, rank, size, **options) for rank in range(size)]

    def test_the_order_of_indices(self):
        parts = self.samplers(7, 2, shuffle=False)
        self.assertEqual([list(each) for each in parts], [[0, 2, 4, 6], [1, 3, 5, 0]])
        self.assertEqual([len(each) for each in parts], [4, 4])
        parts = self.samplers(7, 2, shuffle=False, drop_last=True)
        self.assertEqual([list(each) for each in parts], [[0, 2, 4], [1, 3, 5]])
        # torch.randperm(10, generator=torch.Generator().manual_seed(8)), as torch's sampler of seed 7 in epoch 1.
        one = ddprun.DistributedSampler(10, 0, 1, seed=7)
        one.set_epoch(1)
        self.assertEqual(list(one), [3, 5, 0, 1, 2, 6, 4, 7, 8, 9])
        self.assertEqual(one.epoch, 1)

    def test_an_epoch_goes_on_with_another_number_of_ranks(self):
        before = self.samplers(24, 4, seed=3)
        read = []
        for each in before:
            each.set_epoch(2)
            self.assertEqual(len(each), 6)
            read += list(each)[:2]
            each.advance(2)
            self.assertEqual(len(each), 4)
            self.assertEqual(each.state_dict(), {"epoch": 2, "consumed": 8})
        after = self.samplers(24, 2, seed=3)
        for each in after:
            each.load_state_dict(before[0].state_dict())
            self.assertEqual((each.epoch, len(each)), (2, 8))
            read += list(each)
        self.assertEqual(sorted(read), list(range(24)))
        after[0].set_epoch(2)
        self.assertEqual(len(after[0]), 8, "the current epoch goes on where it is")
        after[0].set_epoch(3)
        self.assertEqual(len(after[0]), 12)

    def test_iterating_reads_nothing(self):
        one = ddprun.DistributedSampler(6, 0, 1)
        self.assertEqual(list(one), list(one))
        self.assertEqual(one.state_dict()["consumed"], 0)

    def test_a_child_of_fork_reads(self):
        one = ddprun.DistributedSampler(6, 0, 1, shuffle=False)
        child = os.fork()
        if child == 0:
            os._exit(0 if list(one) == list(range(6)) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_bad_input(self):
        self.refused("rank", ddprun.DistributedSampler, 10, 2, 2)
        self.refused("world_size must be a whole number", ddprun.DistributedSampler, 10, 0, 2.0)
        self.refused("length must be a whole number", ddprun.DistributedSampler, 2**63, 0, 1)
        self.refused("seed must be a whole number of 64 bits, from 0", ddprun.DistributedSampler, 10, 0, 1, seed=-1)
        one = ddprun.DistributedSampler(6, 0, 1)
        self.refused("the state has to have epoch and consumed", one.load_state_dict, {"epoch": 1})
        self.refused("epoch must be a whole number", one.set_epoch, "1")
        with self.assertRaises(ddprun.BadArgument):
            one.advance(7)
        self.assertEqual(len(one), 6)


class Norm(unittest.TestCase):
    def test_gradients_are_scaled_to_a_norm(self):
        gradients = [array.array("f", [3, 0]), array.array("d", [4])]
        self.assertEqual(ddprun.clip_grad_norm(gradients, 10), 5)
        self.assertEqual([list(each) for each in gradients], [[3, 0], [4]])
        self.assertEqual(ddprun.clip_grad_norm(gradients, 1), 5)
        self.assertAlmostEqual(gradients[0][0], 0.6, places=5)
        self.assertAlmostEqual(gradients[1][0], 0.8, places=5)
        self.assertAlmostEqual(ddprun.clip_grad_norm(gradients, 1, norm_type=math.inf), 0.8, places=5)
        self.assertEqual(ddprun.clip_grad_norm([], 1), 0)

    def test_what_is_no_number(self):
        gradients = [array.array("d", [math.nan, 1])]
        with self.assertRaises(ddprun.BadArgument):
            ddprun.clip_grad_norm(gradients, 1, error_if_nonfinite=True)
        self.assertEqual(gradients[0][1], 1)
        self.assertTrue(math.isnan(ddprun.clip_grad_norm(gradients, 1)))
        with self.assertRaises(ddprun.BadArgument):
            ddprun.clip_grad_norm([array.array("i", [1])], 1)


class Checkpoints(package_case.PackageCase):
    def test_any_number_of_ranks_reads_what_others_have_saved(self):
        folder = self.path("run")
        self.right("""
            group = ddprun.init()
            me, folder = group.rank, os.environ["FOLDER"]
            assert ddprun.latest_checkpoint(folder, group) is None
            weights = array.array("d", range(7))
            own = array.array("i", [me] * (me + 1))
            begins = (0, 1, 3)
            writer = ddprun.CheckpointWriter(group, folder, keep=2)
            for step in (10, 20, 30):
                writer.save_async(step, {"weights": weights, "none": array.array("f")}, [("own", own, begins[me], 6)])
                weights[6] += 1  # It has been copied.
            writer.wait()
            path = ddprun.latest_checkpoint(folder, group)
            assert path.endswith("step-30"), path
            refused(ddprun.BadArgument, "own", writer.save, 40, {}, [("own", own, 0, 6)])
            writer.save(50, {"weights": weights})
            writer.close()
            refused(ddprun.BadArgument, "the writer is closed", writer.wait)
            group.close()
        """, 3, FOLDER=folder)
        found = sorted(os.listdir(folder))
        self.assertNotIn("checkpoint-000001-step-10", found)
        found = found[-2:]
        self.assertEqual([name.split("step-")[1] for name in found], ["30", "50"], found)
        checkpoint = ddprun.Checkpoint(os.path.join(folder, found[0]))
        self.assertEqual((checkpoint.step, checkpoint.world_size), (30, 3))
        self.assertEqual(checkpoint.arrays, {"weights": ("float64", 7), "own": ("int32", 6), "none": ("float32", 0)})
        checkpoint.read("own", own := array.array("i", [9] * 6))
        self.assertEqual(own.tolist(), [0, 1, 1, 2, 2, 2])
        checkpoint.read("weights", some := array.array("d", [0] * 3), offset=4)
        self.assertEqual(some.tolist(), [4, 5, 8])
        with self.assertRaises(ddprun.BadArgument):
            checkpoint.read("weights", array.array("f", [0] * 3))
        with self.assertRaisesRegex(ddprun.BadArgument, "offset must not be negative"):
            checkpoint.read("weights", some, offset=-1)
        self.assertTrue(ddprun.latest_checkpoint(folder).endswith(found[1]))

    def test_who_reads_without_a_group_goes_on_to_the_newer_one_where_ranks_take_one_away(self):
        folder = self.path("run")
        calls = []
        found = array.array("d", [0] * 4)

        def read(checkpoint):
            calls.append(checkpoint.step)
            if checkpoint.step == 1:  # As a rank that trains meanwhile.
                save(2)
            checkpoint.read("a", found)

        def save(step):
            writer = ddprun.CheckpointWriter(group, folder, keep=1)
            writer.save(step, {"a": array.array("d", [step] * 4)})
            writer.close()

        self.assertIsNone(ddprun.load_latest(folder, read))
        self.assertEqual(calls, [])
        with ddprun.init() as group:
            save(1)
            self.assertEqual(ddprun.load_latest(folder, read), 2)
        self.assertEqual(calls, [1, 2])
        self.assertEqual(found.tolist(), [2] * 4)
        with self.assertRaises(ddprun.BadArgument):  # An error of its own passes.
            ddprun.load_latest(folder, lambda checkpoint: checkpoint.read("b", found))

    def test_damage_is_noticed(self):
        folder = self.path("run")
        with ddprun.init() as group:
            writer = ddprun.CheckpointWriter(group, folder)
            writer.save(1, {"a": array.array("d", range(1000))})
            writer.close()
        path = ddprun.latest_checkpoint(folder)
        data = [os.path.join(path, name) for name in os.listdir(path) if name != "manifest.json"]
        with open(data[0], "r+b") as file:
            file.seek(500)
            file.write(b"\xff\x01")
        with self.assertRaises(ddprun.Corrupt):
            ddprun.Checkpoint(path).read("a", array.array("d", [0] * 1000))
        os.remove(data[0])
        with self.assertRaises(ddprun.Corrupt):
            ddprun.Checkpoint(path)
        with self.assertRaisesRegex(ddprun.Corrupt, "there is no manifest.json"):
            ddprun.Checkpoint(folder + "/none")
        self.assertIsNone(ddprun.latest_checkpoint(folder))


if __name__ == "__main__":
    ddprun_case.main()
