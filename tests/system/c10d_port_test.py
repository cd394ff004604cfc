"""The daemon's port for torchrun agents: what it says, whom it lets in, and what it does without one."""

import os
import socket
import struct
import unittest

import ddprun_case
from ddprun_case import BIN, DdprunCase, Network, free_port

DAEMON = os.path.join(BIN, "ddprun-rendezvous")
ASK = ("import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10); s.settimeout(10); "
       "s.sendall(b'\\6'); print('answer' if s.recv(8) else 'closed')")  # 1.13's GETNUMKEYS.


class C10dPort(DdprunCase):
    def daemon(self, *options, netns=None):
        return self.start_program([DAEMON, "--no-auth", "--port", "0", *options], netns=netns)

    def test_without_the_option_there_is_no_such_port(self):
        daemon = self.daemon()
        daemon.wait_for("listening on")
        self.assertNotIn("c10d", daemon.err())

    def test_says_that_it_has_no_token_and_serves(self):
        daemon = self.daemon("--c10d-port", "0")
        port = int(daemon.wait_for(r"c10d rendezvous on 127\.0\.0\.1:(\d+), without a token, "
                                   "for this machine").group(1))
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            client.sendall(b"\6")  # 1.13's GETNUMKEYS.
            self.assertEqual(client.recv(8), struct.pack("<q", 0))

    def test_a_port_that_is_taken_ends_the_daemon_with_the_name_of_who_holds_it(self):
        port = str(free_port())
        first = self.daemon("--c10d-port", port)
        first.wait_for("c10d rendezvous")
        second = self.daemon("--c10d-port", port)
        self.finish(second, code=1)
        self.assertRegex(second.err(), rf"port {port} of 127\.0\.0\.1, which ddprun-rendezvo\S* \(pid {first.pid}\)")

    def test_a_bad_address_in_the_list_ends_the_daemon(self):
        daemon = self.daemon("--c10d-port", "0", "--c10d-allow", "10.1.2.3,node7")
        self.finish(daemon, code=1)
        self.assertIn("'node7' is not a numeric address", daemon.err())

    @unittest.skipIf(Network.missing(), Network.missing())
    def test_only_machines_of_the_list_are_let_in(self):
        with Network() as net:
            here, there = net.names
            ours, theirs = net.addresses
            for allow, said in ((theirs, "answer"), ("10.77.0.99", "closed")):
                daemon = self.daemon("--c10d-port", "0", "--c10d-address", ours, "--c10d-allow", allow, netns=here)
                port = daemon.wait_for(rf"c10d rendezvous on {ours}:(\d+), .*for this machine, {allow}").group(1)
                client = self.start_program(["/usr/bin/python3", "-c", ASK, ours, port], netns=there)
                client.wait()
                self.assertEqual(client.out().strip() or "closed", said, client.text())


if __name__ == "__main__":
    ddprun_case.main()
