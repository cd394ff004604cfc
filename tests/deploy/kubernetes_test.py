"""deploy/kubernetes: its files parse, their parts fit together, and ddprun takes the environment that they set.

kubernetes_schema_test.py holds them against the schemas of Kubernetes.
"""

import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import BIN, DDPRUN, skip_all

try:
    import yaml
except ImportError:
    yaml = None

if yaml is not None:
    import kustomize

BUILT = ("job", "elastic", "elastic-on-daemon", "kueue", "daemon", "daemon-etcd")


def kinds_of(folder):
    return {thing["kind"]: thing for thing in kustomize.build(folder)}


def pod_of(thing):
    return thing["spec"]["template"]["spec"]


def environment_of(pod):
    return {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}


def all_pods():
    """What each folder and each file runs, by a name to report it by."""
    found = {}
    for folder in BUILT:
        for thing in kustomize.build(folder):
            if thing["kind"] in ("Job", "Deployment"):
                found[f"{folder}: {thing['kind']}"] = pod_of(thing)
    for file in ("jobset/jobset.yaml", "trainer/runtime.yaml"):
        (thing,) = kustomize.documents(os.path.join(kustomize.FOLDER, file))
        spec = thing["spec"]["template"]["spec"] if "template" in thing["spec"] else thing["spec"]
        found[file] = pod_of(spec["replicatedJobs"][0]["template"])
    return found


class Manifest(unittest.TestCase):
    def setUp(self):
        kinds = kinds_of("job")
        self.service, self.job, self.policy = kinds["Service"], kinds["Job"], kinds["NetworkPolicy"]
        self.pod = self.job["spec"]["template"]["spec"]
        self.container = self.pod["containers"][0]
        self.variables = {v["name"]: v for v in self.container["env"]}

    def value(self, name):
        return self.variables[name]["value"]

    def test_every_pod_gets_an_index_and_all_run_at_once(self):
        spec = self.job["spec"]
        self.assertEqual((self.job["apiVersion"], self.job["kind"]), ("batch/v1", "Job"))
        self.assertEqual(spec["completionMode"], "Indexed")
        self.assertEqual(spec["completions"], spec["parallelism"])
        self.assertEqual(str(spec["completions"]), self.value("PET_NNODES"))

    def test_pod_0_can_be_found_by_its_name_before_it_is_ready(self):
        name = self.job["metadata"]["name"]
        subdomain = self.pod["subdomain"]
        self.assertEqual(self.value("PET_RDZV_ENDPOINT").split(":")[0], f"{name}-0.{subdomain}")
        self.assertEqual(self.service["metadata"]["name"], subdomain)
        self.assertEqual(self.service["spec"]["clusterIP"], "None")
        self.assertIs(self.service["spec"]["publishNotReadyAddresses"], True)
        self.assertEqual(self.service["spec"]["selector"], {"job-name": name})

    def test_the_token_is_a_file_of_a_secret_and_in_no_variable(self):
        self.assertNotIn("DDPRUN_TOKEN", self.variables)
        volume = next(v for v in self.pod["volumes"] if "secret" in v)
        mount = next(m for m in self.container["volumeMounts"] if m["name"] == volume["name"])
        self.assertEqual(self.value("DDPRUN_TOKEN_FILE"), mount["mountPath"] + "/token")
        self.assertIs(mount["readOnly"], True)
        self.assertEqual(volume["secret"]["defaultMode"] & 0o007, 0)
        self.assertIn("fsGroup", self.pod["securityContext"])  # Who else could read it?

    def test_pods_have_no_more_rights_than_training_needs(self):
        for name, pod in all_pods().items():
            with self.subTest(name=name):
                container = pod["containers"][0]
                self.assertIs(pod["automountServiceAccountToken"], False)
                self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
                self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                                "capabilities": {"drop": ["ALL"]}})

    def test_what_a_pod_writes_is_on_a_volume(self):
        """The root file system is read-only."""
        for name, pod in all_pods().items():
            with self.subTest(name=name):
                volumes = {v["name"]: v for v in pod["volumes"]}
                mounts = {m["mountPath"]: volumes[m["name"]] for m in pod["containers"][0]["volumeMounts"]}
                self.assertEqual(len(mounts), len(volumes), "a volume is not mounted")
                if pod["containers"][0]["name"] == "ddprun-rendezvous":
                    continue
                self.assertEqual(mounts["/dev/shm"]["emptyDir"]["medium"], "Memory")
                self.assertIn("emptyDir", mounts["/tmp"])
                self.assertTrue(environment_of(pod)["XDG_STATE_HOME"].startswith("/tmp/"))

    def test_pods_are_reached_by_pods_of_the_run_and_their_pages_by_the_monitoring(self):
        own = {"podSelector": {"matchLabels": {"job-name": self.job["metadata"]["name"]}}}
        monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        pages = {"from": [monitoring], "ports": [{"port": int(self.value("PET_HTTP_PORT"))}]}
        self.assertEqual(self.policy["spec"], {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}, pages]})

    def test_what_watches_a_run_names_the_pages_of_pod_0(self):
        monitor = kinds_of("job")["PodMonitor"]["spec"]
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        (endpoint,) = monitor["podMetricsEndpoints"]
        self.assertEqual(str(ports[endpoint["port"]]), self.value("PET_HTTP_PORT"))
        self.assertEqual(self.value("PET_HTTP_ADDRESS"), "0.0.0.0")
        self.assertEqual(monitor["selector"]["matchLabels"], {"job-name": self.job["metadata"]["name"],
                                                              "batch.kubernetes.io/job-completion-index": "0"})
        self.assertEqual(endpoint["relabelings"], [{"targetLabel": "job", "replacement": "ddprun"}])  # Of the alerts.

    def test_a_probe_needs_no_token(self):
        """ddprunctl health is run as the pod's user, with the pod's environment."""
        program, *arguments = self.container["livenessProbe"]["exec"]["command"]
        done = subprocess.run([os.path.join(BIN, program), *arguments], env=environment_of(self.pod) | {"DDPRUN_TOKEN_FILE": ""},
                              capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual((done.returncode, done.stderr.count("no run of yours is in progress")), (1, 1), done.stderr)

    def test_a_failure_of_the_run_uses_up_one_attempt_of_each_pod(self):
        self.assertGreater(self.job["spec"]["backoffLimitPerIndex"], 0)
        self.assertEqual(self.job["spec"]["maxFailedIndexes"], 0)
        self.assertNotIn("backoffLimit", self.job["spec"])

    def test_pods_are_apart_and_a_hopeless_command_is_not_tried_again(self):
        apart = self.pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        self.assertEqual(apart[0]["labelSelector"]["matchLabels"], {"job-name": self.job["metadata"]["name"]})
        rules = {rule["action"]: rule for rule in self.job["spec"]["podFailurePolicy"]["rules"]}
        self.assertEqual(rules["FailJob"]["onExitCodes"]["containerName"], self.container["name"])
        self.assertEqual(rules["FailJob"]["onExitCodes"]["values"], [2, 126, 127])
        self.assertEqual(self.pod["restartPolicy"], "Never")  # The policy needs it.

    def test_a_node_that_was_told_of_its_end_is_no_failure(self):
        command = self.container["command"]
        self.assertEqual(command[command.index("--preempt-signal") + 1], "SIGTERM")
        rules = self.job["spec"]["podFailurePolicy"]["rules"]
        ignored = [rule["onExitCodes"] for rule in rules if rule["action"] == "Ignore" and "onExitCodes" in rule]
        self.assertEqual(ignored, [{"containerName": self.container["name"], "operator": "In", "values": [75]}])
        failing = [rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "FailJob"]
        self.assertNotIn(75, sum(failing, []))

    def test_the_pod_outlives_the_last_step_and_its_workers_grace(self):
        for name, pod in all_pods().items():
            if pod["containers"][0]["name"] != "ddprun-rendezvous":
                self.assertGreater(pod["terminationGracePeriodSeconds"], 2 * 30, name)

    def test_ddprun_takes_it(self):
        """As pod 0, which hosts, and as pod 1, which joins; GPUs are left out, this machine may have none."""
        for index, says in (("0", "hosted by this node at train-0.train:29400"), ("1", "joined at train-0.train:29400")):
            self.assertIn(says, dry_run(self.pod, JOB_COMPLETION_INDEX=index))


def dry_run(pod, **more):
    """What ddprun would do with a pod's command and environment."""
    env = {name: value for name, value in environment_of(pod).items() if value is not None}
    env = {**ddprun_case.clean_environment(), **env, "PET_NPROC_PER_NODE": "2", **more}
    command = [DDPRUN, "--dry-run", *pod["containers"][0]["command"][1:-3], "true"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Variants(unittest.TestCase):
    def test_every_folder_is_built_as_kubectl_builds_it(self):
        folders = sorted(name for name in os.listdir(kustomize.FOLDER)
                         if os.path.exists(os.path.join(kustomize.FOLDER, name, "kustomization.yaml")))
        self.assertEqual(folders, sorted(BUILT))
        for folder in BUILT:
            theirs = kustomize.built_by_kubectl(folder)
            if theirs is None:
                raise unittest.SkipTest("there is no kubectl that builds these")
            with self.subTest(folder=folder):
                plain = lambda things: {kustomize.name_of(thing): ordered(thing) for thing in things}
                self.assertEqual(plain(kustomize.build(folder)), plain(theirs))

    def test_an_elastic_run_goes_on_with_the_nodes_that_a_drain_leaves(self):
        kinds = kinds_of("elastic")
        job, budget = kinds["Job"], kinds["PodDisruptionBudget"]
        least, most = environment_of(pod_of(job))["PET_NNODES"].split(":")
        self.assertEqual((int(most), int(least)), (job["spec"]["completions"], budget["spec"]["minAvailable"]))
        self.assertEqual(budget["spec"]["selector"], kinds["NetworkPolicy"]["spec"]["podSelector"])
        self.assertIn("hosted by this node at train-0.train:29400", dry_run(pod_of(job), JOB_COMPLETION_INDEX="0"))

    def test_with_a_daemon_of_its_own_no_pod_of_a_run_hosts_one(self):
        job = kinds_of("elastic-on-daemon")["Job"]
        service = kinds_of("daemon")["Service"]
        port = service["spec"]["ports"][0]["port"]
        for index in ("0", "1"):
            self.assertIn(f"joined at {service['metadata']['name']}:{port}", dry_run(pod_of(job), JOB_COMPLETION_INDEX=index))
        self.assertEqual(environment_of(pod_of(job))["PET_NNODES"], "2:4")
        self.assertNotIn("PodMonitor", kinds_of("elastic-on-daemon"))  # The daemon has one.

    def test_a_queue_starts_the_job(self):
        job = kinds_of("kueue")["Job"]
        self.assertIs(job["spec"]["suspend"], True)
        self.assertIn("kueue.x-k8s.io/queue-name", job["metadata"]["labels"])

    def test_the_daemon_takes_its_arguments(self):
        """As far as without an etcd, or a disk: the first thing that is missing is the token's file."""
        for folder in ("daemon", "daemon-etcd"):
            container = pod_of(kinds_of(folder)["Deployment"])["containers"][0]
            argv = [os.path.join(BIN, container["command"][0]), *container["command"][1:], *container["args"]]
            done = subprocess.run(argv, env={**ddprun_case.clean_environment(), **environment_of({"containers": [container]})},
                                  capture_output=True, text=True, timeout=30, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("/etc/ddprun/token", done.stderr)

    def test_what_watches_the_daemon_names_its_ports(self):
        kinds = kinds_of("daemon")
        pod = pod_of(kinds["Deployment"])
        ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
        labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
        (endpoint,) = kinds["PodMonitor"]["spec"]["podMetricsEndpoints"]
        self.assertEqual(ports[endpoint["port"]], ports[pod["containers"][0]["livenessProbe"]["httpGet"]["port"]])
        self.assertEqual(endpoint["relabelings"], [{"targetLabel": "job", "replacement": "ddprun"}])  # Of the alerts.
        for selector in (kinds["PodMonitor"]["spec"]["selector"]["matchLabels"], kinds["Service"]["spec"]["selector"],
                         kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
                         kinds_of("daemon-etcd")["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]):
            self.assertEqual(selector, labels)
        allowed = [rule["ports"][0]["port"] for rule in kinds["NetworkPolicy"]["spec"]["ingress"]]
        self.assertEqual(allowed, [ports["rendezvous"], ports["pages"]])

    def test_two_daemons_keep_nothing_on_a_disk(self):
        kinds = kinds_of("daemon-etcd")
        self.assertNotIn("PersistentVolumeClaim", kinds)
        self.assertEqual(kinds["Deployment"]["spec"]["replicas"], 2)
        self.assertNotIn("livenessProbe", pod_of(kinds["Deployment"])["containers"][0])  # The second has no pages.
        self.assertEqual(kinds_of("daemon")["Deployment"]["spec"]["strategy"], {"type": "Recreate"})  # The disk has one user.

    def test_a_job_set_finds_its_pod_0(self):
        (jobset,) = kustomize.documents(os.path.join(kustomize.FOLDER, "jobset", "jobset.yaml"))
        (replicated,) = jobset["spec"]["replicatedJobs"]
        pod = pod_of(replicated["template"])
        name = jobset["metadata"]["name"]
        endpoint = f"{name}-{replicated['name']}-0-0.{name}:29400"
        self.assertIn(f"hosted by this node at {endpoint}", dry_run(pod, JOB_COMPLETION_INDEX="0"))
        self.assertIn(f"joined at {endpoint}", dry_run(pod, JOB_COMPLETION_INDEX="3"))
        rules = replicated["template"]["spec"]["podFailurePolicy"]
        self.assertEqual(rules, kinds_of("job")["Job"]["spec"]["podFailurePolicy"])

    def test_a_train_job_runs_with_what_the_trainer_sets(self):
        (runtime,) = kustomize.documents(os.path.join(kustomize.FOLDER, "trainer", "runtime.yaml"))
        (job,) = kustomize.documents(os.path.join(kustomize.FOLDER, "trainer", "train-job.yaml"))
        self.assertEqual(job["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"])
        (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        self.assertEqual((replicated["name"], pod_of(replicated["template"])["containers"][0]["name"]), ("node", "node"))
        pod = pod_of(replicated["template"])
        sets = {"PET_NNODES": "4", "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29500", "PET_RDZV_ID": "train",
                "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
        self.assertFalse(set(environment_of(pod)) & (set(sets) - {"PET_RDZV_ID"}), "the Trainer refuses these")
        for rank, says in (("0", "hosted by this node"), ("1", "joined")):
            said = dry_run(pod, **sets, PET_NODE_RANK=rank, JOB_COMPLETION_INDEX=rank)
            self.assertIn(says + " at train-node-0-0.train:29500", said)


def ordered(value):
    """Without the order of lists of named things, which a merge may change."""
    if isinstance(value, dict):
        return {key: ordered(element) for key, element in value.items()}
    if isinstance(value, list) and all(isinstance(element, dict) for element in value):
        return sorted((ordered(element) for element in value), key=lambda element: json.dumps(element, sort_keys=True))
    return value


if __name__ == "__main__":
    if yaml is None:
        skip_all("there is no python3-yaml")
    ddprun_case.main()
