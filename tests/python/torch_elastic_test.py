"""ddprun.elastic.torch: the program of docs/python-elastic.md, all that trains besides a model, DataLoader and its processes,
with ranks that are killed. The weights must be those of quiet runs, bit for bit."""

import os
import re
import signal

import torch_case
from ddprun_case import PATIENCE, processes_with, wait_until
from elastic_case import ElasticCase

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/python-elastic.md")

HASH = """
import hashlib
def hash_of(*values):
    digest = hashlib.sha256()
    def add(value):
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in value:
                digest.update(str(key).encode()), add(value[key])
        elif isinstance(value, (list, tuple)):
            [add(each) for each in value]
        else:
            digest.update(repr(value).encode())
    add(list(values))
    return digest.hexdigest()[:16]
"""

TRAIN = """
import torch
from ddprun.elastic.torch import Gradients, ShardLoader
torch.manual_seed(1), torch.set_num_threads(1)
x = torch.randn(200, 1, 6, 6)
y = (x.sum((1, 2, 3)) > 0).long()
net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout(0.2),
                          torch.nn.Flatten(), torch.nn.Linear(64, 2))
batches = elastic.GlobalBatches(len(x), 30, shards=6, seed=4)
STEPS = 24
loss_of = torch.nn.functional.cross_entropy
"""


class TorchElastic(ElasticCase):
    """Each run has its digests printed by every rank that lives at its end."""

    python = torch_case.PYTHON
    quiet_loader = None

    def of_quiet_loader(self):
        """The digest of LOADER without processes, in a run in which nothing happens."""
        if not TorchElastic.quiet_loader:
            _, TorchElastic.quiet_loader = self.digests(TRAIN, self.LOADER, "main(0)\n", nproc=1)
        return TorchElastic.quiet_loader

    def digests(self, *parts, **options):
        job = self.ended(HASH, *parts, **options)
        found = set(self.said(job, "digest .*"))
        self.assertEqual(len(found), 1, job.text())
        return job, found.pop()

    def assert_same_bits(self, *parts, deaths, **options):
        """With one rank, and with three that die."""
        _, quiet = self.digests(*parts, nproc=1)
        job, killed = self.digests(*parts, env={"DIE": deaths}, **options)
        self.assertEqual(killed, quiet, job.text())
        self.assertIn(f"(restart {len(deaths.split())} of 9)", job.err())
        return job

    def test_the_program_of_the_page(self):
        with open(PAGE, encoding="utf-8") as file:
            program, = re.findall(r"```python\n(import zlib\n.*?)```", file.read(), re.S)
        self.assertLessEqual(len([line for line in program.splitlines() if line.strip()]), 30)
        # As --chaos does, but each time when all ranks have started, however long that takes.
        watched = """
elastic.Job = Job
def watched(job, steps, body, run=Job.run):
    def watched_body(step):
        pace(step)
        die("begin", step)
        body(step)
        note_commit(step)
    run(job, steps, watched_body)
Job.run = watched
"""

        def result(nproc, **options):
            job = self.ended(watched, program, nproc=nproc, **options)
            found = set(self.said(job, r"500 steps: weights \w+"))
            self.assertEqual(len(found), 1, job.text())
            return job, found.pop()

        _, one = result(1)
        _, three = result(3)
        job, killed = result(4, env={"DIE": "begin:50:1 begin:150:0 begin:250:3"})
        self.assertEqual((three, killed), (one, one))
        self.assertEqual(len(self.logs()), 4 + 3, job.text())
        self.assertNotIn("can no longer change its seat", job.err())  # However long an interpreter takes to end.
        self.assertEqual(job.err().count("the other workers continue"), 3, job.text())

    def test_all_that_trains_is_kept(self):
        job = self.assert_same_bits(TRAIN, """
            adam = torch.optim.AdamW(net.parameters(), 0.01)
            schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 0.05, total_steps=STEPS)
            average = torch.optim.swa_utils.AveragedModel(net)
            noise = torch.Generator().manual_seed(3)
            scaler = torch.cuda.amp.GradScaler(enabled=False)
            if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=5)
            job = Job().keep(net=net, adam=adam, schedule=schedule, average=average, noise=noise, scaler=scaler)
            gradients = Gradients(job, net, batches, seed=9)
            def train(step):
                pace(step)
                die("begin", step)
                def loss(shard):
                    die("shard", step)
                    note_shard(step, shard)
                    value = loss_of(net(x[shard.indices]), y[shard.indices])
                    return scaler.scale(value)
                result = gradients.backward(step, loss)
                die("summed", step)
                def apply():
                    scaler.step(adam)
                    scaler.update()
                    schedule.step()
                    average.update_parameters(net)
                    with torch.no_grad():
                        net[5].bias += 1e-4 * torch.randn(2, generator=noise) + 1e-5 * torch.randn(2)
                    die("apply", step)
                gradients.commit(step, apply)
                note_commit(step)
            job.run(STEPS, train)
            print("digest", hash_of(net.state_dict(), adam.state_dict(), average.state_dict(), schedule.state_dict()["last_epoch"],
                                    noise.get_state(), scaler.state_dict()), flush=True)
        """, deaths="begin:2:1 shard:5:0 apply:9:2")
        self.assert_each_sample_once(200, 6, 24)
        self.assertEqual(job.err().count("the other workers continue"), 3, job.text())

    def test_a_rank_whose_gradient_is_wrong_is_named_by_an_audit_and_replaced(self):
        train = """
sgd = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
job = Job(audit=50).keep(net=net, sgd=sgd)
gradients = Gradients(job, net, batches, seed=9)
load = ShardLoader([(x[i], y[i]) for i in range(len(x))], batches)
def train(step):
    pace(step)
    def loss(shard):
        images, labels = load(shard)
        found = loss_of(net(images), labels)
        errs = step.rank == 1 and step.number >= 5 and step.is_audited(shard.number) and step.world_size == FULL
        return found * 1.001 if os.environ.get("ERRS") and errs and once("erred") else found
    gradients.backward(step, loss)
    gradients.commit(step, sgd.step)
    note_commit(step)
try:
    job.run(STEPS, train)
except ddprun.WrongResult as error:
    note("wrong", error)
    raise
print("audited", job.counters.audited_shards, flush=True)
print("digest", hash_of(net.state_dict(), sgd.state_dict()), flush=True)
"""
        _, quiet = self.digests(TRAIN, train, nproc=1)
        job, audited = self.digests(TRAIN, train)
        self.assertEqual(audited, quiet, job.text())
        self.assertGreater(sum(int(each.split()[1]) for each in self.said(job, "audited .*")), 20, job.text())
        job, healed = self.digests(TRAIN, train, env={"ERRS": "yes"})
        self.assertEqual(healed, quiet, job.text())
        found = [line for text in self.logs().values() for line in text.splitlines() if line.startswith("wrong")]
        self.assertEqual(len(found), 1, job.text())
        self.assertRegex(found[0], r"step \d+, shard \d: rank . on \S+ has computed [0-9a-f]{16}, .*rank 1 on \S+ is wrong")
        self.assertIn("the others go on without it", job.err())

    LOADER = """
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return len(x)
    def __getitem__(self, index):
        return x[index] + 0.1 * torch.randn(1), y[index]
sgd = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
def hold(step):  # Until the test has looked.
    if f"{step.number}" in os.environ.get("HOLD", "").split():
        open(f"{D}/holding.{step.number}.{os.getpid()}", "w").close()
        while not os.path.exists(f"{D}/go.{step.number}"):
            time.sleep(0.01)
def main(workers, **options):
    job = Job().keep(net=net, sgd=sgd)
    gradients = Gradients(job, net, batches, seed=9)
    load = ShardLoader(Noisy(), batches, num_workers=workers, **options)
    def loss(shard):
        images, labels = load(shard)
        die("data", step_now)
        assert torch.equal(labels, y[shard.indices])
        note_shard(step_now, shard)
        return loss_of(net(images), labels)
    def train(step):
        global step_now
        step_now = step
        pace(step)
        gradients.backward(step, loss)
        hold(step)
        gradients.commit(step, sgd.step)
        note_commit(step)
    job.run(STEPS, train)
    print("digest", hash_of(net.state_dict(), sgd.state_dict()), flush=True)
"""

    def held(self, job, step, ranks=(), count=0):
        """{pid of a rank: pids of its loader's processes}, when `count` ranks, `ranks` among them, hold at `step`."""
        start = f"holding.{step}."

        def holding():
            return [int(name[len(start):]) for name in os.listdir(self.folder) if name.startswith(start)]

        wait_until(lambda: len(holding()) >= count and set(holding()) >= set(ranks) or job.ended(), job.text, 2 * PATIENCE)
        found = processes_with(job.marker)
        return {pid: {each.pid for each in found if each.ppid == pid} for pid in holding()}

    def go(self, step):
        with open(os.path.join(self.folder, f"go.{step}"), "w", encoding="ascii"):
            pass

    def test_a_loader_that_begins_anew_leaves_the_generators_alone(self):
        job, killed = self.digests(TRAIN, self.LOADER, "main(0)\n", env={"DIE": "data:4:1"})
        self.assertEqual(killed, self.of_quiet_loader(), job.text())

    def test_a_loader_gives_the_shard_that_is_asked_for_in_any_order(self):
        self.ended(TRAIN, """
            for workers in (0, 2):
                load = ShardLoader([(x[i], y[i]) for i in range(len(x))], batches, num_workers=workers)
                for step, number in ((0, 0), (0, 3), (0, 1), (0, 3), (2, 5), (1, 0)):  # Some are skipped, some come again.
                    shard = batches.shard(step, number)
                    shard.ranks, shard.mine = (0, 1), range(6)
                    images, labels = load(shard)
                    assert torch.equal(images, x[shard.indices]) and torch.equal(labels, y[shard.indices]), shard
        """, nproc=1)

    def test_a_shard_that_moves_costs_a_late_read_and_no_new_beginning(self):
        self.ended(TRAIN, """
            class Counted(torch.utils.data.Dataset):
                loaded = 0
                def __len__(self): return len(x)
                def __getitem__(self, index):
                    Counted.loaded += 1
                    return x[index], index
            load = ShardLoader(Counted(), batches)
            begun = []
            load._loader.sampler.__class__.__iter__ = lambda sampler: begun.append(1) or sampler._loader._requests()
            ranges = [range(0, 3), range(0, 4), range(0, 4), range(1, 4), range(2, 5), range(2, 4), range(1, 6)]
            for step, mine in enumerate(ranges):
                for number in [*mine, (mine.stop + 1) % 6]:  # The last one is audited, or this rank's.
                    shard = batches.shard(step, number)
                    shard.ranks, shard.mine = (0, 2), mine
                    assert load(shard)[1].tolist() == shard.indices, shard
            assert len(begun) == 1, begun
            assert Counted.loaded <= 5 * (sum(map(len, ranges)) + 2 * len(ranges)), Counted.loaded
        """, nproc=1)

    def test_a_loader_passes_over_the_steps_that_others_have_made(self):
        self.ended(TRAIN, """
            class Counted(torch.utils.data.Dataset):
                loaded = 0
                def __len__(self): return len(x)
                def __getitem__(self, index):
                    Counted.loaded += 1
                    return x[index], index
            load = ShardLoader(Counted(), batches)
            for step, number in ((0, 0), (0, 1), (1, 0), (500, 2), (500, 3)):
                shard = batches.shard(step, number)
                shard.ranks, shard.mine = (0, 1), range(6)
                assert load(shard)[1].tolist() == shard.indices, shard
            assert Counted.loaded <= 12 * 5, Counted.loaded  # Not thousands.
        """, nproc=1)

    def test_state_is_loaded_where_torch_is_imported_later(self):
        # Of ranks one has imported torch before it sends or receives the state, and another has not.
        self.ended("""
            import subprocess
            from ddprun.elastic._state import dumps, loads
            assert "torch" not in sys.modules
            plain = dumps({"epoch": 3})
            import torch
            assert loads(plain) == {"epoch": 3}
            child = "import sys; from ddprun.elastic._state import loads; assert 'torch' not in sys.modules; "
            child += "assert loads(sys.stdin.buffer.read())['weights'].tolist() == [1, 2]"
            state = dumps({"weights": torch.tensor([1, 2])})
            subprocess.run([sys.executable, "-c", child], input=state, check=True)
        """, nproc=1)

    def test_processes_of_a_loader_continue_when_ranks_change_and_end_with_their_rank(self):
        quiet = self.of_quiet_loader()
        job = self.job(HASH, TRAIN, self.LOADER, "main(2)\n", nproc=2, env={"HOLD": "5 15"})
        before = self.held(job, 5, count=2)
        self.assertEqual([len(workers) for workers in before.values()], [2, 2], before)
        victim, survivor = sorted(before)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not before[victim] & {each.pid for each in processes_with(job.marker)},
                   "the end of the victim's loader")
        self.go(5)
        self.assertEqual(self.held(job, 15, [survivor])[survivor], before[survivor])
        self.go(15)
        self.finish(job, 0, 2 * PATIENCE)
        self.assertEqual(set(self.said(job, "digest .*")), {quiet}, job.text())
        self.assert_each_sample_once(200, 6, 24)

    def test_a_rank_whose_loader_dies_fails_and_is_replaced(self):
        quiet = self.of_quiet_loader()
        job = self.job(HASH, TRAIN, self.LOADER, "main(1, prefetch_factor=3)\n", nproc=2, env={"HOLD": "5"})
        rank, workers = sorted(self.held(job, 5, count=2).items())[0]
        os.kill(workers.pop(), signal.SIGKILL)
        self.go(5)
        self.finish(job, 0, 2 * PATIENCE)
        # With torch's RuntimeError, or with what the rank itself has run into.
        self.assertRegex(job.err(), rf"rank \d \(pid {rank}\) exited with 1\n")
        self.assertRegex(job.err(), r"rank \d on \S+ exited with 1; the other workers continue")
        self.assertEqual(set(self.said(job, "digest .*")), {quiet}, job.text())

    def test_a_job_that_goes_on_from_a_checkpoint_has_the_bits_of_one_that_did_not_stop(self):
        # The features are so different in size that small gradients are rounded to the units.
        code = """
            import torch
            from ddprun.elastic.torch import Gradients
            torch.set_num_threads(1)
            def run(steps, path=None, units=True):
                torch.manual_seed(4)
                x = torch.randn(64, 32)
                y = x.sum(1, keepdim=True)
                x *= 2.0 ** -torch.arange(32.0)
                net = torch.nn.Linear(32, 1)
                for p in net.parameters():
                    torch.nn.init.zeros_(p)
                sgd = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
                job = Job().keep(net=net, sgd=sgd)
                gradients = Gradients(job, net, elastic.GlobalBatches(64, 16, shards=4))
                if path and os.path.exists(path):
                    found = torch.load(path)
                    net.load_state_dict(found["net"])
                    sgd.load_state_dict(found["sgd"])
                    if units:
                        gradients.restore(found["gradients"])
                    job.resume(found["step"])
                def train(step):
                    gradients.backward(step, lambda shard: torch.nn.functional.mse_loss(net(x[shard.indices]), y[shard.indices]))
                    gradients.commit(step, sgd.step)
                def write(group):
                    torch.save({"net": net.state_dict(), "sgd": sgd.state_dict(), "gradients": gradients.state(),
                                "step": job.committed}, path)
                if path:
                    job.between(steps, write)
                job.run(steps, train)
                return net.weight.detach().numpy().tobytes()
            whole = run(40)
            different = 0
            for at in 1, 5, 10, 15, 20, 25, 30, 35, 39:
                run(at, f"{D}/{at}.pt")
                different += run(40, f"{D}/{at}.pt", units=False) != whole
                os.remove(f"{D}/{at}.pt")
                run(at, f"{D}/{at}.pt")
                assert run(40, f"{D}/{at}.pt") == whole, at
            assert different  # Otherwise this shows nothing.
            print("right", different)
        """
        # Alone: a process of a run has one Job in its life.
        self.assertIn("right", self.alone(code).out())

    def test_what_cannot_be_right_is_refused(self):
        self.ended(TRAIN, """
            def refused(kind, sentence, call, *arguments, **options):
                try:
                    call(*arguments, **options)
                except kind as error:
                    assert sentence in str(error), str(error)
                    return
                raise AssertionError("not refused: " + sentence)
            job = Job()
            refused(ddprun.Unsupported, "parameter weight is not of float32", Gradients, job, torch.nn.Linear(2, 2).half(), batches)
            refused(ddprun.BadArgument, "no parameter that requires", Gradients, job, torch.nn.ReLU(), batches)
            refused(ddprun.BadArgument, "one piece of host memory", job.keep, part=torch.zeros(4, 4)[:, 1:3])
            refused(ddprun.BadArgument, "1 data sets for batches of 2", ShardLoader, [x],
                    elastic.GlobalBatches([(200, 10), (50, 2)], 12))
            refused(ddprun.BadArgument, "of step.shards()", ShardLoader(x, batches), batches.shard(0, 0))
            last = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
            moved = torch.nn.Linear(2, 2)
            job.keep(net=net, last=last, moved=moved)
            gradients = Gradients(job, net, batches)
            body = lambda step: gradients.backward(step, lambda shard: net(x[shard.indices]))
            refused(ddprun.BadArgument, "not a tensor of one element", job.run, 1, body)
            moved.double()
            refused(ddprun.BadArgument, "moved.weight is no longer where it was", job.run, 1, body)
        """, nproc=1)

    def test_ranks_that_would_compute_other_bits_are_told(self):
        job = self.ended(TRAIN, """
            if os.environ["RANK"] == "1":
                torch.set_num_threads(2)
            job = Job().keep(net=net)
            gradients = Gradients(job, net, batches)
            def train(step):
                gradients.backward(step, lambda shard: loss_of(net(x[shard.indices]), y[shard.indices]))
                gradients.commit(step, lambda: None)
            try:
                job.run(1, train)
            except ddprun.Mismatch as error:
                print("told", flush=True)
        """, nproc=2)
        self.assertEqual(len(self.said(job, "told")), 2, job.text())


if __name__ == "__main__":
    torch_case.main()
