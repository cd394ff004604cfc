"""PyTorch's own TCPStore server, until standard input ends; says its port on standard output.

Usage: torch_store.py [libuv|legacy] [PORT]. PyTorch 1.13 has but one. For the conformance test and the benchmarks.
"""

import datetime
import sys

try:
    from torch.distributed import TCPStore
except ImportError:
    print("no PyTorch for " + sys.executable)
    sys.exit(77)


def main():
    backend = sys.argv[1] if len(sys.argv) > 1 else "legacy"
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    arguments = ("127.0.0.1", port, None, True, datetime.timedelta(seconds=20), False)
    try:
        store = TCPStore(*arguments, use_libuv=backend == "libuv")
    except TypeError:  # 1.13 knows no backends.
        if backend == "libuv":
            print("this PyTorch has no libuv backend")
            sys.exit(77)
        store = TCPStore(*arguments)
    print(store.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
