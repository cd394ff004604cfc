"""Two network namespaces joined by a cable: two machines that share nothing but the network."""

import os
import shutil
import subprocess
import sys

import paths  # noqa: F401
import ddprun_case
from ddprun_case import Network, TwoMachinesCase, PASS_GATE, column, env_to, shell, skip_all
from launch_test import STORE_CLIENT


def write_hosts(case, text):
    """The /etc/hosts of both machines, which ip netns exec mounts."""
    for name in case.net.names:
        folder = os.path.join("/etc/netns", name)
        os.makedirs(folder)
        case.addCleanup(shutil.rmtree, folder)
        with open(os.path.join(folder, "hosts"), "w", encoding="ascii") as f:
            f.write(text)


class TwoMachines(TwoMachinesCase):
    def on_two_machines(self, *argv, worker, second=()):
        """The first without an endpoint: it prints the line, and the other machine runs it."""
        a, b = self.net.names
        first = self.start("--nnodes", "2", *argv, *worker, netns=a)
        line = first.wait_for(r"run:\n\n  (.*\S)\n").group(1)
        command = line.split(" ", 1)
        words = command[1].replace(" --nnodes ", " " + " ".join(second) + " --nnodes ", 1)
        other = self.start_program(["/bin/sh", "-c", f"exec env {command[0]} {words}"], netns=b)
        return first, other

    def store_client(self):
        with open(self.path("client.py"), "w", encoding="ascii") as f:
            f.write("import os; print('master', os.environ['MASTER_ADDR'])\n" + STORE_CLIENT)
        return [self.path("client.py")]

    def test_ranks_and_master_address(self):
        first, second = self.on_two_machines("--nproc-per-node", "2", worker=shell(env_to()))
        self.finish(first)
        self.finish(second)
        workers = self.wait_for_workers(4)
        self.assertEqual(column(workers, "RANK"), ["0", "1", "2", "3"])
        self.assertEqual(column(workers, "GROUP_RANK"), ["0", "0", "1", "1"])
        self.assertEqual(set(column(workers, "MASTER_ADDR")), {self.net.addresses[0]})
        self.assertEqual(column(workers, "DDPRUN_TEST_JOB")[2:], [second.marker] * 2)

    def test_gloo_is_led_outside_where_the_hosts_file_leads_the_own_name_to_loopback(self):
        """As Debian's installer writes it."""
        write_hosts(self, f"127.0.0.1 localhost\n127.0.1.1 {os.uname().nodename}\n")
        worker = shell('echo "gloo: $GLOO_SOCKET_IFNAME nccl: $NCCL_SOCKET_IFNAME."')
        for job in self.on_two_machines(worker=worker):
            self.finish(job)
            self.assertIn("gloo: wire nccl: .", job.out(), job.text())
            self.assertEqual(job.err().count("to 127.0.1.1, where no other host reaches PyTorch's Gloo"), 1, job.text())
        alone = self.start(*worker, netns=self.net.names[0])
        self.finish(alone)
        self.assertIn("gloo:  nccl: .", alone.out())
        self.assertNotIn("Gloo", alone.err())

    def test_a_worker_of_the_other_machine_uses_the_store(self):
        first, second = self.on_two_machines(worker=self.store_client())
        self.finish(first)
        self.finish(second)
        for job in (first, second):
            self.assertIn("met 2 ranks", job.out(), job.text())

    def test_the_store_is_where_node_rank_0_is(self):
        """The node that does not host the endpoint asks for rank 0: the store moves to it."""
        first, second = self.on_two_machines(worker=self.store_client(), second=["--node-rank", "0"])
        self.finish(first)
        self.finish(second)
        for job in (first, second):
            self.assertIn(f"master {self.net.addresses[1]}", job.out(), job.text())
            self.assertIn("met 2 ranks", job.out(), job.text())

    def test_a_strange_machine_may_not_use_the_store(self):
        gate = self.gate()
        a, b = self.net.names
        job = self.start("--standalone", *shell(env_to() + PASS_GATE), netns=a)
        (worker,) = self.wait_for_workers(1, jobs=[job])
        probe = ("import socket, sys\n"
                 "try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()\n"
                 "except OSError as e: print('no way in:', e.strerror or e)\n")
        stranger = self.start_program([sys.executable, "-c", probe, self.net.addresses[0],
                                       worker["MASTER_PORT"]], netns=b)
        self.assertEqual(stranger.wait(), 0)
        self.assertIn("no way in", stranger.out())
        gate.open()
        self.finish(job)

    def test_a_failure_ends_both_machines(self):
        script = 'if [ $RANK = 1 ]; then echo "no more fuel" >&2; exit 7; fi; exec sleep 600'
        first, second = self.on_two_machines(worker=shell(script))
        for job in (first, second):
            self.finish(job, 7)
        self.assertRegex(first.err(), r"rank 1 .*exited with 7(.|\n)*no more fuel")

    def test_a_pulled_cable_is_noticed_on_both_sides(self):
        """Fixed size and nobody comes back: both ends say so within their timeouts, and leave nothing."""
        conf = "heartbeat_timeout=1,join_timeout=3"
        first, second = self.on_two_machines("--rdzv-conf", conf,
                                             worker=shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(2, jobs=[first, second])
        self.net.cut()
        self.finish(first, 3)
        self.assertRegex(first.err(), "was silent")
        # The far side's workers compute on, as the daemon is not needed for a step; a signal ends it.
        self.assertFalse(second.ended(), second.text())
        second.wait_for("lost the rendezvous daemon .*workers continue, connecting again")
        second.signal(15)
        self.finish(second, 143)

    def node_cut_in_one_direction(self, deaf):
        first, second = self.on_two_machines("--rdzv-conf", "heartbeat_timeout=1,join_timeout=3",
                                             worker=shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(2, jobs=[first, second])
        self.net.deafen(deaf)
        self.finish(first, 3)
        self.assertRegex(first.err(), r"was silent for \d+ ms;")  # Not: "did not come back", 10 s later.
        second.signal(15)
        self.finish(second, 143)

    def test_a_node_that_nothing_reaches_is_lost_by_its_silence(self):
        """It goes on sending, but for no longer than TCP does without acknowledgements."""
        self.node_cut_in_one_direction(deaf=1)

    def test_a_node_from_which_nothing_comes_is_lost_by_its_silence(self):
        self.node_cut_in_one_direction(deaf=0)

    def test_a_node_that_is_cut_off_stops_its_workers_in_time_and_comes_back(self):
        """The others go on without it: no two halves of a run write the same checkpoint."""
        a, b = self.net.names
        common = ["--nnodes", "1:2", "--max-restarts", "0", "--rdzv-endpoint", f"{self.net.addresses[0]}:29400",
                  *shell(env_to() + "exec sleep 600")]
        env = {"DDPRUN_TOKEN": "a token of the tests"}
        conf = "last_call_timeout=2,fence_timeout=3"
        first = self.start("--rdzv-conf", f"is_host=1,{conf}", *common, netns=a, env=env)
        second = self.start("--rdzv-conf", f"is_host=0,{conf}", *common, netns=b, env=env)
        self.wait_for_workers(2, jobs=[first, second])
        self.net.cut()
        second.wait_for("workers continue; they are killed in 3 s unless it answers")
        second.wait_for("is cut off from the rendezvous daemon .*killing its workers, then joining again")
        ddprun_case.wait_until(lambda: not [p for p in second.processes() if p.argv[0] == "sleep"], second.text)
        self.assertFalse(second.ended())
        self.net.mend()
        # Together again, in a round of both.
        ddprun_case.wait_until(lambda: len(self.arrivals()) >= 5, first.text)
        first.signal(15)
        self.finish(first, 143)

    def test_an_elastic_run_has_a_fence_of_its_own_accord(self):
        a, b = self.net.names
        common = ["--nnodes", "1:2", "--rdzv-endpoint", f"{self.net.addresses[0]}:29400"]
        env = {"DDPRUN_TOKEN": "a token of the tests"}
        conf = "last_call_timeout=30,is_host="
        worker = shell(env_to() + "exec sleep 600")
        jobs = [self.start(*common, "--rdzv-conf", conf + host, *worker, netns=space, env=env)
                for host, space in (("1", a), ("0", b))]
        self.wait_for_workers(2, jobs=jobs)
        self.net.cut()
        jobs[1].wait_for("workers continue; they are killed in 70 s unless it answers")
        for job in jobs:
            job.signal(15)
            self.finish(job, 143)

    def test_a_short_cut_loses_nothing(self):
        """Shorter than the heartbeat timeout: no round ends, no worker is touched."""
        gate = self.gate()
        first, second = self.on_two_machines("--rdzv-conf", "heartbeat_timeout=20",
                                             worker=shell(env_to() + PASS_GATE))
        self.wait_for_workers(2, jobs=[first, second])
        self.net.cut()
        self.net.mend()
        gate.open()
        self.finish(first)
        self.finish(second)
        self.assertEqual(len(self.arrivals()), 2)


class TwoNetworks(TwoMachinesCase):
    """The machines are joined by a second cable, to which no name leads."""

    SUM = """
import array, os
import ddprun
with ddprun.init(init_timeout=50) as group:
    total = array.array("f", [group.rank + 1]) * 1000000
    group.all_reduce(total)
    names = [os.environ.get(name, "") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
    os.write(1, f"{names} sum {total[0]:g}\\n".encode())
"""

    def setUp(self):
        super().setUp()
        write_hosts(self, "127.0.0.1 localhost\n")
        self.net._ip("link", "add", "fast", "netns", self.net.names[0], "type", "veth", "peer", "name", "fast2", "netns",
                     self.net.names[1])
        for name, interface, address in zip(self.net.names, ("fast", "fast2"), ("10.78.0.1", "10.78.0.2")):
            self.net._ip("-n", name, "addr", "add", address + "/24", "dev", interface)
            self.net._ip("-n", name, "link", "set", interface, "up")
        ddprun_case.wait_until(lambda: all(self.has_carriers(name) for name in self.net.names), lambda: "no carrier")

    @staticmethod
    def has_carriers(name):
        """The kernel notices a cable a moment after it is plugged in."""
        said = subprocess.run(["ip", "-n", name, "link"], capture_output=True, text=True, timeout=20, check=True).stdout
        return "NO-CARRIER" not in said

    def received(self, interface):
        """Bytes, by the second machine."""
        path = f"/sys/class/net/{interface}/statistics/rx_bytes"
        return int(subprocess.run(["ip", "netns", "exec", self.net.names[1], "cat", path], capture_output=True, timeout=20,
                                  check=True).stdout)

    def run_with(self, *environments):
        with open(self.path("sum.py"), "w", encoding="ascii") as f:
            f.write(self.SUM)
        jobs = [self.start("--nnodes", "2", "--rdzv-endpoint", f"{self.net.addresses[0]}:29400", "--node-rank", rank, "--memory-folder",
                           "16M", self.path("sum.py"), netns=name,
                           env={"DDPRUN_TOKEN": "a token of the tests", **ddprun_case.PACKAGE, "DDPRUN_HOST": name, **environment})
                for rank, (name, environment) in enumerate(zip(self.net.names, environments))]
        for job in jobs:
            self.finish(job)
        self.assertEqual([job.out().count(" sum 3") for job in jobs], [1, 1])
        return jobs

    def test_the_network_that_is_named_has_the_data_of_all(self):
        jobs = self.run_with({"DDPRUN_SOCKET_IFNAME": "fast"}, {})
        self.assertEqual(jobs[0].err().count("data goes over fast 10.78.0.0/24, as DDPRUN_SOCKET_IFNAME says"), 1, jobs[0].text())
        self.assertNotIn("data goes over", jobs[1].err())
        self.assertIn("['fast', '=fast']", jobs[0].out())
        self.assertIn("['fast2', '=fast2']", jobs[1].out())
        self.assertGreater(self.received("fast2"), 1000000)
        self.assertLess(self.received("wire"), 1000000)

    def test_without_a_name_cables_of_unknown_speed_are_left_alone(self):
        jobs = self.run_with({}, {})
        self.assertNotIn("data goes over", jobs[0].err() + jobs[1].err())
        self.assertIn("['', '']", jobs[0].out())
        self.assertGreater(self.received("wire"), 1000000)

    def test_what_the_user_has_set_stays(self):
        jobs = self.run_with({"DDPRUN_SOCKET_IFNAME": "fast"}, {"GLOO_SOCKET_IFNAME": "wire", "NCCL_SOCKET_IFNAME": "wi"})
        self.assertIn("['wire', 'wi']", jobs[1].out())

    def test_a_network_that_one_machine_lacks_is_named(self):
        self.net._ip("-n", self.net.names[1], "addr", "flush", "dev", "fast2")
        self.net._ip("-n", self.net.names[1], "addr", "add", "10.79.0.2/24", "dev", "fast2")
        with open(self.path("go.py"), "w", encoding="ascii") as f:
            f.write("print('went')\n")
        jobs = [self.start("--nnodes", "2", "--rdzv-endpoint", f"{self.net.addresses[0]}:29400", "--node-rank", rank, self.path("go.py"),
                           netns=name, env={"DDPRUN_TOKEN": "a token of the tests", **environment})
                for rank, (name, environment) in enumerate(zip(self.net.names, ({"DDPRUN_SOCKET_IFNAME": "fast"}, {})))]
        for job in jobs:
            self.finish(job)
        self.assertRegex(jobs[0].err(), r"warning: DDPRUN_SOCKET_IFNAME=fast on \S+ holds for that node alone: \S+ has no address in "
                                        r"10\.78\.0\.0/24")
        self.assertNotIn("DDPRUN_SOCKET_IFNAME", jobs[1].err())


if __name__ == "__main__":
    if Network.missing():
        skip_all(Network.missing())
    ddprun_case.main()
