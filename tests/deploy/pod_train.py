"""The trainer in the pods of pods_test.py: an elastic job that says with whom it computes."""

import array
import os
import sys
import time

import ddprun.elastic

# The worker of the pod HUNGRY takes more memory than its pod has, once.
HUNGRY = os.environ.get("HUNGRY") == os.environ["JOB_COMPLETION_INDEX"] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
FAILS = os.environ.get("FAILS") == os.environ["JOB_COMPLETION_INDEX"]  # Each time.
EPOCHS = int(sys.argv[sys.argv.index("--epochs") + 1])
state = array.array("q", [0])
seen = 0  # Rounds.


def train(step):
    global seen
    total = array.array("f", [1.0])
    step.group.all_reduce(total)
    step.commit(lambda: state.__setitem__(0, state[0] + 1))
    if job.counters.rounds != seen:
        print(f"rank {step.rank} of {step.world_size} at step {step.number}: sum {total[0]:g}", flush=True)
        seen = job.counters.rounds
    time.sleep(0.02)
    if HUNGRY and step.number == 20:
        bytearray(b"x") * (4 << 30)
    if FAILS and step.number >= 20:
        sys.exit(7)


job = ddprun.elastic.Job()
job.keep(state=state)
job.run(EPOCHS, train)
print(f"done at {state[0]}", flush=True)
