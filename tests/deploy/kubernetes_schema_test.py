"""deploy/kubernetes against the API's own schemas, of the oldest Kubernetes that it supports and of the newest that is known.

kubernetes-validate of PyPI has them; it is installed into a folder of this test. Kinds of JobSet, the Trainer and the
Prometheus operator are in no such schema: of the first two, the jobs in them are checked."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import skip_all

try:
    import kustomize
except ImportError:
    kustomize = None

OLDEST = "1.29"  # From it on backoffLimitPerIndex needs no feature gate; docs/kubernetes.md names it.
FOLDERS = ("job", "elastic", "elastic-on-daemon", "kueue", "daemon", "daemon-etcd")
NOT_OF_THE_API = {"PodMonitor", "JobSet", "ClusterTrainingRuntime", "TrainJob"}

# In the other Python: reads [version, [[name, object], ...]] and prints what is wrong.
VALIDATE = """
import json, sys
import kubernetes_validate
version, things = json.load(sys.stdin)
wrong = {}
for name, thing in things:
    try:
        kubernetes_validate.validate(thing, version or kubernetes_validate.latest_version(), strict=True)
    except Exception as e:
        wrong[name] = str(e)[:500]
print(json.dumps([kubernetes_validate.latest_version(), wrong]))
"""


def install(folder):
    """A Python that has kubernetes-validate, or why there is none."""
    python = os.path.join(folder, "bin", "python3")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--retries", "1", "--timeout", "15"]
    for command in ([sys.executable, "-m", "venv", folder], [*pip, "kubernetes-validate"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        if done.returncode != 0:
            return None, f"{' '.join(command[-2:])}: {(done.stderr or done.stdout).strip()[-300:]}"
    return python, None


def things():
    """(name, object) of all that the API has a schema for."""
    found = []
    for folder in FOLDERS:
        for thing in kustomize.build(folder):
            if thing["kind"] not in NOT_OF_THE_API:
                found.append((f"{folder}: {thing['kind']}", thing))
    for file in ("jobset/jobset.yaml", "trainer/runtime.yaml"):
        (thing,) = kustomize.documents(os.path.join(kustomize.FOLDER, file))
        spec = thing["spec"]["template"]["spec"] if "template" in thing["spec"] else thing["spec"]
        for replicated in spec["replicatedJobs"]:
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]}, **replicated["template"]}
            found.append((file, {**job, "metadata": {"name": replicated["name"], **job["metadata"]}}))
    return found


class Schema(unittest.TestCase):
    python = None

    def problems(self, version, checked):
        done = subprocess.run([self.python, "-c", VALIDATE], input=json.dumps([version, checked]), capture_output=True,
                              text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_of_the_oldest_kubernetes(self):
        self.assertEqual(self.problems(OLDEST, things())[1], {})

    def test_of_the_newest_kubernetes(self):
        newest, wrong = self.problems(None, things())
        print(f"  the newest is {newest}", flush=True)
        self.assertEqual(wrong, {})

    def test_a_field_of_no_version_is_found(self):
        (name, job) = next((name, thing) for name, thing in things() if thing["kind"] == "Job")
        job["spec"]["backoffLimitPerPod"] = 1
        self.assertEqual(list(self.problems(OLDEST, [(name, job)])[1]), [name])


if __name__ == "__main__":
    if kustomize is None:
        skip_all("there is no python3-yaml")
    with tempfile.TemporaryDirectory(prefix="ddprun-test-") as folder:
        Schema.python, reason = install(folder)
        if reason:
            skip_all(f"kubernetes-validate cannot be installed: {reason}")
        ddprun_case.main()
