#!/usr/bin/env python3
"""Was each sample in exactly one committed step of each epoch? Judges what workers of an elastic run have written down.

    tests/failures/sample_count.py --length 50000 --shards 16 --steps 900 LOG...

A log is one process. Its lines, which it writes as things happen and never rewrites:

    shard ROUND RANK STEP SHARD EPOCH:INDEX EPOCH:INDEX ...     before it computes that shard
    commit ROUND RANK STEP                                      when the step is committed

A process may be killed at any byte: a last line without its end counts as not written. This script knows nothing of how
samples are chosen or ranks found; it only counts.
"""
import argparse
import collections
import sys

Shard = collections.namedtuple("Shard", "process round rank step shard samples")
Commit = collections.namedtuple("Commit", "process round rank step place")


def read(process, text):
    """([Shard], [Commit], [complaint]) of one log."""
    shards, commits, complaints = [], [], []
    for place, line in enumerate(text.split("\n")[:-1]):
        words = line.split()
        try:
            numbers = [int(word) for word in words[1:5]]
            if words[0] == "shard" and len(numbers) == 4:
                samples = tuple(tuple(map(int, word.split(":"))) for word in words[5:])
                if any(len(sample) != 2 for sample in samples):
                    raise ValueError
                shards.append(Shard(process, *numbers, samples))
            elif words[0] == "commit" and len(numbers) == 3:
                commits.append(Commit(process, *numbers, place))
            else:
                raise ValueError
        except (IndexError, ValueError):
            complaints.append(f"{process}: line {place + 1} is neither a shard nor a commit: {line[:60]!r}")
    return shards, commits, complaints


def committed_rounds(commits, steps):
    """({step: the round whose commit counts}, [complaint]). A step that only processes committed which then died is
    committed again in a later round; nobody who has committed it may take part in that."""
    by_step = collections.defaultdict(dict)
    complaints = []
    for commit in commits:
        again = by_step[commit.step].setdefault(commit.process, commit)
        if again is not commit:
            complaints.append(f"step {commit.step}: {commit.process} committed it twice, in rounds {again.round} and "
                              f"{commit.round}")
    last = collections.defaultdict(int)
    for commit in commits:
        last[commit.process] = max(last[commit.process], commit.place)
    counts = {}
    for step, of_processes in sorted(by_step.items()):
        counts[step] = max(commit.round for commit in of_processes.values())
        for commit in of_processes.values():
            if commit.round != counts[step] and commit.place != last[commit.process]:
                complaints.append(f"step {step}: {commit.process} committed it in round {commit.round} and went on, "
                                  f"others committed it in round {counts[step]}")
    missing = [step for step in range(steps) if step not in counts]
    if missing:
        complaints.append(f"{len(missing)} of {steps} steps were never committed, the first of them {missing[0]}")
    complaints += [f"step {step}: committed beyond the {steps} steps of the run" for step in counts if step >= steps]
    return counts, complaints


def shards_of_step(step, found, shards):
    """({shard: samples}, [complaint]) of the attempts in the round that counts."""
    samples, owner, complaints = {}, {}, []
    for one in found:
        if one.shard in samples and (owner[one.shard], samples[one.shard]) != (one.process, one.samples):
            complaints.append(f"step {step}: shard {one.shard} was computed by {owner[one.shard]} and {one.process}, "
                              "or with other samples, in one round")
        samples[one.shard], owner[one.shard] = one.samples, one.process
    missing = [shard for shard in range(shards) if shard not in samples]
    if missing:
        complaints.append(f"step {step}: nobody computed shards {missing} of its committed round")
    complaints += [f"step {step}: there is no shard {shard}" for shard in samples if not 0 <= shard < shards]
    return samples, complaints


def judge(logs, length, shards, steps):
    """[complaint] about {process: text of its log}."""
    computed, commits, complaints = collections.defaultdict(list), [], []
    for process, text in sorted(logs.items()):
        some, more, wrong = read(process, text)
        for one in some:
            computed[one.step, one.round].append(one)
        commits += more
        complaints += wrong
    counts, wrong = committed_rounds(commits, steps)
    complaints += wrong
    seen = collections.defaultdict(dict)
    for step, in_round in sorted(counts.items()):
        samples, wrong = shards_of_step(step, computed[step, in_round], shards)
        complaints += wrong
        for epoch, index in (sample for of_shard in samples.values() for sample in of_shard):
            if not 0 <= index < length:
                complaints.append(f"step {step}: there is no sample {index}")
            elif index in seen[epoch]:
                complaints.append(f"epoch {epoch}: sample {index} is in steps {seen[epoch][index]} and {step}")
            seen[epoch][index] = step
    for epoch in range(max(seen, default=0)):
        if len(seen[epoch]) != length:
            complaints.append(f"epoch {epoch}: {length - len(seen[epoch])} of {length} samples are in no committed step")
    return complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, required=True, help="samples of the data set")
    parser.add_argument("--shards", type=int, required=True, help="of each step")
    parser.add_argument("--steps", type=int, required=True, help="of the run")
    parser.add_argument("logs", nargs="+")
    options = parser.parse_args()
    logs = {}
    for path in options.logs:
        with open(path, encoding="utf-8") as f:
            logs[path] = f.read()
    complaints = judge(logs, options.length, options.shards, options.steps)
    print("\n".join(complaints[:20]) or f"{options.steps} steps: each sample once an epoch")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
