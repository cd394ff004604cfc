"""Workers' lines: as JSON, folded, filtered, in files that are rotated; readers and disks that are slow or full."""

import glob
import json
import os
import re
import socket
import subprocess
import threading

import ddprun_case
from ddprun_case import DDPRUN, DdprunCase, shell, wait_until


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


class Lines(DdprunCase):
    def test_every_line_is_a_json_object_ddpruns_own_too(self):
        job = self.run_ddprun("--local-nodes", "2", "--nproc-per-node", "2", "--log-format", "json",
                              *shell('echo "a \\"b\\" \\\\"; printf "\\377 torn"; echo x >&2; [ $RANK != 3 ] || exit 7'),
                              code=7)
        for line in job.out().splitlines() + job.err().splitlines():
            self.assertIsInstance(json.loads(line), dict, line)
        said = [json.loads(line) for line in job.out().splitlines()]
        mine = [s for s in said if s["rank"] == 3]
        self.assertEqual([s["line"] for s in mine], ['a "b" \\', "\ufffd torn"])
        self.assertEqual((mine[0]["stream"], mine[0]["role"], mine[0]["restart_count"]), ("stdout", "default", 0))
        self.assertRegex(mine[0]["host"], "/1$")
        texts = [json.loads(line).get("text", "") for line in job.err().splitlines()]
        self.assertTrue(any("rank 3" in t and "failed first" in t for t in texts), job.err())

    def test_what_all_ranks_say_is_said_once(self):
        gate = self.gate()
        say = 'echo "epoch 1"; echo "rank $RANK"; read _ < "$D/gate" || :; echo "epoch 2"'
        job = self.start("--nproc-per-node", "4", "--fold-lines", *shell(say))
        # Nobody ends here: a line that not all have said is shown after a moment all the same.
        wait_until(lambda: all(f"[default{r}]:rank {r}" in job.out() for r in range(4)), job.text)
        gate.open()
        self.finish(job)
        counted = sum(int(n or 1) for n in re.findall(r"(?:\] x(\d+): |:)epoch 1", job.out()))
        self.assertEqual(counted, 4, job.out())
        self.assertEqual(len(re.findall("rank [0-3]", job.out())), 4)

    def test_filtered_lines_of_all_ranks_are_in_one_file(self):
        self.run_ddprun("--nproc-per-node", "2", "--log-dir", self.path("logs"), "--tee", "0:3,1:1",
                        "--duplicate-stdout-filters", "loss,,acc,step", "--duplicate_stderr_filters", "Error",
                        *shell('echo "step $RANK"; echo nothing; echo "loss,acc $RANK"; echo "KeyError $RANK" >&2'))
        (out,) = glob.glob(self.path("logs/*/attempt_0/filtered_stdout.log"))
        (err,) = glob.glob(self.path("logs/*/attempt_0/filtered_stderr.log"))
        self.assertEqual(sorted(read(out).splitlines()), ["[default0]:loss,acc 0", "[default0]:step 0",
                                                          "[default1]:loss,acc 1", "[default1]:step 1"])
        self.assertEqual(read(err), "[default0]:KeyError 0\n")

    def test_files_are_rotated_between_lines(self):
        self.run_ddprun("--log-dir", self.path("logs"), "-r", "3", "--log-rotate", "8K:2",
                        *shell("seq 100000 199999"))
        files = sorted(glob.glob(self.path("logs/*/attempt_0/0/stdout.log*")), reverse=True)
        self.assertEqual([os.path.basename(f) for f in files], ["stdout.log.2", "stdout.log.1", "stdout.log"])
        self.assertTrue(all(os.path.getsize(f) <= 8192 for f in files))
        numbers = [int(n) for f in files for n in read(f).splitlines()]
        self.assertEqual(numbers, list(range(numbers[0], 200000)))


class SlowAndFull(DdprunCase):
    LINES = 100_000
    WORKER = shell(f'seq -f "%07g of a worker that has much to say and no time to wait for anybody" {LINES}; touch "$D/done.$RANK"')

    def test_a_reader_at_1_kb_a_second_stops_no_worker(self):
        reading, writing = os.pipe()
        fast = threading.Event()
        seen = []

        def read_slowly():
            while block := os.read(reading, (1 << 20) if fast.is_set() else 1024):
                seen.append(block)
                fast.wait(1.0)

        popen = subprocess.Popen([DDPRUN, "--nproc-per-node", "2", *self.WORKER], stdout=writing,
                                 env={**ddprun_case.clean_environment(), "D": self.dir})
        os.close(writing)
        reader = threading.Thread(target=read_slowly)
        reader.start()
        try:
            wait_until(lambda: len(glob.glob(self.path("done.*"))) == 2, "the workers to end")
            self.assertLess(sum(map(len, seen)), 100_000)
            fast.set()
            self.assertEqual(popen.wait(ddprun_case.PATIENCE), 0)
        finally:
            fast.set()
            popen.kill()
            popen.wait()
            reader.join()
            os.close(reading)
        text = b"".join(seen).decode()
        dropped = sum(map(int, re.findall(r"\[ddprun: (\d+) lines dropped, standard output too slow\]", text)))
        shown = len(re.findall(r"(?m)^\[default[01]\]:\d{7} of a worker .* anybody$", text))
        self.assertGreater(dropped, 0)
        self.assertEqual(shown + dropped, 2 * self.LINES)

    def test_a_full_disk_of_log_files_stops_no_worker(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small disk needs root")
        disk = self.path("disk")
        os.mkdir(disk)
        mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "ddprun-test", disk]
        if subprocess.run(mount, capture_output=True, timeout=20).returncode != 0:
            self.skipTest("a tmpfs cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], timeout=20)
        for streams in ("-r", "-t"):
            job = self.run_ddprun("--nproc-per-node", "2", "--log-dir", disk, streams, "3", *self.WORKER)
            self.assertEqual(len(glob.glob(self.path("done.*"))), 2)
            self.assertRegex(job.err(), "writing .*/stdout.log: No space left on device; the run continues")
            for name in glob.glob(self.path("done.*")):
                os.unlink(name)
        self.assertEqual(job.out().count("anybody\n"), 2 * self.LINES)  # The terminal has them all.


class ErrorFile(DdprunCase):
    def test_the_verdict_is_a_file_too(self):
        path = self.path("why.json")
        with open(path, "w", encoding="ascii") as f:
            f.write("of an earlier run")
        self.run_ddprun("--error-file", path, *shell("exit 0"))
        self.assertFalse(os.path.exists(path))  # A run that went well leaves none.
        inherited = self.path("inherited.json")
        self.run_ddprun("--local-nodes", "2", "--error-file", path,
                        *shell('if [ $RANK = 1 ]; then echo "ValueError: boom" >&2; exit 7; fi; exec sleep 600'),
                        env={"TORCHELASTIC_ERROR_FILE": inherited}, code=7)
        verdict = json.loads(read(path))
        self.assertEqual(json.loads(read(inherited)), verdict)
        self.assertEqual((verdict["kind"], verdict["exit_code"]), ("worker_failed", 7))
        first = verdict["first_cause"]
        self.assertEqual((first["rank"], first["exit_code"], first["last_words"]), (1, 7, "ValueError: boom"))
        self.assertEqual([v["rank"] for v in verdict["victims"]], [0])
        self.assertEqual(verdict["message"]["errorCode"], 7)

    def test_it_is_written_where_nobody_could_judge(self):
        path = self.path("why.json")
        self.run_ddprun("--nnodes", "2", "--rdzv-conf", "join_timeout=1", "--error-file", path, *shell(""), code=3)
        self.assertIn("gave up after 1 s", json.loads(read(path))["text"])
        job = self.run_ddprun("--error-file", self.path("no/such/folder/x"), *shell(""), code=None)
        self.assertIn("cannot be written", job.err())

    def test_a_link_is_written_through_and_stays(self):
        os.mkdir(self.path("runs"))
        os.symlink("runs/17.json", self.path("latest.json"))
        self.run_ddprun("--error-file", self.path("latest.json"), "--report-html", self.path("page"), *shell("exit 3"),
                        code=3)
        self.assertTrue(os.path.islink(self.path("latest.json")))
        self.assertEqual(json.loads(read(self.path("runs/17.json")))["exit_code"], 3)
        self.assertEqual(os.stat(self.path("runs/17.json")).st_mode & 0o777, 0o600)
        self.run_ddprun("--error-file", self.path("latest.json"), "true")
        self.assertTrue(os.path.islink(self.path("latest.json")))
        self.assertFalse(os.path.exists(self.path("latest.json")))

    def test_standard_output_by_its_name_gets_the_text_behind_what_is_there(self):
        """/dev/stdout is such a link; as root it was replaced by a file, for the whole machine."""
        os.symlink("/proc/self/fd/1", self.path("out"))
        for flag, code, has in (("--error-file", 3, '"first_cause"'), ("--report-html", 0, "<!doctype html>")):
            with self.subTest(flag=flag):
                job = self.run_ddprun(flag, self.path("out"), *shell(f"echo before; exit {code}"), code=code)
                self.assertTrue(os.path.islink(self.path("out")))
                self.assertIn(has, job.out())
                self.assertIn("before", job.out())

    def test_a_pipe_that_nobody_reads_stops_nothing(self):
        os.mkfifo(self.path("pipe"))
        for flag in ("--error-file", "--report-html"):
            with self.subTest(flag=flag):
                job = self.run_ddprun(flag, self.path("pipe"), *shell("exit 3"), code=3)
                self.assertIn("which has no reader", job.err())
        job = self.run_ddprun(*shell("exit 3"), env={"TORCHELASTIC_ERROR_FILE": self.path("pipe")}, code=3)
        self.assertIn("which has no reader", job.err())

    def test_a_pipe_in_place_of_a_worker_s_error_file_stops_no_restart(self):
        job = self.run_ddprun("--max-restarts", "1", *shell('mkfifo "$TORCHELASTIC_ERROR_FILE"; exit 3'), code=3)
        self.assertIn("restart 1 of 1", job.err())

    def test_a_run_that_does_not_start_leaves_the_file_of_the_one_before(self):
        path = self.path("why.json")
        with open(path, "w", encoding="ascii") as f:
            f.write("of an earlier run")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            for argv, code in ((["--nnodes", "2", "--token-file", "/nowhere"], 2),
                               (["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port",
                                 port], 1),
                               (["--report-html", self.dir], 2)):
                with self.subTest(argv=argv):
                    self.run_ddprun("--error-file", path, *argv, "true", code=code)
                    self.assertEqual(read(path), "of an earlier run")

    def finish(self, job, code=0, patience=30):
        if code is not None:
            return super().finish(job, code, patience)
        self.assertNotEqual(job.wait(patience), 0, job.text())
        return None


if __name__ == "__main__":
    ddprun_case.main()
