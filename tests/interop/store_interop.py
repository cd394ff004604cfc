"""PyTorch's TCPStore client and Gloo process groups against ddprun's store servers.

Usage: store_interop.py PATH_OF_store_serve PATH_OF_store_host_serve. Once for Debian's PyTorch and each that DDPRUN_TEST_TORCH_PYTHONS names;
exits 77 where there is none.
"""

import datetime
import multiprocessing
import os
import subprocess
import sys
import threading

from torch_pythons import torch_pythons

if "--inner" in sys.argv:
    import torch
    import torch.distributed as dist

SECONDS = datetime.timedelta(seconds=1)


class Server:
    """One of the two, for as long as its standard input is open."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        assert self.process.wait(10) == 0


def connect(port, timeout=20 * SECONDS, **more):
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout, **more)


def expect(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


def expect_timeout(call):
    try:
        call()
    except RuntimeError:
        return
    raise AssertionError("no timeout")


def every_operation(port):
    store = connect(port)
    store.set("k", "v1")
    expect(store.get("k"), b"v1")
    expect(store.add("n", 5), 5)
    expect(store.add("n", -2), 3)
    expect(store.compare_set("k", "v1", "v2"), b"v2")
    expect(store.compare_set("k", "v1", "v3"), b"v2")
    expect(store.compare_set("missing", "e", "x"), b"e")
    expect(store.compare_set("fresh", "", "x"), b"x")
    expect(store.num_keys(), 3)
    expect(store.delete_key("k"), True)
    expect(store.delete_key("k"), False)
    expect(store.num_keys(), 2)
    large = bytes(range(256)) * 4096 * 7
    store.set("large", large)
    expect(store.get("large") == large, True)
    prefixed = dist.PrefixStore("a", dist.PrefixStore("b", store))
    prefixed.set("k", "deep")
    expect(store.get("b/a/k"), b"deep")
    for optional, arguments, want in [
        ("append", ("log", "12"), None),
        ("multi_set", (["x", "y"], ["1", "22"]), None),
        ("multi_get", (["x", "y"],), [b"1", b"22"]),
        ("queue_push", ("q", b"e"), None),
        ("queue_len", ("q",), 1),
        ("queue_pop", ("q",), b"e"),
        ("barrier", ("together", 1), None),
    ]:
        if hasattr(store, optional):
            expect(getattr(store, optional)(*arguments), want)
    if hasattr(store, "check"):
        expect(store.check(["n"]), True)
        expect(store.check(["nope"]), False)


def waiting(port):
    reader, writer = connect(port), connect(port)
    threading.Timer(0.2, lambda: writer.set("late", "x")).start()
    expect(reader.get("late"), b"x")
    # After a wait in vain the object goes on. 1.13 does not say that it has given up, so our server knows
    # from the next request, and must not answer the wait into the middle of what follows.
    impatient = connect(port)
    expect_timeout(lambda: impatient.wait(["never"], SECONDS))
    expect(impatient.add("after", 1), 1)
    writer.set("never", "now")
    expect(impatient.add("after", 1), 2)
    expect(impatient.get("never"), b"now")


def worker(rank, world, port, failures):
    try:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                          WORLD_SIZE=str(world), TORCHELASTIC_USE_AGENT_STORE="True",
                          TORCHELASTIC_RESTART_COUNT="0", GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", timeout=60 * SECONDS)
        total = torch.full((1000,), float(rank + 1))
        dist.all_reduce(total)
        expect(total.unique().tolist(), [world * (world + 1) / 2])
        dist.barrier()
        group = dist.new_group(list(range(world - 1)))
        if rank < world - 1:
            dist.all_reduce(total, group=group)
        dist.destroy_process_group()
    except Exception as error:  # The parent reports it.
        failures.put(f"rank {rank}: {error!r}")


def process_group(program, world):
    with Server(program) as server:
        failures = multiprocessing.Queue()
        ranks = [multiprocessing.Process(target=worker, args=(rank, world, server.port, failures))
                 for rank in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(90)
            if rank.exitcode is None:
                rank.kill()
                raise AssertionError("a rank hangs")
        assert failures.empty(), failures.get()
        expect([rank.exitcode for rank in ranks], [0] * world)


def with_this_python(program):
    for test in (every_operation, waiting):
        with Server(program) as server:
            test(server.port)
        print(f"{test.__name__}: passed", flush=True)
    for world in (2, 3, 4):
        process_group(program, world)
        print(f"process_group of {world}: passed", flush=True)


def main():
    if "--inner" in sys.argv:
        return with_this_python(sys.argv[1])
    torches = torch_pythons()
    if not torches:
        print("skipped: there is no PyTorch: neither Debian's nor one that DDPRUN_TEST_TORCH_PYTHONS names")
        sys.exit(77)
    for torch_found in torches:
        for program in sys.argv[1:]:
            print(f"PyTorch {torch_found.version} and {os.path.basename(program)}:", flush=True)
            argv = [torch_found.python, "-W", "ignore", "-B", __file__, program, "--inner"]
            if subprocess.run(argv, check=False).returncode != 0:
                sys.exit(1)


if __name__ == "__main__":
    main()
