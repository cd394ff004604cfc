"""Memory folders: files that outlive workers, their copies on another node, and nodes that are replaced."""

import glob
import os
import shutil
import signal
import time

import paths  # noqa: F401
import ddprun_case
from ddprun_case import DDPRUN, DdprunCase, free_port, send_signal, shell, wait_until

# Each worker says what it finds, and appends a line to a file of its own by writing it anew.
WORKER = r"""
cat "$DDPRUN_MEMORY"/rank-* 2>/dev/null | sed "s/^/found $RANK /"
echo "line of $RANK in $TORCHELASTIC_RESTART_COUNT" > "$DDPRUN_MEMORY/.rank-$RANK"
cat "$DDPRUN_MEMORY/rank-$RANK" >> "$DDPRUN_MEMORY/.rank-$RANK" 2>/dev/null
mv "$DDPRUN_MEMORY/.rank-$RANK" "$DDPRUN_MEMORY/rank-$RANK"
echo "up $RANK"
while [ ! -e "$D/go" ]; do sleep 0.02; done
exit $([ "$RANK" = 0 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && echo ${FAIL:-0} || echo 0)
"""


def below(folder):
    """Path and text of all files, dotted ones too."""
    found = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(base, name)
            try:
                with open(path, encoding="utf-8") as f:
                    found[os.path.relpath(path, folder)] = f.read()
            except OSError:
                pass  # Replaced while we looked.
    return found


class Memory(DdprunCase):
    def setUp(self):
        super().setUp()
        self.memory = os.path.join("/dev/shm", f"ddprun-memory-test-{os.getpid()}-{time.monotonic_ns()}")
        os.mkdir(self.memory)
        self.addCleanup(shutil.rmtree, self.memory, ignore_errors=True)

    def node(self, nnodes, *argv, endpoint=None, is_host=0, size="16M", env=None, program=WORKER):
        more = ["--nnodes", nnodes, "--rdzv-endpoint", endpoint,
                "--rdzv-conf", f"last_call_timeout=0.2,join_timeout=60,is_host={is_host}"] if endpoint else []
        line = [DDPRUN, *more, "--memory-folder", f"{size},at={self.memory}", *argv, *shell(program)]
        return self.start_program(line, env={"DDPRUN_TOKEN": "memory", **(env or {})})

    def folders(self, kind):
        return glob.glob(f"{self.memory}/ddprun-memory-*/node*/{kind}")

    def copies(self):
        return {os.path.basename(path): below(path) for path in self.folders("copies/*")}

    def assert_gone(self):
        wait_until(lambda: os.listdir(self.memory) == [], lambda: str(below(self.memory)))

    def go(self):
        with open(os.path.join(self.dir, "go"), "w", encoding="ascii"):
            pass

    def test_files_outlive_a_restart_and_end_with_the_run(self):
        job = self.node("1", "--max-restarts", "1", "--nproc-per-node", "2", env={"FAIL": "3"})
        wait_until(lambda: job.out().count("up") == 2, job.text)
        (own,) = self.folders("own")
        self.assertEqual(os.stat(os.path.dirname(os.path.dirname(own))).st_mode & 0o777, 0o700)
        self.go()
        self.assertEqual(job.wait(), 0, job.text())
        self.assertRegex(job.out(), r"found 0 line of 0 in 0")
        self.assertRegex(job.out(), r"found 1 line of 0 in 0")
        self.assert_gone()

    def test_each_node_has_a_copy_on_the_other(self):
        endpoint = f"127.0.0.1:{free_port()}"
        nodes = [self.node("2", endpoint=endpoint, is_host=i) for i in (1, 0)]
        wait_until(lambda: sorted(sum(([*c] for c in self.copies().values()), [])) == ["rank-0", "rank-1"],
                   lambda: "".join(n.text() for n in nodes) + str(self.copies()))
        for copy in self.copies().values():
            for name, text in copy.items():
                self.assertEqual(text, f"line of {name[-1]} in 0\n")
        self.go()
        self.assertEqual([n.wait() for n in nodes], [0, 0])
        self.assert_gone()

    def replaced(self, lose, *argv):
        """Three nodes, the third of which is lost and replaced: what the workers of the new one find."""
        endpoint = f"127.0.0.1:{free_port()}"
        nodes = [self.node("3", "--max-restarts", "2", *argv, endpoint=endpoint, is_host=int(i == 0)) for i in range(3)]
        wait_until(lambda: len(self.copies()) == 3 and all(self.copies().values()), lambda: "".join(n.text() for n in nodes))
        lost = next(n for n in nodes[1:] if "up 2" in n.out())
        lose(lost)
        lost.wait()
        new = self.node("3", "--max-restarts", "2", *argv, endpoint=endpoint)
        wait_until(lambda: "up" in new.out(), lambda: "".join(n.text() for n in [*nodes, new]))
        self.go()
        codes = [n.wait() for n in nodes if n is not lost] + [new.wait()]
        self.assertEqual(codes, [0, 0, 0], "".join(n.text() for n in [*nodes, new]))
        self.assert_gone()
        return new

    def test_a_node_that_replaces_a_killed_one_finds_its_files(self):
        new = self.replaced(lambda job: os.kill(job.pid, signal.SIGKILL))
        self.assertRegex(new.out(), r"found \d line of 2 in 0", new.text())
        self.assertRegex(new.err(), r"the memory folder of the node that is replaced was fetched from \S+: 1 files")

    def test_a_node_that_replaces_a_pre_empted_one_finds_its_last_files(self):
        new = self.replaced(lambda job: job.signal(signal.SIGUSR1), "--preempt-signal", "SIGUSR1", "--shutdown-timeout", "2")
        self.assertRegex(new.out(), r"found \d line of 2 in 0", new.text())

    def test_a_round_that_ends_while_a_folder_is_fetched_ends_the_fetching(self):
        endpoint = f"127.0.0.1:{free_port()}"
        argv = ("--max-restarts", "3")
        nodes = [self.node("3", *argv, endpoint=endpoint, is_host=int(i == 0)) for i in range(3)]
        wait_until(lambda: len(self.copies()) == 3 and all(self.copies().values()), lambda: "".join(n.text() for n in nodes))
        lost = next(n for n in nodes[1:] if "up 2" in n.out())
        rest = [n for n in nodes if n is not lost]
        servers = [p.pid for n in rest for p in n.processes() if p.name == "ddprun-memory"]
        for server in servers:
            os.kill(server, signal.SIGSTOP)  # The copy is there, and does not come.
        os.kill(lost.pid, signal.SIGKILL)
        lost.wait()
        new = self.node("3", *argv, endpoint=endpoint)
        nodes = [*rest, new]
        wait_until(lambda: "fetching the memory folder of the node that is replaced" in new.err(), new.text)
        self.assertNotIn("up", new.out())
        wait_until(lambda: all(n.out().count("up") == 2 for n in rest), rest[0].text)
        agents = [p.pid for p in rest[1].agents()]
        os.kill(next(p.pid for p in rest[1].processes() if p.ppid in agents), signal.SIGKILL)
        wait_until(lambda: "could not be fetched from" in new.err(), lambda: "".join(n.text() for n in nodes))
        self.assertIn("it took too long, or the round has ended", new.err())
        for server in servers:
            os.kill(server, signal.SIGCONT)
        wait_until(lambda: all(n.out().count("up") >= 3 for n in rest), lambda: "".join(n.text() for n in nodes))
        self.go()
        self.assertEqual([n.wait() for n in nodes], [0, 0, 0], "".join(n.text() for n in nodes))
        self.assert_gone()

    def test_the_death_of_a_memory_server_costs_nothing(self):
        endpoint = f"127.0.0.1:{free_port()}"
        nodes = [self.node("2", endpoint=endpoint, is_host=i) for i in (1, 0)]
        wait_until(lambda: len(self.copies()) == 2 and all(self.copies().values()), lambda: "".join(n.text() for n in nodes))

        def servers():
            return [p for n in nodes for p in n.processes() if p.name == "ddprun-memory"]

        self.assertEqual(len(servers()), 2)
        send_signal(servers(), signal.SIGKILL)
        (own, _) = sorted(self.folders("own"))
        with open(os.path.join(own, "later"), "w", encoding="ascii") as f:
            f.write("later")
        wait_until(lambda: any("later" in copy for copy in self.copies().values()),
                   lambda: "".join(n.text() for n in nodes) + str(self.copies()))
        self.go()
        self.assertEqual([n.wait() for n in nodes], [0, 0], "".join(n.text() for n in nodes))
        self.assert_gone()

    def test_a_file_that_grows_is_never_copied_in_part(self):
        """It is opened, appended to and closed again and again, and then kept open."""
        endpoint = f"127.0.0.1:{free_port()}"
        grow = """
            echo "up $RANK"
            if [ "$RANK" = 0 ]; then
                i=0; while [ $i -lt 400 ]; do echo "line $i" >> "$DDPRUN_MEMORY/log"; i=$((i + 1)); done
                exec 9>> "$DDPRUN_MEMORY/log"; echo "open" >&9; : > "$D/open"
                while [ ! -e "$D/close" ]; do sleep 0.02; done
                echo "closed" >&9; exec 9>&-
            fi
            while [ ! -e "$D/go" ]; do sleep 0.02; done
        """
        nodes = [self.node("2", endpoint=endpoint, is_host=i, program=grow) for i in (1, 0)]
        lines = "".join(f"line {i}\n" for i in range(400))

        def logs():
            return [copy["log"] for copy in self.copies().values() if "log" in copy]

        def is_kept_open():
            for log in logs():
                self.assertTrue(lines.startswith(log) and log[-1:] in ("", "\n"), log[-40:])
            return os.path.exists(os.path.join(self.dir, "open"))

        wait_until(is_kept_open, lambda: str(logs())[-200:])
        for log in logs():  # That of a time at which no process had it open.
            self.assertTrue(lines.startswith(log), log[-40:])
        with open(os.path.join(self.dir, "close"), "w", encoding="ascii"):
            pass
        wait_until(lambda: logs() == [lines + "open\nclosed\n"], lambda: str(logs())[-200:])
        self.go()
        self.assertEqual([n.wait() for n in nodes], [0, 0], "".join(n.text() for n in nodes))
        self.assert_gone()

    def test_nothing_is_left_when_launcher_and_agent_are_killed_together(self):
        job = self.node("1", "--nproc-per-node", "2")
        wait_until(lambda: job.out().count("up") == 2, job.text)
        send_signal([job, *job.agents()], signal.SIGKILL)
        self.assert_gone()

    def test_what_is_left_if_all_are_killed_at_once_is_removed_by_the_next_run(self):
        job = self.node("1", "--nproc-per-node", "1")
        wait_until(lambda: job.out().count("up") == 1, job.text)
        send_signal(sorted(job.processes(), key=lambda p: p.pid, reverse=True), signal.SIGSTOP)
        send_signal(job.processes(), signal.SIGKILL)
        job.wait()
        wait_until(lambda: not job.processes(), lambda: str(job.processes()))
        (left,) = os.listdir(self.memory)
        other = self.node("1", program="echo up", env={"DDPRUN_TOKEN": "other"})
        self.assertEqual(other.wait(), 0, other.text())
        self.assertIn(f"removed the memory folder of a run that was killed: {self.memory}/{left}", other.err())
        self.assert_gone()
        for folder in self.folders_left():  # Nobody was left to remove these.
            shutil.rmtree(folder)
        for cgroup in self.cgroup.left():
            for folder, _, _ in os.walk(cgroup, topdown=False):
                os.rmdir(folder)

    def test_a_run_that_goes_on_keeps_its_folder_when_another_begins(self):
        job = self.node("1", "--nproc-per-node", "1")
        wait_until(lambda: job.out().count("up") == 1, job.text)
        other = self.node("1", program="echo up")
        self.assertEqual(other.wait(), 0, other.text())
        (own,) = self.folders("own")
        self.assertEqual(list(below(own)), ["rank-0"])
        self.go()
        self.assertEqual(job.wait(), 0, job.text())
        self.assert_gone()

    def test_a_folder_that_is_too_full_is_said_to_be(self):
        endpoint = f"127.0.0.1:{free_port()}"
        program = 'head -c 200000 /dev/zero > "$DDPRUN_MEMORY/big"; echo up; while [ ! -e "$D/go" ]; do sleep 0.02; done'
        nodes = [self.node("2", endpoint=endpoint, is_host=i, size="100K", program=program) for i in (1, 0)]
        wait_until(lambda: all("more than the 0.10 MB of --memory-folder" in n.err() for n in nodes), lambda: nodes[0].text())
        self.assertEqual(list(self.copies().values()), [{}] * len(self.copies()))
        self.go()
        self.assertEqual([n.wait() for n in nodes], [0, 0])

    def test_wrong_sizes_and_places_are_refused_before_anything_is_started(self):
        for value, said in [("4", "give a size first: a whole number and K, M, G or T"), ("1G,copies=maybe", "'copies=maybe' is none of copies=on"),
                            ("1G,at=here", "give at a folder's whole path"), ("1G,rate=fast", "give rate as the bytes of a second"),
                            ("900T", r"/dev/shm has room for \d+ MiB, not for \d+ MiB; give it more"),
                            ("1M,at=/nowhere", "looking at /nowhere: No such file")]:
            with self.subTest(value=value):
                job = self.start("--memory-folder", value, *shell("echo started"))
                self.assertEqual(job.wait(), 2, job.text())
                self.assertRegex(job.err(), said)
                self.assertEqual(job.out(), "")


if __name__ == "__main__":
    ddprun_case.main()
