"""Nodes that come, spares, and runs that are resized, where workers keep their process."""

import os
import signal
import subprocess

import paths  # noqa: F401
import ddprun_case
from ddprun_case import BIN, free_port, wait_until
from reseat_case import HELD, ReseatCase


class Members(ReseatCase):
    def nodes(self, nnodes, *argv):
        """A function that starts one node of a run more, the first of which hosts its daemon."""
        endpoint = f"127.0.0.1:{free_port()}"
        common = ["--nnodes", nnodes, "--nproc-per-node", "2", "--rdzv-endpoint", endpoint, *argv]

        def conf(is_host=0, join_timeout=60):
            return ["--rdzv-conf", f"last_call_timeout=0.2,join_timeout={join_timeout},is_host={is_host}"]

        def start(is_host=0, join_timeout=60, **env):
            return self.launch(*common, *conf(is_host, join_timeout), env={"DDPRUN_TOKEN": "t", **env})

        def start_program(*program):
            return self.start("--max-restarts", "3", *common, *conf(), *program, env={"DDPRUN_TOKEN": "t"})

        start.endpoint, start.program = endpoint, start_program
        return start

    def test_a_node_that_comes_is_let_in_when_its_workers_are_ready(self):
        start = self.nodes("1:2")
        first = start(is_host=1)
        before = self.world(2)
        wait_until(lambda: all(self.events(seat.pid, "warm") for seat in before), self.text)
        second = start(**HELD)
        second.wait_for("starts 2 workers; they get seats when they are ready")
        wait_until(lambda: len(self.traces()) == 4, self.text)
        self.assertEqual([e["event"] for seat in before for e in self.events(seat.pid, "change", "fence")], [])
        self.touch("ready")
        after = self.world(4, after=before[0].round)
        self.assert_kept(before, after, [])
        for seat in before:  # At a boundary, and for no other reason.
            self.assertEqual([e["event"] for e in self.events(seat.pid, "change", "fence")], ["change"], self.text())
        self.assertRegex(first.err(), "growing to 4 workers at the next boundary between steps")
        born = [self.events(seat.pid, "born")[0] for seat in after[2:]]
        self.assertEqual([(e["RANK"], e["WORLD_SIZE"]) for e in born], [("0", "2"), ("1", "2")])
        self.end_well(first, second)

    def test_a_node_in_reserve_takes_the_place_of_a_lost_one_with_workers_that_are_ready(self):
        start = self.nodes("1:2")
        first = start(is_host=1)
        self.world(2)
        second = start()
        before = self.world(4)
        third = start()

        def ready():
            pids = {p.pid for p in third.processes() if self.events(p.pid, "ready")}
            return pids if len(pids) == 2 else None

        reserve = wait_until(ready, self.text)
        lost = {p.pid for p in second.processes()}
        os.kill(second.agents()[0].pid, signal.SIGKILL)
        after = self.world(4, after=before[0].round)
        self.assert_kept(before, after, [seat for seat in before if seat.pid in lost])
        self.assertLessEqual(reserve, {seat.pid for seat in after}, self.text())
        second.wait()
        self.end_well(first, third)

    def test_a_node_that_comes_and_never_gets_ready_disturbs_nobody(self):
        start = self.nodes("1:2")
        first = start(is_host=1)
        before = self.world(2)
        wait_until(lambda: all(self.events(seat.pid, "warm") for seat in before), self.text)
        second = start(LATER_FAULT_0="die", LATER_FAULT_1="hang")
        wait_until(lambda: second.err().count("exited with 7, before it had a seat") == 4, self.text)
        second.wait_for(r"warning: the place of local rank 0 on \S+ stays empty, because no restart is left: .*--max-restarts")
        self.assert_undisturbed(before)
        self.end_well(first, second)
        self.assertEqual(second.err().count("stays empty"), 1, second.err())

    def assert_undisturbed(self, before):
        self.assertEqual(self.world(len(before)), before)
        self.assertEqual([e["event"] for seat in before for e in self.events(seat.pid, "change", "fence")], [])

    def test_a_node_whose_workers_never_open_their_link_leaves(self):
        start = self.nodes("1:2")
        first = start(is_host=1)
        before = self.world(2)
        wait_until(lambda: all(self.events(seat.pid, "warm") for seat in before), self.text)
        second = start(join_timeout=3, LATER_FAULT_0="hang", LATER_FAULT_1="hang")
        self.assertEqual(second.wait(), 4, self.text())
        self.assert_nothing_left(second)
        self.assertRegex(second.err(), r"error: \S+ leaves the run: none of its workers \(local ranks 0-1\) has opened its "
                                       r"link to ddprun within 3 s\. .*set join_timeout in --rdzv-conf")
        self.assert_undisturbed(before)
        third = start()  # The place is free, and a program that can join does.
        after = self.world(4, after=before[0].round)
        self.assert_kept(before, after, [])
        self.end_well(first, third)

    def test_a_program_that_knows_no_seats_leaves_when_it_ends(self):
        start = self.nodes("1:2")
        first = start(is_host=1)
        before = self.world(2)
        wait_until(lambda: all(self.events(seat.pid, "warm") for seat in before), self.text)
        second = start.program("true")
        self.assertEqual(second.wait(), 4, self.text())
        self.assertRegex(second.err(), r"leaves the run: local rank \d \(pid \d+\) exited with 0 before it opened its link "
                                       r"to ddprun\. .*start the program that the other nodes run")
        self.assert_undisturbed(before)
        self.assertNotIn("before it had a seat", second.err())  # That would use up a restart.
        self.end_well(first)

    def test_an_operator_resizes_the_run(self):
        start = self.nodes("1:2", "--rdzv-id", "job")
        first = start(is_host=1)
        self.world(2)
        second = start()
        before = self.world(4)

        def resize(nodes, code=0):
            done = subprocess.run([os.path.join(BIN, "ddprunctl"), "-e", start.endpoint, "resize", "job", str(nodes)],
                                  env={**os.environ, "DDPRUN_TOKEN": "t"}, capture_output=True, text=True, timeout=60,
                                  check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            return done.stdout + done.stderr

        self.assertIn("run 'job' was started for 1 to 2 nodes (--nnodes)", resize(3, code=1))
        self.assertIn("run 'job' is resized to 1 node", resize(1))
        smaller = self.world(2, after=before[0].round)
        self.assertLessEqual({seat.pid for seat in before}, self.living())  # In reserve.
        resize(2)
        full = self.world(4, after=smaller[0].round)
        self.assertEqual([seat.pid for seat in full], [seat.pid for seat in before], self.text())
        self.assertEqual([e for seat in before for e in self.events(seat.pid, "fence")], [])
        self.assertRegex(first.err(), "resized to 1 node: requested by .* at the next boundary between steps")
        self.end_well(first, second)

    def test_shards_are_not_lost_where_several_nodes_leave_as_planned(self):
        """Of three nodes two go into reserve at once: those with a shard and those with its copy."""
        worker, endpoint = os.path.join(os.path.dirname(BIN), "tests", "elastic_worker"), f"127.0.0.1:{free_port()}"
        saved, stop, lost = self.path("saved"), self.path("stop"), self.path("lost")
        common = {"DDPRUN_TOKEN": "t", "SHARDED": "yes", "LIFE": "0", "STEPS": "1", "LIVES": "1", "STOP": stop, "LOST": lost}

        def start(node, **env):
            conf = f"last_call_timeout=0.2,join_timeout=60,is_host={int(node == 0)}"
            return self.start("--nnodes", "1:3", "--nproc-per-node", "2", "--rdzv-endpoint", endpoint, "--rdzv-id", "job",
                              "--max-restarts", "3", "--rdzv-conf", conf, worker,
                              env={**common, "RESULT": self.path(f"result.{node}"), **env})

        def resize(nodes):
            subprocess.run([os.path.join(BIN, "ddprunctl"), "-e", endpoint, "resize", "job", str(nodes)],
                           env={**os.environ, "DDPRUN_TOKEN": "t"}, capture_output=True, timeout=60, check=True)

        first = start(0, SAVE=saved)
        wait_until(lambda: os.path.exists(saved), first.text)
        others = [start(1), start(2)]
        first.wait_for("6 workers continue at step")
        resize(1)
        first.wait_for("2 workers continue at step")
        resize(3)
        wait_until(lambda: first.err().count("6 workers continue at step") == 2, first.text)
        with open(stop, "w", encoding="utf-8"):
            pass
        for job in [first, *others]:
            self.finish(job)
        self.assertFalse(os.path.exists(lost), first.text())
        with open(self.path("result.0"), encoding="utf-8") as file:
            result = file.read()
        quiet = self.path("quiet")
        alone = {"STEPS": result.split()[0], "LIVES": "0", "RESULT": quiet, "TEAR": "nobody"}
        subprocess.run([worker], env={**os.environ, **common, **alone}, timeout=60, check=True)
        with open(quiet, encoding="utf-8") as file:
            self.assertEqual(file.read(), result)

    def ready_at(self, local_rank, *but):
        """The newest worker of that place that has said Ready, once there is one that is none of `but`."""
        def newest():
            found = [pid for pid in self.living() - set(but) if self.events(pid, "ready")
                     and self.events(pid, "born")[0]["LOCAL_RANK"] == str(local_rank)]
            return found[0] if found else None

        return wait_until(newest, self.text)

    def test_a_spare_takes_the_seat_of_a_dead_worker_at_once(self):
        job = self.launch("--nproc-per-node", "3", "--spares", "1", env=HELD)
        before = self.world(3)
        spare = self.ready_at(3)
        self.assertEqual(self.events(spare, "born")[0]["WORLD_SIZE"], "4")
        self.assertEqual([e["event"] for seat in before for e in self.events(seat.pid, "change", "fence")], [])
        self.kill(before[1])
        full = self.world(3, after=before[0].round)  # The replacement is held.
        self.assert_kept(before, full, [before[1]])
        self.assertEqual([s.pid for s in full], [before[0].pid, before[2].pid, spare], self.text())
        self.assertRegex(job.err(), r"rank 1 on \S+ was killed by signal 9 \(SIGKILL\); a spare takes its seat; "
                                    r"the other workers continue \(restart 1 of 3\)")
        self.touch("ready")
        self.ready_at(1)  # It is the next spare, ...
        self.kill(full[2])
        last = self.world(3, after=full[0].round)
        self.assertEqual([(s.local_rank, s.pid in {f.pid for f in full}) for s in last],
                         [(0, True), (1, False), (2, True)], self.text())  # ... and takes the next seat.
        self.assertNotIn("growing", job.err())
        self.end_well(job)

    def test_more_die_than_there_are_spares(self):
        job = self.launch("--nproc-per-node", "3", "--spares", "1", env=HELD)
        before = self.world(3)
        self.ready_at(3)
        self.kill(*before[:2])
        smaller = self.world(2, after=before[0].round)
        self.assert_kept(before, smaller, before[:2])
        self.touch("ready")
        full = self.world(3, after=smaller[0].round)
        self.assert_kept(smaller, full, [])
        self.end_well(job)

    def test_a_spare_that_dies_disturbs_nobody_and_is_replaced(self):
        job = self.launch("--nproc-per-node", "2", "--spares", "1")
        before = self.world(2)
        spare = self.ready_at(2)
        os.kill(spare, signal.SIGKILL)
        self.ready_at(2, spare)
        self.assertEqual(self.world(2), before)
        self.assertEqual([e["event"] for seat in before for e in self.events(seat.pid, "change", "fence")], [])
        self.end_well(job)

    def test_plain_workers_have_no_spares(self):
        job = self.launch("--nproc-per-node", "2", "--spares", "2", env={f"FAULT_{i}": "plain" for i in range(2)})
        wait_until(lambda: len(self.traces()) == 2, self.text)
        self.touch("end")
        self.finish(job)
        self.assertEqual(len(self.traces()), 2, self.text())

    def test_spares_need_restarts(self):
        job = self.run_ddprun("--spares", "1", "true", code=2)
        self.assertIn("--spares needs --max-restarts", job.err())


if __name__ == "__main__":
    ddprun_case.main()
