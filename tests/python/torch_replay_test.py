"""The hunt of docs/replay.md: each of its command lines is run, and prints what the page shows."""

import os
import re

import torch_case
from ddprun_case import BIN
from elastic_case import ElasticCase, PATIENCE

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/replay.md")
# What differs between machines and versions of torch.
DIFFERS = ((r"\(hash \w{16}\)", "(hash H)"), (r"\[default\d\]:", ""), (r"rank \d on [\w.-]+", "rank R"), (r"replay /\S*/", "replay /"))


def alike(text):
    for pattern, name in DIFFERS:
        text = re.sub(pattern, name, text)
    return text


class Hunt(ElasticCase):
    python = torch_case.PYTHON

    def test_the_hunt_of_the_page(self):
        with open(PAGE, encoding="utf-8") as file:
            page = file.read().split("## When a bundle")[0]
        with open(self.path("train_nan.py"), "w", encoding="utf-8") as file:
            file.write(re.search(r"```python\n(.*?)```", page, re.S)[1])
        steps = re.findall(r"(?m)^   ```\n(.*?)   ```$", page, re.S)
        self.assertEqual(len(steps), 6)
        for step in steps:
            lines = [line[3:] for line in step.splitlines()]
            commands = [line[2:] for line in lines if line.startswith("$ ")]
            typed = [line.removeprefix("(Pdb) ") for line in lines if line.startswith("(Pdb) ")]
            shown = [line for line in lines if not line.startswith(("$ ", "(Pdb) "))]
            commands[-1] = f"printf '{''.join(word + chr(92) + 'n' for word in typed)}q\\n' | {commands[-1]}"
            job = self.start_program(["/bin/sh", "-c", "cd $D && " + " && ".join(commands)],
                                     env=self.environment(PATH=f"{BIN}:{os.environ['PATH']}"))
            job.wait(PATIENCE)
            self.assertTrue(shown)
            for line in shown:
                self.assertIn(alike(line), alike(job.text()))


if __name__ == "__main__":
    torch_case.main()
