"""The Python blocks of docs/from-launchers.md and docs/from-data-parallel.md: every section's script, started by its
command."""

import os
import re
import subprocess

import torch_case
import ddprun_case  # pylint: disable=wrong-import-order

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs")
LIBRARIES = {"Accelerate": "accelerate", "Lightning": "lightning"}

# What others place on their machines: lines of ddprun, with the variables that they set; Ray has none.
PLACED = {
    "Ray": {},
    "SkyPilot": {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
                 "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"},
    "dstack": {"DSTACK_NODES_NUM": "2", "DSTACK_NODE_RANK": "1", "DSTACK_GPUS_PER_NODE": "8", "DSTACK_MASTER_NODE_IP": "10.0.0.1"},
    "submitit": {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "4", "SLURM_NODEID": "1",
                 "SLURM_STEP_NODELIST": "n[1-4]", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"},
}


def sections(page):
    """[(title, {file: text}, [command])]; what stands before the first title is everybody's."""
    with open(os.path.join(DOCS, page), encoding="utf-8") as file:
        parts = re.split(r"^## (.*)$", file.read(), flags=re.M)
    found = []
    for title, text in zip(["", *parts[1::2]], parts[::2]):
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.M | re.S)
        files = {body.splitlines()[0].lstrip("# "): body for kind, body in blocks if kind == "python"}
        commands = [line for kind, body in blocks if kind == "sh" for line in body.splitlines() if ".py" in line]
        found.append((title, files, commands))
    return found


class Habits(torch_case.TorchCase):
    def test_every_section_runs(self):
        (_, shared, _), *habits = sections("from-launchers.md")
        self.assertEqual([title for title, _, _ in habits],
                         ["torchrun", "torch.multiprocessing.spawn", "Accelerate", "Lightning", "Horovod", *PLACED])
        for title, files, commands in habits[:-len(PLACED)]:
            with self.subTest(title):
                self.run_section({**shared, **files}, commands, LIBRARIES.get(title))

    def test_what_others_place_joins_the_run(self):
        """With the variables of their second node."""
        with open(os.path.join(DOCS, "from-launchers.md"), encoding="utf-8") as file:
            text = dict(zip(PLACED, re.split(rf"^## (?:{'|'.join(PLACED)})$", file.read(), flags=re.M)[1:]))
        with open(self.path("train.py"), "w", encoding="ascii"):
            pass
        for title in list(PLACED)[1:]:
            with self.subTest(title):
                (command,) = re.findall(r"^(?:  (?:- )?(ddprun .*)|.*CommandFunction\(\[(.*?)\]\)\))$", text[title], flags=re.M)
                command = command[0] or command[1].replace('"', "").replace(",", "")
                env = {**torch_case.environment(), **PLACED[title], "DDPRUN_TOKEN": "0123456789abcdef"}
                env["PATH"] = os.pathsep.join([ddprun_case.BIN, env["PATH"]])
                done = subprocess.run(["bash", "-c", command.replace("ddprun ", "ddprun --dry-run ", 1)], cwd=self.path("."),
                                      env=env, capture_output=True, text=True, timeout=ddprun_case.PATIENCE, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stdout, r"joined at (10\.0\.0\.1:8008|n1:)")
                self.assertIn("8 workers", done.stdout)

    def test_one_process_per_gpu_takes_the_steps_of_one_process(self):
        files, losses = {}, []
        for title, more, commands in sections("from-data-parallel.md"):
            files.update(more)
            if commands:
                with self.subTest(title):
                    losses.append(self.run_section(files, commands, None))
        before, after, *by_hand = losses
        self.assertLess(abs(before - after), 1e-6)
        self.assertEqual(by_hand, [3, 3])

    def run_section(self, files, commands, library):
        """The loss that it prints."""
        folder = os.path.dirname(self.path("x"))
        for name, text in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        bin_folder = os.path.dirname(torch_case.PYTHON)
        env = torch_case.environment()
        env["PATH"] = os.pathsep.join([ddprun_case.BIN, bin_folder, env["PATH"]])
        if library and self.launched([torch_case.PYTHON, "-c", f"import {library}"]).returncode != 0:
            self.skipTest(f"this Python has no {library}")
        (command,) = commands
        command = command.replace("29500", str(ddprun_case.free_port())).replace("/tmp/", folder + "/")
        done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True,
                              timeout=4 * ddprun_case.PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"loss \d+\.\d+", done.stderr)
        return float(re.search(r"loss (\d+\.\d+)", done.stdout).group(1))


if __name__ == "__main__":
    torch_case.main()
