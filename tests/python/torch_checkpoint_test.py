"""ddprun.checkpoint.dcp: what PyTorch's distributed checkpoints save in memory is loaded by another number of ranks, and after a
node is lost. Ranks of two nodes are played: each has the folder of its node."""

import os
import re
import shutil
import textwrap

import torch_case
import ddprun_case  # pylint: disable=wrong-import-order

# What the scripts of the examples begin with.
DIE = """
import os, signal
def die(now):
    if now and os.environ["DIES"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
"""

HEAD = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if "NODES" in os.environ:  # Two of as many ranks.
    node, local = divmod(rank, size // 2)
    os.environ.update(LOCAL_RANK=str(local), LOCAL_WORLD_SIZE=str(size // 2), GROUP_RANK=str(node),
                      DDPRUN_MEMORY=os.path.join(os.environ["NODES"], str(node), "own"),
                      DDPRUN_MEMORY_COPIES=os.path.join(os.environ["NODES"], str(node), "copies"))
    os.makedirs(os.environ["DDPRUN_MEMORY"], exist_ok=True)
dist.init_process_group("gloo", timeout=LIMIT)
from ddprun.checkpoint.dcp import MemoryReader, MemoryWriter
mesh = init_device_mesh("cpu", (size,))

def parts():
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(4)
    net = torch.nn.Sequential(torch.nn.Linear(37, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    for part in (net[0], net[2], net):
        fully_shard(part, mesh=mesh)
    return net, torch.optim.AdamW(net.parameters(), 0.01)

def train(net, adam, steps):
    for step in steps:
        torch.manual_seed(step)
        adam.zero_grad()
        net(torch.randn(4, 37)).square().mean().backward()
        adam.step()

def state_of(net, adam):
    return dict(zip(("net", "adam"), get_state_dict(net, adam)))

def whole(net, adam):
    found = [p.full_tensor().detach().clone() for p in net.parameters()]
    return found + [each["exp_avg_sq"].full_tensor().clone() for each in adam.state.values()]

def save(steps, **options):
    net, adam = parts()
    writer = MemoryWriter(**options)
    for step in steps:
        train(net, adam, [step - 1])
        dcp.save({**state_of(net, adam), "step": step}, checkpoint_id=str(step), storage_writer=writer)
    writer.wait()

def load(wanted, **options):
    reader = MemoryReader(**options)
    assert reader.step == wanted, reader.step
    if wanted:
        net, adam = parts()
        state = {**state_of(net, adam), "step": 0}
        dcp.load(state, storage_reader=reader)
        set_state_dict(net, adam, model_state_dict=state["net"], optim_state_dict=state["adam"])
        other, other_adam = parts()
        train(other, other_adam, range(wanted))
        assert state["step"] == wanted
        for one, two in zip(whole(net, adam), whole(other, other_adam)):
            assert one.shape == two.shape and torch.allclose(one, two, atol=1e-6), (one, two)
"""


class Dcp(torch_case.TorchCase):
    def setUp(self):
        super().setUp()
        self.memory = self.path("memory")
        os.mkdir(self.memory)

    def run_ranks(self, code, nproc, **more):
        return self.right(HEAD + code, nproc, **{"DDPRUN_MEMORY": self.memory, **more})

    def pieces(self, folder):
        return sorted(os.path.join(path, name) for path, _, names in os.walk(folder) for name in names if name.startswith("piece-"))

    def test_an_old_torch_is_refused(self):
        if torch_case.torch_version() >= (2, 3):
            self.skipTest("this torch is new enough")
        done = self.launched([torch_case.PYTHON, "-c", "import ddprun.checkpoint.dcp"])
        self.assertIn("ImportError: ddprun.checkpoint.dcp needs torch 2.3 or newer", done.stderr)

    def test_another_number_of_ranks_loads_what_was_saved(self):
        self.needs(2, 6)
        self.run_ranks("""
load(0)
refused_id = False
try:
    dcp.save({"a": 1}, checkpoint_id="first", storage_writer=MemoryWriter())
except Exception as error:
    refused_id = "must be the step's number" in str(error)
assert refused_id
save(range(1, 6))
""", 2)
        self.assertEqual(len(self.pieces(self.memory)), 2 * 3, "two generations, of two ranks and the metadata")
        for nproc in (1, 2, 3):
            self.run_ranks("load(5)", nproc)
        self.run_ranks("load(5)\nsave([1, 2])", 3)
        self.run_ranks("load(2)", 2)

    def test_what_is_not_whole_is_not_loaded(self):
        self.needs(2, 6)
        self.run_ranks("save(range(1, 4))", 2)
        newest = self.pieces(self.memory)[3:]
        for path in newest:
            with open(path, "r+b") as file:
                file.seek(70)
                byte = file.read(1)[0]
                file.seek(70)
                file.write(bytes([byte ^ 1]))
            self.assertIn("step 2 is restored; step 3 is not whole", self.run_ranks("load(2)", 2).stderr)
            with open(path, "r+b") as file:
                file.seek(70)
                file.write(bytes([byte]))
        self.run_ranks("load(3)", 2)
        os.unlink(newest[-1])
        self.run_ranks("load(2)", 2)

    def test_pieces_of_another_node_are_fetched(self):
        self.needs(2, 6)
        nodes = self.path("nodes")
        self.run_ranks("save(range(1, 4))", 4, NODES=nodes)
        self.assertEqual([len(self.pieces(os.path.join(nodes, node))) for node in "01"], [6, 4])
        self.run_ranks("load(3)", 4, NODES=nodes)
        # The first node is lost; the second has a copy of its folder.
        os.renames(os.path.join(nodes, "0", "own"), os.path.join(nodes, "1", "copies", "lost node"))
        self.run_ranks("load(3)", 4, NODES=nodes)
        self.run_ranks("load(3)", 2, NODES=nodes)
        shutil.rmtree(os.path.join(nodes, "1", "copies"))
        self.run_ranks("load(0)", 4, NODES=nodes)

    def test_the_disk_has_them_when_memory_is_lost(self):
        self.needs(2, 6)
        disk = self.path("disk")
        self.run_ranks("save(range(1, 8), disk=os.environ['DISK'], to_disk_every=2)", 2, DISK=disk)
        shutil.rmtree(self.memory)
        os.mkdir(self.memory)
        self.run_ranks("load(6, disk=os.environ['DISK'])", 3, DISK=disk)

    def test_a_full_folder_keeps_the_last_generation(self):
        self.needs(2, 6)
        self.run_ranks("save([1, 2])", 2)
        done = self.run_ranks("save([7, 8, 9])", 2, DDPRUN_MEMORY_SIZE="1000")
        self.assertEqual(done.stderr.count("cannot save"), 2, done.stderr)
        self.run_ranks("load(2)", 2)

    def test_saved_by_a_thread_of_pytorchs(self):
        self.needs(2, 6)
        self.run_ranks("""
net, adam = parts()
group = dist.new_group(backend="gloo")
writer = MemoryWriter(group=group)
for step in range(1, 4):
    train(net, adam, [step - 1])
    dcp.async_save({**state_of(net, adam), "step": step}, checkpoint_id=str(step), storage_writer=writer,
                   process_group=group).result()
writer.wait()
load(3)
""", 2)


EXAMPLES = os.path.join(torch_case.HERE, "../../examples")


class Examples(torch_case.TorchCase):
    """Two ranks, one of which dies: the run ends as one in which none did."""

    def ends_of(self, path, *arguments, **more):
        found = []
        for dies in ("0", "1"):
            memory = self.path("memory-" + dies)
            os.mkdir(memory)
            done = self.launched([ddprun_case.DDPRUN, "--nproc-per-node", "2", "--max-restarts", "1", path, *arguments],
                                 DDPRUN_MEMORY=memory, DIES=dies, GLOO_SOCKET_IFNAME="lo", HF_HUB_OFFLINE="1", **more)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual("restored step" in done.stderr, dies == "1", done.stderr)
            found.append(done.stdout.splitlines()[-1].partition("]:")[2] or done.stdout.splitlines()[-1])
        return found

    def example(self, code):
        path = self.path("script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"import sys\nsys.path.insert(0, {EXAMPLES!r})\n{DIE}{textwrap.dedent(code)}")
        return path

    def has(self, module):
        found = self.launched([torch_case.PYTHON, "-c", f"import {module}"])
        if found.returncode != 0:
            self.skipTest(f"this Python has no {module}")

    def test_the_plain_script(self):
        path = self.example("""
            import train_memory
            batch_of = train_memory.batch_of
            def dying(step, rank):
                die(step == 57 and rank == 1)
                return batch_of(step, rank)
            train_memory.batch_of = dying
            train_memory.main()
        """)
        whole, killed = self.ends_of(path, "--steps", "100")
        self.assertRegex(whole, "step 100  loss")
        self.assertEqual(killed, whole)

    def test_the_ledger_counts_what_was_saved(self):
        """A death in the middle undoes what came after the last save, not all steps of the round."""
        path = self.example("""
            import time
            import train_memory
            batch_of = train_memory.batch_of
            def dying(step, rank):
                time.sleep(0.02)
                die(step == 57 and rank == 1)
                return batch_of(step, rank)
            train_memory.batch_of = dying
            train_memory.main()
        """)
        memory = self.path("memory")
        os.mkdir(memory)
        done = self.launched([ddprun_case.DDPRUN, "--nproc-per-node", "2", "--max-restarts", "1", "--report", path, "--steps",
                              "70"], DDPRUN_MEMORY=memory, DIES="1", GLOO_SOCKET_IFNAME="lo")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("restored step 50", done.stderr)
        shares = {name: float(share) for name, share in re.findall(r"(?m)^  ([a-z][a-z -]*?) +([\d.]+) % ", done.stdout)}
        self.assertIn("checkpoint", shares, done.stdout)
        kept = sum(shares.get(name, 0) for name in ("outside", "forward", "backward", "transfer", "waiting", "steps"))
        self.assertGreater(kept, 2 * shares.get("lost work", 0), done.stdout)

    def test_what_the_page_shows(self):
        """docs/memory.md: each block of Python, after what it takes as given."""
        with open(os.path.join(torch_case.HERE, "../../docs/memory.md"), encoding="utf-8") as page:
            shown = re.findall(r"(?ms)^```python\n(.*?)^```$", page.read())
        self.assertEqual(len(shown), 3)
        if torch_case.torch_version() < (2, 6):
            shown.pop()
        self.right(textwrap.dedent("""
            import ddprun.checkpoint
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            steps, trained = 25, []
            def train(step):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
                trained.append(step)
        """) + "".join(shown) + textwrap.dedent("""
            assert trained == [*range(25)] * (2 if VERSION >= (2, 6) else 1), trained
            assert ddprun.checkpoint.Memory().load({}) == 20
            if VERSION >= (2, 6):
                assert MemoryReader().step == 20
            # A thread of Gloo of PyTorch 1.13 lets go of the last operation a moment later; if the interpreter ends just then,
            # the process aborts.
            import time
            time.sleep(0.5)
        """), DDPRUN_MEMORY=self.dir)

    def test_lightning(self):
        self.has("lightning")
        whole, killed = self.ends_of(self.example("""
            import lightning, torch
            from memory_lightning import MemoryCheckpoint
            class Module(lightning.LightningModule):
                def __init__(self):
                    super().__init__()
                    torch.manual_seed(3)
                    self.net = torch.nn.Linear(8, 1)
                def training_step(self, batch, number):
                    die(self.global_step == 17 and self.global_rank == 1)
                    return self.net(batch[0]).square().mean()
                def configure_optimizers(self):
                    adam = torch.optim.AdamW(self.parameters(), 0.01)
                    return [adam], [torch.optim.lr_scheduler.StepLR(adam, 1, 0.5)]
            torch.manual_seed(5)
            data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8)), 4)
            module = Module()
            trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, logger=False, barebones=False,
                                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                        callbacks=[MemoryCheckpoint(every=4)])
            trainer.fit(module, data)
            if trainer.global_rank == 0:
                print("end", trainer.global_step, trainer.current_epoch, sum(p.double().sum().item() for p in module.parameters()), flush=True)
            os._exit(0)
        """))
        self.assertRegex(whole, "end 32 4 ")
        self.assertEqual(killed, whole)

    def test_transformers(self):
        self.has("transformers, accelerate")
        whole, killed = self.ends_of(self.example("""
            import torch, transformers
            from memory_transformers import MemoryCheckpoint
            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.net = torch.nn.Linear(8, 1)
                def forward(self, x, labels=None):
                    die(trainer.state.global_step == 17 and int(os.environ["RANK"]) == 1)
                    return {"loss": self.net(x).square().mean()}
            torch.manual_seed(5)
            data = [{"x": torch.randn(8), "labels": torch.zeros(1)} for _ in range(64)]
            options = transformers.TrainingArguments(os.environ["FOLDER"], per_device_train_batch_size=4, max_steps=32, use_cpu=True,
                                                     save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no")
            trainer = transformers.Trainer(Net(), options, train_dataset=data, callbacks=[MemoryCheckpoint(every=4)])
            trainer.train()
            if trainer.is_world_process_zero():
                print("end", trainer.state.global_step, flush=True)
            os._exit(0)
        """), FOLDER=self.path("out"))
        self.assertEqual((whole, killed), ("end 32", "end 32"))


if __name__ == "__main__":
    torch_case.main()
