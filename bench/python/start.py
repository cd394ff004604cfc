#!/usr/bin/env python3
"""How long a PyTorch script takes to its first step: ordered by ddprun, by ddprun --preload, and by torchrun.

    bench/python/start.py [--build build/dev] [--rounds 5] [--ranks 1 2 4] [--only cold preloaded kept torchrun]
                          [--script plain lightning transformers] [--memory]

PYTHON_EXEC names the interpreter with torch. Each run starts start_worker.py, or the same by a Trainer of PyTorch Lightning
or of transformers (start_lightning.py, start_transformers.py), in which the last rank dies once after its third step: "start"
is from the order until rank 0 has done its first step, "restart" from the death until rank 0 of the next round has.
Contestants take turns; prints medians [min-max] of the rounds and the rounds' own ratios to ddprun without --preload.
torchrun runs with --monitor-interval 0.1, and with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: without it PyTorch 2.15's torchrun
restarts no script of two ranks or more, as they read the addresses of the ranks before them (none of 7 runs). The first run
of ddprun --preload, from which it learns, is not counted. "kept" runs with --preload-keep, a script that is written anew
before each run; neither is the run counted that keeps first. --memory: and the sum of the ranks' proportional set sizes after
the third step, and that of the fork server beside them; of the plain script only.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from side_by_side import PYTHON, add_build_option, free_port, has_module, median_ratio, need_torch, spread, take_turns  # noqa: E402

LIMIT_S = 300  # Of one run.
LEFT_OUT = re.compile(r"PET_|DDPRUN_|TORCH|RANK$|WORLD_SIZE$|MASTER_|LOCAL_RANK$")
SCRIPTS = {"plain": "start_worker.py", "lightning": "start_lightning.py", "transformers": "start_transformers.py"}


def command_of(name, build, ranks, folder, script):
    script = os.path.join(HERE, SCRIPTS[script])
    if name == "kept":
        script = shutil.copy(script, folder)  # As an editor does.
    common = ["--nproc_per_node", str(ranks), "--max_restarts", "1"]  # Old versions of torchrun know no dashes.
    if name == "torchrun":
        return [PYTHON, "-W", "ignore", "-m", "torch.distributed.run", "--rdzv_backend", "c10d", "--rdzv_endpoint",
                f"127.0.0.1:{free_port()}", "--monitor_interval", "0.1", "-r", "9:1", "-t", "9:1", *common, script]
    preload = ["--preload", "auto"] if name in ("preloaded", "kept") else []
    preload += ["--preload-keep", "5"] if name == "kept" else []
    return [os.path.join(build, "bin", "ddprun"), *preload, *common, script]


def run(name, options, ranks, folder, script):
    """(start, restart) in seconds, and with --memory (of ranks, of the fork server) in MB."""
    log = os.path.join(folder, "log")
    open(log, "w", encoding="ascii").close()
    environment = {k: v for k, v in os.environ.items() if not LEFT_OUT.match(k)}
    environment.update(PYTHON_EXEC=PYTHON, START_LOG=log, XDG_CACHE_HOME=folder, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
                       PYTHONWARNINGS="ignore", PYTHONDONTWRITEBYTECODE="1", START_FOLDER=folder, HF_HUB_OFFLINE="1",
                       START_MEMORY="1" if options.memory and script == "plain" else "", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    ordered = time.monotonic()
    done = subprocess.run(command_of(name, options.build, ranks, folder, script), env=environment, capture_output=True, text=True, timeout=LIMIT_S,
                          check=False)
    with open(log, encoding="ascii") as file:
        lines = [line.split() for line in file]
    steps = [float(at) for what, rank, at in lines if what == "step" and rank == "0"]
    deaths = [float(at) for what, _, at in lines if what == "death"]
    if len(steps) != 2 or len(deaths) != 1:
        sys.exit(f"{name} with {ranks} ranks: {lines}\n{done.stdout}{done.stderr}")
    start, restart = steps[0] - ordered, steps[1] - deaths[0]
    print(f"# {script}, {ranks} ranks, {name}: start {start:.3f} s, restart {restart:.3f} s", file=sys.stderr, flush=True)
    sizes = {rank: int(size) / 1024 for what, rank, size in lines if what == "pss"}
    server = sizes.pop("server", 0)
    return (start, restart, sum(sizes.values()), server) if sizes else (start, restart)


def end_kept(build, folder):
    """What the runs of this folder's script have kept."""
    ctl = os.path.join(build, "bin", "ddprunctl")
    for row in subprocess.run([ctl, "preload"], capture_output=True, text=True, check=True).stdout.splitlines():
        if folder in row:
            subprocess.run([ctl, "preload", "--end", row.split()[0]], capture_output=True, check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--only", nargs="+", default=["cold", "preloaded", "torchrun"])
    parser.add_argument("--script", nargs="+", choices=SCRIPTS, default=["plain"])
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    need_torch()
    for script in options.script:
        if script != "plain" and not has_module(script, f"the script {script}"):
            continue
        for ranks in options.ranks:
            measure(script, ranks, options)


def measure(script, ranks, options):
    with tempfile.TemporaryDirectory(prefix="ddprun-start-") as folder:
        contestants = {name: lambda name=name: run(name, options, ranks, folder, script) for name in options.only}
        if "preloaded" in contestants:
            contestants["preloaded"]()
        for _ in range(2 if "kept" in contestants else 0):
            contestants["kept"]()
        found = take_turns(contestants, options.rounds)
        end_kept(options.build, folder)
    for number, (what, unit) in enumerate((("start", "s"), ("restart", "s"), ("ranks' PSS", "MB"), ("server's PSS", "MB"))):
        row = {name: [values[number] for values in rounds] for name, rounds in found.items() if number < len(rounds[0])}
        for name, values in row.items():
            ratio = f"  {median_ratio(values, row['cold']):.3f} of cold" if min(row.get("cold", [0])) > 0 else ""
            print(f"{what:<12} {script} {ranks} ranks  {name:<10} {spread(values)} {unit}{ratio}", flush=True)


if __name__ == "__main__":
    main()
