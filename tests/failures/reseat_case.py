"""What tests of workers that keep their process have in common. The workers speak the worker link by themselves, see
reseat_worker.py, so that what is tested is the launcher, the agent and the daemon alone."""

import collections
import json
import os
import re
import signal
import sys

import paths  # noqa: F401
from ddprun_case import DdprunCase, wait_until

WORKER = [sys.executable, "-B", os.path.join(os.path.dirname(os.path.abspath(__file__)), "reseat_worker.py")]
HELD = {f"LATER_FAULT_{local_rank}": "hold" for local_rank in range(8)}  # Replacements come when a test lets them.

Seat = collections.namedtuple("Seat", "round rank world_size local_rank pid")


class ReseatCase(DdprunCase):
    def launch(self, *argv, env=None):
        return self.start("--max-restarts", "3", *argv, *WORKER, env=env)

    def touch(self, name):
        with open(self.path(name), "w", encoding="utf-8"):
            pass

    # What the workers have written.

    def traces(self):
        """{pid: what happened to it, in order}."""
        found = {}
        for name in os.listdir(self.dir):
            if name.startswith("trace."):
                with open(self.path(name), encoding="utf-8") as f:
                    found[int(name[6:])] = [json.loads(line) for line in f.read().split("\n")[:-1]]
        return {pid: trace for pid, trace in found.items() if trace}

    def events(self, pid, *kinds):
        return [e for e in self.traces().get(pid, []) if e["event"] in kinds]

    def living(self):
        return {p.pid for job in self.jobs for p in job.processes()}

    def seats(self):
        """The newest seat of each worker that lives, by rank."""
        living = self.living()
        found = []
        for pid, trace in self.traces().items():
            seated = [e for e in trace if e["event"] == "seated"]
            if seated and pid in living:
                last = seated[-1]
                found.append(Seat(last["round"], last["rank"], last["world_size"], last["local_rank"], pid))
        return sorted(found, key=lambda seat: seat.rank)

    def text(self):
        lines = [f"{pid}: {e}" for pid, trace in sorted(self.traces().items()) for e in trace]
        return "\n".join(lines + [job.text() for job in self.jobs])

    def world(self, size, after=-1):
        """The seats of a round after `after`, once each of its `size` ranks is taken by a living worker."""
        def complete():
            seats = [seat for seat in self.seats() if seat.round > after]
            rounds = {(seat.round, seat.world_size) for seat in seats}
            if len(rounds) != 1 or rounds.pop()[1] != size:
                return None
            return seats if [seat.rank for seat in seats] == list(range(size)) else None

        return wait_until(complete, lambda: f"a world of {size} after round {after}\n{self.text()}")

    def daemon_knows(self, job, nodes):
        """Each node of a job with -v has sent that its workers can be seated anew: a death of another one may arrive before that."""
        wait_until(lambda: len(set(re.findall(r"node (\d+): .*send slots", job.err()))) == nodes, job.text)

    def kill(self, *seats):
        for seat in seats:
            os.kill(seat.pid, signal.SIGKILL)

    def end_well(self, *jobs):
        self.touch("end")
        for job in jobs:
            self.finish(job)

    # What is right after a change.

    def assert_kept(self, before, after, killed):
        """All but the killed have gone on in their process and their place, in the same order."""
        kept = [(seat.pid, seat.local_rank) for seat in before if seat not in killed]
        self.assertEqual([(s.pid, s.local_rank) for s in after if s.pid in dict(kept)], kept, self.text())

    def shrinks_and_grows(self, job, size, killed_ranks):
        before = self.world(size)
        killed = [before[rank] for rank in killed_ranks]
        self.kill(*killed)
        smaller = self.world(size - len(killed), after=before[0].round)
        self.assert_kept(before, smaller, killed)
        for seat in smaller:
            fence = self.events(seat.pid, "fence")[0]
            self.assertEqual(fence["round"], before[0].round)
            self.assertIn(fence["lost_rank"], killed_ranks)
        self.touch("ready")
        full = self.world(size, after=smaller[0].round)
        self.assert_kept(smaller, full, [])
        self.assertEqual({s.local_rank for s in full if s.pid not in {k.pid for k in smaller}},
                         {s.local_rank for s in killed})
        for seat in smaller:  # At a boundary between steps.
            self.assertGreaterEqual(len(self.events(seat.pid, "change")), 1)
        self.end_well(job)
        return before, smaller, full

    # Tests.
