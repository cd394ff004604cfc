"""--host-discovery: a script lists the hosts, and workers that keep their process go on while hosts come and go.

The script runs the shell commands in the file $D/answer, which a test replaces. In place of ssh there is a script that runs
the command here, as a child of its own, unless there is a file $D/down.HOST.
"""

import os
import re
import signal

import paths  # noqa: F401
import ddprun_case
from ddprun_case import env_to, shell, wait_until
from reseat_case import ReseatCase, WORKER

SCRIPT = """#!/bin/sh
echo asked >> "$D/asked"
. "$D/answer"
"""
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
if [ -e "$D/down.$2" ]; then
  echo "ssh: connect to host $2 port 22: Connection refused" >&2
  exit 255
fi
echo $$ > "$D/ssh.$2.$$"
mv "$D/ssh.$2.$$" "$D/ssh.$2"
exec 3<&0
/bin/sh -c "$3" <&3 3<&- &
exec 3<&-
wait $!
"""
PERIOD = "0.3"


class Discovery(ReseatCase):
    def setUp(self):
        super().setUp()
        for name, text in (("script", SCRIPT), ("ssh", SSH)):
            self.write(name, text)
            os.chmod(self.path(name), 0o755)

    def write(self, name, text):
        """At once, for whoever reads it."""
        with open(self.path(name + ".new"), "w", encoding="ascii") as f:
            f.write(text)
        os.rename(self.path(name + ".new"), self.path(name))

    def list_hosts(self, *hosts):
        self.write("answer", "".join(f"echo {host}\n" for host in hosts))

    def discover(self, *argv, nnodes="1:3", worker=None, env=None):
        return self.start("--host-discovery", self.path("script"), "--host-discovery-period", PERIOD, "--ssh", self.path("ssh"),
                          "--nnodes", nnodes, "--local-addr", "127.0.0.1", "--rdzv-conf", "last_call_timeout=0.2",
                          "--max-restarts", "3", *argv, *(worker or WORKER), env=env)

    def asked(self):
        try:
            with open(self.path("asked"), encoding="ascii") as f:
                return f.read().count("asked")
        except FileNotFoundError:
            return 0

    def wait_for_questions(self, count=4):
        """Until that many more questions have been asked, the last but one of which is answered."""
        before = self.asked()
        wait_until(lambda: self.asked() >= before + count, self.text)

    def says_once(self, job, sentence, answer):
        self.write("answer", answer)
        job.wait_for(sentence)
        self.wait_for_questions()
        self.assertEqual(len(re.findall(sentence, job.err())), 1, job.text())

    def fences(self, seats):
        return [e for seat in seats for e in self.events(seat.pid, "fence")]

    def test_hosts_come_and_go_and_the_others_keep_their_process(self):
        self.list_hosts("h1:1", "h2:2")
        job = self.discover()
        first = self.world(3)
        self.list_hosts("h1:1", "h2:2", "h3:2")
        more = self.world(5, after=first[0].round)
        self.assert_kept(first, more, [])
        self.list_hosts("h2:2", "h3:2")
        fewer = self.world(4, after=more[0].round)
        gone = [seat for seat in more if seat.pid not in {s.pid for s in fewer}]
        self.assertEqual(len(gone), 1, self.text())
        self.assert_kept(more, fewer, gone)
        self.assertEqual(self.fences(fewer), [], self.text())  # All at boundaries between steps.
        self.assertIn("h1 is not listed any more: its node leaves the run", job.err())
        job.wait_for("leaves: its host is not listed any more")
        self.list_hosts("h1:1", "h2:2", "h3:2")
        again = self.world(5, after=fewer[0].round)
        self.assert_kept(fewer, again, [])
        self.end_well(job)

    def test_no_more_nodes_than_max(self):
        self.list_hosts("h1", "h2", "h3")
        job = self.discover(nnodes="1:2")
        before = self.world(2)
        job.wait_for("1 host more than --nnodes 1:2 allows")
        self.assertFalse(os.path.exists(self.path("ssh.h3")))
        self.list_hosts("h2", "h3")
        after = self.world(2, after=before[0].round)
        wait_until(lambda: os.path.exists(self.path("ssh.h3")), self.text)
        self.assertEqual(len({s.pid for s in before} & {s.pid for s in after}), 1, self.text())
        self.end_well(job)

    def test_what_is_wrong_with_the_script_is_said_once_and_changes_nothing(self):
        self.list_hosts("h1:2", "h2:1")
        job = self.discover()
        before = self.world(3)
        stays = "the last list stays in force: h1, h2"
        self.says_once(job, r"script exited with 7 \(no such pool\); " + stays, "echo no such pool >&2; exit 7")
        self.says_once(job, "script printed no host; " + stays, "true")
        self.says_once(job, r"script printed no list: line 2 'rm -rf /' is not a host", "echo h1:2; echo rm -rf /; echo h2")
        self.says_once(job, r"script printed more than 1048576 bytes", "yes h1 | head -c 3000000")
        self.list_hosts("h1:2", "h2:1")
        job.wait_for("script lists hosts again")
        self.says_once(job, "h1 is listed with 4 workers now; its node keeps what it has", "echo h1:4; echo h2:1")
        self.assertEqual(self.world(3), before, self.text())
        self.end_well(job)

    def test_a_script_that_hangs_is_ended_and_asked_again(self):
        self.list_hosts("h1:2")
        job = self.discover()
        before = self.world(2)
        self.says_once(job, r"script has not ended within 1\.2 s", "sleep 600 & exec sleep 600")
        self.list_hosts("h1:2", "h2:1")
        after = self.world(3, after=before[0].round)
        self.assert_kept(before, after, [])
        wait_until(lambda: not [p for p in job.processes() if p.name == "sleep"], self.text)
        self.end_well(job)

    def test_a_host_that_fails_is_left_out_for_longer_and_longer(self):
        self.touch("down.h2")
        self.list_hosts("h1:2", "h2:1")
        job = self.discover()
        before = self.world(2)
        job.wait_for(r"h2 gets no node for 0\.6 s: h2 does not answer ssh \(connection refused\)")
        job.wait_for(r"h2 has failed 2 times and gets no node for 1\.2 s")
        job.wait_for(r"h2 has failed 3 times and gets no node for 2\.4 s")
        os.unlink(self.path("down.h2"))
        after = self.world(3, after=before[0].round)
        self.assert_kept(before, after, [])
        self.end_well(job)

    def test_a_host_whose_connection_breaks_gets_another_node(self):
        self.list_hosts("h1:2", "h2:1")
        job = self.discover()
        before = self.world(3)
        with open(self.path("ssh.h2"), encoding="ascii") as f:
            os.kill(int(f.read()), signal.SIGKILL)
        job.wait_for(r"h2 gets no node for 0\.6 s: the connection to h2 broke")
        after = self.world(3, after=before[0].round)
        kept = {s.pid for s in before} & {s.pid for s in after}
        self.assertEqual(len(kept), 2, self.text())
        self.end_well(job)

    def test_all_hosts_are_others(self):
        """Nobody has the state any more; the run goes on with what its checkpoint has."""
        self.list_hosts("h1:1")
        job = self.discover(nnodes="1:2")
        before = self.world(1)
        self.list_hosts("h2:1")
        self.assertNotEqual(self.world(1, after=before[0].round)[0].pid, before[0].pid)
        self.end_well(job)

    def test_the_daemon_is_started_again(self):
        self.list_hosts("h1:1")
        job = self.discover()
        before = self.world(1)
        os.kill(job.daemon().pid, signal.SIGKILL)
        job.wait_for("the rendezvous daemon .* starting it again")
        self.list_hosts("h1:1", "h2:1")
        self.assert_kept(before, self.world(2, after=before[0].round), [])
        self.end_well(job)

    def test_the_exit_code_is_that_of_the_run(self):
        self.list_hosts("h1", "h2")
        job = self.discover("--max-restarts", "0", nnodes="2:3", worker=shell('[ "$RANK" = 1 ] && exit 7; exec sleep 600'))
        self.finish(job, 7)
        self.assertRegex(job.err(), r"rank 1 .* failed first")

    def test_plain_workers_start_again_when_a_host_comes(self):
        self.list_hosts("h1")
        job = self.discover(worker=shell(env_to() + 'while [ $WORLD_SIZE = 1 ]; do sleep 0.02; done'))
        self.wait_for_workers(1, jobs=[job])
        self.list_hosts("h1", "h2")
        self.finish(job)
        sizes = [e["WORLD_SIZE"] for e in self.arrivals().values()]
        self.assertEqual(sorted(sizes), ["1", "2", "2"], job.text())

    def test_a_signal_ends_all_of_them(self):
        self.list_hosts("h1:2", "h2:1")
        job = self.discover()
        self.world(3)
        job.signal(signal.SIGINT)
        self.finish(job, 130)

    def test_all_ends_when_the_launching_one_is_killed(self):
        self.list_hosts("h1:2", "h2:1")
        job = self.discover()
        self.world(3)
        job.signal(signal.SIGKILL)
        wait_until(lambda: not job.processes(), self.text)

    def test_without_hosts_it_gives_up(self):
        self.write("answer", "exit 1")
        job = self.discover("--rdzv-conf", "join_timeout=1")
        self.finish(job, 3)
        self.assertIn("script exited with 1; no host is known yet", job.err())
        self.assertIn("no host could be used for 1 s", job.err())

    def test_a_script_that_is_not_there_is_a_mistake(self):
        job = self.start("--host-discovery", "./no-such-script", "--nnodes", "1:2", "true")
        self.finish(job, 2)
        self.assertRegex(job.err(), r"--host-discovery: \./no-such-script cannot be started: .*No such file")


if __name__ == "__main__":
    ddprun_case.main()
