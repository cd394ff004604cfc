#!/usr/bin/env python3
"""How a rendezvous grows with the number of nodes: one daemon, N synthetic agents, 8 ranks each, the token on.

    bench/rendezvous.py [--build build/dev] [--nodes 16,256,2048,16384] [--rounds 3] [--idle 20] [--no-auth]
    bench/rendezvous.py --rogues 10000 [--nodes 2048]      the same beside strangers of four kinds

The agents are one process that connects, shakes hands, joins and beats as real ones do; it shares the machine's cores
with the daemon. "Seated" is the time from the first connect to the last seat. Memory is the daemon's private memory
while all beat, CPU what the daemon used of one core meanwhile. Messages and bytes are those of the protocol (framed,
before TLS), per node. Rows take turns; medians.
"""
import argparse
import json
import os
import resource
import secrets
import shutil
import statistics
import subprocess
import tempfile
import time

from rogues import Rogues
from side_by_side import add_build_option, free_port, median_ratio, take_turns

TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def private_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon:"))


class Daemon:
    def __init__(self, options, token):
        self.port = free_port()
        self.folder = tempfile.mkdtemp()
        self.log = open(os.path.join(self.folder, "log"), "w+")
        argv = [os.path.join(options.build, "bin", "ddprun-rendezvous"), "--port", str(self.port),
                "--state-dir", self.folder] + ([] if token else ["--no-auth"])
        env = dict(os.environ, DDPRUN_TOKEN=token)
        self.process = subprocess.Popen(argv, env=env, stderr=self.log)
        deadline = time.monotonic() + 10
        while "listening" not in self.said():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the daemon did not start: " + self.said())
            time.sleep(0.01)

    def said(self):
        with open(self.log.name) as f:
            return f.read()

    def end(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
        shutil.rmtree(self.folder)


def one_run(options, nodes, rogues=0):
    """Figures of one rendezvous of `nodes` nodes."""
    token = "" if options.no_auth else secrets.token_hex(16)
    daemon = Daemon(options, token)
    strangers = Rogues(daemon.port, rogues) if rogues else None
    try:
        if strangers:
            strangers.start()
        pid = daemon.process.pid
        argv = [os.path.join(options.build, "bin", "bench_synthetic_agents"), "127.0.0.1", str(daemon.port), str(nodes),
                str(options.workers), str(options.idle + 4)]
        agents = subprocess.Popen(argv, env=dict(os.environ, DDPRUN_TOKEN=token), stdout=subprocess.PIPE, text=True)
        seated = json.loads(agents.stdout.readline() or "{}")
        if not seated:
            raise SystemExit(f"{nodes} agents: exit status {agents.wait()}\n{daemon.said()}")
        cpu_joining = cpu_seconds(pid)
        time.sleep(2)  # The first beats and what the handshakes left behind.
        begun, cpu = time.monotonic(), cpu_seconds(pid)
        time.sleep(options.idle)
        used = (cpu_seconds(pid) - cpu) / (time.monotonic() - begun)
        memory = private_kib(pid)
        beaten = json.loads(agents.stdout.readline() or "{}")
        if not beaten or agents.wait(60) != 0:
            raise SystemExit(f"{nodes} agents did not last\n{daemon.said()}")
        return {
            "seated s": seated["seconds"],
            "daemon CPU s": cpu_joining,
            "messages a node": (seated["messages_up"] + seated["messages_down"]) / nodes,
            "bytes a node": (seated["bytes_up"] + seated["bytes_down"]) / nodes,
            "KiB a rank": memory / (nodes * options.workers),
            "idle CPU %": 100 * used,
            "beats/s": beaten["messages_up"] / (options.idle + 4),
        }
    finally:
        if strangers:
            strangers.end()
        daemon.end()


def print_table(values):
    columns = list(next(iter(values.values()))[0])
    print("| nodes | ranks | " + " | ".join(columns) + " |")
    print("|--" * (len(columns) + 2) + "|")
    for (nodes, ranks), runs in values.items():
        cells = []
        for column in columns:
            figures = [run[column] for run in runs]
            text = f"{statistics.median(figures):.3g}"
            if column == "seated s":
                text = f"{statistics.median(figures):.3f} [{min(figures):.3f}-{max(figures):.3f}]"
            elif column == "bytes a node":
                text = f"{statistics.median(figures):.0f}"
            cells.append(text)
        print(f"| {nodes} | {ranks} | " + " | ".join(cells) + " |")


def with_rogues(options, nodes):
    contestants = {
        "alone": lambda: one_run(options, nodes)["seated s"],
        "beside rogues": lambda: one_run(options, nodes, options.rogues)["seated s"],
    }
    values = take_turns(contestants, options.rounds)
    for name, times in values.items():
        print(f"{name:<14} {statistics.median(times):.3f} s [{min(times):.3f}-{max(times):.3f}]")
    print(f"{options.rogues} rogue connections, {nodes} nodes: ratio {median_ratio(values['beside rogues'], values['alone']):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun-rendezvous", "bin/bench_synthetic_agents")
    parser.add_argument("--nodes", default="16,256,2048,16384")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, default=20)
    parser.add_argument("--no-auth", action="store_true")
    parser.add_argument("--rogues", type=int, default=0)
    options = parser.parse_args()
    sizes = [int(word) for word in options.nodes.split(",")]
    if options.rogues:
        return with_rogues(options, sizes[0])
    contestants = {(n, n * options.workers): (lambda n=n: one_run(options, n)) for n in sizes}
    values = take_turns(contestants, options.rounds)
    print(f"{options.rounds} rounds, medians; seated with [min-max]; token {'off' if options.no_auth else 'on'}")
    print_table(values)


if __name__ == "__main__":
    hard = max(100_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass  # What is missing shows as refused connections.
    main()
