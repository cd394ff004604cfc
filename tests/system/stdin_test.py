"""What workers read from standard input, and prompts that are seen while a worker waits for an answer."""

import os
import pty
import select
import subprocess
import sys
import time

import ddprun_case
from ddprun_case import DDPRUN, PATIENCE, DdprunCase, clean_environment

READ = ["/bin/sh", "-c", 'IFS= read -r line; echo "$LOCAL_RANK read <$line>"']


class Stdin(DdprunCase):
    def read_by(self, *argv, text="hello\n", program=None):
        done = subprocess.run([DDPRUN, *argv, *(program or READ)], input=text, capture_output=True, text=True, timeout=PATIENCE,
                              env={**clean_environment(), "TMPDIR": self.temporary, "XDG_STATE_HOME": self.path("state"),
                                   "XDG_CACHE_HOME": self.path("cache"),
                                   "PYTHON_EXEC": os.path.realpath(sys.executable)}, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return sorted(line.split("]:", 1)[1] for line in done.stdout.splitlines())

    def test_the_first_local_rank_has_it(self):
        self.assertEqual(self.read_by("--nproc-per-node", "3"), ["0 read <hello>", "1 read <>", "2 read <>"])

    def test_another_rank_has_it_if_that_is_wanted(self):
        self.assertEqual(self.read_by("--nproc-per-node", "2", "--stdin", "1"), ["0 read <>", "1 read <hello>"])

    def test_no_rank_has_it(self):
        self.assertEqual(self.read_by("--nproc-per-node", "2", "--stdin", "none"), ["0 read <>", "1 read <>"])

    def test_all_have_it_together(self):
        lines = self.read_by("--nproc-per-node", "2", "--stdin", "all", text="one\ntwo\n")
        self.assertEqual(sorted(line.split("<")[1] for line in lines), ["one>", "two>"])

    def test_a_whole_file_goes_through(self):
        text = "".join(f"{i}\n" for i in range(200_000))
        self.assertEqual(self.read_by("--nproc-per-node", "1", text=text, program=["/bin/sh", "-c", "cksum; cat"]),
                         self.read_by("--nproc-per-node", "1", "--stdin", "all", text=text, program=["/bin/sh", "-c", "cksum; cat"]))
        self.assertEqual(self.read_by("--nproc-per-node", "1", text=text, program=["wc", "-c"]), [str(len(text))])

    def test_a_second_local_node_has_none(self):
        self.assertEqual(self.read_by("--local-nodes", "2"), ["0 read <>", "0 read <hello>"])

    def test_a_forked_worker_has_it_too_and_the_others_do_not(self):
        script = self.path("read.py")
        with open(script, "w", encoding="ascii") as f:
            f.write("import os, sys\nprint(os.environ['LOCAL_RANK'], 'read', repr(sys.stdin.readline()), 'json' in sys.modules)\n")
        self.assertEqual(self.read_by("--nproc-per-node", "2", "--preload", "json", "--stdin", "1", program=[script]),
                         ["0 read '' True", "1 read 'hello\\n' True"])

    def test_a_local_rank_that_there_is_not_is_refused(self):
        job = self.start("--nproc-per-node", "2", "--stdin", "2", *READ)
        self.assertEqual(job.wait(), 2, job.text())
        self.assertIn("--stdin 2: the local ranks are 0 to 1", job.err())

    def test_what_is_no_choice_is_refused(self):
        for wrong in ("-1", "some", "1,2", "99999999"):
            job = self.start("--stdin=" + wrong, *READ)
            self.assertEqual(job.wait(), 2, job.text())
            self.assertIn("give a local rank, all, or none", job.err())

    def on_terminal(self, *argv):
        """A run on a terminal of its own: a function that reads until a text is there, and one that types."""
        main, other = pty.openpty()
        self.addCleanup(os.close, main)
        run = subprocess.Popen([DDPRUN, *argv], stdin=other, stdout=other, stderr=other, start_new_session=True,
                               env={**clean_environment(), "TMPDIR": self.temporary, "XDG_STATE_HOME": self.path("state"), "TERM": "xterm"})
        os.close(other)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        seen = ""

        def until(text):
            nonlocal seen
            ends = time.monotonic() + PATIENCE
            while text not in seen:
                self.assertTrue(time.monotonic() < ends and select.select([main], [], [], PATIENCE)[0], f"no {text!r} in {seen!r}")
                seen += os.read(main, 65536).decode()
            seen = seen.split(text, 1)[1]

        return run, until, lambda text: os.write(main, text.encode())

    def test_a_prompt_is_seen_while_the_worker_waits_and_a_debugger_works(self):
        script = self.path("debugged.py")
        with open(script, "w", encoding="ascii") as f:
            f.write("answer = 6 * 7\nbreakpoint()\nprint('went on')\n")
        run, until, type_in = self.on_terminal("--nproc-per-node", "2", "--local-ranks-filter", "0",
                                               sys.executable, "-c", f"import os\nif os.environ['RANK'] == '0': exec(open({script!r}).read())")
        until("(Pdb) ")
        type_in("p answer\n")
        until("42")
        until("(Pdb) ")
        type_in("c\n")
        until("went on")
        self.assertEqual(run.wait(PATIENCE), 0)


if __name__ == "__main__":
    ddprun_case.main()
