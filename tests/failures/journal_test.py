"""The journal's folder and disk: full, taken, not writable, and a daemon that works on in spite of it."""

import os
import resource
import signal

import paths  # noqa: F401
import ddprun_case
from ddprun_case import BIN, DdprunCase, PASS_GATE, column, env_to, free_port, shell

TOKEN = {"DDPRUN_TOKEN": "a token of the tests"}
DAEMON = os.path.join(BIN, "ddprun-rendezvous")


class Journal(DdprunCase):
    def daemon(self, *argv, limit=None):
        """With `limit` the journal cannot grow beyond so many bytes, as on a disk that is full."""
        prefix = ["prlimit", f"--fsize={limit}:unlimited"] if limit else []
        return self.start_program([*prefix, DAEMON, "--port", str(self.port), *argv], env=TOKEN)

    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.folder = self.path("state")

    def nodes(self, *argv, worker):
        return [self.start("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-conf",
                           "is_host=0", *argv, *worker, env=TOKEN) for _ in range(2)]

    def test_a_full_disk_stops_decisions_not_workers(self):
        """The disk is full when a worker fails; the restart comes once there is room."""
        gate = self.gate()
        daemon = self.daemon("--state-dir", self.folder)
        daemon.wait_for("listening")
        script = (env_to() + '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; ' + PASS_GATE +
                  '[ $RANK = 1 ] && kill -KILL $$; exec sleep 600')
        nodes = self.nodes("--max-restarts", "1", worker=shell(script))
        self.wait_for_workers(2, jobs=nodes)
        size = os.path.getsize(os.path.join(self.folder, "journal"))
        self.limit(daemon, size + 20)
        gate.open()
        daemon.wait_for("cannot be written: .*(File too large|No space)")
        for node in nodes:
            self.assertFalse(node.ended(), node.text())
        self.assertEqual(len(self.arrivals("env.1")), 0)
        self.assertLessEqual(os.path.getsize(os.path.join(self.folder, "journal")), size)
        self.limit(daemon, resource.RLIM_INFINITY)
        daemon.wait_for("can be written again")
        for node in nodes:
            self.finish(node)
        self.assertEqual(column(self.wait_for_workers(2, "env.1"), "RANK"), ["0", "1"])
        self.assertEqual(daemon.err().count("cannot be written"), 1)

    @staticmethod
    def limit(daemon, size):
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def test_a_folder_that_is_in_use_is_refused_with_the_holder(self):
        first = self.daemon("--state-dir", self.folder)
        first.wait_for("listening")
        self.port = free_port()
        second = self.daemon("--state-dir", self.folder)
        self.assertEqual(second.wait(), 1)
        self.assertIn(f"process {first.pid}", second.err())

    def test_a_folder_that_cannot_be_made_is_refused(self):
        job = self.daemon("--state-dir", "/proc/nowhere")
        self.assertEqual(job.wait(), 1)
        self.assertIn("/proc/nowhere", job.err())

    def test_a_daemon_that_syncs_comes_back_too(self):
        gate = self.gate()
        argv = ["--state-dir", self.path("a/b"), "--journal-sync"]
        first = self.daemon(*argv)
        first.wait_for("listening")
        nodes = self.nodes(worker=shell(env_to() + PASS_GATE))
        self.wait_for_workers(2, jobs=nodes)
        first.signal(signal.SIGKILL)
        first.wait()
        second = self.daemon(*argv)
        second.wait_for("back, with run")
        gate.open()
        for node in nodes:
            self.finish(node)
        self.assertEqual(len(self.arrivals()), 2)


if __name__ == "__main__":
    ddprun_case.main()
