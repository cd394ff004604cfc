"""Two daemons and a real etcd on loopback: the leader dies, stands still or is cut off from etcd, and
workers never notice; what happens to them afterwards is decided by the other one, once."""

import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request

import paths  # noqa: F401
import ddprun_case
from ddprun_case import (BIN, DdprunCase, PASS_GATE, clean_environment, column, env_to, free_port, shell,
                         skip_all, wait_until)

TOKEN = {"DDPRUN_TOKEN": "a token of the tests"}
# A worker of rank 1 that fails once it is let, and is well after one restart.
FAIL_LATER = (env_to() + '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; ' + PASS_GATE +
              '[ $RANK = 1 ] && kill -KILL $$; exec sleep 600')


class Etcd:
    """A server of its own on loopback, with its data in `folder`; with https if it gets options for that."""

    def __init__(self, folder, tls=None, options=()):
        self._tls = tls
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{free_port()}"
        peer = f"http://127.0.0.1:{free_port()}"
        self._argv = ["etcd", "--name", "t", "--data-dir", os.path.join(folder, "etcd"),
                      "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                      "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                      "--initial-cluster", f"t={peer}", *options]
        self._log = open(os.path.join(folder, "etcd.log"), "ab")
        self.start()

    def start(self):
        self._popen = subprocess.Popen(self._argv, env=clean_environment(), stdin=subprocess.DEVNULL,
                                       stdout=self._log, stderr=self._log)
        wait_until(self._healthy, "etcd's health")

    def _healthy(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=1, context=self._tls) as answer:
                return b"true" in answer.read()
        except OSError:
            return False

    def ask(self, path, **body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30, context=self._tls) as answer:
            return json.load(answer)

    def kill(self):
        self._popen.kill()
        self._popen.wait()

    def end(self):
        self.kill()
        self._log.close()


class Certificates:
    """Made in the test's folder, NAME.pem and NAME.key each."""

    def certificate(self, name, *options):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-subj", f"/CN={name}", "-days", "2", "-keyout", self.path(name + ".key"), "-out",
                        self.path(name + ".pem"), *options], check=True, capture_output=True, timeout=60)

    def signed(self, name, *options, by="ca"):
        self.certificate(name, *options, "-CA", self.path(by + ".pem"), "-CAkey", self.path(by + ".key"))

    def shown(self, name, key=None):
        return ["--etcd-cert", self.path(name + ".pem"), "--etcd-key", self.path((key or name) + ".key")]

    def certificates_of_etcd(self):
        self.certificate("ca")
        self.signed("etcd", "-addext", "subjectAltName=IP:127.0.0.1")
        return ["--cert-file", self.path("etcd.pem"), "--key-file", self.path("etcd.key")]


class TwoDaemonsCase(DdprunCase):
    lease = 2

    access, access_env = (), {}

    def make_etcd(self):
        return Etcd(self.dir)

    def setUp(self):
        super().setUp()
        self.etcd = self.make_etcd()
        self.addCleanup(self.etcd.end)
        self.ports = [free_port(), free_port()]
        first = self.daemon(0)
        first.wait_for("leads now")
        self.daemons = [first, self.daemon(1)]
        self.daemons[1].wait_for("standing by")

    def daemon(self, index):
        return self.start_program(
            [os.path.join(BIN, "ddprun-rendezvous"), "--port", str(self.ports[index]), "--etcd",
             self.etcd.url, "--etcd-lease", str(self.lease), *self.access], env={**TOKEN, **self.access_env})

    def nodes(self, *argv, worker):
        endpoints = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return [self.start("--nnodes", "2", "--rdzv-endpoint", endpoints, *argv, *worker, env=TOKEN)
                for _ in range(2)]

    def take_over(self, since):
        self.daemons[1].wait_for("leads now")
        took = time.monotonic() - since
        self.report(f"the standby leads {took * 1000:.0f} ms later, the lease is {self.lease} s of it")
        return took

    def finish_all(self, nodes, code=0):
        for node in nodes:
            self.assertEqual(node.wait(60), code, node.text() + self.daemons[1].text())
            self.assert_nothing_left(node)


class TwoDaemons(TwoDaemonsCase):
    def test_the_leader_is_killed_and_a_later_failure_is_decided_by_the_other(self):
        gate = self.gate()
        nodes = self.nodes("--max-restarts", "1", worker=shell(FAIL_LATER))
        self.wait_for_workers(2, jobs=nodes)
        killed = time.monotonic()
        self.daemons[0].signal(signal.SIGKILL)
        self.take_over(killed)
        self.assertEqual(len(self.arrivals()), 2)  # No worker noticed.
        gate.open()
        self.finish_all(nodes)
        self.assertEqual(column(self.wait_for_workers(2, "env.1"), "RANK"), ["0", "1"])

    def test_the_restart_budget_is_the_runs_not_the_daemons(self):
        gate = self.gate()
        script = (env_to() + '[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 7; ' + PASS_GATE + 'exit 8')
        nodes = self.nodes("--max-restarts", "1", worker=shell(script))
        self.wait_for_workers(2, "env.1", jobs=nodes)
        self.daemons[0].signal(signal.SIGKILL)
        self.take_over(time.monotonic())
        gate.open()
        self.finish_all(nodes, 8)
        self.assertRegex(nodes[0].err(), "1 of 1")

    def test_a_leader_that_stood_still_beyond_its_lease_decides_nothing(self):
        gate = self.gate()
        nodes = self.nodes("--max-restarts", "1", worker=shell(FAIL_LATER))
        self.wait_for_workers(2, jobs=nodes)
        self.daemons[0].signal(signal.SIGSTOP)
        self.take_over(time.monotonic())
        gate.open()
        self.wait_for_workers(2, "env.1", jobs=nodes)
        self.daemons[0].signal(signal.SIGCONT)
        self.daemons[0].wait_for("leads no more")
        wait_until(lambda: self.daemons[0].err().count("standing by") == 2, self.daemons[0].text)
        self.finish_all(nodes)
        self.assertEqual(len(self.arrivals()), 4)  # One round before and one after, each once.

    def test_etcd_is_killed_and_comes_back_and_the_run_goes_on(self):
        gate = self.gate()
        nodes = self.nodes("--max-restarts", "1", worker=shell(FAIL_LATER))
        self.wait_for_workers(2, jobs=nodes)
        self.etcd.kill()
        self.daemons[0].wait_for("leads no more")
        gate.open()  # A worker fails while nobody leads.
        self.etcd.start()
        self.finish_all(nodes)
        self.assertEqual(column(self.wait_for_workers(2, "env.1"), "RANK"), ["0", "1"])


    def past(self, index):
        """What the daemon remembers of runs that have ended; None: it does not answer."""
        done = subprocess.run([os.path.join(BIN, "ddprunctl"), "-e", f"127.0.0.1:{self.ports[index]}", "history", "--json"],
                              env={**clean_environment(), **TOKEN}, capture_output=True, text=True, timeout=60, check=False)
        return json.loads(done.stdout)["runs"] if done.returncode == 0 else None

    def test_the_next_leader_remembers_runs_that_ended_under_the_one_before(self):
        for run_id, code in (("job1", 0), ("job2", 7)):
            nodes = self.nodes("--rdzv-id", run_id, worker=shell(f"exit {code}"))
            self.finish_all(nodes, code)
        wait_until(lambda: len(self.past(0)) == 2, lambda: self.past(0))
        known = self.past(0)
        self.assertEqual([(run["run_id"], run["exit_code"]) for run in known], [("job2", 7), ("job1", 0)])
        # It answers from its own memory; that the record is in etcd, too, is seen there.
        folder = base64.b64encode(b"/ddprun/history/").decode(), base64.b64encode(b"/ddprun/history0").decode()
        stored = lambda: int(self.etcd.ask("/v3/kv/range", key=folder[0], range_end=folder[1], count_only=True).get("count", 0))
        wait_until(lambda: stored() == 2, stored)
        self.daemons[0].signal(signal.SIGKILL)
        self.take_over(time.monotonic())
        wait_until(lambda: len(self.past(1) or []) == 2, lambda: self.past(1))
        self.assertEqual(self.past(1), known)
        self.finish_all(self.nodes("--rdzv-id", "job3", worker=shell("true")))
        wait_until(lambda: len(self.past(1)) == 3, lambda: self.past(1))
        self.assertEqual([run["run_id"] for run in self.past(1)], ["job3", "job2", "job1"])
        wait_until(lambda: stored() == 3, stored)


class ALongLease(TwoDaemonsCase):
    lease = 600  # Beyond every deadline here: only a leader that gives it back can be followed.

    def test_a_leader_told_to_end_leaves_the_runs_to_the_other_at_once(self):
        gate = self.gate()
        nodes = self.nodes(worker=shell(env_to() + PASS_GATE))
        self.wait_for_workers(2, jobs=nodes)
        self.daemons[0].signal(signal.SIGTERM)
        self.assertEqual(self.daemons[0].wait(), 0)
        self.take_over(time.monotonic())
        gate.open()
        self.finish_all(nodes)
        self.assertEqual(len(self.arrivals()), 2)


class Guarded(Certificates, TwoDaemonsCase):
    """etcd with a certificate of an authority that nobody knows, which lets in who has a password."""
    PASSWORD = 'of "etcd" alone'
    access_env = {"DDPRUN_ETCD_PASSWORD": PASSWORD}

    def make_etcd(self):
        options = [*self.certificates_of_etcd(), "--bcrypt-cost", "4"]
        etcd = Etcd(self.dir, ssl.create_default_context(cafile=self.path("ca.pem")), options)
        etcd.ask("/v3/auth/user/add", name="root", password=self.PASSWORD)
        etcd.ask("/v3/auth/role/add", name="root")
        etcd.ask("/v3/auth/user/grant", user="root", role="root")
        etcd.ask("/v3/auth/enable")
        self.access = ["--etcd-ca", self.path("ca.pem"), "--etcd-user", "root"]
        return etcd

    def assert_hidden(self, daemon):
        with open(f"/proc/{daemon.pid}/environ", "rb") as f:
            seen = f.read()
        self.assertNotIn(self.PASSWORD.encode(), seen)
        self.assertNotIn(TOKEN["DDPRUN_TOKEN"].encode(), seen)

    def test_the_run_goes_from_one_daemon_to_the_other_and_back(self):
        gate = self.gate()
        nodes = self.nodes("--max-restarts", "1", worker=shell(FAIL_LATER))
        self.wait_for_workers(2, jobs=nodes)
        self.daemons[0].signal(signal.SIGSTOP)
        self.take_over(time.monotonic())
        self.daemons[0].signal(signal.SIGCONT)
        # It is executed anew, and still knows the password and the token that were taken out of its environment.
        wait_until(lambda: self.daemons[0].err().count("standing by") == 2, self.daemons[0].text)
        for daemon in self.daemons:
            self.assert_hidden(daemon)
        self.daemons[1].signal(signal.SIGKILL)
        wait_until(lambda: self.daemons[0].err().count("leads now") == 2, self.daemons[0].text)
        gate.open()
        self.finish_all(nodes)
        self.assertEqual(column(self.wait_for_workers(2, "env.1"), "RANK"), ["0", "1"])

    def test_etcd_forgets_all_logins_and_the_run_goes_on(self):
        gate = self.gate()
        nodes = self.nodes("--max-restarts", "1", worker=shell(FAIL_LATER))
        self.wait_for_workers(2, jobs=nodes)
        self.etcd.kill()
        self.daemons[0].wait_for("leads no more")
        self.daemons[0].signal(signal.SIGKILL)  # The other one has a login of before.
        self.etcd.start()
        self.daemons[1].wait_for("leads now")
        gate.open()
        self.finish_all(nodes)

    def test_who_has_not_what_it_takes_says_what(self):
        daemon = [os.path.join(BIN, "ddprun-rendezvous"), "--no-auth", "--port", "0", "--etcd", self.etcd.url]
        ca = ["--etcd-ca", self.path("ca.pem")]
        user = [*ca, "--etcd-user", "root"]
        secret = self.path("password")
        with open(secret, "w", encoding="utf-8") as f:
            f.write(self.PASSWORD + "\n")
        for argv, env, says in (
                ([], {}, "etcd cannot be used: checking its certificate.*certificate verify failed"),
                (ca, {}, "etcd cannot be used: .*user name is empty"),
                (user, {"DDPRUN_ETCD_PASSWORD": "wrong"}, "etcd cannot be used: .*authentication failed"),
                ([*user, "--etcd-password-file", secret], {}, "standing by; the leader is")):
            job = self.start_program([*daemon, *argv], env=env)
            job.wait_for(says)
            self.assertNotIn(self.PASSWORD, job.err())
            job.signal(signal.SIGTERM)
            self.assertEqual(job.wait(), 0)


class Mutual(Certificates, TwoDaemonsCase):
    """etcd lets in who has a certificate of its authority."""

    def make_etcd(self):
        options = [*self.certificates_of_etcd(), "--client-cert-auth", "--trusted-ca-file", self.path("ca.pem")]
        self.signed("daemon")
        tls = ssl.create_default_context(cafile=self.path("ca.pem"))
        tls.load_cert_chain(self.path("daemon.pem"), self.path("daemon.key"))
        self.access = ["--etcd-ca", self.path("ca.pem"), *self.shown("daemon")]
        return Etcd(self.dir, tls, options)

    def test_the_run_goes_from_one_daemon_to_the_other(self):
        gate = self.gate()
        nodes = self.nodes("--max-restarts", "1", worker=shell(FAIL_LATER))
        self.wait_for_workers(2, jobs=nodes)
        self.daemons[0].signal(signal.SIGKILL)
        self.take_over(time.monotonic())
        gate.open()
        self.finish_all(nodes)
        self.assertEqual(column(self.wait_for_workers(2, "env.1"), "RANK"), ["0", "1"])

    def test_who_shows_no_certificate_or_a_strangers_is_not_let_in(self):
        self.certificate("stranger")
        for argv, says in (([], "alert (bad certificate|certificate required)"),
                           (self.shown("stranger"), "alert (bad certificate|unknown ca)")):
            job = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--no-auth", "--port", "0", "--etcd",
                                      self.etcd.url, "--etcd-ca", self.path("ca.pem"), *argv])
            job.wait_for("etcd cannot be used: .*" + says)
            job.signal(signal.SIGTERM)
            self.assertEqual(job.wait(), 0)


class Options(Certificates, DdprunCase):
    def refused(self, *argv):
        job = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--no-auth", *argv])
        self.assertNotEqual(job.wait(), 0)
        return job.err() + job.out()

    def test_what_cannot_be_is_said_in_a_sentence(self):
        self.assertIn("give http://HOST:PORT or https://HOST:PORT", self.refused("--etcd", "http://a:x"))
        self.assertIn("no password for --etcd-user", self.refused("--etcd", "http://a", "--etcd-user", "me"))
        self.assertIn("--etcd-ca /none: no certificate", self.refused("--etcd", "https://a", "--etcd-ca", "/none"))
        self.assertIn("requires --etcd", self.refused("--etcd-user", "me"))
        self.assertIn("excludes", self.refused("--etcd", "http://a", "--state-dir", self.dir))

    def test_files_of_a_certificate_that_cannot_be_used_are_named(self):
        for name in ("mine", "other"):
            self.certificate(name)
        locked = self.path("locked.key")
        subprocess.run(["openssl", "ec", "-aes128", "-passout", "pass:secret", "-in", self.path("mine.key"), "-out", locked],
                       check=True, capture_output=True, timeout=60)
        mine, key = self.path("mine.pem"), self.path("mine.key")
        for files, says in ((["/none", key], "--etcd-cert /none: no certificate can be read there"),
                            ([key, key], f"--etcd-cert {key}: no certificate can be read there"),
                            ([mine, "/none"], "--etcd-key /none: no private key without a passphrase can be read there"),
                            ([mine, mine], f"--etcd-key {mine}: no private key"),
                            ([mine, locked], f"--etcd-key {locked}: no private key without a passphrase"),
                            ([mine, self.path("other.key")],
                             f"--etcd-key {self.path('other.key')} is not the key of --etcd-cert {mine}")):
            with self.subTest(files=files):
                self.assertIn(says, self.refused("--etcd", "https://a", "--etcd-cert", files[0], "--etcd-key", files[1]))
        for option in ("--etcd-cert", "--etcd-key"):
            self.assertIn("requires --etcd-", self.refused("--etcd", "https://a", option, mine))

    def test_without_etcd_it_stands_by_and_says_so(self):
        job = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--no-auth", "--etcd",
                                  f"http://127.0.0.1:{free_port()}"])
        job.wait_for("etcd cannot be used: .*Connection refused")
        job.signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 0)


if __name__ == "__main__":
    if not shutil.which("etcd"):
        skip_all("there is no etcd (package etcd-server)")
    ddprun_case.main()
