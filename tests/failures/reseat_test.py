"""Workers that keep their process when one of them dies, or is taken away."""

import os
import re
import signal

import paths  # noqa: F401
import ddprun_case
from ddprun_case import DdprunCase, free_port, wait_until
from reseat_case import HELD, ReseatCase, WORKER


class Reseat(ReseatCase):
    def test_survivors_keep_their_process_and_a_replacement_is_let_in(self):
        job = self.launch("--nproc-per-node", "4", env=HELD)
        before, _, full = self.shrinks_and_grows(job, 4, [1])
        newcomer, = {s.pid for s in full} - {s.pid for s in before}
        born = self.events(newcomer, "born")[0]
        self.assertEqual((born["RANK"], born["LOCAL_RANK"], born["TORCHELASTIC_RESTART_COUNT"]), ("1", "1", "1"))
        self.assertRegex(job.err(), rf"rank 1 \(pid {before[1].pid}\) was killed by signal 9")
        self.assertRegex(job.err(), r"rank 1 on \S+ was killed by signal 9 \(SIGKILL\); the other workers continue")
        self.assertRegex(job.err(), r"3 workers continue at step \d+ after 1 ms; 1 step runs again")
        self.assertRegex(job.err(), r"growing to 4 workers at the next boundary between steps")
        self.assertRegex(job.out(), r"\[default1\]:rank 1 of 3")  # Shown with the rank that it has now.

    def test_several_die_at_once(self):
        self.shrinks_and_grows(self.launch("--nproc-per-node", "5", env=HELD), 5, [0, 2, 4])

    def test_all_but_one_die(self):
        self.shrinks_and_grows(self.launch("--nproc-per-node", "4", env=HELD), 4, [0, 1, 2])

    def test_rank_0_dies(self):
        self.shrinks_and_grows(self.launch("--nproc-per-node", "3", env=HELD), 3, [0])

    def test_two_nodes(self):
        job = self.launch("-v", "--local-nodes", "2", "--nproc-per-node", "2", env=HELD)
        self.daemon_knows(job, 2)
        self.shrinks_and_grows(job, 4, [2])

    def test_a_node_loses_all_its_workers(self):
        job = self.launch("-v", "--local-nodes", "2", "--nproc-per-node", "2", env=HELD)
        before = self.world(4)
        self.daemon_knows(job, 2)
        self.kill(before[2], before[3])
        self.touch("ready")
        full = self.world(4, after=before[0].round)
        self.assert_kept(before, full, before[2:])
        self.end_well(job)

    def test_one_death_after_another(self):
        job = self.launch("--nproc-per-node", "3")
        seats = self.world(3)
        for rank in (1, 0, 2):
            killed = seats[rank]
            self.kill(killed)
            seats, before = self.world(3, after=seats[0].round), seats
            self.assertNotIn(killed.pid, [s.pid for s in seats])
            self.assert_kept(before, seats, [killed])
        self.end_well(job)

    def test_without_restarts_left_the_first_death_ends_the_run(self):
        job = self.start("--nproc-per-node", "3", *WORKER)
        self.kill(self.world(3)[1])
        self.finish(job, 137)
        self.assertRegex(job.err(), r"rank 1 .* failed first")

    def test_a_plain_worker_among_them_makes_all_start_again(self):
        job = self.launch("--nproc-per-node", "3", env={"FAULT_2": "plain"})
        wait_until(lambda: len(self.seats()) == 2 and len(self.traces()) == 3, self.text)
        before = self.living()
        self.kill(self.seats()[0])
        after = self.world(3)
        self.assertFalse(before & {seat.pid for seat in after}, self.text())
        self.end_well(job)

    def test_a_worker_that_answers_no_fence_is_killed_and_replaced(self):
        job = self.launch("--nproc-per-node", "3", env={"FAULT_2": "deaf"})
        before = self.world(3)
        self.kill(before[0])
        after = self.world(3, after=before[0].round)
        self.assertIn(before[1].pid, [seat.pid for seat in after], self.text())
        self.assertNotIn(before[2].pid, [seat.pid for seat in after], self.text())
        self.end_well(job)

    def test_a_halted_worker_is_killed_and_replaced(self):
        job = self.launch("--nproc-per-node", "3")
        before = self.world(3)
        os.kill(before[2].pid, signal.SIGSTOP)
        self.kill(before[0])
        after = self.world(3, after=before[0].round)
        self.assertIn(before[1].pid, [seat.pid for seat in after], self.text())
        self.assertNotIn(before[2].pid, [seat.pid for seat in after], self.text())
        self.end_well(job)

    def test_a_worker_that_waits_for_its_seat_is_not_stuck(self):
        """Rank 1 waits for 5 s for one that does not leave the round, a replacement until it is let in."""
        job = self.launch("--nproc-per-node", "3", "--on-stall", "kill", "--stall-timeout", "2",
                          env={**HELD, "FAULT_2": "deaf"})
        before = self.world(3)
        wait_until(lambda: all(self.events(seat.pid, "warm") for seat in before), self.text)  # There is some history.
        self.kill(before[0])
        alone = self.world(1, after=before[0].round)
        self.assertEqual(alone[0].pid, before[1].pid, self.text())
        self.touch("ready")
        full = self.world(3, after=alone[0].round)
        self.assertNotIn("no progress", job.err())
        self.assert_kept(alone, full, [])
        self.end_well(job)

    def test_a_replacement_has_files_of_its_own_and_survivors_keep_theirs(self):
        job = self.launch("--nproc-per-node", "2", "-t", "3", "--log-dir", self.path("logs"))
        before = self.world(2)
        self.kill(before[1])
        full = self.world(2, after=before[0].round)
        self.assert_kept(before, full, [before[1]])
        self.end_well(job)
        run, = os.listdir(self.path("logs"))

        def log(attempt, local_rank):
            with open(self.path(f"logs/{run}/attempt_{attempt}/{local_rank}/stdout.log"), encoding="utf-8") as f:
                return f.read().split("\n")[:-1]

        self.assertEqual(log(0, 1), ["rank 1 of 2"])
        self.assertEqual(log(1, 1), ["rank 1 of 2"])
        self.assertEqual(log(0, 0)[0], "rank 0 of 2")
        self.assertEqual(log(0, 0)[-1], "rank 0 of 2")
        self.assertGreaterEqual(len(log(0, 0)), 2)
        errors = {self.events(seat.pid, "born")[0]["TORCHELASTIC_ERROR_FILE"] for seat in (*before, full[1])}
        self.assertEqual(len(errors), 3)

    def test_workers_are_killed_again_and_again(self):
        def most_rounds():
            return max((len({e["round"] for e in trace if e["event"] == "seated"}) for trace in self.traces().values()),
                       default=0)

        job = self.start("--nproc-per-node", "4", "--max-restarts", "1000", "--chaos", "2", *WORKER,
                         env={"DDPRUN_CHAOS_SEED": "11"})
        wait_until(lambda: most_rounds() >= 5, self.text)
        self.touch("end")
        self.finish(job)

    def spoilt(self, fault, said):
        job = self.launch("--nproc-per-node", "3", env={"FAULT_1": fault})
        before = self.world(3)
        self.touch("spoil")
        line = job.wait_for(r"rank 1 \(local rank 1\) can no longer change its seat: (.*)")
        self.assertRegex(line[1], said)
        self.assertEqual(len(re.findall("can no longer change its seat", job.err())), 1, job.text())
        self.assertEqual({s.pid for s in self.seats()}, {s.pid for s in before})  # Nobody is ended for that.
        self.kill(before[0])
        after = self.world(3, after=before[0].round)
        self.assertNotIn(before[1].pid, [s.pid for s in after], self.text())
        self.end_well(job)

    def test_a_worker_that_sends_garbage_becomes_a_plain_one(self):
        self.spoilt("garbage", "not a JSON object")

    def test_a_worker_that_floods_its_link_becomes_a_plain_one(self):
        self.spoilt("flood", "more than [0-9]+ messages")

    def test_a_worker_that_closes_its_link_becomes_a_plain_one(self):
        self.spoilt("closed", "closed its link")

    def test_a_worker_whose_link_ends_just_before_it_does_is_replaced(self):
        job = self.launch("--nproc-per-node", "3", env={"FAULT_1": "parts"})
        before = self.world(3)
        self.touch("spoil")
        after = self.world(3, after=before[0].round)
        self.assertEqual(len({s.pid for s in before} & {s.pid for s in after}), 2, self.text())
        self.assertNotIn("can no longer change its seat", job.err())
        self.end_well(job)

    def test_a_worker_of_another_version_is_a_plain_one_and_told_why(self):
        job = self.launch("--nproc-per-node", "2", env={"FAULT_1": "old"})
        job.wait_for("speaks version 99 of the worker link, its agent version 1")
        refused = wait_until(lambda: [e for trace in self.traces().values() for e in trace if e["event"] == "refused"],
                             self.text)
        self.assertIn("version", refused[0]["why"])
        self.end_well(job)

    def test_a_replacement_that_dies_at_once_disturbs_nobody(self):
        job = self.launch("--nproc-per-node", "3", env={"LATER_FAULT_1": "die"})
        before = self.world(3)
        self.kill(before[1])
        smaller = self.world(2, after=before[0].round)
        self.assert_kept(before, smaller, [before[1]])
        wait_until(lambda: job.err().count("exited with 7, before it had a seat") == 3, self.text)  # No restart is left.
        self.assertEqual(self.world(2), smaller)
        self.assertEqual([len(self.events(seat.pid, "fence", "change")) for seat in smaller], [1, 1], self.text())
        self.end_well(job)

    def test_a_replacement_that_hangs_is_ended_and_replaced(self):
        job = self.start("--nproc-per-node", "2", "--max-restarts", "1000", "--rdzv-conf", "join_timeout=2", *WORKER, env=HELD)
        before = self.world(2)
        self.kill(before[1])
        smaller = self.world(1, after=before[0].round)
        job.wait_for(r"error: local rank 1 of \S+ has not opened its link to ddprun within 2 s and so has no seat: "
                     r"killing it; .*set join_timeout in --rdzv-conf")
        self.touch("ready")  # A later one finds what it has waited for.
        full = self.world(2, after=smaller[0].round)
        self.assert_kept(smaller, full, [])
        self.assertNotIn("before it had a seat", job.err())  # It is said once.
        self.end_well(job)

    def test_the_daemon_is_killed_meanwhile(self):
        job = self.launch("--local-nodes", "2", "--nproc-per-node", "2")
        before = self.world(4)
        daemon = wait_until(job.daemon, job.text)
        self.kill(before[3])
        os.kill(daemon.pid, signal.SIGKILL)
        full = self.world(4, after=before[0].round)
        self.assert_kept(before, full, [before[3]])
        self.end_well(job)

    def test_an_agent_is_killed_meanwhile(self):
        endpoint = f"127.0.0.1:{free_port()}"
        env = {"DDPRUN_TOKEN": "t"}
        common = ["--nnodes", "1:2", "--nproc-per-node", "2", "--rdzv-endpoint", endpoint]
        conf = "last_call_timeout=0.2,join_timeout=60,is_host="
        first = self.launch(*common, "--rdzv-conf", conf + "1", env=env)
        self.world(2)
        second = self.launch(*common, "--rdzv-conf", conf + "0", env=env)
        before = self.world(4)
        of_first = {p.pid for p in first.processes()}
        kept = [seat for seat in before if seat.pid in of_first]
        lost = [seat for seat in before if seat.pid not in of_first]
        self.kill(kept[0])
        os.kill(second.agents()[0].pid, signal.SIGKILL)
        after = self.world(2, after=before[0].round)
        self.assert_kept(before, after, [kept[0], *lost])
        second.wait()
        self.end_well(first)

    def test_a_signal_ends_seated_and_parked_workers(self):
        job = self.launch("--nproc-per-node", "3", env=HELD)
        before = self.world(3)
        self.kill(before[1])
        self.world(2, after=before[0].round)
        wait_until(lambda: len(self.traces()) == 4, self.text)  # The replacement lives, and is not ready.
        job.signal(signal.SIGTERM)
        self.finish(job, 143)

    def test_a_parked_worker_is_no_failure_when_the_others_have_finished(self):
        job = self.launch("--nproc-per-node", "3", env=HELD)
        before = self.world(3)
        self.kill(before[1])
        self.world(2, after=before[0].round)
        wait_until(lambda: len(self.traces()) == 4, self.text)
        parked = max(self.traces(), key=lambda pid: pid not in {s.pid for s in before})
        os.kill(parked, signal.SIGSTOP)  # It does not notice the end by itself.
        self.end_well(job)

    def test_workers_that_end_well_as_another_fails_all_begin_again(self):
        """None of them is left to go on with, and what the failed one had still to do is not done."""
        job = self.launch("--nproc-per-node", "3", env={f"FAULT_{i}": "returns" for i in range(3)})
        before = self.world(3)
        self.kill(before[1])
        after = self.world(3, after=before[0].round)
        self.assertFalse({s.pid for s in before} & {s.pid for s in after}, self.text())
        self.assertRegex(job.err(), r"others of the round failed: starting again")
        self.end_well(job)

    def test_a_node_that_is_told_of_its_end_leaves_at_a_boundary(self):
        env = {"DDPRUN_TOKEN": "t"}
        common = ["--nnodes", "1:2", "--nproc-per-node", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
                  "--preempt-signal", "SIGUSR1"]
        conf = "last_call_timeout=0.2,join_timeout=60,is_host="
        first = self.launch(*common, "--rdzv-conf", conf + "1", env=env)
        self.world(2)
        second = self.launch(*common, "--rdzv-conf", conf + "0", env=env)
        before = self.world(4)
        of_second = {p.pid for p in second.processes()}
        gone = [seat for seat in before if seat.pid in of_second]
        second.signal(signal.SIGUSR1)
        self.finish(second, 75)
        after = self.world(2, after=before[0].round)
        self.assert_kept(before, after, gone)
        for seat in before:
            events = [e["event"] for e in self.events(seat.pid, "change", "fence", "seated")]
            self.assertNotIn("fence", events, self.text())
        self.assertRegex(second.err(), r"has left the run: pre-empted by SIGUSR1")
        self.end_well(first)

    def test_a_run_of_one_node_that_is_told_of_its_end(self):
        job = self.launch("--nproc-per-node", "2", "--preempt-signal", "SIGUSR1,SIGTERM")
        before = self.world(2)
        job.signal(signal.SIGTERM)
        self.finish(job, 75)
        for seat in before:
            self.assertEqual([e["event"] for e in self.events(seat.pid, "change", "fence")], ["change"], self.text())

    def test_plain_workers_of_a_node_that_is_told_of_its_end(self):
        job = self.launch("--nproc-per-node", "2", "--preempt-signal", "SIGTERM",
                          env={f"FAULT_{i}": "plain" for i in range(2)})
        wait_until(lambda: len(self.traces()) == 2, self.text)
        job.signal(signal.SIGTERM)
        self.finish(job, 75)

    def test_the_launcher_is_killed_in_the_middle_of_a_change(self):
        job = self.launch("--nproc-per-node", "3", env={"FAULT_2": "deaf"})
        before = self.world(3)
        self.kill(before[0])
        wait_until(lambda: self.events(before[1].pid, "fence"), self.text)
        job.signal(signal.SIGKILL)
        job.wait()
        self.assert_nothing_left(job)


class Chaos(DdprunCase):
    """--chaos, with plain workers."""

    SLEEP = ["sleep", "1000"]

    def test_workers_are_killed_until_no_restart_is_left_and_each_time_is_said(self):
        seed = 3
        job = self.start("--nproc-per-node", "4", "--max-restarts", "5", "--chaos", "0.1", *self.SLEEP,
                         env={"DDPRUN_CHAOS_SEED": str(seed)})
        self.finish(job, 137)
        self.assertIn(f"every 0.1 s on average; DDPRUN_CHAOS_SEED={seed} repeats it", job.err())
        ranks = re.findall(r"--chaos kills rank (\d)", job.err())
        self.assertGreaterEqual(len(ranks), 6, job.text())  # Two may be killed before the first one's end is seen.
        self.assertEqual(len(re.findall(r"was killed by signal 9 \(SIGKILL\)$", job.err(), re.M)), 6, job.text())

    def test_nonsense_is_refused(self):
        for seconds in ("0", "soon", "-1"):
            job = self.run_ddprun("--chaos", seconds, *self.SLEEP, code=2)
            self.assertIn(f"--chaos '{seconds}': give seconds from 0.1 to 10000000", job.err())


if __name__ == "__main__":
    ddprun_case.main()
