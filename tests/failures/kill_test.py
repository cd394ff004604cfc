"""kill -9 of every process of ddprun, each alone: nothing of the run stays behind, or the run goes on."""

import os
import signal
import time

import paths  # noqa: F401
import ddprun_case
from ddprun_case import DdprunCase, PASS_GATE, PROMISED, column, env_to, shell, wait_until

# Each worker leaves a setsid child, a daemonised one and a stopped one, all deaf to SIGTERM.
HARD_TO_KILL = ("trap '' TERM; (setsid sleep 601 &) ; setsid -f sleep 602; "
                "setsid -f sh -c 'kill -STOP $$; sleep 603'; " + env_to())
WAIT = "while :; do sleep 600; done"
OFFSPRING = 3


def kill(process):
    os.kill(process.pid, signal.SIGKILL)


class NothingStays(DdprunCase):
    def started(self, *argv, workers, script=WAIT):
        job = self.start(*argv, *shell(HARD_TO_KILL + script))
        self.wait_for_workers(workers, jobs=[job])
        wait_until(lambda: self.offspring(job) == OFFSPRING * workers,
                   lambda: f"{OFFSPRING * workers} grandchildren: {job.processes()}")
        return job

    @staticmethod
    def offspring(job):
        words = [" ".join(p.argv) for p in job.processes()]
        stopped = [p for p in job.processes() if p.state == "T" and p.argv[0] == "sh"]
        return sum(w in ("sleep 601", "sleep 602") for w in words) + len(stopped)

    def gone(self, what, *jobs):
        took = self.assert_nothing_left(*jobs, since=self.killed_at)
        self.report(f"nothing left {took * 1000:.0f} ms after kill -9 of {what}")

    def kill(self, process):
        self.killed_at = time.monotonic()
        kill(process)

    def test_launcher_of_one_node(self):
        job = self.started("--standalone", "--nproc-per-node", "2", workers=2)
        self.kill(job)
        self.gone("the launcher", job)
        self.assertEqual(job.wait(), 137)

    def test_launcher_of_several_nodes_and_the_daemon(self):
        job = self.started("--local-nodes", "2", "--nproc-per-node", "2", workers=4)
        self.assertTrue(job.daemon())
        self.kill(job)
        self.gone("the launcher of two nodes", job)

    def test_agent_of_one_node(self):
        job = self.started("--standalone", "--nproc-per-node", "2", workers=2)
        (agent,) = job.agents()
        self.kill(agent)
        self.gone("the agent", job)
        self.assertEqual(job.wait(), 137)
        self.assertRegex(job.err(), r"agent \(pid \d+\) was killed by SIGKILL")

    def test_one_agent_of_a_fixed_run_ends_the_run(self):
        """Its own workers at once, and the others' once the run cannot come together again."""
        job = self.started("--local-nodes", "2", "--rdzv-conf", "join_timeout=5", "--shutdown-timeout", "1",
                           workers=2)
        victim = job.agents()[1]
        own = [p for p in job.processes() if p.ppid == victim.pid]
        self.assertTrue(own)
        self.kill(victim)
        wait_until(lambda: not [p for p in job.processes() if p.pid in [o.pid for o in own]],
                   lambda: f"the end of {own}", PROMISED)
        self.finish(job, 137)

    def test_launcher_killed_in_the_middle_of_its_start(self):
        for step in range(10):
            job = self.start("--local-nodes", "2", "--nproc-per-node", "3", *shell(HARD_TO_KILL + WAIT))
            wait_until(lambda: time.monotonic() >= job.started + 0.004 * step, "the moment")
            self.killed_at = time.monotonic()
            job.signal(signal.SIGKILL)
            job.wait()
            self.assert_nothing_left(job, since=self.killed_at)

    def test_normal_end_leaves_no_grandchild_either(self):
        gate = self.gate()
        job = self.started("--local-nodes", "2", workers=2, script=PASS_GATE)
        gate.open()
        self.finish(job)

    def test_a_stopped_worker_is_killed_too(self):
        job = self.started("--standalone", workers=1, script="kill -STOP $$; " + WAIT)
        (agent,) = wait_until(lambda: job.agents() if len(job.agents()) == 1 else None, job.text)  # The keeper has its name.
        self.kill(agent)
        self.gone("the agent of a stopped worker", job)


class TheDaemonDies(DdprunCase):
    def test_the_run_goes_on_and_ends_well(self):
        gate = self.gate()
        job = self.start("--local-nodes", "2", "--nproc-per-node", "2", *shell(env_to() + PASS_GATE))
        before = self.wait_for_workers(4, jobs=[job])
        first = job.daemon()
        kill(first)
        wait_until(lambda: self.new_daemon(job, {first.pid}), job.text)
        gate.open()
        self.finish(job)
        self.assertEqual(len(self.arrivals()), len(before))

    def test_workers_may_end_while_there_is_no_daemon(self):
        """Killed at the moment the workers end: the new daemon hears of it from the agents."""
        gate = self.gate()
        job = self.start("--local-nodes", "2", "--nproc-per-node", "2", *shell(env_to() + PASS_GATE))
        self.wait_for_workers(4, jobs=[job])
        kill(job.daemon())
        gate.open()
        self.finish(job)

    def test_ten_times_in_a_row(self):
        """After five deaths a minute nobody starts it again, and running workers go on all the same."""
        gate = self.gate()
        job = self.start("--local-nodes", "2", "--rdzv-conf", "close_timeout=5", *shell(env_to() + PASS_GATE))
        self.wait_for_workers(2, jobs=[job])
        killed = set()
        for _ in range(10):
            daemon = wait_until(lambda: self.new_daemon(job, killed), job.text)
            if daemon == "given up":
                break
            kill(daemon)
            killed.add(daemon.pid)
        self.report(f"daemon killed {len(killed)} times")
        self.assertEqual(len(self.arrivals()), 2)  # No worker noticed.
        gate.open()
        self.finish(job)  # The agents wait close_timeout for someone to tell.

    @staticmethod
    def new_daemon(job, killed):
        if "not started again" in job.err():
            return "given up"
        daemon = job.daemon()
        return daemon if daemon and daemon.pid not in killed else None

    def test_a_worker_that_fails_later_is_restarted(self):
        gate = self.gate()
        script = (env_to() + '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; ' + PASS_GATE +
                  '[ $RANK = 1 ] && kill -KILL $$; exec sleep 600')
        job = self.start("--local-nodes", "2", "--max-restarts", "1", *shell(script))
        self.wait_for_workers(2, jobs=[job])
        first = job.daemon()
        kill(first)
        wait_until(lambda: self.new_daemon(job, {first.pid}), job.text)
        gate.open()
        self.finish(job)
        after = self.wait_for_workers(2, "env.1")
        self.assertEqual(column(after, "RANK"), ["0", "1"])

    def test_a_worker_that_fails_while_there_is_no_daemon_is_restarted(self):
        gate = self.gate()
        script = (env_to() + '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; ' + PASS_GATE +
                  '[ $RANK = 1 ] && kill -KILL $$; exec sleep 600')
        job = self.start("--local-nodes", "2", "--max-restarts", "1", *shell(script))
        self.wait_for_workers(2, jobs=[job])
        kill(job.daemon())
        gate.open()
        self.finish(job)
        self.assertEqual(column(self.wait_for_workers(2, "env.1"), "RANK"), ["0", "1"])

    def test_the_restart_budget_survives_it(self):
        """One restart used before the death of the daemon: none is left after it."""
        script = (env_to() + '[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 7; ' + PASS_GATE + 'exit 8')
        gate = self.gate()
        job = self.start("--local-nodes", "2", "--max-restarts", "1", *shell(script))
        self.wait_for_workers(2, "env.1", jobs=[job])
        first = job.daemon()
        kill(first)
        wait_until(lambda: self.new_daemon(job, {first.pid}), job.text)
        gate.open()
        self.finish(job, 8)
        self.assertRegex(job.err(), "1 of 1")

    def test_while_a_node_is_being_waited_for(self):
        """No round yet: the node that waits is still waiting afterwards, and the other can come."""
        port = ddprun_case.free_port()
        argv = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        env = {"DDPRUN_TOKEN": "t"}
        host = self.start(*argv, *shell(env_to()), env=env)
        host.wait_for("waiting for nodes")
        first = host.daemon()
        kill(first)
        wait_until(lambda: self.new_daemon(host, {first.pid}), host.text)
        other = self.start(*argv, *shell(env_to()), env=env)
        self.finish(host)
        self.finish(other)
        self.assertEqual(column(self.wait_for_workers(2), "RANK"), ["0", "1"])

    def test_one_that_stood_still_misses_silent_nodes_afterwards(self):
        """It gives the nodes time to speak first. Their beats, several a second, are not to prolong that."""
        job = self.start("--local-nodes", "4", "--rdzv-conf", "heartbeat_timeout=1.5,standstill_timeout=3,join_timeout=20",
                         "--shutdown-timeout", "1", *shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(4, jobs=[job])
        daemon = job.daemon()
        stopped = time.monotonic()
        os.kill(daemon.pid, signal.SIGSTOP)
        # Longer than it waits for a beat, not so long that the agents give it up.
        wait_until(lambda: time.monotonic() > stopped + 2, "two seconds to pass")
        os.kill(daemon.pid, signal.SIGCONT)
        silent = job.agents()[1]
        os.kill(silent.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: "was silent" in job.err() or "did not come back" in job.err(), job.text)
        finally:
            os.kill(silent.pid, signal.SIGCONT)
        job.signal(signal.SIGTERM)
        self.finish(job, 143)

    def test_the_hosting_launcher_dies_and_the_other_node_ends(self):
        """With the endpoint gone for good the survivor's workers compute on; when they end it says so."""
        gate = self.gate()
        first, second = self.two_nodes(worker=shell(env_to() + PASS_GATE))
        self.wait_for_workers(2, jobs=[first, second])
        first.signal(signal.SIGKILL)
        self.assertEqual(first.wait(), 137)
        second.wait_for("lost the rendezvous daemon")
        second.signal(signal.SIGTERM)
        self.finish(second, 143)


if __name__ == "__main__":
    ddprun_case.main()
