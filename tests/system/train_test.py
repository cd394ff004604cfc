"""The C++ trainer, and PyTorch's script, under ddprun: the main job from end to end, on few steps of real data."""

import json
import os
import re
import signal
import sys

import ddprun_case
from ddprun_case import BIN, DdprunCase, Network, free_port, skip_all, wait_until

DATA = "/usr/share/datasets/fashion-mnist"
SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "train.py")
STEPS = ["--epochs", "1", "--max-steps", "20"]


# Who has more threads adds in another order, and two commands on one machine do not know of each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def one_thread(program, *argv):
    return ["/usr/bin/env", "OMP_NUM_THREADS=1", os.path.join(BIN, program), *argv]


def losses(job):
    return [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", job.out())]


def hashes(*jobs):
    """Of the weights after each epoch. Printed only where they are equal on all ranks."""
    return [h for job in jobs for h in re.findall(r"weights equal on \d+ ranks, hash (\w+)", job.out())]


class Trains(DdprunCase):
    def train(self, *argv, launch=("--nproc-per-node", "2"), code=0, **options):
        return self.run_ddprun(*launch, "train", *argv, code=code, patience=5 * ddprun_case.PATIENCE, **options)

    def test_weights_are_equal_on_all_ranks_however_nodes_are_cut(self):
        argv = [*STEPS, "--check-weights", "--epochs", "2"]
        two = [hashes(self.train(*argv, launch=launch)) for launch in (
            ["--nproc-per-node", "2"], ["--local-nodes", "2"], ["--standalone", "--nproc-per-node", "2"])]
        self.assertEqual(len(two[0]), 2)
        self.assertEqual(two[1:], [two[0]] * 2)
        first, second = self.two_nodes(worker=one_thread("train", *argv))
        self.finish(first)
        self.finish(second)
        self.assertEqual(hashes(first, second), two[0])

    def test_the_backends_agree(self):
        """Two numbers have one sum: with two ranks every backend must give the same bits."""
        got = [hashes(self.train(*STEPS, "--check-weights", env={"DDPRUN_BACKEND": backend}))
               for backend in ("shm", "gloo")]
        self.assertEqual(len(got[0]), 1)
        self.assertEqual(got[0], got[1])

    def test_losses_do_not_depend_on_the_number_of_workers(self):
        argv = ["--no-bn", "--double", "--global-batch-size", "40", "--print-losses", *STEPS]
        runs = [losses(self.train(*argv, launch=["--nproc-per-node", n])) for n in (1, 2, 4)]
        self.assertEqual([len(run) for run in runs], [20, 20, 20])
        for run in runs[1:]:
            for one, many in zip(runs[0], run):
                self.assertLess(abs(one - many), 1e-7 * one)

    def test_report_splits_every_ranks_time(self):
        out = self.train(*STEPS, launch=["--nproc-per-node", "2", "--report"]).out()
        table = out[out.index("rank      wall s"):].splitlines()
        self.assertIn("transfer   unknown", table[0])
        for rank, line in enumerate(table[1:3]):
            cells = line.split()
            self.assertEqual(int(cells[0]), rank, line)
            shares = [float(cell) for cell in cells[3:11]]
            self.assertAlmostEqual(sum(shares), 100, places=6)
            self.assertGreater(float(cells[1]), 0)
            self.assertGreater(shares[3], 1, "no time in backward: " + line)

    def test_report_of_a_program_without_the_sdk(self):
        out = self.run_ddprun("--report", "/bin/true").out()
        self.assertIn("no rank of this node left a summary", out)

    def test_metrics(self):
        self.train(*STEPS, "--metrics", self.path("metrics"))
        with open(self.path("metrics"), encoding="ascii") as f:
            (line,) = map(json.loads, f)
        self.assertEqual(line["epoch"], 1)
        self.assertTrue(0.1 < line["test_accuracy"] <= 1, line)
        for name in ("train_loss", "samples_per_s", "sync_exposed_ms"):
            self.assertGreater(line[name], 0)

    def test_sync_bn_equals_one_worker_with_the_whole_batch(self):
        argv = ["--sync-bn", "--double", "--global-batch-size", "40", "--print-losses", *STEPS]
        one, two = (losses(self.train(*argv, launch=["--nproc-per-node", n])) for n in (1, 2))
        self.assertEqual(len(one), 20)
        for a, b in zip(one, two):
            self.assertLess(abs(a - b), 1e-7 * a)


class Survives(DdprunCase):
    def test_a_worker_killed_in_mid_epoch_resumes_from_the_checkpoint(self):
        argv = ["train", "--epochs", "3", "--max-steps", "40", "--check-weights", "--checkpoint"]
        undisturbed = self.run_ddprun("--nproc-per-node", "2", *argv, self.path("other"))
        first, second = self.two_nodes("--max-restarts", "1",
                                       worker=one_thread(*argv, self.path("checkpoint"), "--metrics", self.path("metrics")))
        wait_until(lambda: "epoch 1/3" in first.out() + second.out() and os.path.exists(self.path("checkpoint")),
                   lambda: first.text() + second.text())
        (worker,) = [p for p in second.processes() if os.path.basename(p.argv[0]) == "train"]
        os.kill(worker.pid, signal.SIGKILL)
        self.finish(first)
        self.finish(second)
        said = first.out() + second.out()
        self.assertRegex(said, r"resuming after epoch [12] from .*checkpoint, restart 1")
        # The same end as without the death: nothing of the epochs is lost or done twice.
        self.assertEqual(hashes(first, second)[-1], hashes(undisturbed)[-1])
        with open(self.path("metrics"), encoding="ascii") as f:
            lines = [json.loads(line) for line in f]
        self.assertEqual([line["epoch"] for line in lines], [1, 2, 3])
        self.assertEqual([lines[0]["restart_count"], lines[-1]["restart_count"]], [0, 1])


class IsToldWhatIsWrong(DdprunCase):
    def refused(self, *argv, says, code=1):
        job = self.run_ddprun("--nproc-per-node", "2", "train", *STEPS, *argv, code=code)
        self.assertRegex(job.out() + job.err(), says)
        return job

    def test_data_that_is_not_there(self):
        self.refused("--data", self.path("nowhere"), says="nowhere/train-images.*No such file")

    def test_data_that_is_damaged(self):
        os.mkdir(self.path("data"))
        for name in os.listdir(DATA):
            with open(os.path.join(DATA, name), "rb") as whole, open(self.path("data/" + name), "wb") as cut:
                cut.write(whole.read(100_000))
        self.refused("--data", self.path("data"), says="data/train-images-idx3-ubyte.gz")

    def test_a_checkpoint_on_a_full_disk_leaves_the_old_one(self):
        disk = self.path("disk")
        os.mkdir(disk)
        mount = self.start_program(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk])
        if mount.wait() != 0:
            self.skipTest("mounting a small disk needs root")
        self.addCleanup(lambda: self.start_program(["umount", disk]).wait())
        checkpoint = os.path.join(disk, "checkpoint")
        self.run_ddprun("--nproc-per-node", "2", "train", *STEPS, "--checkpoint", checkpoint)
        with open(checkpoint, "rb") as f:
            old = f.read()
        with open(os.path.join(disk, "ballast"), "wb") as f:
            f.write(bytes(500 * 1024 - len(old)))
        self.refused("--checkpoint", checkpoint, "--epochs", "2", says="No space left on device")
        with open(checkpoint, "rb") as f:
            self.assertEqual(f.read(), old)

    def test_a_checkpoint_of_another_model(self):
        checkpoint = self.path("checkpoint")
        self.run_ddprun("train", *STEPS, "--checkpoint", checkpoint)
        self.refused("--checkpoint", checkpoint, "--no-bn", says="batch normalisation, this one has no")


class OnTwoMachines(DdprunCase):
    def test_the_same_weights_as_on_one(self):
        if Network.missing():
            self.skipTest(Network.missing())
        argv = ["train", *STEPS, "--check-weights"]
        here = self.run_ddprun("--nproc-per-node", "2", *argv)
        with Network() as net:
            endpoint = f"{net.addresses[0]}:{free_port()}"
            common = ["--nnodes", "2", "--rdzv-endpoint", endpoint]
            jobs = [self.start(*common, *argv, env={"DDPRUN_TOKEN": "t", **ONE_THREAD}, netns=name) for name in net.names]
            try:
                for job in jobs:
                    self.finish(job)
            finally:
                for job in jobs:
                    job.end()
        self.assertEqual(hashes(*jobs), hashes(here))


class PyTorch(DdprunCase):
    """Debian's PyTorch, and a script that knows nothing of ddprun."""

    def setUp(self):
        super().setUp()
        probe = self.start_program(["/usr/bin/python3", "-c", "import torch.distributed"])
        if probe.wait() != 0:
            self.skipTest("there is no PyTorch for /usr/bin/python3 (Debian: python3-torch)")

    env = {"PYTHON_EXEC": "/usr/bin/python3"}

    def test_one_node(self):
        job = self.run_ddprun("--nproc-per-node", "2", SCRIPT, *STEPS, env=self.env)
        self.assertRegex(job.out(), "test accuracy .* %")

    def test_two_nodes_and_the_same_result(self):
        one = self.run_ddprun("--nproc-per-node", "2", SCRIPT, *STEPS, env=self.env)
        two = self.run_ddprun("--local-nodes", "2", SCRIPT, *STEPS, env=self.env)
        accuracy = lambda job: re.search(r"test accuracy +(\S+)", job.out()).group(1)
        self.assertEqual(accuracy(one), accuracy(two))


def main():
    """As ddprun_case.main(), where train and its data are there."""
    if not os.access(os.path.join(BIN, "train"), os.X_OK):
        skip_all("train was not built")
    if not os.path.isdir(DATA):
        skip_all(f"{DATA} is not there (Debian: dataset-fashion-mnist)")
    sys.exit(ddprun_case.main())


if __name__ == "__main__":
    main()
