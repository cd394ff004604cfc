"""deploy/container/Containerfile: the image of the programs, built by buildah from a Debian that debootstrap makes, and used.

The package in it is made of this build's programs. The image "train" is only read: its base and PyTorch would have to be
downloaded. Needs root, buildah, runc or crun, debootstrap, dpkg-deb and a mirror of Debian."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import BIN, MARKER, DdprunCase, free_port, wait_until

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FILE = os.path.join(ROOT, "deploy", "container", "Containerfile")
PROGRAMS = ("ddprun", "ddprun-rendezvous", "ddprunctl")


def missing():
    if os.geteuid() != 0:
        return "a root of its own needs root"
    for program in ("buildah", "runc", "debootstrap", "dpkg-deb", "strip"):
        if not shutil.which(program):
            return f"there is no {program}"
    return None


class Text(unittest.TestCase):
    def setUp(self):
        with open(FILE, encoding="utf-8") as f:
            joined = f.read().replace("\\\n", " ")
        self.lines = [line for line in joined.splitlines() if line and not line.startswith("#")]

    def test_each_stage_is_one_that_the_file_names(self):
        stages = dict(re.match(r"FROM (\S+) AS (\S+)", line).groups()[::-1] for line in self.lines if line.startswith("FROM"))
        self.assertEqual(stages, {"unpacked": "${BASE}", "programs": "scratch", "train": "${PYTHON}"})
        for stage in re.findall(r"--from=(\S+)", "\n".join(self.lines)):
            self.assertIn(stage, stages)
        defaults = {line.split("=")[0] for line in self.lines if line.startswith("ARG ")}
        self.assertEqual(defaults, {"ARG BASE", "ARG PYTHON", "ARG TORCH"})

    def test_what_is_copied_is_what_the_scripts_make(self):
        copied = [line.split()[1] for line in self.lines if line.startswith("COPY ") and "--from" not in line]
        self.assertEqual(copied, ["ddprun_*.deb", "ddprun-*.whl"])
        for script, words in (("package.sh", "build/packages/ddprun_VERSION_ARCHITECTURE.deb"), ("wheel.sh", "build/wheels/ddprun-")):
            with open(os.path.join(ROOT, "deploy", script), encoding="utf-8") as f:
                self.assertIn(words, f.read())

    def test_no_image_runs_as_root(self):
        users = [line for line in self.lines if line.startswith("USER ")]
        self.assertEqual(users, ["USER 1000:1000"] * 2)


@unittest.skipIf(missing(), missing())
class Programs(DdprunCase):
    def setUp(self):
        super().setUp()
        with open(self.path("policy.json"), "w", encoding="ascii") as f:
            json.dump({"default": [{"type": "insecureAcceptAnything"}]}, f)
        self.addCleanup(self.unmount)

    def unmount(self):
        subprocess.run([*self.buildah(), "umount", "--all"], capture_output=True, timeout=60, check=False)

    def buildah(self):
        return ["buildah", "--storage-driver", "vfs", "--root", self.path("storage"), "--runroot", self.path("run")]

    def call(self, *argv, patience=300):
        done = subprocess.run([*self.buildah(), *argv], capture_output=True, text=True, timeout=patience, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        return done.stdout.strip()

    def base(self):
        """A fresh Debian, as an image."""
        try:
            container = self.call("from", "scratch")
            root = self.call("mount", container)
        except AssertionError as refused:
            self.skipTest(f"this machine lets buildah make no container: {refused}")
        ready = os.environ.get("DDPRUN_TEST_DEBIAN")  # A folder that debootstrap has made before.
        command = ["cp", "-a", ready + "/.", root] if ready else ["debootstrap", "--variant=minbase", "bookworm", root]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            self.skipTest("debootstrap: " + (done.stderr or done.stdout)[-300:])
        self.call("umount", container)
        self.call("commit", "--signature-policy", self.path("policy.json"), container, "localhost/debian-of-the-tests")
        return "localhost/debian-of-the-tests"

    def package(self):
        """A folder with a .deb of this build's programs."""
        tree, folder = self.path("tree"), self.path("packages")
        for name in (tree + "/DEBIAN", tree + "/usr/bin", tree + "/usr/share/man/man1", folder):
            os.makedirs(name)
        for program in PROGRAMS:
            subprocess.run(["strip", "-o", f"{tree}/usr/bin/{program}", os.path.join(BIN, program)], check=True, timeout=60)
        with open(tree + "/usr/share/man/man1/ddprun.1", "w", encoding="ascii") as f:
            f.write(".TH ddprun 1\n")
        with open(tree + "/DEBIAN/control", "w", encoding="ascii") as f:
            f.write("Package: ddprun\nVersion: 0\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: of a test\n")
        subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--build", "--root-owner-group", tree, folder + "/ddprun_0_all.deb"], check=True,
                       capture_output=True, timeout=120)
        return folder

    def test_the_image_of_the_programs_runs_a_daemon_and_has_no_shell(self):
        self.call("build", "--isolation", "chroot", "--signature-policy", self.path("policy.json"), "--pull-never", "--file", FILE,
                  "--build-arg", "BASE=" + self.base(), "--target", "programs", "--tag", "localhost/ddprun", self.package())
        config = json.loads(self.call("inspect", "--type", "image", "localhost/ddprun"))["OCIv1"]["config"]
        self.assertEqual((config["User"], config["Cmd"]), ("1000:1000", ["ddprun-rendezvous", "--address", "0.0.0.0"]))
        container = self.call("from", "--signature-policy", self.path("policy.json"), "--pull-never", "localhost/ddprun")
        root = self.call("mount", container)
        files = sorted(os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names)
        self.report(f"{len(files)} files, {sum(os.path.getsize(os.path.join(root, f)) for f in files) // 1000000} MB")
        self.assertEqual([f for f in files if f.startswith("usr/bin/")], ["usr/bin/" + program for program in PROGRAMS])
        self.assertFalse(os.path.exists(root + "/bin/sh"))
        self.assertFalse([f for f in files if f.startswith("usr/share/man")])
        self.assertIn("ddprun", self.run_in(container, "ddprun", "--version").out())
        port = free_port()
        env = ["--env", "DDPRUN_TOKEN=a token of the tests"]
        daemon = self.start_in(container, *env, "--", "ddprun-rendezvous", "--port", str(port))
        daemon.wait_for("listening on")
        (program,) = wait_until(lambda: [p for p in daemon.processes() if p.name == "ddprun-rendezvo"], lambda: f"the daemon in {daemon.processes()}")
        self.assertEqual(os.stat(f"/proc/{program.pid}").st_uid, 1000)
        worker = self.start_in(container, *env, "--", "ddprun", "--nnodes", "1", "--rdzv-endpoint", f"127.0.0.1:{port}",
                               "--rdzv-conf", "is_host=0", "--rdzv-id", "r", "ddprun", "--version")
        self.assertEqual(worker.wait(), 0, worker.text())
        status = self.start_in(container, *env, "--", "ddprunctl", "-e", f"127.0.0.1:{port}", "status")
        self.assertEqual(status.wait(), 0, status.text())
        self.assertRegex(status.out(), r"(?m)^r\s+.*ended")

    def start_in(self, container, *argv):
        """`buildah run`, whose own options end at "--" and which passes nothing of its environment on, so the mark neither."""
        at = argv.index("--")
        before = shlex.join([*self.buildah(), "run", "--isolation", "chroot", *argv[:at]])
        return self.start_program(["/bin/sh", "-c", f'exec {before} --env {MARKER}="${MARKER}" {shlex.join([container, *argv[at:]])}'])

    def run_in(self, container, *argv):
        job = self.start_in(container, "--", *argv)
        self.assertEqual(job.wait(), 0, job.text())
        return job


if __name__ == "__main__":
    ddprun_case.main()
