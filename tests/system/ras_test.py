#!/usr/bin/python3
"""ddprunctl ras beside a server that speaks as NCCL's src/ras/client_support.cc does: of a run under ddprun, at an
address, of an NCCL without JSON, and of what is no NCCL or does not answer."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import unittest

from ddprun_case import BIN, DdprunCase, free_port, main

# A worker that is NCCL's RAS of its job; rank 0's is asked, for it comes first.
SERVER = r'''
import os, socket, sys
report = open(sys.argv[1]).read()
json_too = len(sys.argv) < 3
host, port = os.environ["NCCL_RAS_ADDR"].rsplit(":", 1)
if os.environ["RANK"] != "0":
    sys.exit(0)
server = socket.create_server((socket.gethostbyname(host), int(port)))
print("ras serves", file=sys.stderr, flush=True)
while True:
    peer, _ = server.accept()
    with peer, peer.makefile("rw", newline="\n") as stream:
        for line in stream:
            word = line.strip().lower()
            if word.startswith("client protocol "):
                stream.write("SERVER PROTOCOL 2\n")
            elif word == "set format json" and json_too:
                stream.write("OK\n")
            elif word in ("status", "verbose status"):
                stream.write(report)
                stream.flush()
                break
            else:
                stream.write("ERROR: Unknown command " + line)
            stream.flush()
'''


def report(counts, comma):
    """Of a communicator of four, whose last rank is missing; NCCL 2.28 forgets the comma."""
    def process(rank):
        return (f'{{\n "rank": {rank},\n "host": "10.0.0.1",\n "pid": {100 + rank},\n "cuda_dev": {rank},\n'
                f' "nvml_dev": {rank}')
    ranks = ",\n".join(
        process(r) + ',\n "status": {"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false,'
        f' "abort_flag": false}},\n "collective_counts": {{"AllReduce": {n}}}\n}}' for r, n in enumerate(counts))
    missing = process(3) + comma + '\n          "status": {"unresponsive": true, "considered_dead": false}\n}'
    return ('{"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [{"hash": "0xab", "size": 4,'
            f'"ranks": [{ranks}], "missing_ranks": [{missing}]}}], "ras": {{"timeouts_count": 0}}}}\n')


class Ras(DdprunCase):
    def ctl(self, *argv, verb="ras", code=0):
        env = {k: v for k, v in os.environ.items() if not k.startswith("DDPRUN_TOKEN")}
        done = subprocess.run([os.path.join(BIN, "ddprunctl"), verb, *argv], capture_output=True, text=True, env=env,
                              timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    @contextlib.contextmanager
    def run_of(self, run_id, text, *more, flags=()):
        for name, content in (("server.py", SERVER), ("report", text)):
            with open(self.path(name), "w") as f:
                f.write(content)
        job = self.start("--rdzv-id", run_id, *flags, "--nproc-per-node", "2", self.path("server.py"), self.path("report"),
                         *more)
        job.wait_for("ras serves")
        yield
        job.signal(signal.SIGTERM)
        job.wait()
        self.assert_nothing_left(job)

    def test_a_run_on_this_machine_is_found_and_its_laggard_named(self):
        with self.run_of("ras-job", report([120, 120, 119], "")):
            text = self.ctl("--run", "ras-job")
            self.assertRegex(text, r"^run ras-job at localhost:2\d{4}: NCCL 2\.28\.9, 1 communicator\n")
            self.assertIn("rank 3 (pid 103 on 10.0.0.1, GPU 3) does not answer\n", text)
            self.assertIn("AllReduce has been called 119 times by rank 2; 120 times by ranks 0-1\n", text)
            self.assertEqual(json.loads(self.ctl("--run", "ras-job", "--json"))["communicators_count"], 1)
        self.assertIn("of the run ras-job", self.ctl("--run", "ras-job", code=1))

    def test_the_status_of_a_run_has_what_nccl_says_of_it_here(self):
        at = f"127.0.0.1:{free_port()}"
        flags = ("--nnodes", "1:2", "--rdzv-endpoint", at, "--rdzv-conf", "auth=none,last_call_timeout=0.1")
        ask = ("-e", at, "--no-auth", "--run", "ras-status")
        with self.run_of("ras-status", report([120, 120, 119], ""), flags=flags):
            text = self.ctl(*ask, verb="status")
            self.assertRegex(text, r"ras-status .*running(?s:.*)\n\nNCCL at localhost:2\d{4}: NCCL 2\.28\.9, 1 comm")
            self.assertIn("rank 3 (pid 103 on 10.0.0.1, GPU 3) does not answer\n", text)
            json.loads(self.ctl(*ask, "--json", verb="status"))  # One document.
        sleep = ("--rdzv-id", "ras-status", *flags, "--no-python", "sh", "-c", "echo he''re >&2; exec sleep 600")
        job = self.start(*sleep)  # Without NCCL.
        job.wait_for("here")
        self.assertNotIn("NCCL", self.ctl(*ask, verb="status"))
        job.signal(signal.SIGTERM)
        job.wait()
        self.assert_nothing_left(job)

    def test_an_nccl_without_json_is_shown_as_it_is(self):
        with self.run_of("ras-text", "NCCL version 2.26.2\nAll is well.\n", "text only"):
            self.assertIn("NCCL version 2.26.2\nAll is well.\n", self.ctl("--run", "ras-text"))
            self.assertIn("has no JSON", self.ctl("--run", "ras-text", "--json", code=1))

    def answer(self, *lines):
        """The port of a server that says these lines, one a connection's line, then hangs up if told so."""
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)

        def serve():
            peer, _ = server.accept()
            self.addCleanup(peer.close)
            stream = peer.makefile("rw", newline="\n")
            for line in lines:
                stream.readline()
                stream.write(line)
                stream.flush()
        threading.Thread(target=serve, daemon=True).start()
        return "127.0.0.1:%d" % server.getsockname()[1]

    def test_a_rank_that_is_stopped_is_not_the_only_one_that_is_asked(self):
        """All ranks of a node listen at one port."""
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)

        def serve():
            silent, _ = server.accept()
            self.addCleanup(silent.close)
            peer, _ = server.accept()
            with peer, peer.makefile("rw", newline="\n") as stream:
                for answer in ("SERVER PROTOCOL 2\n", "OK\n", report([5, 5, 5], "")):
                    stream.readline()
                    stream.write(answer)
                    stream.flush()
        threading.Thread(target=serve, daemon=True).start()
        self.assertIn("rank 3 (pid 103", self.ctl("--address", "127.0.0.1:%d" % server.getsockname()[1]))

    def test_what_is_no_ras_and_what_does_not_answer_is_said(self):
        self.assertIn('is not NCCL\'s RAS: it says "HTTP/1.1 400"',
                      self.ctl("--address", self.answer("HTTP/1.1 400\n"), code=1))
        for silent in ([], ["SERVER PROTOCOL 2\n"], ["SERVER PROTOCOL 2\n", "OK\n"],
                       ["SERVER PROTOCOL 2\n", "OK\n", "{"]):
            text = self.ctl("--address", self.answer(*silent), "--timeout", "0.5", code=1)
            self.assertIn("does not answer within 501 ms", text)
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self.assertIn("nothing listens at", self.ctl("--address", "127.0.0.1:%d" % unused.getsockname()[1], code=1))


if __name__ == "__main__":
    main()
