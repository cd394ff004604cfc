"""What the benchmarks share: contestants that take turns, so that a noisy machine is noisy for all."""
import os
import socket
import statistics

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PYTHON = os.environ.get("PYTHON_EXEC", "/usr/bin/python3")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def take_turns(contestants, rounds):
    """{name: [value of each round]} of {name: function}. Each round begins with the next contestant."""
    names = list(contestants)
    values = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            values[name].append(contestants[name]())
    return values


def median_ratio(ours, theirs):
    """Of the rounds' own ratios: what disturbed a round disturbed both."""
    return statistics.median(o / t for o, t in zip(ours, theirs))


def spread(values):
    return f"{statistics.median(values):.3f} [{min(values):.3f}-{max(values):.3f}]"
