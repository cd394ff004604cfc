"""What the workers of tests/failures/elastic_campaign.py have written, while they run and after it."""

import collections
import itertools
import os
import statistics

import sample_count

LENGTH, SHARDS = 1000, 32  # As campaign_worker.cc has them.

Stamp = collections.namedtuple("Stamp", "step round rank world ns")


class Worker:
    """One process, known from the moment it has opened its logs."""

    def __init__(self, folder, stem):
        self.stem, self._path, self._read = stem, os.path.join(folder, stem + ".stamps"), 0
        launch, pid, born = stem.rsplit(".", 2)
        self.launch, self.pid, self.born = launch, int(pid), int(born) / 1e9
        self.last, self.hit_at, self.stopped, self.ended = None, None, False, False

    def refresh(self):
        with open(self._path, "rb") as f:
            f.seek(self._read)
            text = f.read()
        end = text.rfind(b"\n") + 1
        if end:
            self._read += end
            stamp = Stamp(*map(int, text[:end].splitlines()[-1].split()))
            if self.last is None or stamp.step > self.last.step:
                self.stopped = False
            self.last = stamp
        self.ended = self.ended or not is_alive(self.pid)

    def __repr__(self):
        return f"{self.launch}'s {self.pid} at {self.last and self.last[:4]}"


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


class Workers:
    def __init__(self, folder):
        self.folder, self._known = folder, {}

    def refresh(self):
        for name in os.listdir(self.folder):
            stem = name.removesuffix(".stamps")
            if stem != name and stem not in self._known:
                self._known[stem] = Worker(self.folder, stem)
        for worker in self._known.values():
            if not worker.ended:
                worker.refresh()

    def all(self):
        return list(self._known.values())

    def living(self):
        return sorted((w for w in self.all() if not w.ended), key=lambda w: w.born)

    def newest(self):
        return max((w.last for w in self.all() if w.last), default=None)

    def results(self):
        """{"<steps> <hash>"} and of how many processes."""
        found = collections.Counter()
        for name in os.listdir(self.folder):
            if name.endswith(".result"):
                with open(os.path.join(self.folder, name), encoding="ascii") as f:
                    found[f.read().strip()] += 1
        del found[""]
        return found


def _texts(folder, ending):
    for name in sorted(os.listdir(folder)):
        if name.endswith(ending):
            with open(os.path.join(folder, name), encoding="ascii") as f:
                yield name, f.read()


def judge(folder, steps):
    """Complaints about the samples of the run, and how many steps were computed more than once."""
    logs = dict(_texts(folder, ".samples"))
    attempts = collections.defaultdict(set)
    for text in logs.values():
        for line in text.split("\n")[:-1]:
            if line.startswith("shard"):
                words = line.split(None, 4)
                attempts[int(words[3])].add(int(words[1]))
    return sample_count.judge(logs, LENGTH, SHARDS, steps), sum(len(rounds) - 1 for rounds in attempts.values())


def uneven_steps(folder):
    """In how many steps some rank has computed at least two shards more than another."""
    counts = collections.Counter()
    for _, text in _texts(folder, ".samples"):
        counts.update(tuple(line.split(None, 4)[1:4]) for line in text.split("\n")[:-1] if line.startswith("shard"))
    by_step = collections.defaultdict(list)
    for (in_round, _, step), count in counts.items():
        by_step[step, in_round].append(count)
    return sum(max(each) - min(each) > 1 for each in by_step.values())


def lost_seconds(folder, world=None):
    """How much longer than the median each step took that was the first of its round, of rounds of `world` ranks if it is given."""
    first = {}
    for _, text in _texts(folder, ".stamps"):
        for line in text.split("\n")[:-1]:
            stamp = Stamp(*map(int, line.split()))
            if stamp.step not in first or stamp.ns < first[stamp.step].ns:
                first[stamp.step] = stamp
    pairs = list(itertools.pairwise(first[step] for step in sorted(first)))
    usual = statistics.median([b.ns - a.ns for a, b in pairs if a.round == b.round] or [0])
    return [max(0, b.ns - a.ns - usual) / 1e9 for a, b in pairs if a.round != b.round and world in (None, b.world)]
