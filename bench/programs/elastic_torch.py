"""A worker for bench/elastic.py in PyTorch; what it does and writes is bench/programs/elastic_worker.cc's.

    elastic_torch.py checkpoints   under torchrun: rank 0 saves every CHECKPOINT_EVERY steps; a restart loads
    elastic_torch.py torchft       a replica group of torchft's with one rank, REPLICA of them all
"""
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

FOLDER = os.environ["STAMPS"]
STEP = int(os.environ["STEP_MS"]) / 1000
CHECKPOINT = os.path.join(FOLDER, "checkpoint")
STAMPS = os.open(os.path.join(FOLDER, f"{os.getpid()}.stamps"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def stamp(rank, world_size, step):
    os.write(STAMPS, f"{rank} {world_size} {step} {time.monotonic_ns()}\n".encode())


def with_checkpoints(state):
    dist.init_process_group("gloo")
    every, step = int(os.environ["CHECKPOINT_EVERY"]), 0
    if os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT)
        step = saved["step"]
        state.copy_(saved["state"])
    while True:
        time.sleep(STEP)
        gradient = torch.ones(1 << 18)
        dist.all_reduce(gradient)
        state[step % len(state)] += gradient[0]
        stamp(dist.get_rank(), dist.get_world_size(), step)
        step += 1
        if dist.get_rank() == 0 and step % every == 0:
            torch.save({"step": step, "state": state}, CHECKPOINT + ".new")
            os.rename(CHECKPOINT + ".new", CHECKPOINT)


def with_torchft(state):
    import torchft  # pylint: disable=import-outside-toplevel
    patience = datetime.timedelta(seconds=float(os.environ["TORCHFT_TIMEOUT"]))
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=patience), min_replica_size=1,
        load_state_dict=lambda saved: state.copy_(saved["state"]), state_dict=lambda: {"state": state},
        replica_id=os.environ["REPLICA"], store_addr="localhost", store_port=store.port, rank=0, world_size=1,
        timeout=patience, quorum_timeout=datetime.timedelta(seconds=60), quorum_retries=1000)
    while True:
        step = manager.current_step()
        try:
            manager.start_quorum()
            time.sleep(STEP)
            gradient = torch.ones(1 << 18)
            manager.allreduce(gradient).wait()
            if not manager.should_commit():
                continue
        except (RuntimeError, TimeoutError) as error:
            print(f"step {step}: {error}", file=sys.stderr)
            continue
        with torch.no_grad():
            state[step % len(state)] += gradient[0]
        stamp(int(os.environ["REPLICA"]), manager.num_participants(), step)


def main():
    torch.set_num_threads(1)
    state = torch.ones(int(os.environ["STATE_MB"]) << 18)
    {"checkpoints": with_checkpoints, "torchft": with_torchft}[sys.argv[1]](state)


if __name__ == "__main__":
    main()
