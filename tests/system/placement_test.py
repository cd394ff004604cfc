"""Where workers run: processors, GPUs and threads, in the dry run and in the real one."""

import os

import ddprun_case
from ddprun_case import BIN, DDPRUN, DdprunCase, env_to, shell

FAKE_NVML = os.path.join(os.path.dirname(BIN), "tests", "libfake_nvml.so")
FAKE_MIG_NVML = os.path.join(os.path.dirname(BIN), "tests", "libfake_mig_nvml.so")
PROCESSORS = sorted(os.sched_getaffinity(0))
MINE = env_to() + 'grep Cpus_allowed_list /proc/self/status > "$D/cpus.$RANK"'


def read(path):
    try:
        with open(path, encoding="ascii") as f:
            return f.read()
    except OSError:
        return ""


def write(path, text):
    with open(path, "w", encoding="ascii") as f:
        f.write(text)


class Placement(DdprunCase):
    def allowed(self, rank):
        with open(self.path(f"cpus.{rank}"), encoding="ascii") as f:
            return f.read().split(":")[1].strip()

    def test_bound_workers_run_where_the_dry_run_says(self):
        argv = ["--nproc-per-node", "2", "--numa-binding", "node", "--omp-num-threads", "auto"]
        said = self.run_ddprun(*argv, "--dry-run", "true").out()
        self.run_ddprun(*argv, *shell(MINE))
        for worker in self.wait_for_workers(2):
            rank = worker["RANK"]
            self.assertIn(f"local rank {rank}: no GPU, processors {self.allowed(rank)}, "
                          f"OMP_NUM_THREADS={worker['OMP_NUM_THREADS']}\n", said)

    def test_exclusive_gives_each_its_own(self):
        if len(PROCESSORS) < 2:
            self.skipTest("one processor cannot be shared out")
        job = self.start("--nproc-per-node", "2", "--numa-binding", "exclusive", *shell(MINE))
        if job.wait() == 2:
            self.assertIn("has 1 cores for 2 workers", job.err())  # Two threads of one core.
            return
        self.assertNotEqual(self.allowed(0), self.allowed(1))

    def test_the_launcher_s_own_limits_are_kept(self):
        job = self.start_program(["taskset", "-c", str(PROCESSORS[-1]), ddprun_case.DDPRUN,
                                  "--numa-binding", "socket", *shell(MINE)])
        self.finish(job)
        self.assertEqual(self.allowed(0), str(PROCESSORS[-1]))

    def test_unbound_workers_may_run_everywhere(self):
        self.run_ddprun(*shell(MINE))
        numbers = []
        for part in self.allowed(0).split(","):
            ends = [int(n) for n in part.split("-")]
            numbers += range(ends[0], ends[-1] + 1)
        self.assertEqual(numbers, PROCESSORS)

    def test_several_ranks_share_a_gpu(self):
        self.run_ddprun("--nproc-per-node", "4", "--oversubscribe-gpu", *shell(env_to()),
                        env={"DDPRUN_NVML_LIB": FAKE_NVML, "NCCL_MAX_CTAS": "7"})
        workers = self.wait_for_workers(4)
        self.assertEqual([w["CUDA_VISIBLE_DEVICES"] for w in workers], ["0", "1", "0", "1"])
        self.assertEqual({w["LOCAL_RANK"] for w in workers}, {"0"})
        self.assertEqual(len({w["NCCL_HOSTID"] for w in workers}), 4)
        self.assertEqual({(w["NCCL_NET"], w["NCCL_SOCKET_IFNAME"], w["NCCL_MAX_CTAS"]) for w in workers},
                         {("Socket", "lo", "7")})

    def test_gpus_are_counted_by_nvml(self):
        env = {"DDPRUN_NVML_LIB": FAKE_NVML}
        self.run_ddprun("--nproc-per-node", "gpu", "--omp-num-threads", "3", *shell(env_to()), env=env)
        self.assertEqual([w["OMP_NUM_THREADS"] for w in self.wait_for_workers(2)], ["3", "3"])

    def test_each_worker_sees_its_own_slice_of_mig(self):
        for visible, seen in (("0,1,2,3", ["MIG-0a", "MIG-0b", "MIG-1a", "MIG-1b", "GPU-2"]), ("MIG-1b,MIG-0a", ["MIG-1b", "MIG-0a"]),
                              ("1", ["MIG-1a", "MIG-1b"])):
            with self.subTest(visible=visible):
                prefix = f"env-{visible}"
                job = self.run_ddprun("--nproc-per-node", "gpu", *shell(env_to(prefix)),
                                      env={"DDPRUN_NVML_LIB": FAKE_MIG_NVML, "CUDA_VISIBLE_DEVICES": visible})
                workers = self.wait_for_workers(len(seen), prefix, [job])
                self.assertEqual([w["CUDA_VISIBLE_DEVICES"] for w in workers], seen)
                self.assertEqual({w["LOCAL_RANK"] for w in workers}, {"0"})
                self.assertIn("MIG mode: each worker sees one slice", job.err())
        job = self.run_ddprun("--nproc-per-node", "2", *shell('echo "sees $CUDA_VISIBLE_DEVICES."'),
                              env={"DDPRUN_NVML_LIB": FAKE_MIG_NVML})
        self.assertEqual(job.out().count("sees ."), 2, job.text())
        self.assertIn("--nproc-per-node gpu gives each", job.err())

    def test_a_quota_of_processors_counts(self):
        if os.geteuid() != 0 or len(os.sched_getaffinity(0)) < 2:
            self.skipTest("needs root, and two processors")
        folder = next((f for f in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup") if
                       os.path.exists(f + "/cpu.cfs_quota_us") or
                       "cpu" in read(f + "/cgroup.subtree_control").split()), None)
        if not folder:
            self.skipTest("no cgroup of the processors")
        own = f"{folder}/ddprun-test-{os.getpid()}"
        try:
            os.mkdir(own)
        except OSError as error:
            self.skipTest(f"cgroup: {error}")
        self.addCleanup(os.rmdir, own)
        if os.path.exists(own + "/cpu.max"):
            write(own + "/cpu.max", "100000 100000")
        else:
            write(own + "/cpu.cfs_period_us", "100000")
            write(own + "/cpu.cfs_quota_us", "100000")
        there = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', own]
        job = self.start_program([*there, DDPRUN, "--nproc-per-node", "cpu", "--omp-num-threads", "auto",
                                  *shell("echo $WORLD_SIZE workers, $OMP_NUM_THREADS threads")])
        self.finish(job)
        self.assertIn("1 workers, 1 threads", job.out())
        self.assertIn("1 worker on 1 processor of", job.err())

    def test_no_gpu_to_share(self):
        job = self.start("--oversubscribe-gpu", "true", env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(job.wait(), 2)
        self.assertIn("there is no NVIDIA GPU to share", job.err())

    def test_a_mode_that_is_none(self):
        job = self.start("--numa-binding", "near", "true")
        self.assertEqual(job.wait(), 2)
        self.assertIn("core-complex or exclusive or node", job.err())


if __name__ == "__main__":
    ddprun_case.main()
