"""Nodes and daemons of different releases: what one cannot read of the other ends that node, once, and is named.

A relay between node and daemon changes one field of a message, as another release might. There is no TLS here.
"""

import json
import re
import socket
import struct
import threading

import paths  # noqa: F401
import ddprun_case
from ddprun_case import DdprunCase, free_port, shell

NEVER_MET = 3
SLEEPERS = shell("sleep 600")


class Relay:
    """Passes frames on between nodes and the daemon at `port`; `change` may alter a message on its way."""

    def __init__(self, port, change):
        self._daemon, self._change = port, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                node, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            daemon = socket.create_connection(("127.0.0.1", self._daemon))
            for one, other in ((node, daemon), (daemon, node)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one, other):
        try:
            while head := one.recv(4, socket.MSG_WAITALL):
                body = one.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL)
                message = json.loads(body)
                self._change(message)
                body = json.dumps(message).encode()
                other.sendall(struct.pack(">I", len(body)) + body)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # One of the two has hung up.

    def close(self):
        self._listener.close()


class OtherReleases(DdprunCase):
    def nodes(self, change):
        """A node that hosts the daemon, and one behind the relay; the first can do without the second."""
        port = free_port()
        relay = Relay(port, change)
        self.addCleanup(relay.close)

        def start(endpoint, is_host):
            return self.start("--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-endpoint", f"127.0.0.1:{endpoint}",
                              "--max-restarts", "3", "--rdzv-conf",
                              f"auth=none,is_host={is_host},last_call_timeout=0.2,join_timeout=60", *SLEEPERS)

        first = start(port, 1)
        self.wait_for_workers(1, jobs=[first])
        return first, start(relay.port, 0), relay

    def wait_for_workers(self, count, jobs):
        ddprun_case.wait_until(
            lambda: sum(p.argv[0] == "sleep" for job in jobs for p in job.processes()) == count,
            lambda: "\n".join(job.text() for job in jobs))

    def assert_ends_once(self, first, other, relay, pattern):
        self.assertEqual(other.wait(), NEVER_MET, other.text())
        self.assertRegex(other.err(), pattern)
        self.assertEqual(relay.connections, 1)
        self.wait_for_workers(1, jobs=[first, other])
        self.assertNotIn("restart 2 of 3", first.err())

    def test_a_join_that_the_daemon_cannot_read(self):
        def change(message):
            if message["is"] == "hello":
                message["release"] = "9.8.7"
            if message["is"] == "join":
                message["after_round"] = "none"

        first, other, relay = self.nodes(change)
        self.assert_ends_once(
            first, other, relay,
            r"error: the rendezvous daemon refused \S+: the daemon \(ddprun [\d.]+\) cannot read what this node "
            r"\(ddprun 9\.8\.7\) has sent \(decoding field 'after_round' of 'join'\); install the same ddprun on every node")
        first.wait_for(r"warning: hung up on 127\.0\.0\.1: sent what the daemon \(ddprun [\d.]+\) cannot read "
                       r"\(decoding field 'after_round' of 'join'\); it has ddprun 9\.8\.7")

    def test_a_report_that_the_daemon_cannot_read_costs_one_round(self):
        changes = threading.Event()

        def change(message):
            if message["is"] == "heartbeat" and changes.is_set():
                message["round"] = [message["round"]]

        first, other, relay = self.nodes(change)
        self.wait_for_workers(2, jobs=[first, other])
        changes.set()
        self.assert_ends_once(first, other, relay, r"cannot read what this node .*'round' of 'heartbeat'")
        self.assertEqual(len(re.findall(r"sent what the daemon .*; stopping, then starting", first.err())), 1,
                         first.text())

    def test_a_seat_that_the_node_cannot_read(self):
        def change(message):
            if message["is"] == "assign":
                del message["seat"]["world_size"]
            if message["is"] == "alive" and "release" in message:
                message["release"] = "9.8.7"

        first, other, relay = self.nodes(change)
        self.assert_ends_once(
            first, other, relay,
            r"error: \S+ cannot stay in the run: the rendezvous daemon at 127\.0\.0\.1:\d+ sends what this ddprun [\d.]+ "
            r"cannot read \(decoding field 'world_size' of 'assign'\); it has ddprun 9\.8\.7: install the same ddprun")


if __name__ == "__main__":
    ddprun_case.main()
