"""The same cases against our store servers and PyTorch's own, byte by byte.

Usage: store_conformance.py PATH_OF_store_serve PATH_OF_store_host_serve [-v]. PyTorch's servers are Debian's and
those of what DDPRUN_TEST_TORCH_PYTHONS names, with each of their backends. Where a server does otherwise, DIFFERENT
says what and why. Without PyTorch our own servers are still held to the table.
"""

import os
import subprocess
import sys

import store_cases
import store_wire_cases  # Adds to the cases.
from store_client import PATIENCE, Client, Closed
from torch_pythons import torch_pythons

HERE = os.path.dirname(os.path.abspath(__file__))

CLOSED, SILENCE = "closed", "silence"
LIKE_LIBUV = "only some operations end waits there; ours does as libuv does"
STRAY = "a wait that was given up is still answered there, and that answer is taken for another"
NO_QUEUES = "it has no queues"
NO_LIMITS = "it has no limits"

# (case, kind of server) -> (what it does, why). Kinds: ddprun; 1.13; legacy and libuv, the backends of 2.2+.
# docs/protocol.md has the same in words.
DIFFERENT = {
    ("get_of_a_missing_key", "1.13"): (CLOSED, "clients always WAIT first; ours answers as libuv does"),
    ("get_of_a_missing_key", "legacy"): (CLOSED, "clients always WAIT first; ours answers as libuv does"),
    ("wait_ends_with_compare_set", "1.13"): (SILENCE, LIKE_LIBUV),
    ("wait_ends_with_compare_set", "legacy"): (SILENCE, LIKE_LIBUV),
    ("a_wait_given_up_without_a_word_is_not_answered_later", "1.13"): (SILENCE, STRAY),
    ("a_wait_given_up_without_a_word_is_not_answered_later", "legacy"): (SILENCE, STRAY),
    ("a_wait_given_up_without_a_word_is_not_answered_later", "libuv"): (SILENCE, STRAY),
    ("wait_ends_with_an_element_of_a_queue", "legacy"): (SILENCE, NO_QUEUES),
    ("a_queue_is_first_in_first_out", "legacy"): (CLOSED, NO_QUEUES),
    ("a_queue_is_there_while_it_has_elements", "legacy"): (CLOSED, NO_QUEUES),
    ("one_element_ends_one_wait", "legacy"): (SILENCE, NO_QUEUES),
    ("validate_in_pieces_after_its_first_byte", "libuv"): (CLOSED, "it wants the whole VALIDATE in one segment"),
    ("validate_in_pieces_after_its_first_byte", "legacy"): (SILENCE, "its one thread waits for one slow client"),
    ("a_key_that_is_too_large", "1.13"): (b"v", NO_LIMITS),
    ("a_key_that_is_too_large", "legacy"): (b"v", NO_LIMITS),
    ("a_value_that_is_too_large", "1.13"): (8388609, NO_LIMITS),
    ("a_value_that_is_too_large", "legacy"): (8388609, NO_LIMITS),
    ("more_keys_than_may_be_named_at_once", "1.13"): (True, NO_LIMITS),
    ("more_keys_than_may_be_named_at_once", "legacy"): (True, NO_LIMITS),
    ("appending_beyond_the_largest_value", "libuv"): (8388609, "it bounds a request, not what requests add up to"),
    ("appending_beyond_the_largest_value", "legacy"): (8388609, NO_LIMITS),
}
SILENT_SECONDS = 0.5  # Where silence is what is expected.


class Server:
    """A server process that says its port and ends with its standard input."""

    def __init__(self, kind, name, dialects, argv):
        self.kind, self.name, self.dialects = kind, name, dialects
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True)
        said = self._process.stdout.readline().strip()
        self.port = int(said) if said.isdigit() else None
        self.absent = said

    def alive(self):
        return self._process.poll() is None

    def end(self):
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def servers(programs):
    for program in programs:
        yield Server("ddprun", os.path.basename(program), ("old", "new"), [program])
    host = os.path.join(HERE, "torch_store.py")
    for torch in torch_pythons():
        for backend in ("legacy",) if torch.old else ("libuv", "legacy"):
            kind = "1.13" if torch.old else backend
            name = f"PyTorch {torch.version}" + ("" if torch.old else f", {backend}")
            yield Server(kind, name, ("old",) if torch.old else ("new",),
                         [torch.python, "-W", "ignore", host, backend])


class Visit:
    """What a case works with: connections to one server, and key names of its own."""

    def __init__(self, server, dialect, case, patience):
        self.dialect, self._patience = dialect, patience
        self._server, self._case, self._clients = server, case, []

    def connect(self, greet=True):
        client = Client(self._server.port, self.dialect, self._patience)
        self._clients.append(client)
        return client.greet() if greet else client

    def key(self, name):
        return f"/{self._case}/{self.dialect}/{name}".encode()

    def settle(self):
        """Until the server has carried out what was sent to it before this call. It learns of its sockets in rounds: the
        first answer is of a round in which those requests were there already, the second of a later one."""
        client = self.connect()
        client.num_keys()
        client.num_keys()

    def end(self):
        for client in self._clients:
            client.close()


def outcome(server, dialect, case, patience):
    visit = Visit(server, dialect, case.__name__, patience)
    try:
        return case(visit)
    except Closed:
        return CLOSED
    except TimeoutError:
        return SILENCE
    finally:
        visit.end()


def judge(server, dialect, case):
    """A complaint, or nothing."""
    want, why = DIFFERENT.get((case.__name__, server.kind), (case.want, ""))
    got = outcome(server, dialect, case, SILENT_SECONDS if want == SILENCE else PATIENCE)
    if got == want:
        return ""
    return f"{server.name}, {dialect}: {case.__name__}: got {got!r}, want {want!r}{why and ', for ' + why}"


def applies(case, server, dialect):
    return dialect in case.dialects and (server.kind == "ddprun" or not case.ours_only)


def hold_to_the_cases(server, verbose):
    """The complaints about one server."""
    complaints = []
    for dialect in server.dialects:
        cases = [case for case in store_cases.CASES if applies(case, server, dialect)]
        for case in cases:
            complaint = judge(server, dialect, case)
            if complaint:
                complaints.append(complaint)
            if complaint or verbose:
                print(complaint or f"{server.name}, {dialect}: {case.__name__}: as expected", flush=True)
            if not server.alive():
                raise SystemExit(f"{server.name} ended during {case.__name__}")
        differ = sum((case.__name__, server.kind) in DIFFERENT for case in cases)
        print(f"{server.name}, dialect of {'1.13' if dialect == 'old' else '2.2+'}: {len(cases)} cases, "
              f"{differ} of them listed as different", flush=True)
    return complaints


def main():
    programs, verbose = [word for word in sys.argv[1:] if word != "-v"], "-v" in sys.argv
    complaints = []
    for server in servers(programs):
        if server.port is None:
            print(f"skipped: {server.name}: {server.absent}")
        else:
            complaints += hold_to_the_cases(server, verbose)
        server.end()
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
