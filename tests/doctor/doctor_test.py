"""ddprun doctor on machines that are ill: each defect is planted for real, and must be found under its name.

One machine: limits, mounts and cgroups of the doctor's own process, an NVML that lies. Several: network namespaces, which a
stand-in for ssh enters; a hook of each host makes it ill before ddprun starts there.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import DDPRUN, DdprunCase, skip_all, wait_until
from machines import Machines

SICK_NVML = os.path.join(os.path.dirname(ddprun_case.BIN), "tests", "libfake_sick_nvml.so")
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
PORT = 29517
# What other load, or another test beside this one, may do to a machine; checks_test.cc and others hold their limits.
NOT_OURS = {"leftovers", "loopback", "to each other", "packet loss", "computing", "memory speed"}

# Enters the namespace of a host with a name and mounts of its own, and does what its hook says.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
host=$2; shift 2
[ -e "{dir}/$host.dead" ] && {{ echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255; }}
hook="{dir}/$host.hook"; [ -e "$hook" ] || hook=/dev/null
exec ip netns exec "{stem}${{host#m}}" unshare --uts --mount \\
    /bin/sh -c 'hostname "$0"; . "$1"; shift; exec /bin/sh -c "$1"' "$host" "$hook" "$*"
"""


class Doctor(DdprunCase):
    def examine(self, job, patience=120):
        """The report, and the names of what is not well: {name: (status, where)}."""
        code = job.wait(patience)
        report = json.loads(job.out() or "null")
        self.assertIsNotNone(report, job.text())
        self.assertEqual(code, report["exit_code"], job.text())
        bad = {c["name"]: (c["status"], c.get("where", "")) for c in report["checks"] if c["status"] not in ("ok", "skipped")}
        return report, bad

    def check(self, report, name):
        return next(c for c in report["checks"] if c["name"] == name)

    def is_all(self, bad, planted, report):
        """Nothing but what was planted is found."""
        self.assertEqual({name for name in bad if name in planted or name not in NOT_OURS}, set(planted),
                         json.dumps(report, indent=1))

    def has(self, bad, name, status, where="", report=None):
        self.assertEqual(bad.get(name), (status, where), f"{bad}\n{json.dumps(report, indent=1)}")

    def names(self, bad, name, status, host, report):
        """The same of what is measured: other load may have slowed another host, too."""
        self.assertEqual(bad.get(name, ("",))[0], status, f"{bad}\n{json.dumps(report, indent=1)}")
        self.assertRegex(bad[name][1], rf"\b{host}\b")

    def ends_with(self, report, bad):
        """The exit code is that of the worst finding."""
        order = ("ok", "warn", "unknown", "fail")
        worst = max([status for status, _ in bad.values()], key=order.index, default="ok")
        self.assertEqual(report["exit_code"], {"ok": 0, "warn": 1, "unknown": 3, "fail": 2}[worst], report)

    def shows_only(self, planted, screen):
        """Nothing but what was planted is marked, and the last line counts the marks."""
        marked = re.findall(r"^ ([✗▲?]) (.{16}) ", screen, re.MULTILINE)
        names = {name.strip() for _, name in marked}
        self.assertEqual({name for name in names if name in planted or name not in NOT_OURS}, set(planted), screen)
        marks = [mark for mark, _ in marked]
        self.assertIn(f" {marks.count('✗')} to cure", screen)
        for mark, text in (("▲", "warning"), ("?", "not measured")):
            self.assertEqual(re.findall(rf"(\d+) {text}", screen), [str(marks.count(mark))] if mark in marks else [], screen)


class OneMachine(Doctor):
    def doctor(self, script="", *argv, env=None):
        """With a shell's words before it, in mounts of its own."""
        job = self.start_program(["unshare", "--mount", "/bin/sh", "-c", f'{script}\nexec "$@"', "sh", DDPRUN, "doctor", "--json",
                                  "--nproc-per-node", "2", "--port", str(ddprun_case.free_port()), *argv], env=env)
        return self.examine(job)

    def ill(self, script, name, status, cure, *argv, env=None):
        report, bad = self.doctor(script, *argv, env=env)
        self.has(bad, name, status, report=report)
        self.assertIn(cure, " ".join(c.get("cure", "") for c in report["checks"] if c["name"] == name))
        self.is_all(bad, {name}, report)

    def test_a_machine_that_is_well_has_nothing_to_cure(self):
        report, bad = self.doctor()
        self.is_all(bad, {}, report)
        self.ends_with(report, bad)
        self.assertEqual(self.check(report, "GPUs")["value"], "none here")
        self.report(f"{len(report['checks'])} checks took {report['took_ms']:.0f} ms")

    def test_few_descriptors(self):
        self.ill("ulimit -n 64", "open files", "fail", "ulimit -n")

    def test_few_soft_descriptors(self):
        self.ill("ulimit -Sn 256", "open files", "warn", "ulimit -n")

    def test_locked_memory_under_infiniband(self):
        self.ill("mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/mlx5_0 && ulimit -l 64", "locked memory",
                 "fail", "ulimit -l unlimited")

    def test_small_shared_memory(self):
        self.ill("mount -t tmpfs -o size=4m none /dev/shm", "/dev/shm", "fail", "remount")
        self.ill("mount -t tmpfs -o size=64m none /dev/shm", "/dev/shm", "warn", "remount")

    def test_a_memory_folder_without_room(self):
        report, _ = self.doctor("mount -t tmpfs -o size=64m none /dev/shm", "--memory-folder", "128M")
        found = self.check(report, "memory folder")
        self.assertEqual(found["status"], "fail", report)
        self.assertIn("--shm-size", found["cure"])
        report, _ = self.doctor("mount -t tmpfs -o size=512m none /dev/shm", "--memory-folder", "128M")
        self.assertEqual(self.check(report, "memory folder")["status"], "ok", report)

    def test_shared_memory_that_cannot_be_written(self):
        self.ill("mount -t tmpfs -o ro none /dev/shm", "/dev/shm", "fail", "mount")

    def test_temporary_folders(self):
        for script, status in (("export TMPDIR=$D/missing", "fail"),
                               ("mount -t tmpfs -o size=2g,noexec none $TMPDIR", "warn"),
                               ("mount -t tmpfs -o size=100m none $TMPDIR", "warn"),
                               ("mount -t tmpfs -o size=4k none $TMPDIR; echo x > $TMPDIR/full", "fail"),
                               ("mount -t tmpfs -o size=2g,ro none $TMPDIR", "fail"),
                               ("mount -t tmpfs -o size=2g,nr_inodes=20 none $TMPDIR", "warn")):
            with self.subTest(script):
                self.ill(script, "TMPDIR", status, "TMPDIR=")

    def cgroup_with(self, controller, values):
        """Of version 1 or 2, whichever has the controller here; the shell's words that enter it."""
        for root in (f"/sys/fs/cgroup/{controller}", "/sys/fs/cgroup"):
            folder = f"{root}/ddprun-doctor-test-{os.getpid()}"
            try:
                os.mkdir(folder)
            except OSError:
                continue
            self.addCleanup(lambda: wait_until(lambda: self.removed(folder), f"the end of {folder}"))
            try:
                for names, value in values.items():
                    name = next(n for n in names if os.path.exists(f"{folder}/{n}"))
                    with open(f"{folder}/{name}", "w", encoding="ascii") as f:
                        f.write(value if name != "cpu.max" else f"{value} 100000")
                return f"echo $$ > {folder}/cgroup.procs"
            except (OSError, StopIteration):
                continue
        self.skipTest(f"no cgroup with the controller {controller} can be made")

    @staticmethod
    def removed(folder):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def test_a_cgroup_that_leaves_no_memory(self):
        if ddprun_case.is_sanitized():
            self.skipTest("a sanitizer takes more memory than is left")
        enter = self.cgroup_with("memory", {("memory.limit_in_bytes", "memory.max"): str(100 << 20)})
        self.ill(enter, "memory", "fail", "--nproc-per-node")

    def test_a_cgroup_that_leaves_few_processors(self):
        enter = self.cgroup_with("cpu", {("cpu.cfs_quota_us", "cpu.max"): "50000"})
        self.ill(enter, "processors", "warn", "cpu.max")

    def test_a_cgroup_that_leaves_few_processes(self):
        enter = self.cgroup_with("pids", {("pids.max",): "24"})
        report, bad = self.doctor(enter)
        self.assertIn(bad.get("processes"), [("fail", ""), ("warn", "")], report)

    def test_a_name_that_is_not_known(self):
        job = self.start_program(["unshare", "--uts", "/bin/sh", "-c", 'hostname no-such-name-here && exec "$@"', "sh", DDPRUN,
                                  "doctor", "--json", "--nproc-per-node", "2", "--port", str(ddprun_case.free_port())])
        report, bad = self.examine(job)
        self.has(bad, "own name", "warn", report=report)
        self.is_all(bad, {"own name"}, report)
        self.assertIn("/etc/hosts", self.check(report, "own name")["cure"])

    def test_a_port_that_is_taken(self):
        with socket.socket() as s:
            s.bind(("0.0.0.0", 0))
            s.listen()
            port = s.getsockname()[1]
            self.ill("", f"port {port}", "warn", f"HOST:{port + 1}", "--port", str(port))

    def test_no_loopback(self):
        job = self.start_program(["unshare", "--net", DDPRUN, "doctor", "--json", "--nproc-per-node", "2"])
        report, bad = self.examine(job)
        self.has(bad, "loopback", "fail", report=report)

    def test_gpus_that_are_ill(self):
        for illness, status, cure in (("ecc", "fail", "CUDA_VISIBLE_DEVICES=0"), ("remap", "fail", "--gpu-reset"),
                                      ("hot", "warn", "nvidia-smi -q"), ("brake", "warn", "nvidia-smi -q"),
                                      ("narrow", "fail", "CUDA_VISIBLE_DEVICES=0"), ("nvlink", "fail", "nvlink"),
                                      ("prohibited", "fail", "--compute-mode"), ("used", "warn", "kill ")):
            with self.subTest(illness):
                self.ill("", "GPU 1", status, cure, env={"DDPRUN_NVML_LIB": SICK_NVML, "FAKE_SICK_NVML": illness})
        report, bad = self.doctor("", env={"DDPRUN_NVML_LIB": SICK_NVML})
        self.is_all(bad, {}, report)
        self.assertEqual(self.check(report, "GPUs")["value"], "2 × Fake H100")

    def test_a_driver_that_hangs_costs_its_deadline_only(self):
        report, bad = self.doctor("", env={"DDPRUN_NVML_LIB": SICK_NVML, "FAKE_SICK_NVML": "hang"})
        self.has(bad, "GPUs", "unknown", report=report)
        self.is_all(bad, {"GPUs"}, report)
        self.ends_with(report, bad)
        self.assertIn("no answer within", self.check(report, "GPUs")["note"])

    def test_a_worker_of_a_run_that_is_over(self):
        orphan = self.start_program(["/bin/sleep", "600"], env={"DDPRUN_JOB": "0123456789abcdef"})
        wait_until(orphan.processes, "the orphan")
        report, bad = self.doctor()
        self.has(bad, "leftovers", "warn", report=report)
        self.assertEqual([c["cure"] for c in report["checks"] if f"pid {orphan.pid} (sleep)" in c["value"]],
                         [f"kill {orphan.pid}"])
        orphan.end()

    def test_a_cgroup_of_a_run_that_is_over(self):
        if not self.cgroup.path:
            self.skipTest("no cgroup can be made")
        gone = subprocess.Popen(["/bin/true"])
        gone.wait(20)
        left = f"{self.cgroup.path}/ddprun-{gone.pid}"
        os.makedirs(f"{left}/agent-1/0")
        report, bad = self.doctor()
        self.has(bad, "leftovers", "warn", report=report)
        cure = next(c["cure"] for c in report["checks"] if f"cgroup ddprun-{gone.pid}" in c["value"])
        subprocess.run(["/bin/sh", "-c", cure], check=True, timeout=20)
        self.assertFalse(os.path.exists(left))

    def test_shared_memory_of_a_process_that_is_gone(self):
        self.ill("mount -t tmpfs none /dev/shm && touch /dev/shm/torch_4194303_1", "leftovers", "warn",
                 "rm /dev/shm/torch_4194303_1")

    def test_workers_that_run_are_no_leftovers(self):
        gate = self.gate()
        job = self.start("--nproc-per-node", "2", *ddprun_case.shell(ddprun_case.env_to() + ddprun_case.PASS_GATE))
        self.wait_for_workers(2, jobs=[job])
        report, _ = self.doctor("mount -t tmpfs none /dev/shm")  # Other tests leave files in the machine's own.
        found = " ".join(c["value"] for c in report["checks"] if c["name"] == "leftovers")
        self.assertEqual([pid for pid in job.processes() if f"pid {pid} " in found], [], report)
        gate.open()
        self.finish(job)

    def test_a_program_that_is_not_there(self):
        report, bad = self.doctor("", "--", "no-such-program-here")
        self.has(bad, "program", "fail", report=report)

    def test_the_screen_is_for_people(self):
        job = self.start_program(["/bin/sh", "-c", 'ulimit -n 64; exec "$@"', "sh", DDPRUN, "doctor", "--nproc-per-node", "2",
                                  "--port", str(ddprun_case.free_port())], env={"LC_ALL": "C.UTF-8", "TERM": "xterm"})
        self.assertEqual(job.wait(), 2, job.text())
        self.assertRegex(job.out(), r" MACHINE\n ✗ open files +64 +ddprun needs \d+ for 2 workers: ulimit -n 1024\n")
        self.assertRegex(job.out(), r" to cure[^;]*; \d+ checks took ")
        self.shows_only({"open files"}, job.out())
        self.assertNotIn("\x1b", job.out())

    def test_usage(self):
        job = self.start("doctor", "--no-such-flag")
        self.assertEqual(job.wait(), 3, job.text())
        self.assertIn("ddprun doctor --help", job.err())
        job = self.start("doctor", "--help")
        self.assertEqual(job.wait(), 0, job.text())
        self.assertIn("--hosts", job.out())


class Preflight(DdprunCase):
    def run_with(self, preflight, limit, *worker):
        job = self.start_program(["/bin/sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", DDPRUN, "--nproc-per-node", "2",
                                  "--preflight", preflight, *worker])
        return job

    def test_fast_says_what_is_wrong_and_starts_all_the_same(self):
        gate = self.gate()
        job = self.run_with("fast", 60, *ddprun_case.shell(ddprun_case.PASS_GATE))
        job.wait_for(r"warning: open files: 60 .*ulimit -n")
        gate.open()
        self.finish(job)

    def test_full_keeps_an_unfit_node_out(self):
        job = self.run_with("full", 60, *ddprun_case.shell('touch "$D/started"'))
        self.finish(job, 2)
        self.assertIn("is unfit for this run", job.err())
        self.assertFalse(os.path.exists(self.path("started")))

    def test_where_all_is_well_nothing_is_said(self):
        for preflight in ("off", "fast", "full"):
            job = self.run_with(preflight, 4096, "/bin/true")
            self.finish(job)
            others = "|".join(NOT_OURS)
            self.assertEqual([line for line in job.err().splitlines() if not re.search(f"warning: ({others}): ", line)], [])


class SeveralMachines(Doctor):
    def setUp(self):
        super().setUp()
        if Machines.missing():
            self.skipTest(Machines.missing())
        self.machines = Machines(4, "10.81.0")
        self.machines.__enter__()
        self.addCleanup(self.machines.__exit__)
        self.addCleanup(lambda: [job.end() for job in self.jobs])
        self.write("ssh", SSH.format(dir=self.dir, stem=self.machines.names[0][:-1]))
        os.chmod(self.path("ssh"), 0o755)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="ascii") as f:
            f.write(text)

    def hook(self, host, text):
        self.write(f"{host}.hook", text + "\n")

    def ip(self, host, *argv):
        subprocess.run(["ip", "-n", self.machines.names[int(host[1:])], *argv], check=True, timeout=20)

    def doctor(self, hosts="m1,m2,m3", *argv):
        script = 'hostname m0 && exec "$@"'
        job = self.start_program(["unshare", "--uts", "/bin/sh", "-c", script, "sh", DDPRUN, "doctor", "--json", "--ssh",
                                  self.path("ssh"), "--env", "D", "--nproc-per-node", "2", "--port", str(PORT), "--hosts",
                                  hosts, *argv], netns=self.machines.names[0])
        return self.examine(job)

    def ill(self, name, status, where, hosts="m1,m2,m3", argv=()):
        report, bad = self.doctor(hosts, *argv)
        self.has(bad, name, status, where, report)
        self.is_all(bad, {name}, report)
        return report

    def test_machines_that_are_well_have_nothing_to_cure(self):
        report, bad = self.doctor()
        self.is_all(bad, {}, report)
        names = [c["name"] for c in report["checks"]]
        for name in ("ddprun", "same bits", "MTU", "clock", f"reaches :{PORT}", "reach each other", "to each other",
                     "packet loss", "computing", "memory speed"):
            self.assertIn(name, names)
        self.report(f"{len(names)} checks of 3 nodes took {report['took_ms']:.0f} ms")

    def test_a_host_that_cannot_be_reached(self):
        self.write("m2.dead", "")
        report = self.ill("ssh", "fail", "")
        self.assertIn("m2 does not answer ssh", self.check(report, "ssh")["note"])

    def test_a_limit_of_one_node(self):
        self.hook("m2", "ulimit -n 64")
        self.ill("open files", "fail", "on m2")

    def test_shared_memory_of_one_node(self):
        self.hook("m3", "mount -t tmpfs -o size=4m none /dev/shm")
        self.ill("/dev/shm", "fail", "on m3")

    @unittest.skipUnless(os.path.exists(FAKETIME), "there is no libfaketime")
    def test_a_clock_that_is_off(self):
        if ddprun_case.is_sanitized():
            self.skipTest("libfaketime does not work with sanitizers")
        self.hook("m2", f"export LD_PRELOAD={FAKETIME} FAKETIME=+4s FAKETIME_DONT_FAKE_MONOTONIC=1")
        self.ill("clock", "warn", "on m2")

    def test_a_name_that_is_not_known_there(self):
        self.write("hosts", "127.0.0.1 localhost\n10.81.0.3 m2\n")
        self.hook("m2", f"mount --bind {self.dir}/hosts /etc/hosts")
        self.ill(f"reaches :{PORT}", "fail", "on m2")

    def test_a_name_that_means_loopback(self):
        self.write("hosts", "127.0.0.1 localhost\n127.0.1.1 m2\n10.81.0.2 m1\n")
        self.hook("m2", f"mount --bind {self.dir}/hosts /etc/hosts")
        self.ill("own name", "warn", "on m2")

    def test_a_port_that_is_blocked(self):
        self.ip("m3", "rule", "add", "ipproto", "tcp", "dport", str(PORT), "prohibit")
        self.ill(f"reaches :{PORT}", "fail", "on m3")

    def test_two_that_do_not_reach_each_other(self):
        self.ip("m3", "route", "add", "prohibit", "10.81.0.3/32")  # m2
        report = self.ill("reach each other", "fail", "on m2, m3")
        self.assertIn("m2", self.check(report, "reach each other")["note"])

    def test_another_mtu(self):
        self.ip("m2", "link", "set", "wire", "mtu", "1400")
        self.ill("MTU", "warn", "on m2")

    def test_large_packets_that_vanish(self):
        for host in ("m1", "m2"):
            self.ip(host, "link", "set", "wire", "mtu", "9000", "gso_max_segs", "1")
        report, bad = self.doctor("m1,m2")
        self.assertIn("data does not arrive", json.dumps(report), report)
        self.assertEqual(report["exit_code"], 2)

    def test_a_slow_link(self):
        self.shape("m3", "rate", "100mbit", "burst", "64kbit", "latency", "50ms")
        report, bad = self.doctor()
        self.names(bad, "to each other", "warn", "m3", report)
        self.is_all(bad, {"to each other"}, report)

    def test_a_faster_network_that_is_not_used(self):
        """A second cable between two, beside a slow one to which their names lead."""
        self.ip("m1", "link", "add", "fast", "type", "veth", "peer", "name", "fast2", "netns", self.machines.names[2])
        for host, interface, address in (("m1", "fast", "10.82.0.1/24"), ("m2", "fast2", "10.82.0.2/24")):
            self.ip(host, "addr", "add", address, "dev", interface)
            self.ip(host, "link", "set", interface, "up")
            self.shape(host, "rate", "20mbit", "burst", "64kbit", "latency", "50ms")
        wait_until(lambda: not any(self.lacks_carrier(host) for host in ("m1", "m2")), lambda: "no carrier")
        report, bad = self.doctor("m1,m2")
        self.assertEqual(bad.get("over 10.82.0.0/24", ("",))[0], "warn", report)
        check = self.check(report, "over 10.82.0.0/24")
        self.assertRegex(check["note"], "the network of the names has 0.00[0-9]* GB/s, and is used")
        self.assertEqual(check["cure"], "DDPRUN_SOCKET_IFNAME=fast")

    def lacks_carrier(self, host):
        """The kernel notices a cable a moment after it is plugged in."""
        return "NO-CARRIER" in subprocess.run(["ip", "-n", self.machines.names[int(host[1:])], "link"], capture_output=True, text=True,
                                              timeout=20, check=True).stdout

    def test_packets_that_are_lost(self):
        self.shape("m2", "rate", "2gbit", "burst", "20kb", "limit", "25kb")
        report, bad = self.doctor()
        self.names(bad, "packet loss", "warn", "m2", report)

    def shape(self, host, *how):
        tc = shutil.which("tc", path="/usr/sbin:/sbin:/usr/bin")
        made = tc and subprocess.run(["ip", "netns", "exec", self.machines.names[int(host[1:])], tc, "qdisc", "add", "dev", "wire",
                                      "root", "tbf", *how], capture_output=True, timeout=20, check=False)
        if not made or made.returncode != 0:
            self.skipTest("the kernel has no token bucket")

    def program(self):
        shutil.copy("/usr/bin/ssh", self.path("train"))
        return self.path("train")

    def test_another_library(self):
        train = self.program()
        listed = subprocess.run(["ldd", train], capture_output=True, text=True, timeout=20, check=True).stdout
        path = next((line.split()[2] for line in listed.splitlines() if "libz.so" in line), None)
        if not path:
            self.skipTest("ssh is not linked with libz")
        os.mkdir(self.path("other"))
        shutil.copy(path, self.path("other/libz.so.1"))
        with open(self.path("other/libz.so.1"), "ab") as f:
            f.write(b"another")
        self.hook("m3", f"export LD_LIBRARY_PATH={self.dir}/other")
        self.ill("libz.so.1", "fail", "on m3", argv=("--", train))

    def test_another_program(self):
        train = self.program()
        shutil.copy("/usr/bin/env", self.path("older"))
        self.hook("m2", f"mount --bind {self.path('older')} {train}")
        report, bad = self.doctor("m1,m2,m3", "--", train)
        self.has(bad, "program", "fail", "on m2", report)

    def test_a_program_that_is_missing_on_one(self):
        os.mkdir(self.path("private"))
        shutil.copy("/usr/bin/env", self.path("private/train"))
        self.hook("m2", f"mount -t tmpfs none {self.path('private')}")
        report, bad = self.doctor("m1,m2,m3", "--", self.path("private/train"))
        self.has(bad, "program", "fail", "on m2", report)

    def test_gpus_of_one_node(self):
        for host in ("m1", "m2", "m3"):
            illness = "ecc" if host == "m2" else "none"
            self.hook(host, f"export DDPRUN_NVML_LIB={SICK_NVML} FAKE_SICK_NVML={illness}")
        self.ill("GPU 1", "fail", "on m2")

    def test_the_screen_of_several(self):
        self.hook("m2", "ulimit -n 64")
        job = self.start_program([DDPRUN, "doctor", "--ssh", self.path("ssh"), "--nproc-per-node", "2", "--port", str(PORT),
                                  "--hosts", "m1,m2"], netns=self.machines.names[0], env={"LC_ALL": "C.UTF-8"})
        self.assertEqual(job.wait(120), 2, job.text())
        self.assertRegex(job.out(), r"\n +m1 +m2\n ✗ open files +[\d,]+ +64 ")
        self.assertRegex(job.out(), r" to cure[^;]*; 2 nodes, \d+ checks took ")
        self.shows_only({"open files"}, job.out())


if __name__ == "__main__":
    if os.geteuid() != 0 or not shutil.which("unshare"):
        skip_all("limits, mounts and host names of one's own need root and unshare")
    ddprun_case.main()
