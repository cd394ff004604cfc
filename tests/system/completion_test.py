"""The completion scripts in a real bash: where a word stands decides what is offered."""

import os
import shlex
import shutil
import subprocess
import unittest

import ddprun_case
from ddprun_case import BIN, PATIENCE, DdprunCase

KNOWN_HOSTS = """# a comment
node1,10.0.0.1 ssh-ed25519 AAAA
[node2.lab]:2222 ssh-rsa AAAA
|1|hash=|hash= ssh-rsa AAAA
@cert-authority *.example ssh-rsa AAAA
"""


class Completion(DdprunCase):
    def setUp(self):
        super().setUp()
        for name in ("data.txt", "--odd"):
            with open(self.path(name), "w", encoding="ascii"):
                pass
        os.makedirs(self.path(".ssh"))
        with open(self.path(".ssh/known_hosts"), "w", encoding="ascii") as f:
            f.write(KNOWN_HOSTS)

    def offered(self, *words, program="ddprun"):
        """For the last of the words, as bash takes them to pieces."""
        script = (f"source <({shlex.quote(os.path.join(BIN, program))} --print-completion bash)\n"
                  f"COMP_WORDS=({program} {shlex.join(words)}); COMP_CWORD={len(words)}\n"
                  f"_{program}; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE, cwd=self.dir,
                              env={**ddprun_case.clean_environment(), "HOME": self.dir}, check=False)
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())

    def test_before_the_program_flags_are_offered(self):
        for line in (["--max"], ["--nnodes", "2", "--max"], ["--nnodes", "=", "2", "--max"], ["-v", "--max"],
                     ["--rdzv-endpoint", "node1", ":", "29400", "--max"], ["-t", "3", "--max"], ["--nproc_per_node", "2", "--max"]):
            with self.subTest(line=line):
                self.assertEqual(self.offered(*line), {"--max-restarts"})

    def test_behind_the_program_only_files_are(self):
        for line in (["train", "--"], ["--nnodes", "2", "train", "--"], ["--rdzv-endpoint", "=", "n", ":", "1", "train.py", "--"],
                     ["--standalone", "--", "--"]):
            with self.subTest(line=line):
                self.assertEqual(self.offered(*line), {"--odd"})
        self.assertEqual(self.offered("train", "--log-dir", "da"), {"data.txt"})

    def test_behind_slurm_its_options_are_offered_and_behind_dashes_those_of_ddprun(self):
        self.assertIn("slurm", self.offered("slu"))
        self.assertEqual(self.offered("slurm", "--"), {"--nodes", "--join", "--daemon-on", "--dry-run", "--help", "--odd"})
        self.assertEqual(self.offered("slurm", "--partition", "x", "--jo"), {"--join"})
        self.assertEqual(self.offered("slurm", "--nodes", "2", "--", "--max"), {"--max-restarts"})
        self.assertEqual(self.offered("slurm", "--", "train", "--"), {"--odd"})

    def test_values_have_their_words(self):
        self.assertEqual(self.offered("--on-stall", "k"), {"kill"})
        self.assertEqual(self.offered("--on-stall", "=", "k"), {"kill"})
        self.assertEqual(self.offered("--on-stall", "="), {"log", "kill", "off"})
        self.assertEqual(self.offered("--token-file", "da"), {"data.txt"})
        self.assertEqual(self.offered("--log-rotate", "1"), {"10M", "100M", "1G", "100M:9"})
        self.assertEqual(self.offered("--rdzv-id", "x"), set())

    def test_lists_go_on_behind_a_comma(self):
        self.assertEqual(self.offered("--hosts", ""), {"node1", "node2.lab"})
        self.assertEqual(self.offered("--hosts", "a,node2"), {"a,node2.lab"})
        self.assertEqual(self.offered("--signals-to-handle", "SIGTERM,SIGU"), {"SIGTERM,SIGUSR1", "SIGTERM,SIGUSR2"})

    def test_ddprunctl(self):
        def ctl(*words):
            return self.offered(*words, program="ddprunctl")

        self.assertEqual(ctl(""), {"status", "nodes", "drain", "resize", "cancel", "report", "ras", "top", "logs", "stacks", "capture", "debug", "health",
                                   "history", "preload", "whatif"})
        self.assertEqual(ctl("-e", "a:1", "dr"), {"drain"})
        self.assertEqual(ctl("drain", "--rea"), {"--reason"})
        self.assertEqual(ctl("status", "--rea"), set())
        self.assertEqual(ctl("status", "--js"), {"--json"})
        self.assertIn("--token-file", ctl("nodes", "--"))
        self.assertEqual(ctl("top", "--o"), {"--once"})
        self.assertEqual(ctl("logs", "job7", "--fo"), {"--follow"})
        self.assertEqual(ctl("--token-file", "da"), {"data.txt"})

    @unittest.skipUnless(shutil.which("zsh"), "there is no zsh")
    def test_zsh_reads_them(self):
        for program in ("ddprun", "ddprunctl"):
            script = f"autoload -U compinit && compinit -D; source <({shlex.quote(os.path.join(BIN, program))} --print-completion zsh)"
            done = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    ddprun_case.main()
