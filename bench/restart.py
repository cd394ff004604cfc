#!/usr/bin/env python3
"""From the death of a worker to the first line of every restarted one, two nodes, beside torchrun.

    bench/restart.py [--build build/dev] [--rounds 5] [--per-node 2] [--no-torchrun]

Both nodes are commands of their own on loopback; rank 1 kills itself (SIGKILL) after a second. torchrun is run at its
default monitor interval and at 0.1 s, its fastest useful one; without PyTorch it is left out. Contestants take turns; medians [min-max] in seconds.
"""
import argparse
import os
import subprocess
import tempfile

from side_by_side import PYTHON, add_build_option, free_port, has_torch, median_ratio, spread, take_turns


def restart_time(commands, workers):
    """Seconds from the stamp of the death to the last first line of the second attempt."""
    with tempfile.TemporaryDirectory() as folder:
        stamps = os.path.join(folder, "stamps")
        env = dict(os.environ, STAMPS=stamps, DDPRUN_TOKEN="bench", OMP_NUM_THREADS="1")
        jobs = [subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                for argv in commands]
        words = [job.communicate(timeout=120)[1].decode() for job in jobs]
        lines = []
        if os.path.exists(stamps):
            with open(stamps) as f:
                lines = [line.split() for line in f]
        death = [int(line[2]) for line in lines if line[0] == "death"]
        first = [line for line in lines if line[0] == "0"]
        second = [int(line[2]) for line in lines if line[0] == "1"]
        if any(job.returncode for job in jobs) or [len(death), len(first), len(second)] != [1, workers, workers]:
            raise SystemExit(f"{commands[0]}: {[job.returncode for job in jobs]}, stamps {lines}\n" + "\n".join(words))
        return (max(second) - death[0]) / 1e9


def ddprun(options, worker):
    def run():
        port = free_port()
        line = [os.path.join(options.build, "bin", "ddprun"), "--nnodes", "2", "--nproc-per-node", str(options.per_node),
                "--max-restarts", "1", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        hosts = [line + ["--rdzv-conf", f"is_host={host}", worker] for host in (1, 0)]
        return restart_time(hosts, 2 * options.per_node)
    return run


def torchrun(options, worker, interval):
    def run():
        port = free_port()
        line = [PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", str(options.per_node),
                "--max_restarts", "1", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}",
                "--rdzv_id", "bench", "--monitor_interval", str(interval), "-r", "9:1", "-t", "9:1", "--no_python"]
        hosts = [line + ["--rdzv_conf", f"is_host={host}", worker] for host in (1, 0)]
        return restart_time(hosts, 2 * options.per_node)
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun", "bin/bench_stamp_worker")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--per-node", type=int, default=2)
    parser.add_argument("--no-torchrun", action="store_true")
    options = parser.parse_args()
    worker = os.path.join(options.build, "bin", "bench_stamp_worker")

    contestants = {"ddprun": ddprun(options, worker)}
    if not options.no_torchrun and has_torch("torchrun"):
        contestants["torchrun, 5 s"] = torchrun(options, worker, 5)
        contestants["torchrun, 0.1 s"] = torchrun(options, worker, 0.1)
    values = take_turns(contestants, options.rounds)
    print(f"{options.rounds} rounds, 2 nodes, {options.per_node} workers each; death to all restarted, median [min-max] s")
    for name, times in values.items():
        print(f"{name:<16} {spread(times):>22}   {1 / median_ratio(values['ddprun'], times):>7.1f} x ddprun's")


if __name__ == "__main__":
    main()
