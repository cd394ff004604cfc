#!/usr/bin/env python3
"""Workers that print as fast as they can, each line behind its rank, beside others' launchers in the same run.

    bench/logs.py [--build build/dev] [--rounds 3] [--workers 8] [--lines 500000] [--bytes 180] [--deaths 1000] [--torchrun]

Contestants take turns; each writes to a file in memory and to a pipe that a C program empties. Prints MB/s (of what
came out, medians [min-max]) and, from the files, how many lines were torn, lost or out of order. Then --deaths
workers say a line without its end and die of SIGKILL at once: how many lines came through. MPICH and Open MPI take part
where Debian's are installed; --torchrun adds Debian's torchrun -t 3, which is slow.
"""
import argparse
import os
import re
import shutil
import subprocess
import tempfile
import time

from side_by_side import PYTHON, add_build_option, has_torch, median_ratio, spread, take_turns

MEMORY = "/dev/shm"


def talker(options, rank_variable):
    worker = os.path.join(options.build, "tests", "agent_test_worker")
    return ["/bin/sh", "-c", f'exec {worker} lines {options.lines} {options.bytes} "r${rank_variable}"']


def contestants(options):
    n = str(options.workers)
    ours = [os.path.join(options.build, "bin", "ddprun"), "--standalone", "--nproc-per-node", n]
    found = {"ddprun": ours + talker(options, "RANK"),
             "ddprun, JSON": ours + ["--log-format", "json"] + talker(options, "RANK"),
             "ddprun -t 3": ours + ["-t", "3", "--log-dir", "LOGS"] + talker(options, "RANK")}
    if shutil.which("mpirun.mpich"):
        found["mpirun.mpich -prepend-rank"] = ["mpirun.mpich", "-prepend-rank", "-n", n, *talker(options, "PMI_RANK")]
    if shutil.which("mpirun.openmpi"):
        found["mpirun.openmpi --tag-output"] = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--tag-output",
                                                "-n", n, *talker(options, "OMPI_COMM_WORLD_RANK")]
    if options.torchrun and has_torch("torchrun"):
        found["torchrun -t 3"] = [PYTHON, "-m", "torch.distributed.run", "--standalone", "-t", "3", "--log_dir", "LOGS",
                                  "--nproc_per_node", n, "--no_python", *talker(options, "RANK")]
    return found


class Check:
    """Counts the lines of a file: whole and in order, or not."""

    def __init__(self, options):
        self.options = options
        self.whole = re.compile(rb"(?:\[[^\]]*\]:? ?|<stdout>:?)*r(\d+) (\d+) x{%d}" % options.bytes)
        self.json = re.compile(rb'\{"time":[^{}]*"line":"r(\d+) (\d+) x{%d}"\}' % options.bytes)

    def __call__(self, path):
        following = [0] * self.options.workers
        torn = disordered = 0
        with open(path, "rb", buffering=1 << 20) as f:
            for line in f:
                line = line.rstrip(b"\n")
                match = self.json.fullmatch(line) if line.startswith(b"{") else self.whole.fullmatch(line)
                if not match:
                    torn += 1
                    continue
                rank, number = map(int, match.groups())
                disordered += number != following[rank]
                following[rank] = number + 1
        missing = self.options.workers * self.options.lines - sum(following)
        return torn, disordered, missing


def run_once(argv, out, folder):
    logs = tempfile.mkdtemp(dir=folder)
    argv = [logs if word == "LOGS" else word for word in argv]
    begun = time.monotonic()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)
    took = time.monotonic() - begun
    shutil.rmtree(logs)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)}: {done.returncode}\n{done.stderr.decode(errors='replace')[-2000:]}")
    return took


def rates(options, folder):
    check, worst = Check(options), {}

    def to_file(name, argv):
        path = os.path.join(folder, "out")
        with open(path, "wb") as out:
            took = run_once(argv, out, folder)
        rate = os.path.getsize(path) / took / 1e6
        if name not in worst:
            worst[name] = (0, 0, 0)
        worst[name] = tuple(map(max, worst[name], check(path)))
        os.unlink(path)
        return rate

    def to_pipe(argv):
        # dd says how much it took.
        with subprocess.Popen(["dd", "bs=1M", "of=/dev/null"], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
            took = run_once(argv, reader.stdin, folder)
            reader.stdin.close()
            taken = int(re.search(rb"(\d+) bytes", reader.stderr.read()).group(1))
        return taken / took / 1e6

    found = contestants(options)
    files = take_turns({n: (lambda n=n, a=a: to_file(n, a)) for n, a in found.items()}, options.rounds)
    pipes = take_turns({n: (lambda a=a: to_pipe(a)) for n, a in found.items()}, options.rounds)
    print(f"{options.workers} workers x {options.lines} lines of {options.bytes} bytes and more; {options.rounds} rounds")
    print("| launcher | to a file, MB/s | to a pipe, MB/s | ddprun's rate / its | torn | out of order | missing |")
    print("|--|--|--|--|--|--|--|")
    for name in found:
        ratio = median_ratio(files["ddprun"], files[name])
        print(f"| {name} | {spread(files[name])} | {spread(pipes[name])} | {ratio:.2f} | "
              + " | ".join(map(str, worst[name])) + " |")


def last_words(options):
    """One worker a run: of several the first death would have the others stopped before they have spoken."""
    worker = os.path.join(options.build, "tests", "agent_test_worker")
    argv = [os.path.join(options.build, "bin", "ddprun"), "--standalone", worker, "write_and_die", "last words"]
    kept = 0
    for _ in range(options.deaths):
        said = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True).stderr
        kept += "[default0]:last words\n" in said and "Its last words are above." in said
    print(f"last line before SIGKILL, on the terminal and in the verdict: kept {kept} of {options.deaths}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_build_option(parser, "bin/ddprun", "tests/agent_test_worker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lines", type=int, default=500_000)
    parser.add_argument("--bytes", type=int, default=180)
    parser.add_argument("--deaths", type=int, default=1000)
    parser.add_argument("--torchrun", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="ddprun-bench-") as folder:
        rates(options, folder)
    last_words(options)


if __name__ == "__main__":
    main()
