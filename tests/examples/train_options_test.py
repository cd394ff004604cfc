"""Options of the C++ trainer that its users know from PyTorch's: learning rates, weights to begin with, frozen layers,
the time to the end."""

import json
import math
import os
import re
import subprocess
import sys

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", folder) for folder in ("system", "interop")]
import ddprun_case  # noqa: E402
from ddprun_case import BIN, DdprunCase, wait_until  # noqa: E402
from torch_pythons import torch_pythons  # noqa: E402
import train_test  # noqa: E402
from train_test import ONE_THREAD, STEPS, hashes, losses  # noqa: E402


PATIENCE = 5 * ddprun_case.PATIENCE  # It computes.


def rates(job):
    return [float(rate) for rate in re.findall(r"step \d+ loss \S+ lr (\S+)", job.out())]


PYTORCHS_RATES = """
import json, sys, warnings
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
warnings.simplefilter("ignore")  # step(N), which sets the closed form's rate, is on its way out.
lr, warmup, steps, min_lr = json.loads(sys.argv[1])
def rates(make, count, closed):
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = make(sgd)
    for step in range(count):
        if closed and step > 0: schedule.step(step)
        yield sgd.param_groups[0]["lr"]
        sgd.step()
        if not closed: schedule.step()
constant = rates(lambda sgd: LambdaLR(sgd, lambda s: (s + 1) / (warmup + 1) if s < warmup else 1), steps, False)
cosine, chained = (rates(lambda sgd: CosineAnnealingLR(sgd, steps - warmup, min_lr), steps - warmup, closed)
                   for closed in (True, False))
print(json.dumps([list(constant), list(cosine), list(chained)]))
"""


class LearningRate(DdprunCase):
    def rates(self, *argv, ranks="2"):
        return rates(self.run_ddprun("--nproc-per-node", ranks, "train", "--print-losses", *argv, patience=PATIENCE))

    def test_schedules_are_pytorchs_bit_for_bit(self):
        pythons = torch_pythons()
        if not pythons:
            self.skipTest("there is no PyTorch")
        argv = ["--epochs", "2", "--max-steps", "8", "--warmup", "5", "--lr", "0.07", "--lr-scale", "linear"]
        constant = self.rates(*argv)
        falling = self.rates(*argv, "--schedule", "cosine", "--min-lr", "0.003")
        for torch in pythons:
            with self.subTest(torch=torch.version):
                said = subprocess.run([torch.python, "-c", PYTORCHS_RATES, json.dumps([0.14, 5, 16, 0.003])], check=True,
                                      stdout=subprocess.PIPE, timeout=PATIENCE).stdout
                theirs, cosine, chained = json.loads(said)
                self.assertEqual(constant, theirs)
                self.assertEqual(falling, theirs[:5] + cosine)
                for ours, other in zip(falling[5:], chained):
                    self.assertAlmostEqual(ours / other, 1, places=12)

    def test_the_root_of_the_number_of_ranks(self):
        (rate,) = self.rates("--epochs", "1", "--max-steps", "1", "--lr-scale", "sqrt", ranks="3")
        self.assertEqual(rate, 0.01 * math.sqrt(3))

    def test_who_resumes_has_the_bits_of_who_never_stopped(self):
        argv = ["--epochs", "3", "--max-steps", "10", "--check-weights", "--print-losses", "--lr-scale", "sqrt",
                "--warmup", "13", "--schedule", "cosine", "--min-lr", "0.001", "--checkpoint"]
        for attempt in range(20):  # Until the link is of an earlier epoch than the last.
            checkpoint, early = self.path(f"checkpoint{attempt}"), self.path(f"early{attempt}")
            whole = self.start("--nproc-per-node", "2", "train", *argv, checkpoint)
            wait_until(lambda: os.path.exists(checkpoint), whole.text, PATIENCE)
            os.link(checkpoint, early)
            self.finish(whole, patience=PATIENCE)
            resumed = self.run_ddprun("--nproc-per-node", "2", "train", *argv, early, patience=PATIENCE)
            if hashes(resumed):
                break
        self.assertEqual(len(rates(whole)), 30)
        for what in (rates, losses, hashes):
            self.assertEqual(what(resumed), what(whole)[-len(what(resumed)):])
        self.assertRegex(resumed.out(), "resuming after epoch [12] from .*early")


class Weights(DdprunCase):
    """What a training begins with, and what it leaves alone."""

    def train(self, *argv, **options):
        return self.run_ddprun("--nproc-per-node", "2", "train", *STEPS, "--check-weights", *argv, patience=PATIENCE, **options)

    def test_weights_of_a_checkpoint(self):
        first = self.train("--no-bn", "--checkpoint", self.path("net"))
        idle = self.train("--no-bn", "--init-from", self.path("net"), "--lr", "0", "--seed", "5")
        self.assertIn("weights from " + self.path("net") + ": 6 of the 6 tensors of the model\n", idle.out())
        self.assertEqual(hashes(idle), hashes(first))
        other = self.train("--init-from", self.path("net")).out()
        self.assertIn(": 2 of the 16 tensors of the model\n", other)
        self.assertIn("  not in the file: layers.1.weight, layers.1.bias, layers.4.weight", other)
        self.assertIn("  in the file only: layers.3.bias, layers.3.weight, layers.7.bias, layers.7.weight", other)

    def test_a_checkpoint_to_resume_from_goes_first(self):
        self.train("--no-bn", "--checkpoint", self.path("net"))
        done = self.train("--no-bn", "--checkpoint", self.path("net"), "--init-from", self.path("nowhere"))
        self.assertIn("nothing to train", done.out())

    def test_weights_of_pytorch(self):
        """As the tutorials save them: a state_dict() of the wrapper, beside an epoch."""
        make = ("import sys, torch; from torch import nn\n"
                "class Net(nn.Module):\n"
                "    def __init__(self):\n"
                "        super().__init__()\n"
                "        self.layers = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Linear(1, 1))\n"
                "state = Net().state_dict(); torch.save(dict(state), sys.argv[1])\n"
                "torch.save({'epoch': 3, 'model': {'module.' + k: v for k, v in state.items()}}, sys.argv[2])\n"
                "torch.save(state, sys.argv[3])\n")
        for torch in torch_pythons():
            with self.subTest(torch=torch.version):
                subprocess.run([torch.python, "-c", make, *map(self.path, ("plain", "wrapped", "ordered"))], check=True)
                for name in ("plain", "wrapped"):
                    out = self.train("--no-bn", "--init-from", self.path(name)).out()
                    self.assertIn(": 2 of the 6 tensors of the model\n", out)
                    self.assertIn("  in the file only: layers.2.bias, layers.2.weight\n", out)
                refused = self.train("--no-bn", "--init-from", self.path("ordered"), code=1)
                self.assertIn("libtorch cannot read a state_dict() that is no plain dict", refused.err() + refused.out())

    def test_files_without_weights_of_this_model(self):
        with open(self.path("text"), "w", encoding="ascii") as f:
            f.write("not a checkpoint")
        for name, says in (("text", "text is neither a checkpoint of train nor"), ("nowhere", "there is no file .*nowhere")):
            job = self.train("--init-from", self.path(name), code=1)
            self.assertRegex(job.err() + job.out(), "train: --init-from: .*" + says)

    def test_frozen_layers_stay(self):
        self.train("--checkpoint", self.path("before"))
        frozen = ["--freeze", "layers.0", "--freeze", "layers.1"]
        self.train("--init-from", self.path("before"), "--checkpoint", self.path("after"), *frozen)
        refused = self.train("--checkpoint", self.path("after"), "--epochs", "2", code=1)
        self.assertIn("batch normalisation, frozen layers.0, frozen layers.1, this one has", refused.err() + refused.out())
        compare = ("import sys, torch\n"
                   "a, b = (torch.jit.load(f).model for f in sys.argv[1:])\n"
                   "for name, tensor in sorted(a.state_dict().items()):\n"
                   "    print(name, torch.equal(tensor, b.state_dict()[name]))\n")
        for torch in torch_pythons():
            with self.subTest(torch=torch.version):
                said = subprocess.run([torch.python, "-c", compare, self.path("before"), self.path("after")], check=True,
                                      stdout=subprocess.PIPE, text=True).stdout
                equal = dict(line.split() for line in said.splitlines())
                self.assertEqual(len(equal), 16)
                for name, same in equal.items():
                    self.assertEqual(same == "True", name.startswith(("layers.0.", "layers.1.")), name)

    def test_what_cannot_be_is_said(self):
        for argv, says in ((["--freeze", "conv1"], "--freeze conv1: no parameter has that name .* There are layers.0.weight, "),
                           (["--freeze", "layers"], "--freeze leaves no parameter to be trained"),
                           (["--warmup", "20"], "--warmup 20 is not shorter than the training, which has 20 steps")):
            job = self.train(*argv, code=2)
            self.assertRegex(job.err() + job.out(), "train: " + says)


class OnATerminal(DdprunCase):
    def test_the_bar_says_when_all_will_be_done(self):
        env = {"DDPRUN_TERMINAL_COLUMNS": "100", **ONE_THREAD}
        job = self.start_program([os.path.join(BIN, "train"), *STEPS], env=env)
        self.finish(job, patience=PATIENCE)
        self.assertRegex(job.out(), r"epoch 1/1 \[[=> ]+\] +\d+%  loss [\d.]+  \d+ samples/s  ETA \d+:\d\d *\r")


if __name__ == "__main__":
    train_test.main()
