"""--hosts: nodes on other machines, started by a real ssh through a real sshd.

The machines are network namespaces with host names of their own; keys, configuration and sshd's own files are in the test's
folder. What sshd starts carries the test's mark, which sshd is told to set.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import ddprun_case
from ddprun_case import BIN, DDPRUN, DdprunCase, column, env_to, shell, skip_all, wait_until
from machines import Machines

SECRET = "a-token-of-the-tests"
SSHD = """
HostKey {dir}/host_key
AuthorizedKeysFile {dir}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
SetEnv {marker} XDG_CACHE_HOME={dir}/cache PATH={dir}/path:/usr/bin:/bin
"""
SSH = """
Host *
  User root
  IdentityFile {dir}/{key}
  IdentitiesOnly yes
  UserKnownHostsFile {dir}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  LogLevel ERROR
"""


def missing():
    for program in ("ssh", "sshd", "ssh-keygen"):
        if not shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin"):
            return f"there is no {program} (packages openssh-client and openssh-server)"
    return Machines.missing()


class Hosts(DdprunCase):
    """m0 is where the user types; m1 and m2 run sshd, m3 does not."""

    def setUp(self):
        super().setUp()
        self.machines = Machines(4, "10.80.0")
        self.machines.__enter__()
        self.addCleanup(self.machines.__exit__)
        self.addCleanup(lambda: [job.end() for job in self.jobs])
        os.makedirs("/run/sshd", exist_ok=True)  # sshd insists on it.
        for key in ("host_key", "key", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(key)], check=True, timeout=60)
        shutil.copy(self.path("key.pub"), self.path("authorized_keys"))
        self.know(*self.machines.hosts, "10.80.0.2")
        for name, key in (("ssh_config", "key"), ("stranger_config", "stranger")):
            self.write(name, SSH.format(dir=self.dir, key=key))
        for machine in (1, 2):
            self.sshd(machine)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="ascii") as f:
            f.write(text)

    def know(self, *hosts):
        with open(self.path("host_key.pub"), encoding="ascii") as f:
            key = " ".join(f.read().split()[:2])
        self.write("known_hosts", "".join(f"{host} {key}\n" for host in hosts))

    def sshd(self, machine):
        """Under a mark of its own, so that its sessions are found too."""
        marker = f"{ddprun_case.MARKER}={os.urandom(8).hex()}"
        self.write(f"sshd_config{machine}", SSHD.format(dir=self.dir, marker=marker))
        job = self.on(machine, "/usr/sbin/sshd", "-D", "-e", "-f", self.path(f"sshd_config{machine}"))
        job.marker = marker.split("=")[1]
        self.addCleanup(lambda: (os.kill(job.pid, signal.SIGTERM), job.wait()))
        job.wait_for("Server listening on 0.0.0.0")

    def on(self, machine, *argv, env=None):
        script = f'hostname {self.machines.hosts[machine]} && exec "$@"'
        return self.start_program(["unshare", "--uts", "/bin/sh", "-c", script, "sh", *argv],
                                  netns=self.machines.names[machine], env=env)

    def hosts(self, *argv, config="ssh_config", env=None):
        return self.on(0, DDPRUN, "--ssh", "ssh -F " + self.path(config), "--env", "D", "--hosts", *argv, env=env)

    def ddpruns(self):
        return [p for job in self.jobs for p in job.processes() if p.name.startswith(("ddprun", "sleep"))]

    def end_well(self, job, code=0, patience=60):
        self.assertEqual(job.wait(patience), code, job.text())
        wait_until(lambda: not self.ddpruns(), lambda: f"left: {self.ddpruns()}\n{job.text()}")

    def test_each_host_is_a_node_with_its_workers(self):
        job = self.hosts("m1,root@m2:3", "--nproc-per-node", "2", "--env", "MINE,D", *shell(env_to()),
                         env={"OMP_NUM_THREADS": "5", "MINE": "a b", "HIDDEN": "1", "DDPRUN_TOKEN": SECRET})
        self.end_well(job)
        workers = self.wait_for_workers(5, jobs=[job])
        self.assertEqual(column(workers, "RANK"), ["0", "1", "2", "3", "4"])
        self.assertEqual(column(workers, "GROUP_RANK"), ["0", "0", "1", "1", "1"])
        self.assertEqual(set(column(workers, "MASTER_ADDR")), {"10.80.0.2"})
        for name, value in {"OMP_NUM_THREADS": "5", "MINE": "a b", "PWD": self.dir, "HIDDEN": None,
                            "DDPRUN_TOKEN": None}.items():
            self.assertEqual(set(column(workers, name)), {value}, name)

    def test_nothing_secret_is_an_argument(self):
        gate = self.gate()
        job = self.hosts("m1,m2", *shell(env_to() + ddprun_case.PASS_GATE),
                         env={"DDPRUN_TOKEN": SECRET, "OMP_NUM_THREADS": "hidden-too"})
        self.wait_for_workers(2, jobs=[job])
        seen = [p for j in self.jobs for p in j.processes()]
        self.assertGreater(sum(p.name == "ssh" for p in seen), 1)
        self.assertGreater(sum(p.name == "ddprun" for p in seen), 4)
        for process in seen:
            self.assertNotIn(SECRET, " ".join(process.argv))
            self.assertNotIn("hidden-too", " ".join(process.argv))
        gate.open()
        self.end_well(job)

    def test_lines_are_whole_and_named(self):
        script = 'i=0; while [ $i -lt 3000 ]; do echo "line $i of $RANK"; echo "err $i of $RANK" >&2; i=$((i+1)); done'
        job = self.hosts("m1,m2", "--nproc-per-node", "2", *shell(script))
        self.end_well(job)
        for text, word in ((job.out(), "line"), (job.err(), "err")):
            lines = [line for line in text.splitlines() if word in line]
            for rank in range(4):
                name = f"[m{1 + rank // 2}] "
                mine = [line for line in lines if line.endswith(f" of {rank}")]
                self.assertTrue(all(line.startswith(name) for line in mine))
                self.assertEqual([int(re.search(word + r" (\d+) of", line).group(1)) for line in mine],
                                 list(range(3000)))
            self.assertEqual(len(lines), 12000)

    def test_this_machine_needs_no_ssh(self):
        job = self.hosts("m0,m1", *shell('echo "$RANK on $(hostname)"'))
        self.end_well(job)
        self.assertIn("0 on m0", job.out())
        self.assertIn("1 on m1", job.out())

    def test_the_exit_code_is_the_workers_own(self):
        for code in (7, 255):
            job = self.hosts("m1,m2", *shell(f'[ "$RANK" = 1 ] && exit {code}; exec sleep 600'))
            self.end_well(job, code)
            self.assertRegex(job.err(), r"\[m1\] ddprun: error: rank 1 .* on m2 failed first")

    def test_ctrl_c_ends_all_of_them(self):
        job = self.hosts("m1,m2", "--nproc-per-node", "2", *shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(4, jobs=[job])
        job.signal(signal.SIGINT)
        self.end_well(job, 130)

    def test_all_ends_when_the_launching_one_is_killed(self):
        job = self.hosts("m1,m2", "--nproc-per-node", "2", *shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(4, jobs=[job])
        began = time.monotonic()
        job.signal(signal.SIGKILL)
        wait_until(lambda: not self.ddpruns(), lambda: f"left: {self.ddpruns()}")
        self.report(f"gone after {time.monotonic() - began:.2f} s")

    def test_a_connection_that_dies_ends_that_node(self):
        job = self.hosts("m1,m2", "--rdzv-conf", "join_timeout=3", *shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(2, jobs=[job])
        second = [p for p in job.children() if p.name == "ssh" and "m2" in p.argv]
        os.kill(second[0].pid, signal.SIGKILL)
        self.assertNotEqual(job.wait(60), 0, job.text())
        self.assertIn("the connection to m2 broke", job.err())
        wait_until(lambda: not self.ddpruns(), lambda: f"left: {self.ddpruns()}")

    def refused(self, sentence, *argv, **options):
        job = self.hosts(*argv, "true", **options)
        self.end_well(job, 3)
        self.assertRegex(job.err(), sentence)
        return job

    def test_why_a_host_cannot_be_used_is_a_sentence(self):
        self.refused("m9 is not known: no such host name", "m1,m9")
        self.refused(r"m3 does not answer ssh \(connection refused\)", "m1,m3")
        self.refused("10.80.0.99 cannot be reached", "m1,10.80.0.99")
        self.refused(r"m1 refuses our key: ssh has to work there without a password", "m1", config="stranger_config")
        self.know("m1")
        self.refused("m2's host key is not known here", "m1,m2")

    def privately(self, *argv):
        """As hosts(), by a program that lies where only the launching machine sees it."""
        private = self.path("private")
        os.makedirs(private, exist_ok=True)
        script = f"mount -t tmpfs none {private} && cp {BIN}/ddprun {BIN}/ddprun-rendezvous {private}/ && exec {private}/ddprun \"$@\""
        return self.on(0, "unshare", "--mount", "/bin/sh", "-c", script, "sh", "--ssh",
                       "ssh -F " + self.path("ssh_config"), "--env", "D", "--hosts", *argv)

    def in_path(self, name, script):
        """A program that the hosts find in PATH."""
        os.makedirs(self.path("path"), exist_ok=True)
        self.write("path/" + name, "#!/bin/sh\n" + script)
        os.chmod(self.path("path/" + name), 0o755)

    def test_a_copy_s_workers_have_the_hosts_own_file_mode_and_the_python_beside_another_release(self):
        job = self.hosts("m1", *shell("umask"))
        self.end_well(job)
        (mask,) = re.findall(r"(?m)\b(\d{4})$", job.out())
        self.assertNotEqual(mask, "0077")
        env = f"{self.dir}/private"
        script = f"mount -t tmpfs none {env} && mkdir {env}/bin && cd {env}/bin && cp {BIN}/ddprun {BIN}/ddprun-rendezvous . && " \
                 f"cd {self.dir} && exec {env}/bin/ddprun \"$@\""
        os.makedirs(env + "/bin")
        self.write("private/pyvenv.cfg", "")
        os.symlink(sys.executable, env + "/bin/python3")
        for copying in (True, False):
            job = self.on(0, "unshare", "--mount", "/bin/sh", "-c", script, "sh", "--ssh",
                          "ssh -F " + self.path("ssh_config"), "--env", "D", "--hosts", "m1", *shell('umask; echo "by $PYTHON_EXEC"'))
            self.end_well(job)
            self.assertEqual("copying" in job.err(), copying, job.err())
            self.assertRegex(job.out(), rf"(?m)\b{mask}$")
            self.assertIn(f"by {env}/bin/python3\n", job.out())

    def test_what_ssh_runs_is_one_line_for_any_login_shell(self):
        """csh ends a quoted word at a line break: "Unmatched '"."""
        self.in_path("my_ssh", 'for last; do :; done; printf %s "$last" >"$D/command"; exit 255\n')
        job = self.on(0, DDPRUN, "--ssh", self.path("path/my_ssh"), "--hosts", "m1", "true")
        self.end_well(job, 3)
        with open(self.path("command"), encoding="utf-8") as f:
            command = f.read()
        self.assertTrue(command.startswith("exec /bin/sh -c '"), command)
        self.assertNotIn("\n", command)
        self.assertNotIn("# ", command)

    def test_a_host_without_ddprun_gets_a_copy(self):
        line = r"m1 has no ddprun [\d.]+: copying this one, [\d.]+ MB, into the cache folder there\n"
        job = self.privately("m1", "--nproc-per-node", "2", *shell('echo "rank $RANK of $WORLD_SIZE"'))
        self.end_well(job)
        self.assertEqual(len(re.findall(line, job.err())), 1, job.err())
        self.assertEqual(sorted(re.findall(r"rank \d of 2", job.out())), ["rank 0 of 2", "rank 1 of 2"])
        folder = self.path("cache/ddprun")
        (name,) = os.listdir(folder)
        self.assertRegex(name, "^[0-9a-f]{64}$")
        self.assertEqual(sorted(os.listdir(f"{folder}/{name}/bin")), ["ddprun", "ddprun-rendezvous"])
        self.in_path("ddprun", "echo ddprun 0.0.9\n")  # Another release is as good as none.
        job = self.privately("m1", "true")
        self.end_well(job)
        self.assertNotIn("copying", job.err())
        self.assertEqual(os.listdir(folder), [name])

    def test_why_a_host_gets_no_copy_is_a_sentence(self):
        self.write("cache", "a file, not a folder")
        job = self.privately("m1", "true")
        self.end_well(job, 3)
        self.assertRegex(job.err(), r"this ddprun could not be copied to m1 \(code 126\): .*cannot create directory")
        self.in_path("uname", "echo aarch64\n")
        job = self.privately("m1", "true")
        self.end_well(job, 3)
        self.assertIn("this one cannot be copied there: m1 is of the kind aarch64, this machine of the kind", job.err())

    def test_enough_hosts_are_enough(self):
        job = self.hosts("m3,m1,m2", "--nnodes", "2:3", *shell('echo "rank $RANK of $WORLD_SIZE"'),
                         env={"PET_RDZV_CONF": "last_call_timeout=1"})
        self.end_well(job)
        self.assertIn("warning: m3 does not answer ssh", job.err())
        self.assertEqual(sorted(re.findall(r"rank \d of \d", job.out())), ["rank 0 of 2", "rank 1 of 2"])

    def test_a_folder_that_is_not_there_is_said(self):
        private = self.path("private")
        os.mkdir(private)
        script = f"mount -t tmpfs none {private} && mkdir {private}/mine && cd {private}/mine && exec \"$@\""
        job = self.on(0, "unshare", "--mount", "/bin/sh", "-c", script, "sh", DDPRUN, "--ssh",
                      "ssh -F " + self.path("ssh_config"), "--hosts", "m1", "true")
        self.end_well(job, 2)
        self.assertIn(f"there is no folder {private}/mine here", job.err())


if __name__ == "__main__":
    if missing():
        skip_all(missing())
    ddprun_case.main()
