"""Bundles of steps that fail, and `ddprun replay` of them. The worker is tests/process/worker_sdk/elastic_worker.cc: 8 steps of 12
shards, each with two samples, of which POISON ends the process."""

import glob
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import BIN, DDPRUN, DdprunCase, SKIPPED, wait_until

WORKER = os.path.join(os.path.dirname(BIN), "tests", "elastic_worker")
PIECE = r"step 3, shard 7: samples \d+, \d+"


class Replay(DdprunCase):
    def variables(self, poison):
        return {"POISON": poison, "STEPS": "8", "LIVES": "0", "LIFE": "0", "RESULT": self.path("result")}

    def launch(self, poison, *argv, env=None, code=None):
        job = self.start("--rdzv-id", "job7", "--nproc-per-node", "4", "--max-restarts", "9", "--bundle-folder", self.path("bundles"), *argv, WORKER,
                         env={**self.variables(poison), **(env or {})})
        if code is not None:
            self.finish(job, code)
        return job

    def bundles(self):
        return sorted(glob.glob(self.path("bundles/*.bundle")))

    def replay(self, *argv, code, env=None):
        job = self.start_program([DDPRUN, "replay", *argv], env={**self.variables(""), **(env or {})})
        self.assertEqual(job.wait(), code, job.text())
        return job.text()

    def test_an_exception_is_thrown_again(self):
        job = self.launch("3/7 throw", code=1)
        [bundle] = self.bundles()
        self.assertRegex(job.err(), rf"ddprun: rank 2 on \S+: {PIECE}: std::runtime_error: this sample is poison; "
                                    rf"compute it again with: ddprun replay {bundle}")
        text = self.replay(bundle, code=1, env=self.variables("3/7 throw"))
        self.assertRegex(text, rf"ddprun: replay of {PIECE}: std::runtime_error: this sample is poison, the same as in the run, "
                               r"on rank [12] on \S+")
        self.assertFalse(os.path.exists(self.path("result")))
        # The sample is repaired; the state is far below a mebibyte.
        text = self.replay(bundle, code=1)
        self.assertRegex(text, r"no failure \(hash \w{16}\); in the run, on rank \d on \S+: std::runtime_error: this sample is "
                               r"poison\. The shard alone does not fail here")
        self.assertEqual(os.stat(bundle).st_mode & 0o777, 0o600)
        self.assertLess(os.path.getsize(bundle), (100 + 96 + 1 + 3) * 8 + (1 << 20))

    def test_a_crash_is_captured_by_a_rank_that_goes_on(self):
        job = self.launch("3/7 crash", "--local-nodes", "2", "--nproc-per-node", "2", code=134)
        [bundle] = self.bundles()
        self.assertRegex(job.text(), rf"ddprun: rank 2 on \S+: {PIECE}: was killed by signal 6 \(SIGABRT\); compute it again")
        text = self.replay(bundle, code=134, env=self.variables("3/7 crash"))
        self.assertRegex(text, rf"ddprun: replay of {PIECE}: was killed by signal 6 \(SIGABRT\), the same as in the run, on rank 2")
        text = self.replay(bundle, code=1)
        self.assertRegex(text, r"no failure \(hash \w{16}\); in the run, on rank 2 on \S+: was killed by signal 6 \(SIGABRT\)\.")

    def test_a_crash_that_no_other_rank_captures_leaves_a_bundle(self):
        for ranks, restarts in (("1", "0"), ("4", "0"), ("1", "1")):
            job = self.launch("3/7 crash", "--nproc-per-node", ranks, "--max-restarts", restarts, code=134)
            [bundle] = self.bundles()
            self.assertEqual(job.text().count("compute it again"), 1 + int(restarts), job.text())
            text = self.replay(bundle, code=134, env=self.variables("3/7 crash"))
            self.assertRegex(text, rf"ddprun: replay of {PIECE}: was killed by signal 6 \(SIGABRT\), the same as in the run, on rank \d")
            text = self.replay(bundle, "--shard", "2", code=0)
            self.assertRegex(text, r"no failure \(hash \w{16}\)")
            os.remove(bundle)
        job = self.launch("3/7 kill", "--nproc-per-node", "1", "--max-restarts", "0")
        job.wait()
        self.assertEqual(self.bundles(), [])

    def test_the_state_is_that_of_the_last_committed_step(self):
        """The hash of a shard is that of a run in which nothing happens, of which it is audited."""
        self.launch("3/7 throw", code=1)
        [bundle] = self.bundles()
        hashes = {}
        for shard in (7, 2):
            text = self.replay(bundle, "--shard", str(shard), code=0 if shard == 2 else 1)
            hashes[shard] = text.split("(hash ")[1][:16]
        self.assertNotEqual(hashes[7], hashes[2])
        again = self.replay(bundle, "--shard", "2", code=0)
        self.assertIn(f"no failure (hash {hashes[2]}); the bundle has no hash to compare with", again)
        quiet = self.start("--nproc-per-node", "1", WORKER, env={**self.variables(""), "HASHES": self.path("hashes")})
        self.finish(quiet)
        with open(self.path("hashes"), encoding="ascii") as file:
            lines = file.read().splitlines()
        for shard, found in hashes.items():
            self.assertIn(f"3/{shard} {found}", lines)

    def test_a_writer_that_is_killed_leaves_a_whole_bundle_or_none(self):
        for _ in range(2):  # Without an older one, then with one.
            before = self.bundles()
            job = self.launch("3/7 throw", "--max-restarts", "0", env={"DIE": "bundle:2"})
            job.wait()
            self.assertIn("SIGKILL", job.text())
            self.assertEqual(self.bundles(), before, job.text())
            self.assertEqual(len(glob.glob(self.path("bundles/*.tmp"))), 1)
            for bundle in before:
                self.replay(bundle, code=1)
            self.launch("3/7 throw", code=1)
            self.assertEqual(glob.glob(self.path("bundles/*.tmp")), [])
            [bundle] = self.bundles()
            self.replay(bundle, code=1)

    def test_an_operator_requests_a_bundle_of_the_next_step(self):
        job = self.launch("", env={"STEPS": "1000000"})
        ctl = os.path.join(BIN, "ddprunctl")

        def asked(code):
            answer = self.start_program([ctl, "capture", "job7"])
            return answer.text() if answer.wait() == code else ""
        wait_until(lambda: "writes a bundle when it begins its next step" in asked(0), "no rank can be captured")
        [bundle] = wait_until(self.bundles, "there is no bundle")
        text = self.replay(bundle, code=0, env={"STEPS": "1000000"})
        self.assertRegex(text, r"replay of step \d+: no failure; the bundle has no hash to compare with \(requested by ddprunctl")
        job.signal(signal.SIGTERM)
        job.wait()
        self.assertIn("is over: only a run in progress has a next step", asked(1))
        other = self.start("--rdzv-id", "job7", "--nproc-per-node", "1", "--max-restarts", "1", WORKER,
                           env={**self.variables(""), "STEPS": "1000000"})
        wait_until(lambda: "it was started without --bundle-folder" in asked(1), "nothing is said")
        other.signal(signal.SIGTERM)
        other.wait()

    def kept(self, poison="", env=None):
        """A run that leaves a bundle each 3 of its 24 steps, and does not fail itself."""
        job = self.launch(poison, "--bundle-every", "3", env={"STEPS": "24", **(env or {})}, code=0)
        names = [os.path.basename(path) for path in self.bundles() if "regular" in path]
        self.assertEqual(names, [f"job7-regular-{step:010d}.bundle" for step in range(0, 24, 3)])
        os.remove(self.path("result"))
        return job

    def bisect(self, code=0, env=None, folder=None):
        return self.replay("--bisect", folder or self.path("bundles"), code=code, env={"STEPS": "24", **(env or {})})

    def test_a_bisection_finds_the_step_and_the_shard_at_which_it_begins(self):
        self.kept()
        for poison, found in (("throw", "std::runtime_error: this sample is poison"), ("mark", "the loss is too large"),
                              ("crash", r"was killed by signal 6 \(SIGABRT\)")):
            text = self.bisect(env={"POISON": f"13+/7 {poison}"})
            self.assertRegex(text, r"bisect: 8 bundles of run job7, step 0 to 21\n")
            self.assertRegex(text, r"bisect: step 12: good\n")
            self.assertRegex(text, rf"bisect: step 15: step 15, shard 7: samples \d+, \d+: {found}\n")
            self.assertRegex(text, r"bisect: it computes steps 12 to 14\n")
            self.assertRegex(text, rf"bisect: the first bad step is 13: step 13, shard 7: samples \d+, \d+: {found}")
            self.assertEqual(text.count("bisect: step "), 5, text)  # The first, the last, and log2.
            self.assertFalse(os.path.exists(self.path("result")))
            bundle = self.path("bundles/job7-step-13.bundle")
            self.assertEqual(os.path.exists(bundle), poison != "crash")
            if poison != "crash":
                self.assertIn(f". Replay it: ddprun replay {bundle}\n", text)
                again = self.replay(bundle, code=1 if poison == "throw" else 0, env={"STEPS": "24", "POISON": f"13+/7 {poison}"})
                self.assertRegex(again, rf"replay of step 13, shard 7: [^:]*: {found}( \(hash \w+\))?, the same as in the run, on rank 0 on \S+ \(in a bisection\)")
                os.remove(bundle)

    def test_a_bisection_whose_bad_step_has_a_bundle_names_that(self):
        self.kept()
        text = self.bisect(env={"POISON": "15+/7 throw"})
        self.assertRegex(text, r"the first bad step is 15: step 15, shard 7: .*Replay it: ddprun replay \S+job7-regular-0000000015.bundle")
        text = self.bisect(env={"POISON": "0+/7 throw"})
        self.assertIn("the first bundle is of step 0, which is bad already", text)

    def test_a_bisection_goes_on_behind_the_last_bundle(self):
        """Of a rank that is killed, as for want of memory, there is no other bundle."""
        job = self.launch("23/7 kill", "--bundle-every", "3", "--nproc-per-node", "1", "--max-restarts", "0", env={"STEPS": "24"})
        job.wait()
        text = self.bisect(env={"POISON": "23/7 kill"})
        self.assertRegex(text, r"the first bad step is 23: step 23, shard 7: samples \d+, \d+: was killed by signal 9 \(SIGKILL\)")

    def test_a_bisection_finds_where_the_state_has_left_its_way(self):
        self.kept(env={"DRIFT": "13"})
        text = self.bisect()
        self.assertRegex(text, r"none of these steps fails\n.*it computes all steps from 21 on\n.*it computes steps 0 to 2\n")
        self.assertIn('steps 12 to 14 fail nowhere here, but then "weights" differs from what the run had', text)
        self.assertIn("as their bits depend on the number of ranks: 4 in the run, one here. With exact sums it began in one", text)
        text = self.bisect(env={"DRIFT": "13"}, code=1)
        self.assertIn("no step fails, and the state in each bundle is that of the steps before it", text)

    def test_state_in_shards_is_in_regular_bundles(self):
        self.kept(env={"SHARDED": "yes"})
        text = self.bisect(env={"SHARDED": "yes"}, code=1)
        self.assertIn("the state in each bundle is that of the steps before it", text)
        text = self.bisect(env={"SHARDED": "yes", "POISON": "13+/7 throw"})
        self.assertIn("the first bad step is 13: step 13, shard 7", text)

    def test_a_bisection_needs_bundles_of_one_run(self):
        self.assertIn("has no bundle: a run writes them with --bundle-every", self.bisect(2, folder=self.path(".")))
        self.assertIn("No such file", self.bisect(2, folder=self.path("nowhere")))
        self.kept()
        self.launch("", "--rdzv-id", "job8", "--bundle-every", "4", code=0)
        self.assertIn("choose one with --run: job7, job8", self.bisect(2))
        with open(self.path("bundles/job7-step-3.bundle"), "w", encoding="ascii") as file:
            file.write("nothing")
        text = self.replay("--bisect", self.path("bundles"), "--run", "job7", code=1, env={"STEPS": "24"})
        self.assertIn("it is no bundle of this version of ddprun; it is left out", text)
        text = self.replay("--bisect", self.path("bundles"), "--run", "job7", "--", "/bin/false", code=1)
        self.assertIn("the program has not begun step 0, it exited with 1", text)
        job = self.start("--bundle-every", "3", "/bin/true")
        self.assertEqual(job.wait(), 2)
        self.assertIn("--bundle-every needs --bundle-folder", job.err())

    def test_without_a_folder_nothing_is_written(self):
        job = self.start("--nproc-per-node", "2", "--max-restarts", "1", WORKER, env=self.variables("3/7 throw"))
        self.finish(job, 1)
        self.assertNotIn("ddprun replay", job.err())

    def test_variables_that_results_depend_on_are_those_of_the_run(self):
        self.launch("3/7 throw", code=1, env={"MKL_NUM_THREADS": "3"})
        [bundle] = self.bundles()
        text = self.replay(bundle, "--", "/usr/bin/env", code=1, env={"KMP_BLOCKTIME": "7"})
        self.assertIn("MKL_NUM_THREADS=3\n", text)
        self.assertNotIn("KMP_BLOCKTIME", text)

    def test_a_program_sees_the_variables_of_the_only_rank(self):
        self.launch("3/7 throw", code=1)
        [bundle] = self.bundles()
        around = {"RANK": "5", "WORLD_SIZE": "9", "MASTER_ADDR": "nowhere", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        found = dict(line.split("=", 1) for line in self.replay(bundle, "--", "/usr/bin/env", code=1, env=around).splitlines() if "=" in line)
        for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT"):
            self.assertEqual(found[name], "0", name)
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"):
            self.assertEqual(found[name], "1", name)
        self.assertEqual((found["MASTER_ADDR"], found["TORCHELASTIC_RUN_ID"]), ("127.0.0.1", "job7"))
        self.assertGreater(int(found["MASTER_PORT"]), 1023)
        self.assertNotIn("TORCHELASTIC_USE_AGENT_STORE", found)
        # Whatever its own variables, the job is alone.
        text = self.replay(bundle, "--with", "env RANK=2 LOCAL_RANK=2 WORLD_SIZE=4", code=1, env=self.variables("3/7 throw"))
        self.assertIn("this sample is poison, the same as in the run", text)

    def test_a_program_that_ends_before_the_step_was_not_replayed(self):
        self.launch("3/7 crash", "--nproc-per-node", "1", "--max-restarts", "0", code=134)
        [bundle] = self.bundles()
        for program, how, code in (("exit 0", "exited with 0", 1), ("exit 3", "exited with 3", 3),
                                   ("kill -ABRT $$", "was killed by signal 6 (SIGABRT)", 134)):
            text = self.replay(bundle, "--", "/bin/sh", "-c", program, code=code)
            self.assertIn(f"nothing was replayed: the program {how} before its job had begun step 3, in run()", text)
            self.assertNotIn("the same as in the run", text)

    def test_what_is_no_bundle_is_refused(self):
        self.launch("3/7 throw", code=1)
        [bundle] = self.bundles()
        with open(bundle, "rb") as file:
            good = file.read()
        damaged = self.path("damaged.bundle")
        for bad, why in ((good[:-20], "it is cut off in"), (good + b"x", "it has another size"), (b"", "it is no bundle"),
                         (good[:8] + b"\xff" * 8 + good[16:], "longer than 1 MiB"),
                         (good[:8] + good[8:16] + b"[" + good[17:], "a JSON object")):
            with open(damaged, "wb") as file:
                file.write(bad)
            job = self.start_program([DDPRUN, "replay", damaged])
            self.assertNotEqual(job.wait(), 0)
            self.assertIn(why, job.text())
        with open(damaged, "wb") as file:
            file.write(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
        self.assertIn("it is damaged: its checksum is wrong", self.replay(damaged, code=1))
        self.assertIn("opening the bundle /nowhere", self.replay("/nowhere", code=1))
        text = self.replay(bundle, code=1, env={"WEIGHTS": "99"})
        self.assertIn('the program keeps "weights" of 792 bytes where the bundle has "weights" of 800 bytes', text)
        self.assertIn("there is no shard 12 of step 3, which has 12 shards", self.replay(bundle, "--shard", "12", code=1))

    def test_the_program_may_be_another_and_a_debugger_around_it(self):
        self.launch("3/7 throw", code=1)
        [bundle] = self.bundles()
        shown = self.replay(bundle, "--show", code=0)
        self.assertRegex(shown, rf"(?m)^work +{PIECE}$")
        self.assertRegex(shown, r"(?m)^kept +weights, 800 bytes$")
        text = self.replay(bundle, "--with", "env POISON=3/7~throw", "--", WORKER, code=1)
        self.assertIn("no failure", text)
        self.assertIn("--pdb is for Python", self.replay(bundle, "--pdb", code=2))
        self.assertIn("--pdb excludes --with", self.replay(bundle, "--pdb", "--with", "gdb", code=2))


if __name__ == "__main__":
    if not os.path.exists(WORKER):
        print(f"skipped: no {WORKER}")
        sys.exit(SKIPPED)
    ddprun_case.main()
