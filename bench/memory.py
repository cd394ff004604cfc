#!/usr/bin/env python3
"""What a checkpoint costs in memory that outlives the processes, beside torch.save, DCP and others.

    bench/memory.py [--build build/dev] [--rounds 5] [--size 1000] [--ranks 4] [--only copy ddprun torch.save-disk ...]
    bench/memory.py --death [--kind ddp|fsdp2] [--rounds 5]
    bench/memory.py --lost [--kind ddp|fsdp2] [--rounds 5]

Without --death: SIZE MB of state that all ranks have, as with DDP, on two played nodes of this
machine. "stall" is how long the loop of the slowest rank stands still, "safe" until all of it is
where it should be. "copy" is a plain copy of a rank's part in memory. The libraries
nvidia-resiliency-ext and dlrover take part where PYTHON_EXEC has them. The disk is that of --disk, a
folder.

With --death: 4 ranks of DDP, 25 MB of model and AdamW, a checkpoint each 10 steps of 50 ms; the
last rank is killed. From the death until the slowest rank has done a step again, and how many
steps were done twice: ddprun --preload with ddprun.checkpoint beside torchrun with torch.save on
the disk. The first run of ddprun, from which --preload learns, is not counted. With --kind fsdp2
the state is divided among the ranks and saved by torch.distributed.checkpoint.

With --lost: the same ranks on two played nodes, of which the second is killed with all that runs on
it, and a third node that waits takes its place; its part of the state comes from the first one.
"""

import argparse
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from side_by_side import PYTHON, ROOT, add_build_option, free_port, median_ratio, need_torch, spread, take_turns  # noqa: E402

LIMIT_S = 1800  # Of one run.
LEFT_OUT = re.compile(r"PET_|DDPRUN_|TORCH|RANK$|WORLD_SIZE$|MASTER_|LOCAL_RANK$")
NAMES = ["copy", "ddprun", "ddprun-dcp", "torch.save-memory", "torch.save-disk", "dcp-async-disk", "nvrx", "dlrover"]
DIES = 36


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not LEFT_OUT.match(k)}
    return {**kept, "PYTHONPATH": os.path.join(ROOT, "python"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1", "PYTHON_EXEC": PYTHON, "GLOO_SOCKET_IFNAME": "lo", **more}


def saves(options, memory, disk):
    script = os.path.join(HERE, "python", "memory_worker.py")
    ranks, results = [], os.path.join(disk, "results")
    for rank in range(options.ranks):
        node, local = divmod(rank, options.ranks // 2)
        folder = os.path.join(memory, str(node))
        os.makedirs(folder, exist_ok=True)
        env = environment(RANK=str(rank), WORLD_SIZE=str(options.ranks), LOCAL_RANK=str(local), LOCAL_WORLD_SIZE=str(options.ranks // 2),
                          GROUP_RANK=str(node), BENCH_MEMORY=folder, BENCH_DISK=disk, BENCH_RESULTS=results,
                          BENCH_MEETING=os.path.join(disk, "meeting"))
        command = [PYTHON, script, ",".join(options.only), str(options.rounds), str(options.size)]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, start_new_session=True,
                                      stderr=None if rank == 0 else subprocess.DEVNULL))
    try:
        ranks[0].wait(timeout=LIMIT_S)
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)  # With what a contestant has started.
            rank.wait()
    if not os.path.exists(results):
        sys.exit(f"rank 0 ended with {ranks[0].returncode}")
    with open(results, encoding="ascii") as file:
        found = json.load(file)
    ours = {what: [each[at] for each in found["saves"].get("ddprun", [])] for at, what in enumerate(("stall", "safe"))}
    for name, values in found["saves"].items():
        row = {what: [each[at] for each in values] for at, what in enumerate(("stall", "safe"))}
        ratio = f"  stall {median_ratio(row['stall'], ours['stall']):.2f} of ddprun's" if ours["stall"] and name != "ddprun" else ""
        print(f"save {options.size} MB  {name:<18} stall {spread(row['stall'])} s  safe {spread(row['safe'])} s{ratio}", flush=True)
    if found["loads"]:
        print(f"load {options.size} MB  {'ddprun':<18} {spread(found['loads'])} s", flush=True)


def has_memory_folder(ddprun):
    return "--memory-folder" in subprocess.run([ddprun, "--help"], capture_output=True, text=True, check=False).stdout


def death(name, options, memory, disk):
    """(seconds from the death until all have done a step again, steps done twice)."""
    log = os.path.join(disk, "log")
    for path in glob.glob(os.path.join(disk, "checkpoint*")) + glob.glob(os.path.join(memory, "*")):
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    with open(log, "w", encoding="ascii"):
        pass
    script = os.path.join(HERE, "python", "memory_death_worker.py")
    common = ["--nproc_per_node", str(options.ranks), "--max_restarts", "1"]  # Old versions of torchrun know no dashes.
    env = environment(LOG=log, DIES=str(DIES), KIND=options.kind, SAVES=os.path.join(disk, "checkpoint.pt"),
                      XDG_CACHE_HOME=os.path.join(disk, "cache"))
    if name == "torchrun":
        command = [PYTHON, "-W", "ignore", "-m", "torch.distributed.run", "--rdzv_backend", "c10d", "--rdzv_endpoint",
                   f"127.0.0.1:{free_port()}", "--monitor_interval", "0.1", "-r", "9:1", "-t", "9:1", *common, script]
    else:
        ddprun = os.path.join(options.build, "bin", "ddprun")
        env["SAVES"] = "memory"
        if has_memory_folder(ddprun):
            command = [ddprun, "--preload", "auto", "--memory-folder", "1G", *common, script]
        else:
            env["DDPRUN_MEMORY"] = memory
            command = [ddprun, "--preload", "auto", *common, script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = lines_of(log)
    deaths = [float(line[3]) for line in lines if line[0] == "death"]
    firsts = first_steps(lines, options.ranks)
    if len(deaths) != 1 or None in firsts or done.returncode != 0:
        sys.exit(f"{name}: {lines[-20:]}\n{done.stdout}{done.stderr}")
    seconds, twice = max(each[1] for each in firsts) - deaths[0], DIES - min(each[0] for each in firsts) + 1
    print(f"# {name}: {seconds:.3f} s, {twice} steps twice", file=sys.stderr, flush=True)
    return seconds, twice


def lines_of(log):
    with open(log, encoding="ascii") as file:
        return [line.split() for line in file]


def first_steps(lines, ranks):
    """(step, when) of the first step that each rank has done again; None: none."""
    after = {rank: [(int(line[2]), float(line[3])) for line in lines if line[0] == "step" and line[1] == str(rank)] for rank in range(ranks)}
    # The others may have ended the step of the death after it: the first step of the next life is not above that one.
    return [next((steps[n] for n in range(1, len(steps)) if steps[n][0] <= steps[n - 1][0]), None) for steps in after.values()]


def lost(options, disk):
    """(seconds from the end of a node until all have done a step again, steps done twice)."""
    log = os.path.join(disk, "log")
    with open(log, "w", encoding="ascii"):
        pass
    env = environment(LOG=log, DIES="0", KIND=options.kind, SAVES="memory", XDG_CACHE_HOME=os.path.join(disk, "cache"),
                      DDPRUN_TOKEN="bench")
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = []

    def start(conf):
        command = [os.path.join(options.build, "bin", "ddprun"), "--preload", "auto", "--memory-folder", "1G", "--nnodes", "2", "--nproc-per-node",
                   str(options.ranks // 2), "--max-restarts", "1", "--rdzv-endpoint", endpoint, "--rdzv-conf", conf,
                   os.path.join(HERE, "python", "memory_death_worker.py")]
        nodes.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0))

    def wait_for_step(step):
        while min((max((int(line[2]) for line in lines_of(log) if line[0] == "step" and line[1] == str(rank)), default=0)
                   for rank in range(options.ranks))) < step:
            if any(node.poll() is not None for node in nodes):
                sys.exit("a node has ended:\n" + "".join(node.communicate()[1] for node in nodes if node.poll() is not None))
            time.sleep(0.01)

    try:
        start("is_host=1")
        wait_until(lambda: listens(endpoint))
        start("is_host=0")
        wait_for_step(1)
        start("is_host=0")  # Waits for a place.
        wait_for_step(DIES + 100)  # Its fork server has imported meanwhile.
        died = time.monotonic()
        os.kill(nodes[1].pid, signal.SIGKILL)
        texts = [node.communicate(timeout=LIMIT_S)[1] for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                node.kill()
                node.wait()
    lines = lines_of(log)
    firsts = first_steps(lines, options.ranks)
    if None in firsts or [node.returncode for node in nodes] != [0, -signal.SIGKILL, 0]:
        sys.exit(f"lost: {lines[-20:]}\n" + "".join(texts))
    seconds = max(each[1] for each in firsts) - died
    twice = max(int(line[2]) for line in lines if line[0] == "step" and float(line[3]) <= died) - min(each[0] for each in firsts) + 1
    print(f"# a node is lost: {seconds:.3f} s, {twice} steps twice", file=sys.stderr, flush=True)
    return seconds, twice


def wait_until(holds):
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            sys.exit("the daemon does not listen")
        time.sleep(0.01)


def listens(endpoint):
    host, port = endpoint.split(":")
    with socket.socket() as s:
        return s.connect_ex((host, int(port))) == 0


def losses(options, disk):
    lost(options, disk)
    found = [lost(options, disk) for _ in range(options.rounds)]
    print(f"node lost to next step  ddprun {spread([each[0] for each in found])} s  {statistics.median(each[1] for each in found):.0f} steps twice")


def deaths_of(options, memory, disk):
    names = options.only if options.only != NAMES else ["ddprun", "torchrun"]
    contestants = {name: lambda name=name: death(name, options, memory, disk) for name in names}
    if "ddprun" in contestants:
        contestants["ddprun"]()
    found = take_turns(contestants, options.rounds)
    for name, values in found.items():
        seconds = [each[0] for each in values]
        ratio = f"  {median_ratio(seconds, [each[0] for each in found['ddprun']]):.1f} times ddprun's" if name != "ddprun" else ""
        print(f"death to next step  {name:<10} {spread(seconds)} s  {statistics.median(each[1] for each in values):.0f} steps twice{ratio}",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=1000, help="MB of state")
    parser.add_argument("--ranks", type=int, default=4, help="of both nodes together")
    parser.add_argument("--only", nargs="+", default=NAMES)
    parser.add_argument("--disk", default=None, help="a folder on a disk; default: that of temporary files")
    parser.add_argument("--death", action="store_true")
    parser.add_argument("--lost", action="store_true")
    parser.add_argument("--kind", choices=["ddp", "fsdp2"], default="ddp")
    options = parser.parse_args()
    need_torch()
    with tempfile.TemporaryDirectory(prefix="ddprun-memory-", dir="/dev/shm") as memory, \
            tempfile.TemporaryDirectory(prefix="ddprun-memory-", dir=options.disk) as disk:
        if options.lost:
            losses(options, disk)
        else:
            (deaths_of if options.death else saves)(options, memory, disk)


if __name__ == "__main__":
    main()
