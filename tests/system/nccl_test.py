"""The backend nccl under ddprun, on fakes of CUDA and NCCL: what the agent knows reaches the ranks."""

import json
import os
import re
import subprocess

import ddprun_case
from ddprun_case import BIN, DdprunCase

TESTS = os.path.join(os.path.dirname(BIN), "tests")
WORKER = os.path.join(TESTS, "nccl_worker")
FAKES = {"DDPRUN_CUDART_LIB": os.path.join(TESTS, "libfake_cudart.so"),
         "DDPRUN_NCCL_LIB": os.path.join(TESTS, "libfake_nccl.so"),
         "NCCL_HOSTID": "shared"}  # Two nodes on one machine have the same GPUs.
WAITED = r"rank {}: peer 1, waited (\d+) ms, kind 5: [^\n]*lost rank 1 on [^\n]*"


class Nccl(DdprunCase):
    def setUp(self):
        super().setUp()
        if not os.access(WORKER, os.X_OK):
            self.skipTest(f"{WORKER} was not built")

    def run_until_lost(self, how, *argv, code):
        job = self.start(*argv, WORKER, "20", how, env={**os.environ, **FAKES})
        self.finish(job, code)
        return job

    def told(self, job, by_agent, others):
        waited = []
        for rank in by_agent + others:
            word = "the agent reports: rank 1 .*SIGKILL" if rank in by_agent else ""
            line = re.search(WAITED.format(rank) + word, job.out())
            self.assertTrue(line, job.text())
            waited.append(int(line[1]))
            self.assertRegex(job.out(), rf"sibling of rank {rank}: .*rank 1")
        self.report(f"the ranks were told after {max(waited)} ms")
        self.assertLess(max(waited), 60_000)  # NCCL alone, and Gloo here, would wait 10 minutes.

    def test_a_death_that_no_connection_shows_is_told_by_the_agent(self):
        self.told(self.run_until_lost("orphan", "--nproc-per-node", "3", code=137), [0, 2], [])

    def test_the_agents_of_other_nodes_tell_it_too(self):
        """Or, where that agent is late, those whose agent was not."""
        job = self.run_until_lost("orphan", "--local-nodes", "2", "--nproc-per-node", "2", code=137)
        self.told(job, [0], [2, 3])

    def test_the_next_round_joins_and_works(self):
        job = self.run_until_lost("die", "--nproc-per-node", "3", "--max-restarts", "1", code=0)
        self.told(job, [], [0, 2])
        for rank in range(3):
            self.assertRegex(job.out(), rf"rank {rank}: joined twice in \d+ ms, restart 1")


class NcclProfile(DdprunCase):
    """DDPRUN_NCCL_PROFILE, with a fake NCCL that loads the plugin and tells it of kernels as the real one does."""

    CALLS = 6  # What all_reduce makes of these: one to warm up, four, and one that is looked at.
    ALL_REDUCE = ("all_reduce", "--backend", "nccl", "-b", "64K", "-e", "64K", "-w", "1", "-n", "4")

    def setUp(self):
        super().setUp()
        self.profiles = os.path.join(self.dir, "profiles")
        os.mkdir(self.profiles)
        if not os.access(os.path.join(BIN, "all_reduce"), os.X_OK):
            self.skipTest("the example all_reduce was not built")

    def profiled(self, *program, code=0, profile=None, **variables):
        env = {**os.environ, **FAKES, "DDPRUN_NCCL_PROFILE": profile or self.profiles, **variables}
        job = self.start("--nproc-per-node", "2", *program, env=env)
        self.finish(job, code)
        return job

    def of_rank(self, rank):
        with open(os.path.join(self.profiles, f"nccl.rank{rank}.json")) as file:
            return json.load(file)

    def buckets(self, profile):
        rows = [row for c in profile["communicators"] for row in c["calls"]]
        return [row for row in rows if row["function"] == "AllReduce" and row["bytes"] == 65536]

    def test_every_rank_leaves_what_its_kernels_took(self):
        for version in ("22809", "22707"):  # The interface's version 5, and 4.
            with self.subTest(version):
                job = self.profiled(*self.ALL_REDUCE, DDPRUN_NCCL_WINDOWS="0",
                                    FAKE_NCCL=f"version={version}")
                for rank in range(2):
                    profile = self.of_rank(rank)
                    self.assertEqual(profile["rank"], rank)
                    row, = self.buckets(profile)
                    self.assertEqual((row["calls"], row["timed"], row["unfinished"]), (self.CALLS, self.CALLS, 0))
                    self.assertEqual((row["algorithm"], row["protocol"], row["channels"]), ("RING", "SIMPLE", 2))
                    spans = [e for e in profile["traceEvents"]
                             if e["ph"] == "X" and e["args"]["bytes"] == 65536]
                    self.assertEqual(len(spans), self.CALLS)
                    self.assertAlmostEqual(sum(e["dur"] for e in spans), row["total_us"], delta=1)
                    self.assertTrue(all(0 < e["dur"] < 60e6 for e in spans), spans)
                table = re.findall(r"nccl: rank (\d) on .*: 2 ranks on 1 node", job.text())
                self.assertEqual(table, ["0"])  # Rank 0 alone speaks.
                self.assertRegex(job.text(), rf" {self.CALLS}  AllReduce +64 KiB  float32   RING +SIMPLE +2 ")

    def test_the_trace_is_on_the_wall_clock(self):
        before = ddprun_case.time.time()
        self.profiled(*self.ALL_REDUCE, DDPRUN_NCCL_WINDOWS="0")
        after = ddprun_case.time.time()
        for e in self.of_rank(1)["traceEvents"]:
            if e["ph"] == "X":
                self.assertTrue(before < e["ts"] / 1e6 < after, (before, e, after))

    def test_kernels_on_windows_are_counted_only(self):
        job = self.profiled(*self.ALL_REDUCE)
        row, = self.buckets(self.of_rank(0))
        self.assertEqual((row["calls"], row["timed"]), (self.CALLS, 0))
        self.assertIn(f"{self.CALLS} without times", job.text())

    def test_a_kernel_that_was_aborted_did_not_end(self):
        self.profiled(WORKER, "20", "die", code=137, DDPRUN_NCCL_WINDOWS="0")
        rows = [row for c in self.of_rank(0)["communicators"] for row in c["calls"]]
        self.assertGreater(sum(row["unfinished"] for row in rows), 0, rows)

    def test_a_folder_that_is_not_there_is_said_at_once_and_harms_nothing(self):
        job = self.profiled(*self.ALL_REDUCE, profile=self.profiles + "/absent")
        self.assertRegex(job.text(), r"warning: rank 0 on .* cannot write .*/absent/: No such file")
        self.assertRegex(job.text(), r"AllReduce +64 KiB")

    def test_another_profiler_is_left_alone(self):
        job = self.profiled(*self.ALL_REDUCE, NCCL_PROFILER_PLUGIN="inspector")
        self.assertIn("NCCL_PROFILER_PLUGIN names another profiler, inspector", job.text())
        self.assertEqual(os.listdir(self.profiles), [])

    def test_the_plugin_shows_nccl_its_two_tables_and_nothing_of_its_inside(self):
        shown = subprocess.run(["nm", "-D", "--defined-only", os.path.join(BIN, "libddprun-nccl-profiler.so")],
                               check=True, capture_output=True, text=True).stdout
        self.assertRegex(shown, r" ncclProfiler_v4\n")
        self.assertRegex(shown, r" ncclProfiler_v5\n")
        self.assertNotIn("ddprun", shown)


if __name__ == "__main__":
    ddprun_case.main()
