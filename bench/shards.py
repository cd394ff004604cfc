#!/usr/bin/env python3
"""Shards that follow the speed of the ranks, beside an even division, in turns: how long is a step?

    bench/shards.py [--build build/dev] [--ranks 4] [--shards 32] [--ms 2] [--steps 300] [--rounds 3] [--cgroup]

  equal   all ranks are equally fast
  slow    one rank takes twice as long for a shard; with --cgroup its processor is limited to half (cpu.max), all
          ranks compute, and there should be a processor for each
  noise   the time of each rank varies by up to 20 % from step to step

    bench/shards.py --audit [--ranks 4] [--shards 32] [--ms 2] [--steps 300] [--rounds 3]

instead compares jobs of which 1 and 5 % of the shards are audited with one without audits.

    bench/shards.py --adamw [--parameters 8000000] [--steps 20] [--rounds 3]

instead compares AdamW with moments on every rank and with moments in shards (ShardedOptimizer of ddprun.elastic.torch), of 2, 4
and 8 ranks: the time from the gradients to the commit, and the most memory that a rank takes beyond a job without an optimizer.

Without --cgroup a shard is a pause, so that the figures do not depend on the load of the machine. The hashes of the weights of
all runs must be equal. "ideal" is the time in which the ranks could do the work if it could be divided at will.
"""
import argparse
import contextlib
import os
import statistics
import subprocess
import time

from side_by_side import HERE, PYTHON, ROOT, add_build_option, need_torch, spread

SLOW_RANK = 2


@contextlib.contextmanager
def half_a_processor():
    """A cgroup that may use half a processor: of version 2 or 1."""
    for root, name, text in (("/sys/fs/cgroup", "cpu.max", "50000 100000"), ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "50000")):
        folder = os.path.join(root, f"ddprun-bench-{os.getpid()}")
        try:
            os.mkdir(folder)
            with open(os.path.join(folder, name), "w", encoding="ascii") as f:
                f.write(text)
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
            continue
        try:
            yield folder
        finally:
            for _ in range(100):  # What has run in it may still be dying.
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
                    break
                time.sleep(0.05)
        return
    raise SystemExit("no cgroup with a limit of the processor can be made here; run it without --cgroup")


def run(options, even, **env):
    argv = [os.path.join(options.build, "bin", "ddprun"), "--standalone", "--nproc-per-node", str(options.ranks), "--max-restarts", "1",
            os.path.join(options.build, "bin", "bench_shards_worker")]
    env = {**os.environ, "EVEN": str(int(even)), "MS": str(options.ms), "STEPS": str(options.steps), "SHARDS": str(options.shards),
           "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    median, mean, moved, slows, digest, audited = done.stdout.strip().split("\n")[-1].split("]:")[-1].split()
    return float(median), float(mean), int(moved), int(slows), digest, int(audited)


def audits(options):
    print("| audited | mean of a step, ms | beside none | computed by rank 0 beyond its own |")
    print("|--|--|--|--|")
    found = {0: [], 1: [], 5: []}
    for _ in range(options.rounds):
        for percent, runs in found.items():
            runs.append(run(options, False, AUDIT=str(percent)))
    for percent, runs in found.items():
        ratios = [a[1] / b[1] for a, b in zip(runs, found[0])]
        share = statistics.mean(each[5] for each in runs) / (options.steps / 2 * options.shards / options.ranks)
        print(f"| {percent} % | {spread([each[1] for each in runs])} | {spread(ratios)} | {share:.2%} |", flush=True)
    same_weights({each[4] for runs in found.values() for each in runs})


def same_weights(digests):
    if len(digests) != 1:
        raise SystemExit(f"the weights differ: {digests}")
    print("the weights of all runs are equal")


def run_adamw(options, ranks, moments):
    """Median of a step in ms, bytes of memory per parameter, hash of the weights. `moments`: "all", "shards" or "none"."""
    argv = [os.path.join(options.build, "bin", "ddprun"), "--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "1",
            os.path.join(HERE, "python", "sharded_worker.py")]
    env = {**os.environ, "MOMENTS": moments, "STEPS": str(options.steps), "PARAMETERS": str(options.parameters),
           "OMP_NUM_THREADS": "1", "PYTHON_EXEC": PYTHON, "PYTHONPATH": os.path.join(ROOT, "python"),
           "DDPRUN_LIB": os.path.join(options.build, "worker_sdk", "libddprun.so")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    step, memory, digest = done.stdout.strip().split("\n")[-1].split("]:")[-1].split()
    return float(step), float(memory), digest


def adamw(options):
    need_torch()
    print("| ranks | on every rank, ms | in shards, ms | in shards / on every rank | on every rank, bytes a parameter | in shards |")
    print("|--|--|--|--|--|--|")
    digests = set()
    for ranks in (2, 4, 8):
        steps, memories = {"all": [], "shards": []}, {}
        without = run_adamw(options, ranks, "none")[1]
        for _ in range(options.rounds):
            for moments in steps:
                step, memories[moments], digest = run_adamw(options, ranks, moments)
                steps[moments].append(step)
                digests.add(digest)
        ratios = [a / b for a, b in zip(steps["shards"], steps["all"])]
        print(f"| {ranks} | {spread(steps['all'])} | {spread(steps['shards'])} | {spread(ratios)} | {memories['all'] - without:.1f} | "
              f"{memories['shards'] - without:.1f} |", flush=True)
    same_weights(digests)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun", "bin/bench_shards_worker")
    for name, value in (("ranks", 4), ("shards", 32), ("steps", 300), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--ms", type=float, default=2, help="time of a shard [2]")
    parser.add_argument("--audit", action="store_true", help="the price of audits, instead")
    parser.add_argument("--adamw", action="store_true", help="moments of AdamW in shards, instead")
    parser.add_argument("--parameters", type=int, default=8_000_000)
    parser.add_argument("--cgroup", action="store_true", help="limit the slow rank's processor")
    options = parser.parse_args()
    if options.adamw:
        return adamw(options)
    if options.audit:
        return audits(options)
    with contextlib.ExitStack() as stack:
        slow_rank = str(min(SLOW_RANK, options.ranks - 1))
        slow = {"SLOW_RANK": slow_rank, "SLOWNESS": "2"}
        work = {}
        if options.cgroup:
            slow = {"SLOW_RANK": slow_rank, "CGROUP": stack.enter_context(half_a_processor())}
            work = {"WORK": "compute"}
        even_ms = options.shards / options.ranks * options.ms
        kinds = {"equal": ({}, even_ms), "slow": (slow, options.shards * options.ms / (options.ranks - 0.5)), "noise": ({"NOISE": "0.2"}, even_ms)}
        print("| | even, ms | following, ms | following / even | even / ideal | following / ideal | moved shards | shards of the slow rank |")
        print("|--|--|--|--|--|--|--|--|")
        digests = set()
        for name, (env, ideal) in kinds.items():
            even, following, moved, slows = [], [], [], []
            for _ in range(options.rounds):
                for is_even, times in ((True, even), (False, following)):
                    found = run(options, is_even, **work, **env)
                    times.append(found[1])
                    digests.add(found[4])
                    if not is_even:
                        moved.append(found[2])
                        slows.append(found[3])
            ratios = [a / b for a, b in zip(following, even)]
            print(f"| {name} | {spread(even)} | {spread(following)} | {spread(ratios)} | {statistics.median(even) / ideal:.3f} "
                  f"| {statistics.median(following) / ideal:.3f} | {moved} | {slows if name == 'slow' else ''} |", flush=True)
        same_weights(digests)


if __name__ == "__main__":
    main()
