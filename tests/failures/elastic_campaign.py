#!/usr/bin/env python3
"""Workers, whole nodes and the daemon of one run are killed, halted, stopped and started anew at random; in the end its
weights must be those of a run in which nothing happened.

    DDPRUN_BIN=build/dev/bin tests/failures/elastic_campaign.py [--kills N] [--seed S] [--backend shm|gloo|cpu] [--every 0.7]

Up to three nodes, 8 workers in all (tests/process/worker_sdk/campaign_worker.cc), and a daemon with a journal. Checked:

  * a process that was not hit, on a node that was not hit, lives until the end; only new nodes, no worker of which has
    made a step, may start theirs again;
  * sample_count.py finds each sample in exactly one committed step of its epoch;
  * the hash of weights, momentum and units after the last step is that of quiet runs of 1, 3 and 8 ranks;
  * every launcher that was not hit ends with 0, and none leaves a process.

Operations and pauses follow the seed; what they meet depends on the machine. One worker that has the newest state, at
least, is always left, for state is kept nowhere else. What was written is kept if something is wrong.
"""
import argparse
import collections
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time

import paths  # noqa: F401
import campaign_logs
import ddprun_case
from campaign_logs import Workers
from ddprun_case import BIN, DDPRUN, Job, free_port, wait_until

WORKER = os.path.join(os.path.dirname(BIN), "tests", "campaign_worker")
NODES = {"a": 3, "b": 3, "c": 2}  # Workers of each.
ALL = sum(NODES.values())
OPERATIONS = {"kill": 10, "several": 3, "again": 3, "halt": 3, "agent": 1.5, "launcher": 1.5, "leave": 1, "daemon": 2}
PATIENCE = 90.0  # Seconds without a committed step.


class Wrong(Exception):
    pass


class Launch:
    """One ddprun of a node: nodes are started more than once."""

    def __init__(self, name, job):
        self.name, self.job, self.hit_at = name, job, None


class Campaign:
    def __init__(self, options):
        self.options, self.random = options, random.Random(options.seed)
        self.folder = tempfile.mkdtemp(prefix="ddprun-campaign-")
        for name in ("logs", "state", "temporary"):
            os.mkdir(os.path.join(self.folder, name))
        self.stop_file = os.path.join(self.folder, "stop")
        self.workers = Workers(os.path.join(self.folder, "logs"))
        self.port, self.launches, self.nodes = free_port(), {}, {}
        self.daemon, self.jobs, self.later = None, [], []
        self.done, self.kills, self.anew, self.story = collections.Counter(), 0, 0, []
        self.begun, self.progress = time.monotonic(), (None, time.monotonic())

    # Starting.

    def job(self, argv, **env):
        temporary = os.path.join(self.folder, "temporary")
        env = {"DDPRUN_TOKEN": "campaign", "TMPDIR": temporary, "XDG_RUNTIME_DIR": temporary, **env}
        self.jobs.append(Job(argv, self.folder, env))
        return self.jobs[-1]

    def start_daemon(self):
        self.daemon = self.job([os.path.join(BIN, "ddprun-rendezvous"), "--port", str(self.port), "--state-dir",
                                os.path.join(self.folder, "state")])

    def worker_environment(self, node, logs="logs", **more):
        backend = self.options.backend
        hosts = {} if backend == "shm" else {"DDPRUN_HOST": f"host-{node}", "DDPRUN_SOCKET_IFNAME": "lo"}
        return {"LOGS": os.path.join(self.folder, logs), "DDPRUN_BACKEND": backend, "SPEEDS": self.options.speeds, **hosts,
                **more}

    def start_node(self, node):
        name = f"{node}{sum(launch.name[0] == node for launch in self.launches.values())}"
        argv = [DDPRUN, "--nnodes", f"1:{len(NODES)}", "--nproc-per-node", str(NODES[node]), "--max-restarts", "1000000",
                "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "campaign", "--shutdown-timeout", "5",
                "--rdzv-conf", "is_host=0,last_call_timeout=0.3,join_timeout=300", WORKER]
        env = self.worker_environment(node, NODE=name, STOP=self.stop_file, STEP_MS=str(self.options.step_ms))
        self.nodes[node] = self.launches[name] = Launch(name, self.job(argv, **env))
        self.tell(f"start {name}")

    def tell(self, what):
        self.story.append(f"{time.monotonic() - self.begun:8.3f} {what}")
        if self.options.verbose:
            print(self.story[-1], flush=True)

    # Looking.

    def look(self):
        """What should not be: somebody who was spared has died, or nobody goes on."""
        self.workers.refresh()
        while self.later and self.later[0][0] <= time.monotonic():
            self.later.pop(0)[2]()
        newest = self.workers.newest()
        if newest and newest.step != self.progress[0]:
            self.progress = newest.step, time.monotonic()
        if os.path.exists(self.stop_file):
            return
        if time.monotonic() - self.progress[1] > PATIENCE:
            raise Wrong(f"no step was committed for {PATIENCE:g} s; living: {self.workers.living()}")
        for worker in self.workers.all():
            if worker.ended and worker.hit_at is None and self.launches[worker.launch].hit_at is None:
                if any(other.last for other in self.workers.all() if other.launch == worker.launch):
                    raise Wrong(f"{worker} has ended, though neither it nor its node was hit")
                worker.hit_at, self.anew = time.monotonic(), self.anew + 1
        for launch in self.launches.values():
            if launch.hit_at is None and launch.job.ended():
                raise Wrong(f"{launch.name} has ended, though it was not hit\n{launch.job.text()}")
        if self.daemon and self.daemon.ended():
            raise Wrong(f"the daemon has ended by itself\n{self.daemon.text()}")

    def wait(self, condition, what):
        def looked():
            self.look()
            time.sleep(0.01)
            return condition()
        wait_until(looked, lambda: f"{what}; {self.workers.living()}", PATIENCE)

    def after(self, seconds, action):
        self.later.append((time.monotonic() + seconds, len(self.story) + self.random.random(), action))
        self.later.sort(key=lambda entry: entry[:2])

    def up(self):
        return [launch for launch in self.nodes.values() if launch.hit_at is None]

    def has_state(self, worker):
        newest = self.workers.newest()
        return (worker.last and not worker.stopped and worker.hit_at is None and not worker.ended
                and self.launches[worker.launch].hit_at is None and worker.last.step >= newest.step - 1)

    def targets(self):
        return [w for w in self.workers.living() if w.hit_at is None and self.launches[w.launch].hit_at is None]

    def spares_state(self, hit):
        return any(self.has_state(worker) and not hit(worker) for worker in self.workers.living())

    def is_full(self):
        lasts = [w.last for w in self.workers.living()]
        return (len(lasts) == ALL and all(lasts) and len({last.round for last in lasts}) == 1
                and {last.world for last in lasts} == {ALL})

    # Hitting.

    def hit_workers(self, workers, number, why):
        names = {w.stem for w in workers}
        if not workers or not self.spares_state(lambda w: w.stem in names):
            return False
        for worker in workers:
            if number == signal.SIGSTOP:
                worker.stopped = True
            worker.hit_at = worker.hit_at or time.monotonic()
            try:
                os.kill(worker.pid, number)
            except ProcessLookupError:
                continue
            self.kills += number == signal.SIGKILL
        self.tell(f"{why} {workers}")
        return True

    def do_kill(self):
        targets = self.targets()
        return targets and self.hit_workers([self.random.choice(targets)], signal.SIGKILL, "kill")

    def do_several(self):
        targets = self.targets()
        number = min(len(targets) - 1, self.random.randint(2, ALL - 1))
        return number > 1 and self.hit_workers(self.random.sample(targets, number), signal.SIGKILL, "kill at once")

    def do_again(self):
        """Once more while the others join, perhaps the one that comes."""
        if not self.do_kill():
            return False
        for _ in range(self.random.randint(1, 2)):
            self.after(self.random.uniform(0, 0.3), lambda: self.random.choice([self.do_kill, self.do_newest])())
        return True

    def do_newest(self):
        return self.hit_workers(self.targets()[-1:], signal.SIGKILL, "kill the newest")

    def do_halt(self):
        targets = self.targets()
        worker = self.random.choice(targets) if targets else None
        if not worker or not self.hit_workers([worker], signal.SIGSTOP, "halt"):
            return False

        def go_on():
            if campaign_logs.is_alive(worker.pid):
                os.kill(worker.pid, signal.SIGCONT)
                self.tell(f"continue {worker}")
        self.after(self.random.choice([self.random.uniform(0.2, 2), self.random.uniform(2, 8)]), go_on)
        return True

    def hit_node(self, why, hit):
        up = self.up()
        launch = self.random.choice(up) if len(up) > 1 else None
        if not launch or not self.spares_state(lambda w: w.launch == launch.name):
            return False
        agents = launch.job.agents()
        if not agents:
            return False
        launch.hit_at = time.monotonic()
        hit(launch, agents[0].pid)
        self.tell(f"{why} of {launch.name}")
        self.after(self.random.uniform(0.2, 4), lambda: self.start_again(launch))
        return True

    def start_again(self, launch):
        if not launch.job.ended():
            if time.monotonic() - launch.hit_at > PATIENCE:
                raise Wrong(f"{launch.name} was hit and does not end\n{launch.job.text()}")
            self.after(0.1, lambda: self.start_again(launch))
        elif launch.job.processes():
            if time.monotonic() - launch.hit_at > PATIENCE:
                raise Wrong(f"{launch.name} has left {launch.job.processes()}\n{launch.job.text()}")
            self.after(0.1, lambda: self.start_again(launch))
        else:
            self.start_node(launch.name[0])

    def do_agent(self):
        def kill(_, agent):
            os.kill(agent, signal.SIGKILL)
            self.kills += 1
        return self.hit_node("kill the agent", kill)

    def do_launcher(self):
        def kill(launch, _):
            os.kill(launch.job.pid, signal.SIGKILL)
            self.kills += 1
        return self.hit_node("kill the launcher", kill)

    def do_leave(self):
        return self.hit_node("terminate the launcher", lambda launch, _: os.kill(launch.job.pid, signal.SIGTERM))

    def do_daemon(self):
        if not self.daemon:
            return False
        self.daemon.signal(signal.SIGKILL)
        self.daemon.wait()
        self.daemon, self.kills = None, self.kills + 1
        self.tell("kill the daemon")

        def again():
            self.start_daemon()
            self.tell("start the daemon")
        self.after(self.random.choice([0, self.random.uniform(0, 1.5)]), again)
        return True

    # The whole.

    def run(self):
        self.start_daemon()
        for node in list(NODES)[:self.random.randint(2, len(NODES))]:
            self.start_node(node)
        self.wait(self.workers.newest, "the first step")
        for node in [node for node in NODES if node not in self.nodes]:
            self.after(self.random.uniform(0, 2), lambda node=node: self.start_node(node))
        while self.kills < self.options.kills:
            operation = self.random.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
            self.done[operation] += bool(getattr(self, f"do_{operation}")())
            until = time.monotonic() + self.random.expovariate(1 / self.options.every)
            while True:
                self.look()
                if time.monotonic() > until:
                    break
                time.sleep(min(0.02, max(0.0, until - time.monotonic())))
        self.wait(lambda: not self.later, "what was to come later")
        self.wait(self.is_full, f"all {ALL} workers in one round")

    def end(self):
        """Every launcher that still runs, with 0; the daemon."""
        open(self.stop_file, "w", encoding="ascii").close()
        for launch in self.up():
            code = launch.job.wait(PATIENCE)
            if code != 0:
                raise Wrong(f"{launch.name} ended with {code}\n{launch.job.text()}")
        wait_until(lambda: not any(launch.job.processes() for launch in self.launches.values()),
                   "the end of all workers", ddprun_case.PROMISED)

    def judge(self):
        results = self.workers.results()
        if len(results) != 1 or sum(results.values()) != ALL:
            raise Wrong(f"{ALL} ranks ended with {dict(results)}")
        result, = results
        self.steps = int(result.split()[0])
        complaints, self.repeated = campaign_logs.judge(self.workers.folder, self.steps)
        if complaints:
            raise Wrong(f"{len(complaints)} complaints about samples: " + "\n".join(complaints[:10]))
        for ranks in self.options.quiet:
            quiet = self.quiet(ranks)
            if quiet != result:
                raise Wrong(f"{result} is the result, {quiet} that of {ranks} ranks to which nothing happened")

    def quiet(self, ranks):
        logs = f"quiet{ranks}"
        os.mkdir(os.path.join(self.folder, logs))
        job = self.job([DDPRUN, "--standalone", "--nproc-per-node", str(ranks), WORKER],
                       **self.worker_environment("a", logs, STEPS=str(self.steps)))
        code = job.wait(60 + self.steps)
        results = Workers(os.path.join(self.folder, logs)).results()
        if code != 0 or list(results.values()) != [ranks]:
            raise Wrong(f"a quiet run of {ranks} ranks ended with {code} and {dict(results)}\n{job.text()}")
        return next(iter(results))

    def figures(self):
        lost = campaign_logs.lost_seconds(self.workers.folder)
        what = ", ".join(f"{number} {name}" for name, number in self.done.items())
        per_change = f", {statistics.median(lost) * 1000:.0f} ms a change in the median, {max(lost):.1f} s at most" if lost else ""
        return (f"{self.kills} kills ({what}) in {time.monotonic() - self.begun:.0f} s; {len(self.workers.all())} processes, "
                f"{self.anew} of new nodes started again before their first step, "
                f"{len(lost)} changes, {self.steps} steps, {self.repeated} repeated, "
                f"{campaign_logs.uneven_steps(self.workers.folder)} divided unevenly; {sum(lost):.1f} s lost{per_change}")

    def close(self, keep):
        for job in self.jobs:
            job.end()
        if not keep:
            shutil.rmtree(self.folder)


def carry_out(options):
    """Whether all was well."""
    campaign = Campaign(options)
    again = f"--backend {options.backend} --kills {options.kills} --seed {options.seed} --every {options.every:g}"
    well = False
    try:
        campaign.run()
        campaign.end()
        campaign.judge()
        print(f"{options.backend}: {campaign.figures()}\nok ({again})", flush=True)
        well = True
    except (Wrong, AssertionError) as wrong:
        print("\n".join([*campaign.story[-40:], f"WRONG after {campaign.kills} kills: {wrong}",
                         f"everything is in {campaign.folder}; again: {again}"]), flush=True)
    finally:
        campaign.close(keep=not well)
    return well


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--backend", choices=("shm", "gloo", "cpu"), default="shm")
    parser.add_argument("--every", type=float, default=0.7, help="seconds between two operations, on average [0.7]")
    parser.add_argument("--step-ms", type=int, default=10, help="length of a step's computation [10]")
    parser.add_argument("--speeds", choices=("vary", "equal", "even"), default="vary",
                        help="vary: ranks change their speed, and shards move; even: shards stay [vary]")
    parser.add_argument("--quiet", type=int, nargs="*", default=[1, 3, ALL], help="ranks of the quiet runs [1 3 8]")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if not os.access(DDPRUN, os.X_OK) or not os.access(WORKER, os.X_OK):
        ddprun_case.skip_all(f"there is no {DDPRUN} or no {WORKER}")
    sys.exit(0 if carry_out(options) else 1)


if __name__ == "__main__":
    main()
