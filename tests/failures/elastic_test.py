"""--nnodes MIN:MAX: nodes that come late, go, and stand by. Changes of membership use up no restart."""

import os
import signal

import paths  # noqa: F401
import ddprun_case
from ddprun_case import DdprunCase, PASS_GATE, column, env_to, free_port, shell, wait_until

SCRIPT = env_to() + PASS_GATE
QUICK = "last_call_timeout=0.2,join_timeout=20"


class Elastic(DdprunCase):
    def setUp(self):
        super().setUp()
        self.the_gate = self.gate()
        self.endpoint = f"127.0.0.1:{free_port()}"

    def node(self, nnodes, *argv, host=False, script=SCRIPT):
        conf = QUICK + (",is_host=1" if host else ",is_host=0")
        job = self.start("--nnodes", nnodes, "--nproc-per-node", "2", "--rdzv-endpoint", self.endpoint,
                         "--rdzv-conf", conf, *argv, *shell(script), env={"DDPRUN_TOKEN": "t"})
        return job

    def workers_of_world(self, world, restart_count=0, besides=()):
        """The workers of the latest round of this size, without those seen before."""
        def seen():
            found = self.arrivals(f"env.{restart_count}.{world}")
            return {name: e for name, e in found.items() if name not in besides}

        wait_until(lambda: len(seen()) >= world,
                   lambda: f"{world} workers: {sorted(seen())}\n" + "\n".join(j.text() for j in self.jobs))
        self.assertEqual(len(seen()), world)
        return sorted(seen().values(), key=lambda e: int(e["RANK"])), set(seen())

    def end_well(self, *jobs):
        self.the_gate.open()
        for job in jobs:
            self.finish(job)

    def test_a_node_that_comes_later_is_taken_in(self):
        first = self.node("1:2", host=True)
        alone, _ = self.workers_of_world(2)
        second = self.node("1:2")
        both, _ = self.workers_of_world(4)
        self.assertEqual(column(both, "RANK"), ["0", "1", "2", "3"])
        self.assertEqual(set(column(both, "TORCHELASTIC_RESTART_COUNT")), {"0"})
        self.assertEqual(column(both, "DDPRUN_TEST_JOB"), [first.marker] * 2 + [second.marker] * 2)
        self.assertNotEqual(alone[0]["MASTER_PORT"], both[0]["MASTER_PORT"])
        self.end_well(first, second)

    def survivors_go_on(self, victim_of):
        first = self.node("1:2", host=True)
        second = self.node("1:2")
        self.workers_of_world(4)
        seen = set(self.arrivals("env.0.2"))
        os.kill(victim_of(second), signal.SIGKILL)
        self.assertEqual(second.wait(), 137)
        self.assert_nothing_left(second)
        alone, _ = self.workers_of_world(2, besides=seen)
        self.assertEqual(set(column(alone, "DDPRUN_TEST_JOB")), {first.marker})
        self.assertEqual(set(column(alone, "TORCHELASTIC_RESTART_COUNT")), {"0"})
        self.end_well(first)

    def test_survivors_go_on_without_a_node_whose_agent_was_killed(self):
        self.survivors_go_on(lambda node: node.agents()[0].pid)

    def test_survivors_go_on_without_a_node_whose_launcher_was_killed(self):
        self.survivors_go_on(lambda node: node.pid)

    def test_a_node_that_leaves_on_purpose_shrinks_the_run(self):
        first = self.node("1:2", host=True)
        second = self.node("1:2")
        self.workers_of_world(4)
        seen = set(self.arrivals("env.0.2"))
        second.signal(signal.SIGTERM)
        self.finish(second, 143)
        self.workers_of_world(2, besides=seen)
        self.end_well(first)

    def test_a_lost_group_rank_0_moves_the_store(self):
        """Node rank 0 is not the host of the endpoint here, so that only the store is lost with it."""
        first = self.node("1:2", "--node-rank", "1", host=True)
        second = self.node("1:2", "--node-rank", "0")
        both, _ = self.workers_of_world(4)
        self.assertEqual(both[0]["DDPRUN_TEST_JOB"], second.marker)
        seen = set(self.arrivals("env.0.2"))
        os.kill(second.agents()[0].pid, signal.SIGKILL)
        alone, _ = self.workers_of_world(2, besides=seen)
        self.assertEqual(column(alone, "GROUP_RANK"), ["0", "0"])
        self.assertNotEqual(alone[0]["MASTER_PORT"], both[0]["MASTER_PORT"])
        self.assertEqual(second.wait(), 137)
        self.end_well(first)

    def test_a_spare_takes_over_a_lost_node(self):
        first = self.node("2", host=True)
        second = self.node("2")
        before, seen = self.workers_of_world(4)
        spare = self.node("2")
        said = spare.wait_for("held in reserve.*\n").group()
        self.assertNotIn(" left", said)  # Nothing runs out.
        self.assertEqual(len(self.arrivals("env.0.4")), 4)  # Nobody was disturbed by it.
        os.kill(second.agents()[0].pid, signal.SIGKILL)
        after, _ = self.workers_of_world(4, besides=seen)
        self.assertEqual(set(column(after, "DDPRUN_TEST_JOB")), {first.marker, spare.marker})
        self.assertEqual(set(column(after, "TORCHELASTIC_RESTART_COUNT")), {"0"})
        self.assertEqual(after[0]["DDPRUN_TEST_JOB"], before[0]["DDPRUN_TEST_JOB"])
        self.end_well(first, spare)
        self.assertEqual(second.wait(), 137)

    def test_a_spare_that_is_not_needed_ends_well(self):
        first, second = self.node("2", host=True), self.node("2")
        self.workers_of_world(4)
        spare = self.node("2")
        spare.wait_for("held in reserve")
        self.end_well(first, second, spare)

    def test_a_lost_node_may_come_back(self):
        first, second = self.node("2", host=True), self.node("2")
        _, seen = self.workers_of_world(4)
        os.kill(second.pid, signal.SIGKILL)
        first.wait_for("closed its connection; stopping, then starting again")
        back = self.node("2")
        after, _ = self.workers_of_world(4, besides=seen)
        self.assertEqual(set(column(after, "DDPRUN_TEST_JOB")), {first.marker, back.marker})
        self.end_well(first, back)

    def test_nobody_comes_back(self):
        first, second = self.node("2", host=True), self.node("2")
        self.workers_of_world(4)
        self.endpoint_conf = None
        os.kill(second.agents()[0].pid, signal.SIGKILL)
        first.wait_for("waiting for nodes: 1 of 2 here")
        first.signal(signal.SIGTERM)
        self.finish(first, 143)

    def test_the_last_call_waits_for_more(self):
        """Three of 1:3 that come within the last call start together, not one after the other."""
        conf = "last_call_timeout=20,join_timeout=20"
        jobs = [self.start("--nnodes", "1:3", "--rdzv-endpoint", self.endpoint, "--rdzv-conf", conf,
                           *shell(SCRIPT), env={"DDPRUN_TOKEN": "t"}) for _ in range(3)]
        workers = self.wait_for_workers(3, jobs=jobs)
        self.assertEqual(set(column(workers, "WORLD_SIZE")), {"3"})
        self.end_well(*jobs)


if __name__ == "__main__":
    ddprun_case.main()
