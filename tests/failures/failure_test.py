"""Workers fail: exit codes, verdicts, restarts."""

import os
import re
import signal
import tempfile
import time

import paths  # noqa: F401
import ddprun_case
from ddprun_case import ALL_HERE, DdprunCase, PASS_GATE, column, env_to, shell

WAIT = "exec sleep 600"


def failing(rank, how, others=WAIT):
    return shell(f'{env_to()} if [ $RANK = {rank} ]; then {how}; fi; {others}')


class Verdicts(DdprunCase):
    def test_the_first_failing_workers_code_is_everybodys(self):
        first, second = self.two_nodes("--nproc-per-node", "2", worker=failing(3, "exit 7"))
        self.finish(first, 7)
        self.finish(second, 7)
        self.assertRegex(first.err(), r"rank 3 .*failed first: it exited with 7")

    def test_a_killed_worker_is_128_plus_its_signal(self):
        for name, code in (("KILL", 137), ("SEGV", 139), ("TERM", 143)):
            with self.subTest(signal=name):
                job = self.run_ddprun("--nproc-per-node", "2", *failing(1, f"kill -{name} $$"), code=code)
                self.assertRegex(job.err(), f"rank 1 .*killed by signal .*SIG{name}")

    def test_a_flag_of_ddprun_behind_the_program_is_explained_once(self):
        refusing = shell('echo "train: unknown option $1" >&2; exit 2')
        job = self.run_ddprun("--local-nodes", "2", "--nproc-per-node", "2", *refusing, "train", "--report", code=2)
        self.assertEqual(job.err().count("hint: --report stands after"), 1, job.err())
        failing_otherwise = shell('echo "ValueError: no loss" >&2; exit 2')
        job = self.run_ddprun(*failing_otherwise, "train", "--report", code=2)
        self.assertNotIn("hint:", job.err())

    def test_the_verdict_names_rank_host_and_last_words(self):
        host = os.uname().nodename
        job = self.run_ddprun(
            "--local-nodes", "2", "--nproc-per-node", "2",
            *failing(2, 'echo "first thing" >&2; echo "RuntimeError: loss is NaN" >&2; exit 9'), code=9)
        self.assertRegex(job.err(), r"rank 2 \(local rank 0, pid \d+\) on " + re.escape(host) + "/1 failed first")
        verdict = job.err()[job.err().index("failed first"):]
        self.assertIn("RuntimeError: loss is NaN", verdict)
        self.assertRegex(verdict, "3 others were stopped by ddprun")

    def test_what_was_just_shown_is_not_repeated(self):
        """Unless it is far above by now, or was shown elsewhere."""
        words = 'echo "RuntimeError: loss is NaN" >&2; '
        job = self.run_ddprun("--nproc-per-node", "2", *failing(1, words + "exit 9"), code=9)
        self.assertEqual(job.err().count("loss is NaN"), 1, job.text())
        self.assertRegex(job.err(), "failed first.*Its last words are above.")
        gate = self.gate()
        job = self.start("--nproc-per-node", "2", *shell(
            f'if [ $RANK = 1 ]; then {words} echo > "$D/said"; {PASS_GATE} exit 9; fi; '
            f'until [ -e "$D/said" ]; do sleep 0.01; done; for i in $(seq 12); do echo $i; done; {WAIT}'))
        ddprun_case.wait_until(lambda: "]:12" in job.out(), job.text)
        gate.open()
        self.finish(job, 9)
        self.assertIn("Its last words:\nRuntimeError: loss is NaN", job.err())
        job = self.run_ddprun("-r", "3", "--log-dir", self.subfolder(), *failing(0, words + "exit 9"), code=9)
        self.assertIn("Its last words:\nRuntimeError: loss is NaN", job.err())

    def test_the_error_file_of_torch_is_quoted(self):
        record = '{"message": {"message": "ValueError: from the error file", "extraInfo": {"timestamp": "1"}}}'
        job = self.run_ddprun(*shell(f"""printf '%s' '{record}' > "$TORCHELASTIC_ERROR_FILE"; exit 4"""),
                              code=4)
        self.assertIn("ValueError: from the error file", job.err())

    def test_a_failure_at_once_is_no_race(self):
        """All ranks fail together, each in its own way: one verdict, and the code is that of the rank it names."""
        for _ in range(5):
            job = self.start("--local-nodes", "3", "--nproc-per-node", "3", *shell("exit $((40 + RANK))"))
            code = job.wait()
            self.assertRegex(job.err(), rf"rank {code - 40} \(.*failed first: it exited with {code}", job.text())
            self.assertEqual(job.err().count("failed first"), 1, job.text())

    def test_of_ranks_that_fall_like_dominoes_the_first_is_named(self):
        """Each rank sees the one before die, and dies: the order is known, and each has its own code."""
        for nodes in (1, 3):
            with self.subTest(nodes=nodes):
                job = self.start("--local-nodes", str(nodes), "--nproc-per-node", str(6 // nodes),
                                 *self.domino("", 4), env={"D": self.subfolder()})
                self.assertEqual(job.wait(), 44, job.text())
                self.assertRegex(job.err(), "rank 4 .*failed first: it exited with 44")

    def test_the_first_to_die_is_named_whoever_still_holds_its_pipe(self):
        """Its last words may come later than the death of others that it caused."""
        for nodes in (1, 3):
            with self.subTest(nodes=nodes):
                job = self.start("--local-nodes", str(nodes), "--nproc-per-node", str(6 // nodes),
                                 *self.domino("echo 'the loss is NaN' >&2; sleep 60 &", 1),
                                 env={"D": self.subfolder()})
                self.assertEqual(job.wait(), 41, job.text())
                self.assertRegex(job.err(), "rank 1 .*failed first: it exited with 41")
                words = "Its last words are above." if nodes == 1 else "Its last words:\nthe loss is NaN"
                self.assertIn(words, job.err())
                self.assertIn("]:the loss is NaN", job.err())

    def subfolder(self):
        return tempfile.mkdtemp(dir=self.dir)

    @staticmethod
    def domino(does, first):
        """Rank `first` ends with 40 + its rank, then the next above, and so on, around."""
        return shell(f"""echo $$ > "$D/new$RANK"; mv "$D/new$RANK" "$D/pid$RANK"
            while [ $(ls "$D" | grep -c ^pid) -lt 6 ]; do sleep 0.01; done
            if [ $RANK = {first} ]; then {does} exit $((40 + RANK)); fi
            before=$(cat "$D/pid$(((RANK + 5) % 6))")
            while kill -0 $before 2>/dev/null; do :; done
            exit $((40 + RANK))""")

    def test_a_stopped_worker_is_ended_at_once(self):
        """SIGTERM never reaches a process that is stopped."""
        job = self.run_ddprun("--nproc-per-node", "2", *shell(
            env_to() + 'if [ $RANK = 1 ]; then echo $$ > "$D/new"; mv "$D/new" "$D/pid"; kill -STOP $$; fi; '
            'while [ ! -e "$D/pid" ] || ! grep -q "^State:.T" /proc/$(cat "$D/pid")/status; do sleep 0.01; done; '
            'exit 7'), code=7)
        self.assertRegex(job.err(), "rank 0 .*failed first")
        self.assertNotIn("did not end in time", job.err())

    def test_failure_of_some_after_success_of_others(self):
        job = self.run_ddprun("--nproc-per-node", "3", *failing(1, "exit 6", "exit 0"), code=6)
        self.assertRegex(job.err(), "rank 1 .*exited with 6")

    def test_a_worker_deaf_to_sigterm_is_killed_after_the_shutdown_timeout(self):
        deaf = "trap '' TERM; " + env_to("deaf") + "while :; do sleep 600; done"
        failing_when_deaf = 'while [ -z "$(ls "$D" | grep deaf)" ]; do sleep 0.05; done; exit 7'
        job = self.start("--nproc-per-node", "2", "--shutdown-timeout", "1",
                         *shell(f'if [ $RANK = 0 ]; then {failing_when_deaf}; fi; {deaf}'))
        job.wait_for("exited with 7")
        failed = time.monotonic()
        self.finish(job, 7)
        took = time.monotonic() - failed
        self.report(f"from failure to end with --shutdown-timeout 1: {took:.2f} s")
        self.assertGreaterEqual(took, 0.9)  # It had its time.
        self.assertLess(took, 25)  # The grace would be 30 s without the flag.
        self.assertIn("did not end in time", job.err())


class Restarts(DdprunCase):
    def test_one_restart_is_counted_the_same_everywhere(self):
        script = (env_to() + 'if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then '
                  f'[ $RANK = 1 ] && {{ {ALL_HERE} kill -KILL $$; }}; exec sleep 600; fi; exit 0')
        first, second = self.two_nodes("--nproc-per-node", "2", "--max-restarts", "1",
                                       worker=shell(script))
        self.finish(first)
        self.finish(second)
        before = self.wait_for_workers_of(0, 4)
        after = self.wait_for_workers_of(1, 4)
        self.assertEqual(column(after, "RANK"), ["0", "1", "2", "3"])
        self.assertEqual(set(column(after, "TORCHELASTIC_RESTART_COUNT")), {"1"})
        self.assertEqual(set(column(after, "TORCHELASTIC_MAX_RESTARTS")), {"1"})
        # Every node keeps its place.
        self.assertEqual(column(before, "DDPRUN_TEST_JOB"), column(after, "DDPRUN_TEST_JOB"))
        # A fresh store for each round: no key of the first can be read in the second.
        ports = [set(column(workers, "MASTER_PORT")) for workers in (before, after)]
        self.assertEqual([len(p) for p in ports], [1, 1])
        self.assertNotEqual(*ports)

    def wait_for_workers_of(self, restart_count, count):
        prefix = f"env.{restart_count}"
        return self.wait_for_workers(count, prefix, self.jobs)

    def test_a_restart_is_announced_with_its_count_and_its_cause(self):
        job = self.run_ddprun("--max-restarts", "2", "--nproc-per-node", "2", *failing(1, ALL_HERE + "exit 9"), code=9)
        for n in (1, 2):
            self.assertRegex(job.err(), rf"rank 1 on \S+ exited with 9; starting all again \(restart {n} of 2\)")
        self.assertIn("the same rank with the same error each time", job.err())

    def test_a_used_up_budget_ends_with_a_verdict(self):
        job = self.run_ddprun("--local-nodes", "2", "--max-restarts", "2",
                              *failing(1, ALL_HERE + "exit 7"), code=7)
        self.assertEqual(len(self.arrivals()), 6)
        self.assertIn("2 of 2", job.err())

    def test_the_budget_is_the_jobs_not_the_nodes(self):
        """Each round another node's worker fails; torchrun would count each node by itself."""
        script = (env_to() + f'if [ $RANK = $TORCHELASTIC_RESTART_COUNT ]; then {ALL_HERE} exit 7; fi; '
                  'exec sleep 600')
        job = self.run_ddprun("--local-nodes", "3", "--max-restarts", "1", *shell(script), code=7)
        self.assertRegex(job.err(), "rank 1 .*failed first")
        self.assertEqual(len(self.arrivals()), 6)

    def test_many_restarts_in_a_row(self):
        script = env_to() + 'if [ $TORCHELASTIC_RESTART_COUNT -lt 20 ]; then exit 3; fi; exit 0'
        self.run_ddprun("--local-nodes", "2", "--nproc-per-node", "2", "--max-restarts", "20",
                        *shell(script))
        last = self.wait_for_workers_of(20, 4)
        self.assertEqual(column(last, "RANK"), ["0", "1", "2", "3"])

    def test_a_restart_leaves_no_grandchild_of_the_round_before(self):
        """The port and the memory that a forgotten child holds would make the restart fail too."""
        script = (env_to() + 'if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then '
                  "(trap '' TERM; setsid sleep 601 & ) ; setsid -f sleep 602; "
                  f'{PASS_GATE} [ $RANK = 0 ] && exit 7; exec sleep 600; fi; exec sleep 603')
        gate = self.gate()
        job = self.start("--local-nodes", "2", "--max-restarts", "1", *shell(script))
        self.wait_for_workers_of(0, 2)
        job_sleeps = lambda n: [p for p in job.processes() if p.argv == ["sleep", str(n)]]
        ddprun_case.wait_until(lambda: len(job_sleeps(601)) == 2 and len(job_sleeps(602)) == 2, job.text)
        gate.open()
        self.wait_for_workers_of(1, 2)
        self.assertEqual(job_sleeps(601) + job_sleeps(602), [])
        job.signal(signal.SIGTERM)
        self.finish(job, 143)


if __name__ == "__main__":
    ddprun_case.main()
