"""The blocks of docs/from-launchers.md: every section's script, started by its command."""

import os
import re
import subprocess

import torch_case
import ddprun_case  # pylint: disable=wrong-import-order

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/from-launchers.md")
LIBRARIES = {"Accelerate": "accelerate", "Lightning": "lightning"}


def sections():
    """[(title, {file: text}, [command])]; what stands before the first title is everybody's."""
    with open(PAGE, encoding="utf-8") as file:
        parts = re.split(r"^## (.*)$", file.read(), flags=re.M)
    found = []
    for title, text in zip(["", *parts[1::2]], parts[::2]):
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.M | re.S)
        files = {body.splitlines()[0].lstrip("# "): body for kind, body in blocks if kind == "python"}
        commands = [line for kind, body in blocks if kind == "sh" for line in body.splitlines()]
        found.append((title, files, commands))
    return found


class Habits(torch_case.TorchCase):
    def test_every_section_runs(self):
        (_, shared, _), *habits = sections()
        self.assertEqual([title for title, _, _ in habits],
                         ["torchrun", "torch.multiprocessing.spawn", "Accelerate", "Lightning", "Horovod"])
        for title, files, commands in habits:
            with self.subTest(title):
                self.run_section({**shared, **files}, commands, LIBRARIES.get(title))

    def run_section(self, files, commands, library):
        folder = os.path.dirname(self.path("x"))
        for name, text in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        bin_folder = os.path.dirname(torch_case.PYTHON)
        env = torch_case.environment()
        env["PATH"] = os.pathsep.join([ddprun_case.BIN, bin_folder, env["PATH"]])
        if library and self.launched([torch_case.PYTHON, "-c", f"import {library}"]).returncode != 0:
            self.skipTest(f"this Python has no {library}")
        self.assertEqual(len(commands), 1)
        done = subprocess.run(["bash", "-c", commands[0]], cwd=folder, env=env, capture_output=True, text=True,
                              timeout=4 * ddprun_case.PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"loss \d+\.\d+", done.stderr)


if __name__ == "__main__":
    torch_case.main()
