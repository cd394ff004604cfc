"""deploy/kubernetes/*.yaml: they parse, their parts fit together, and ddprun takes the environment that they set."""

import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import DDPRUN, skip_all

try:
    import yaml
except ImportError:
    yaml = None

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "kubernetes", "ddprun-job.yaml")


class Manifest(unittest.TestCase):
    def setUp(self):
        with open(FILE, encoding="utf-8") as f:
            self.service, self.job = yaml.safe_load_all(f)
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
        self.assertIs(self.pod["automountServiceAccountToken"], False)
        self.assertIs(self.pod["securityContext"]["runAsNonRoot"], True)
        self.assertIs(self.container["securityContext"]["allowPrivilegeEscalation"], False)
        self.assertEqual(self.container["securityContext"]["capabilities"], {"drop": ["ALL"]})

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
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], 2 * 30)
        self.assertEqual(self.container["volumeMounts"][0]["mountPath"], "/dev/shm")

    def test_ddprun_takes_it(self):
        """As pod 0, which hosts, and as pod 1, which joins; GPUs are left out, this machine may have none."""
        env = {v: self.variables[v]["value"] for v in self.variables if "value" in self.variables[v]}
        env = {**ddprun_case.clean_environment(), **env, "PET_NPROC_PER_NODE": "2"}
        command = [DDPRUN, "--dry-run", *self.container["command"][1:-3], "true"]
        for index, says in (("0", "hosted by this node at train-0.train:29400"), ("1", "joined at train-0.train:29400")):
            done = subprocess.run(command, env={**env, "JOB_COMPLETION_INDEX": index}, capture_output=True, text=True,
                                  timeout=30, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(says, done.stdout)


if __name__ == "__main__":
    if yaml is None:
        skip_all("there is no python3-yaml")
    ddprun_case.main()
