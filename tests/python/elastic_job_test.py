"""ddprun.elastic without torch: ranks that are killed, bodies that raise or catch what they should not, kept state of every
kind, samples that end processes, and misuse."""

import json
import os
import re
import sys
import unittest

import elastic_case
from elastic_case import ElasticCase, LIBRARY, free_port

LENGTH, SHARDS, STEPS = 96, 12, 40

# Nothing that a lost or repeated step would leave unchanged.
TRAIN = """
import array, hashlib, random
STEPS = int(os.environ.get("STEPS", "40"))
batches = elastic.GlobalBatches(96, 24, shards=12, seed=3)
weights = array.array("q", [1] * 50)
seen = array.array("q", [0] * 96)
notes = {"history": 0}
dice = random.Random(5)
lives = bytearray(b"none")
def contribution(step):
    pace(step)
    part = array.array("q", [0] * 146)
    for shard in step.shards(batches):
        note_shard(step, shard)
        die("shard", step)
        for index in shard.indices:
            part[50 + index] += 1
            for k in range(index % 7, 50, 7):
                part[k] += (index + 1) * (weights[k] % 1000 + 3)
    return part
def update(step, part):
    for k in range(50):
        weights[k] = (weights[k] * 31 + part[k] + dice.randrange(7)) % 1_000_000_007
    die("apply", step)
    for index in range(96):
        seen[index] += part[50 + index]
    notes["history"] = hash((notes["history"], weights[0]))
    lives[:] = b"some"
def train(step):
    die("begin", step)
    part = contribution(step)
    step.group.all_reduce(part)
    die("summed", step)
    step.commit(lambda: update(step, part))
    note_commit(step)
    die("committed", step)
def save_lives():
    return bytes(lives)
def load_lives(state):
    assert state in (b"none", b"some"), state
    lives[:] = state
def kept(job):
    return job.keep(weights=weights, seen=seen, notes=notes, dice=dice).keep_state("lives", save_lives, load_lives)
def digest():
    state = (weights.tolist(), notes, dice.getstate(), bytes(lives))
    return f"digest {hashlib.sha256(repr(state).encode()).hexdigest()[:16]} seen {min(seen)}-{max(seen)}"
"""
MAIN = """
with Job() as job:
    kept(job).run(STEPS, train)
    print(digest(), flush=True)
"""


class Jobs(ElasticCase):
    def quiet(self):
        """The digest of a run in which nothing happens."""
        job = self.ended(TRAIN, MAIN, nproc=1)
        found, = self.said(job, "digest .*")
        self.assertIn("seen 10-10", found)
        return found

    def assert_right(self, job, processes=None):
        self.assertEqual(set(self.said(job, "digest .*")), {self.quiet_digest}, job.text())
        self.assert_each_sample_once(LENGTH, SHARDS, STEPS)
        if processes is not None:
            self.assertEqual(len(self.logs()), processes, job.text())

    def setUp(self):
        super().setUp()
        self.quiet_digest = self.quiet()

    def test_the_number_of_ranks_changes_nothing(self):
        self.assert_right(self.ended(TRAIN, MAIN, nproc=3), 3)

    def test_a_killed_rank_costs_a_step_wherever_it_dies_and_the_others_live_on(self):
        deaths = "begin:3:1 shard:8:2 summed:13:0 apply:18:1 committed:23:2"
        job = self.ended(TRAIN, MAIN, env={"DIE": deaths})
        self.assert_right(job, 3 + 5)
        self.assertIn("(restart 5 of 9)", job.err())
        self.assertEqual(job.err().count("the other workers continue"), 5, job.text())
        commits = self.commits()
        # Nobody dies but by the five entries, so whoever was there at the end is a process of its own.
        self.assertEqual(sum(steps[-1] == STEPS - 1 for steps in commits.values() if steps), 3, commits)

    def test_replacements_are_forks_with_preload(self):
        job = self.ended(TRAIN, "print('preloaded', 'xml.dom.minidom' in sys.modules, flush=True)\n", MAIN,
                         env={"DIE": "begin:3:1 summed:13:0"},
                         options=("--max-restarts", "9", "--preload", "xml.dom.minidom", "--report"))
        self.assert_right(job, 3 + 2)
        self.assertEqual(self.said(job, "preloaded .*"), ["preloaded True"] * 5, job.text())
        self.assertRegex(job.out(), "starts of 5 processes, preloaded, on average: spawn .*, imports .*, rendezvous .*")
        self.assertEqual(job.err().count("the other workers continue"), 2, job.text())

    def test_spares_are_forks_with_preload(self):
        waits = """
            dies, until = die, time.monotonic() + 60
            def die(where, step):
                while step.number == 3 and sum(name.startswith("once.ready") for name in os.listdir(D)) < FULL + 1:
                    if time.monotonic() > until:
                        raise TimeoutError(f"no spare is ready: {D} has {sorted(os.listdir(D))}")
                    time.sleep(0.01)
                dies(where, step)
            """
        job = self.ended(TRAIN, waits, "print('preloaded', 'xml.dom.minidom' in sys.modules, flush=True)\n", MAIN,
                         env={"DIE": "begin:3:1"}, options=("--max-restarts", "9", "--spares", "1", "--preload", "xml.dom.minidom"))
        self.assert_right(job)
        self.assertIn("a spare takes its seat", job.err())
        found = self.said(job, "preloaded .*")
        self.assertGreaterEqual(len(found), 4, job.text())
        self.assertEqual(set(found), {"preloaded True"}, job.text())

    def test_all_but_one_die_at_once(self):
        self.assert_right(self.ended(TRAIN, MAIN, env={"DIE": "begin:9:1 begin:9:2"}), 5)

    def test_where_the_last_rank_with_the_state_dies_what_is_lost_is_said(self):
        job = self.ended(TRAIN, MAIN, nproc=1, env={"DIE": "begin:20:0"})
        self.assertRegex(job.err(), r"was killed by signal 9 \(SIGKILL\); no worker is left that has the state: the job "
                                    r"begins again, 20 steps are lost unless a checkpoint has them \(restart 1 of 9\)")
        self.assertIn("warning: no worker had the state of 20 steps: the job begins again at step 0, 20 steps are lost", job.err())
        self.assertNotIn("the other workers continue", job.err())

    def test_where_all_ranks_die_at_once_what_is_lost_is_said(self):
        job = self.ended(TRAIN, """
            def kills_all(step):
                with open(f"{D}/pid.{step.rank}.new", "w") as file:
                    file.write(str(os.getpid()))
                os.rename(f"{D}/pid.{step.rank}.new", f"{D}/pid.{step.rank}")
                if step.number == 20 and step.rank == 0 and step.world_size == FULL and once("all:"):
                    for rank in reversed(range(FULL)):  # This one is the last.
                        with open(f"{D}/pid.{rank}") as file:
                            os.kill(int(file.read()), signal.SIGKILL)
                train(step)
            kept(job := Job()).run(STEPS, kills_all)
            print(digest(), flush=True)
        """, nproc=2)
        self.assertRegex(job.err(), r"warning: no worker had the state of 2[01] steps: the job begins again at step 0, 2[01] steps "
                                    "are lost")

    # Kills all ranks of both nodes in step 20, after `damage` of the memory folders, here those of nodes 0 and 1.
    ALL_DIE = """
        import glob, shutil
        FULL = 4
        nodes = sorted(glob.glob(os.path.dirname(os.path.dirname(os.environ["DDPRUN_MEMORY"])) + "/node*"))
        def damage():
            pass
        def kills_all(step):
            with open(f"{D}/pid.{step.rank}.new", "w") as file:
                file.write(str(os.getpid()))
            os.rename(f"{D}/pid.{step.rank}.new", f"{D}/pid.{step.rank}")
            if step.number == 20 and step.rank == 0 and step.world_size == FULL and once("all:"):
                damage()
                for rank in reversed(range(FULL)):  # This one is the last.
                    with open(f"{D}/pid.{rank}") as file:
                        os.kill(int(file.read()), signal.SIGKILL)
            train(step)
    """
    RUNS = """
        kept(job := Job(memory_every=4)).run(STEPS, kills_all)
        print(digest(), flush=True)
    """

    def all_die(self, *damage, folder="16M"):
        options = ("--max-restarts", "9", "--local-nodes", "2", "--memory-folder", folder)
        job = self.ended(TRAIN, self.ALL_DIE, *damage, self.RUNS, nproc=2, options=options)
        self.assertEqual(set(self.said(job, "digest .*")), {self.quiet_digest}, job.text())
        return job

    def test_where_all_ranks_die_at_once_the_job_continues_from_the_memory_folder(self):
        job = self.all_die()
        self.assertRegex(job.err(), r"no worker had the state of 2[01] steps: the job begins again at step (16|20), "
                                    r"([145] steps? (is|are) lost|no step is lost)")
        self.assertRegex(job.err(), r"no worker has the state of the job: it continues at step (16|20), as kept in the memory")

    def test_the_memory_folder_of_one_node_is_enough(self):
        job = self.all_die("""
            def damage():
                for copy in glob.glob(nodes[1] + "/own/*") + glob.glob(f"{nodes[0]}/copies/*") + glob.glob(f"{nodes[1]}/copies/*"):
                    shutil.rmtree(copy)
        """)
        self.assertRegex(job.err(), r"the job begins again at step (16|20)")

    def test_a_torn_copy_in_the_memory_folders_is_not_used(self):
        job = self.all_die("""
            def damage():
                def files(name):
                    return [path for node in nodes for path in glob.glob(f"{node}/own/elastic-job/*-step-20/{name}")]
                while len(files("rank-?.bin")) < FULL or len(files("manifest.json")) < len(nodes):
                    time.sleep(0.01)
                for path in files("rank-0.bin"):
                    os.truncate(path, 8)
        """, folder="16M,copies=off")
        self.assertIn("no worker had the state of 20 steps: the job begins again at step 16, 4 steps are lost", job.err())

    def test_without_copies_in_the_memory_folder_it_begins_at_the_first_step(self):
        self.RUNS = self.RUNS.replace("memory_every=4", "memory_every=None")
        self.assertIn("the job begins again at step 0", self.all_die().err())

    def test_with_fewer_ranks_than_it_needs_a_job_waits(self):
        job = self.ended(TRAIN, """
            worlds = set()
            def notes_world(step):
                worlds.add(step.world_size)
                train(step)
            kept(job := Job(min_world=2)).run(STEPS, notes_world)
            assert worlds == {2}, worlds
            print(digest(), flush=True)
        """, nproc=2, env={"DIE": "begin:9:1 summed:15:0"})
        self.assertEqual(job.err().count("the other workers wait for more, with their state"), 2, job.text())
        self.assert_right(job, 4)

    def test_more_ranks_than_there_can_be_are_not_waited_for(self):
        needs = "the job needs at least 3 ranks, and 2 are here, and no more can come"
        self.assertIn(needs, self.ended(TRAIN, "kept(Job(min_world=3)).run(STEPS, train)", nproc=2, code=3).err())
        self.assertIn(needs, self.ended(TRAIN, MAIN, nproc=2, options=("--min-ranks", "3"), code=3).err())

    def test_what_a_dead_rank_has_detached_is_gone_before_another_takes_its_place(self):
        """Each rank's child, in a session of its own, has the port that a successor needs."""
        job = self.ended(TRAIN, """
            import socket, subprocess
            port = socket.socket()
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(("127.0.0.1", int(os.environ["PORTS"].split()[int(os.environ["LOCAL_RANK"])])))
            port.listen()
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True,
                                     pass_fds=[port.fileno()])
            with Job() as job:
                kept(job).run(STEPS, train)
                assert child.poll() is None  # Those of the others live on.
                print(digest(), flush=True)
        """, env={"DIE": "begin:3:1 begin:13:0", "PORTS": " ".join(str(free_port()) for _ in range(3))})
        self.assert_right(job, 3 + 2)
        self.assertNotIn("(restart 3 of 9)", job.err())

    def test_a_body_that_raises_ends_its_process_with_the_traceback(self):
        job = self.ended(TRAIN, """
            def fails(step):
                if step.number >= 7 and step.rank == 1 and step.world_size == FULL and once("raise:"):
                    raise ValueError("a defect of the program")
                train(step)
            kept(job := Job()).run(STEPS, fails)
            print(digest(), flush=True)
        """)
        self.assert_right(job, 4)
        self.assertIn("ValueError: a defect of the program", job.err())
        self.assertIn("in fails", job.err())
        self.assertIn("exited with 1; the other workers continue (restart 1 of 9)", job.err())

    def test_an_exception_of_apply_passes_and_the_state_comes_from_another_rank(self):
        job = self.ended(TRAIN, """
            def half(step):
                part = contribution(step)
                step.group.all_reduce(part)
                def apply():
                    update(step, part)
                    if step.number >= 7 and step.rank == 1 and step.world_size == FULL and once("raise:"):
                        raise KeyError("in apply")
                step.commit(apply)
                note_commit(step)
            kept(job := Job()).run(STEPS, half)
            print(digest(), flush=True)
        """)
        self.assert_right(job, 4)
        self.assertIn("KeyError: 'in apply'", job.err())

    def test_except_exception_does_not_catch_the_change(self):
        job = self.ended(TRAIN, """
            def careless(step):
                try:
                    train(step)
                except Exception as error:
                    print("caught", repr(error), flush=True)
            kept(job := Job()).run(STEPS, careless)
            print(digest(), flush=True)
        """, env={"DIE": "begin:7:1"})
        self.assert_right(job, 4)
        self.assertNotIn("caught", job.out())

    def test_a_body_that_swallows_the_change_does_not_commit_and_is_warned(self):
        for after in ("step.commit(lambda: sys.exit('applied'))", "return", "raise ValueError('another') from None"):
            with self.subTest(after):
                job = self.ended(TRAIN, f"""
                    def careless(step):
                        try:
                            die("begin", step)
                            part = contribution(step)
                            step.group.all_reduce(part)
                        except BaseException as error:
                            assert isinstance(error, elastic.MembershipChanged) and error.peer in (-1, 1), repr(error)
                            {after}
                        step.commit(lambda: update(step, part))
                        note_commit(step)
                    kept(job := Job()).run(STEPS, careless)
                    print(digest(), flush=True)
                """, env={"DIE": "begin:7:1"})
                self.assert_right(job, 4)
                warned = "raise" not in after and "commit" not in after
                self.assertEqual("has caught MembershipChanged and gone on" in job.err(), warned,
                                 job.err())

    def test_an_error_of_asynchronous_work_and_of_a_part_of_the_group_is_the_end_of_the_round(self):
        job = self.ended(TRAIN, """
            def parts(step):
                part = contribution(step)
                work = step.group.all_reduce_async(part)
                die("begin", step)
                work.wait()
                if step.number >= 9:
                    half = step.group.split(0)
                    die("half", step)
                    half.barrier()
                step.commit(lambda: update(step, part))
                note_commit(step)
            kept(job := Job()).run(STEPS, parts)
            print(digest(), flush=True)
        """, env={"DIE": "begin:5:1 half:9:2"})
        self.assert_right(job, 5)

    def test_ctrl_c_in_a_body_ends_the_run(self):
        job = self.ended(TRAIN, """
            def stops(step):
                if step.number == 3:
                    raise KeyboardInterrupt
                train(step)
            try:
                kept(job := Job()).run(STEPS, stops)
            except KeyboardInterrupt:
                print("stopped after", job.committed, flush=True)
        """)
        self.assertEqual(self.said(job, "stopped .*"), ["stopped after 3"] * 3)

    def test_between_counters_and_a_second_run(self):
        job = self.ended(TRAIN, """
            with kept(Job()) as job:
                calls = []
                def evaluate(group):
                    ranks = array.array("q", [1])
                    group.all_reduce(ranks)
                    assert ranks[0] == group.world_size
                    calls.append(job.committed)
                job.between(10, evaluate)
                job.run(20, train)
                job.run(STEPS, train)
                counters = job.counters
                assert counters.rounds >= 1 and counters.lost >= 0, counters
                note("shard")  # Such as sample_count does not know.
                print("rounds", counters.rounds > 1, "at", sorted(set(calls)), flush=True)
                print(digest(), flush=True)
        """, env={"DIE": "begin:15:0"})
        self.assertEqual(set(self.said(job, "digest .*")), {self.quiet_digest}, job.text())
        self.assertIn("rounds True at [10, 20, 30, 40]", job.out())

    def test_a_checkpoint_is_where_a_job_goes_on(self):
        code = """
            import pickle
            path = os.environ["CHECKPOINT"]
            job = kept(Job())
            def write(group):
                if group.rank == 0:
                    with open(path, "wb") as file:
                        pickle.dump((job.committed, weights, seen, notes, dice.getstate()), file)
            if os.path.exists(path):
                with open(path, "rb") as file:
                    step, weights[:], seen[:], loaded, state = pickle.load(file)
                notes.update(loaded)
                dice.setstate(state)
                lives[:] = b"some"
                job.resume(step)
                job.run(STEPS, train)
                print(digest(), flush=True)
            else:
                job.between(17, write).run(17, train)
        """
        self.ended(TRAIN, code, env={"CHECKPOINT": self.path("checkpoint")}, nproc=2)
        job = self.ended(TRAIN, code, env={"CHECKPOINT": self.path("checkpoint")})
        self.assertEqual(self.said(job, "digest .*"), [self.quiet_digest] * 3, job.text())


    def test_ranks_that_have_changed_what_they_keep_are_named(self):
        code = """
            job = kept(Job(check_every=5))
            def spoil(group):
                if job.committed == 12 and group.rank == 1:
                    weights[7] += 1
            try:
                job.between(4, spoil).run(STEPS, train)
            except ddprun.Mismatch as error:
                print("refused", error, flush=True)
            print("rank", job.rank, "of", job.world_size, "at", job.committed, flush=True)
        """
        job = self.ended(TRAIN, code)
        said = self.said(job, "refused .*")
        self.assertEqual(len(said), 3, job.text())
        for each in said:
            self.assertIn('after step 15 "weights" of rank 1 on', each)
        self.assertEqual(sorted(self.said(job, "rank . of .*")), [f"rank {rank} of 3 at 15" for rank in range(3)])


class Sums(ElasticCase):
    def test_a_slow_rank_gives_shards_to_the_others_unless_they_are_to_stay_even(self):
        code = TRAIN + """
job = kept(Job(even_shards=bool(os.environ.get("EVEN")), shard_weight=lambda step, shard: 2))
mine, has_given = [], bytearray(1)
job.keep(given=has_given)
def slow(step):
    for shard in step.shards(batches):
        time.sleep(0.01 if step.rank == 1 else 0.002)
    mine.append(len(shard.mine))
    part = contribution(step)
    part.append(int(step.rank == 1 and mine[-1] <= 2))
    step.group.all_reduce(part)
    given = part.pop()
    def apply():
        update(step, part)
        has_given[0] = given
    step.commit(apply)
    note_commit(step)
while job.committed < 400 and not has_given[0] and not (os.environ.get("EVEN") and job.committed == 8):
    job.run(job.committed + 1, slow)
print("shards", mine[0], mine[-1], job.counters.moved_shards > 0, flush=True)
"""
        page = self.path("report.html")
        job = self.ended(code, options=("--max-restarts", "9", "--report", "--report-html", page))
        self.assertEqual(len(self.said(job, "shards 4 [12] True")), 1, job.text())
        self.assertRegex(job.out(), r"shards of an elastic job: [12] \(rank 1\) to \d+ per rank; with an even division the steps "
                                    r"would have taken about ")
        with open(page, encoding="utf-8") as file:
            account = json.loads(re.search('(?s)id="data">(.*?)</script>', file.read())[1])
        self.assertEqual(sum(slot["shards"] for slot in account["slots"]), SHARDS)
        self.assertGreater(account["run"]["moved_shards_won_s"], 0)
        self.assert_each_sample_once(LENGTH, SHARDS, len(self.commits().popitem()[1]))
        job = self.ended(code, env={"EVEN": "yes"})
        self.assertEqual(self.said(job, "shards .*"), ["shards 4 4 False"] * 3, job.text())

    def test_sums_have_the_same_bits_for_any_number_of_ranks(self):
        code = """
            import array, hashlib
            batches = elastic.GlobalBatches([(1000, 40), (50, 24)], 64, shards=8, last="continues")
            weights = [array.array("f", [0.1] * 300), array.array("f", [0.3])]
            total = [array.array("f", bytes(4 * 300)), array.array("f", [0])]
            sums = elastic.GradientSums([300, 1])
            job = Job().keep(first=weights[0], second=weights[1]).keep_state("sums", sums.state, sums.restore)
            used = None
            def train(step):
                global used
                if used != step.round:
                    sums.use(step.group)
                    used = step.round
                for attempt in range(3):
                    sums.begin()
                    for shard in step.shards(batches):
                        die("shard", step)
                        one = array.array("f", [0] * 300)
                        for sample in shard.samples:
                            assert sample.set in (0, 1)
                            for k in range(300):
                                one[k] += weights[0][k] / (3 + sample.index + 7 * sample.set) - k * 1e-3
                        sums.add([one, array.array("f", [sum(one)]) if shard.number % 2 else None])
                    found = step.reduce(sums, total, divide_by=64.0, note=2)
                    assert (found.shards, found.note) == (8, 2 * step.world_size), found
                    if found.kind == "good":
                        break
                def apply():
                    for kept, summed in zip(weights, total):
                        for k in range(len(kept)):
                            kept[k] -= 0.5 * summed[k]
                    sums.commit()
                step.commit(apply)
            job.run(12, train)
            print("bits", hashlib.sha256(weights[0].tobytes() + weights[1].tobytes()).hexdigest(), flush=True)
        """
        bits = {line for nproc, deaths in ((1, ""), (2, ""), (3, "shard:4:1 shard:8:2"), (8, ""))
                for line in self.said(self.ended(code, nproc=nproc, env={"DIE": deaths}), "bits .*")}
        self.assertEqual(len(bits), 1, bits)


class Poison(ElasticCase):
    CODE = TRAIN + """
def poisoned(step):
    part = array.array("q", [0] * 146)
    for shard in step.shards(batches):
        has = (step.number, shard.number) == (3, 7)
        if has and os.environ["WHERE"] == "shard":
            os._exit(3)
        if has and os.environ["WHERE"] == "group":
            step.group.world_size  # As an operation: the shard is complete.
            os._exit(3)
        for index in shard.indices:
            part[50 + index] += 1
    step.group.all_reduce(part)
    step.commit(lambda: update(step, part))
with Job(skip_poison="SKIP" in os.environ) as job:
    job.keep(weights=weights, seen=seen, notes=notes, dice=dice).run(8, poisoned)
    print("seen", min(seen), max(seen), flush=True)
"""

    def test_samples_that_have_ended_two_processes_are_named(self):
        job = self.ended(self.CODE, code=3, env={"WHERE": "shard"})
        self.assertRegex(job.err().replace("\n", " "), r"It computed step 3, shard 7: samples \d+, \d+\. The same has ended")

    def test_what_fails_outside_of_a_shard_is_not_put_down_to_it(self):
        job = self.ended(self.CODE, code=3, env={"WHERE": "group"}, options=("--max-restarts", "2"))
        self.assertNotIn("It computed", job.err())
        self.assertIn("No restart was left", job.err().replace("\n", " "))

    def test_they_may_be_skipped(self):
        job = self.ended(self.CODE, env={"WHERE": "shard", "SKIP": "1"})
        self.assertIn("skipping step 3, shard 7", job.err())
        self.assertEqual(set(self.said(job, "seen .*")), {"seen 1 2"})


class Alone(ElasticCase):
    """One process that nobody launched, or fixed ranks."""

    def test_a_job_is_alone_without_a_launcher(self):
        self.assertIn("seen 10-10", self.alone(TRAIN, MAIN).out())

    def test_where_ranks_are_fixed_a_lost_one_is_an_error(self):
        self.folder = self.path("fixed")
        os.mkdir(self.folder)
        script = self.script(elastic_case.HEAD, TRAIN, """
            job = kept(Job())
            def body(step):
                if (step.number, step.rank) == (3, 1):
                    os._exit(0)
                train(step)
            try:
                job.run(STEPS, body)
            except ddprun.PeerLost as error:
                assert (error.rank, error.peer, job.committed) == (0, 1, 3), (error.rank, error.peer)
                print("right", flush=True)
                os._exit(0)
        """)
        env = self.environment(D=self.folder, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                               MASTER_PORT=str(free_port()))
        first, second = (self.start_program([sys.executable, "-B", script], env={**env, "RANK": rank, "LOCAL_RANK": rank})
                         for rank in "01")
        self.assertEqual((first.wait(), second.wait()), (0, 0), first.text() + second.text())
        self.assertIn("right", first.out())

    def test_batches(self):
        self.alone("""
            batches = elastic.GlobalBatches(100, 30, shards=7, seed=1)
            assert (batches.steps_per_epoch, batches.batch_size(0), batches.batch_size(3)) == (4, 30, 10)
            whole = batches.batch(2)
            parts = [batches.shard(2, number) for number in range(7)]
            assert sorted(whole.indices) == sorted(index for part in parts for index in part.indices)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1 and whole.number == -1
            epoch = [index for step in range(4, 8) for index in batches.batch(step).indices]
            assert sorted(epoch) == list(range(100)) and set(batches.batch(5).epochs) == {1}
            assert parts[3].samples[0] == elastic.Sample(0, parts[3].indices[0], 0), parts[3]
            plain = elastic.GlobalBatches(10, 4, shuffle=False, last="dropped")
            assert plain.batch(1).indices == [4, 5, 6, 7] and plain.steps_per_epoch == 2
            owned = [number for rank in range(3) for number in elastic.shards_of(rank, 3, 7)]
            assert owned == list(range(7))
            seeds = {elastic.stream_seed(9, step, shard, 7) & 0xffffffff for step in range(50) for shard in range(7)}
            assert len(seeds) == 350
        """)

    def test_misuse_is_refused_in_words(self):
        job = self.alone("""
            import array
            def refused(sentence, call, *arguments, **options):
                try:
                    call(*arguments, **options)
                except ddprun.Error as error:
                    assert sentence in str(error), str(error)
                    return
                raise AssertionError("not refused: " + sentence)
            refused("is not one of smaller, dropped", elastic.GlobalBatches, 10, 4, last="odd")
            refused("a list of (length, samples of each batch)", elastic.GlobalBatches, ["a"], 4)
            refused("there is no shard -1", elastic.GlobalBatches(10, 4).shard, 0, -1)
            refused("shard", elastic.GlobalBatches(10, 4).shard, 0, 5)
            sums = elastic.GradientSums([4])
            refused("1 arrays were passed for 2", elastic.GradientSums([4, 4]).add, [None])
            refused("an array of 4 float32 is needed", sums.add, [array.array("d", [0] * 4)])
            refused("an array of 4 float32 is needed", sums.add, [array.array("f", [0] * 3)])
            refused("init_timeout must be a positive number", elastic.Job, init_timeout=-1)
            job = Job()
            refused("cannot be written to", job.keep, text=b"abc")
            refused("no buffer protocol", job.keep, number=3)
            old = []
            def body(step):
                old.append(step)
                old.append(step.group)
                refused("run() has not returned", job.resume, 3)
                refused("must not be closed", step.group.close)
                assert "step 0" not in repr(step) and "Step 0" in repr(step)
                step.commit()
                refused("committed already", step.commit)
            assert (job.rank, job.world_size) == (-1, 0)
            refused("check_every must not be negative", elastic.Job, check_every=-1)
            refused("memory_every must be a number of steps", elastic.Job, memory_every=0)
            refused("memory_every must be a number of steps", elastic.Job, memory_every="often")
            job.keep(fine=bytearray(8)).run(1, body)
            assert (job.rank, job.world_size) == (0, 1)
            def whole(step):
                refused("one step has one commit()", step.commit)
                refused("communicates with nobody", step.group.barrier)
                refused("communicates with nobody", step.group.all_reduce_async, array.array("d", [1]))
            def early(step):
                step.commit(lambda: whole(step))
            job.run(2, early)
            assert job.committed == 2
            refused("steps", job.run, -1, early)
            refused("step 0 is over", old[0].vote)
            refused("has ended with its step", old[1].barrier)
            refused("without commit()", job.run, 3, lambda step: None)
            refused("before run()", job.resume, 3)
            refused("needs a positive number", job.between, 0, print)
            pid = os.fork()
            if pid == 0:
                refused("forked", job.run, 3, body)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            job.close()
            job.close()
            refused("closed", lambda: job.committed)
            print("right")
        """)
        self.assertIn("right", job.out())


if __name__ == "__main__":
    if not os.path.exists(LIBRARY):
        print(f"skipped: no {LIBRARY}")
        sys.exit(77)
    unittest.main(verbosity=2)
