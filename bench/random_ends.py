#!/usr/bin/env python3
"""Random kills and standstills of every process of a run, and what is left of it: processes, temporary folders, cgroups, ports.

    bench/random_ends.py [--build build/dev] [--count 1000] [--seed 1]

Each run has one or two nodes, whose workers detach processes that are deaf to SIGTERM. At random moments, during its start too, its launcher,
agents, daemon, keeper and workers get SIGKILL, SIGSTOP and SIGCONT; in the end everything goes on, and what still runs gets SIGTERM. The keeper
is killed only where the launcher lives to start the next one. Exits with 1 if anything was left 10 s later.
"""
import argparse
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time

from side_by_side import ROOT, add_build_option

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
add_build_option(parser, "bin/ddprun")
parser.add_argument("--count", type=int, default=1000)
parser.add_argument("--seed", type=int, default=1)
options = parser.parse_args()
os.environ["DDPRUN_BIN"] = os.path.join(options.build, "bin")
sys.path[:0] = [os.path.join(ROOT, "tests", folder) for folder in ("system", "failures")]
import ddprun_case  # noqa: E402  It reads DDPRUN_BIN.
import kill_test  # noqa: E402

LEFT_LIMIT = 10


def send(process, number):
    try:
        os.kill(process.pid, number)
        return True
    except ProcessLookupError:
        return False


def listening(processes):
    """Inodes of the sockets on which they listen."""
    sockets = set()
    for process in processes:
        try:
            for fd in os.listdir(f"/proc/{process.pid}/fd"):
                sockets.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{process.pid}/fd/{fd}")))
        except OSError:
            pass
    return sockets & open_ports()


def open_ports():
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as f:
            found.update(line.split()[9] for line in f if line.split()[3] == "0A")
    return found


def kill_keeper(job):
    for keeper in job.keepers():
        send(keeper, signal.SIGKILL)
        ddprun_case.wait_until(lambda pid=keeper.pid: job.ended() or [k for k in job.keepers() if k.pid != pid], job.text)


def disturb(job, chance, history):
    """A few events, which `history` gets; returns what was listened on."""
    ports, launcher_killed = set(), False
    for _ in range(chance.randint(1, 6)):
        time.sleep(chance.random() * 0.1)
        alive = job.processes()
        ports |= listening(alive)
        if not alive or job.ended():
            break
        victim = chance.choice(alive)
        what = chance.choice(["kill", "stop", "stop", "continue", "keeper"])
        history.append(f"{what} {victim}")
        # A launcher that has got SIGKILL may seem to live for a moment: it replaces no keeper.
        if what == "keeper" and not launcher_killed and ddprun_case.Process(job.pid).state not in "TZ":
            kill_keeper(job)
        elif what == "continue":
            for process in alive:
                send(process, signal.SIGCONT)
        elif what == "stop" or job.is_keeper(victim):
            send(victim, signal.SIGSTOP)
        elif what == "kill":
            victims = [victim, *chance.sample(alive, min(len(alive), chance.randint(0, 3)))]
            launcher_killed |= job.pid in [process.pid for process in victims]
            history[-1] += f" of {victims}"
            for process in victims:
                if not job.is_keeper(process):
                    send(process, signal.SIGKILL)
    return ports


def end(job):
    begun = time.monotonic()
    asked = False
    while job.processes() or not job.ended():
        for process in job.processes():
            send(process, signal.SIGCONT)
        if not asked and not job.ended():
            asked = send(job, signal.SIGTERM)
        if time.monotonic() - begun > LEFT_LIMIT:
            break
        time.sleep(0.005)
    return (time.monotonic() - begun) * 1000


def left_of(job, folder, ports, cgroup):
    """In words; folders and cgroups get a moment after the last process."""
    until = time.monotonic() + LEFT_LIMIT
    while True:
        left = [str(p) for p in job.processes()] + [f"port of socket {s}" for s in ports & open_ports()]
        left += [name for name in os.listdir(folder) if name.startswith("ddprun")]
        left += cgroup.left()
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.01)


def one(chance, folder, counts):
    nodes = chance.choice([["--standalone"], ["--local-nodes", "2"]])
    argv = [ddprun_case.DDPRUN, *nodes, "--nproc-per-node", "2", "--shutdown-timeout", "0.2", "--max-restarts", "1",
            "--rdzv-conf", "join_timeout=1", *ddprun_case.shell(kill_test.HARD_TO_KILL + kill_test.WAIT)]
    temporary = tempfile.mkdtemp(dir=folder)
    cgroup = ddprun_case.JobsCgroup()
    environment = {"D": folder, "TMPDIR": temporary, "XDG_RUNTIME_DIR": temporary}
    # LeakSanitizer stops its process as it ends, and waits for ever for a stop that a SIGCONT of ours took back.
    environment["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    job = ddprun_case.Job(argv, folder, environment, cgroup=cgroup)
    history = []
    try:
        time.sleep(chance.random() * 0.2)
        ports = disturb(job, chance, history)
        took = end(job)
        left = left_of(job, temporary, ports, cgroup)
        text = "\n".join([*history, job.text()])
    finally:
        job.end()
        cgroup.remove()
    for event in history:
        counts[event.split()[0]] = counts.get(event.split()[0], 0) + 1
    return took, left, text


def main():
    chance, times, wrong, counts = random.Random(options.seed), [], 0, {}
    for number in range(options.count):
        with tempfile.TemporaryDirectory() as folder:
            took, left, text = one(chance, folder, counts)
        times.append(took)
        if left:
            wrong += 1
            print(f"run {number} of seed {options.seed}: left {left}\n{text}", flush=True)
    print(f"{options.count} runs, seed {options.seed}: {wrong} left something; events {counts}; to the end "
          f"{statistics.median(times):.0f} ms, at most {max(times):.0f} ms")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
