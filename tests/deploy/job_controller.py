"""A stand-in for the Job controller of Kubernetes, and no more than that: what it does with the pods of one indexed Job.

After the documentation of batch/v1 and as far as the manifests of deploy/kubernetes use it: a pod for each index, `parallelism` of
them at once, `suspend`, `podFailurePolicy` with its rules in turn, `backoffLimitPerIndex`, `maxFailedIndexes`, `backoffLimit`. It
decides; pods_test.py starts and ends the pods. Without its delays: a failed pod is replaced at once, not after 10 s and more.
"""

import dataclasses


@dataclasses.dataclass
class Start:
    index: int


@dataclasses.dataclass
class End:
    """By SIGTERM, and SIGKILL when the grace is over."""
    index: int


class JobController:
    def __init__(self, job):
        spec = job["spec"]
        assert spec["completionMode"] == "Indexed", "of the other kind it knows nothing"
        self.completions, self.parallelism = spec["completions"], spec["parallelism"]
        self.per_index, self.failed_indexes_max = spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes")
        self.limit = spec.get("backoffLimit", 6 if self.per_index is None else None)
        self.rules = spec.get("podFailurePolicy", {}).get("rules", [])
        self.suspended = spec.get("suspend", False)
        self.active, self.ending = set(), set()  # Indexes whose pod is there; those of them that have received SIGTERM.
        self.succeeded, self.failed_indexes = set(), set()
        self.failures = {}  # How many of the attempts of each index count.
        self.ignored = 0
        self.condition = None  # "Complete" or "Failed", with the reason.

    def scale(self, parallelism):
        self.parallelism = parallelism
        return self.reconcile()

    def suspend(self, suspended):
        self.suspended = suspended
        return self.reconcile()

    def ended(self, index, code, disrupted=False):
        """A pod is gone. `disrupted`: it has the condition DisruptionTarget, as the eviction of a pod sets it."""
        self.active.remove(index)
        self.ending.discard(index)
        if self.condition is None:
            self._judge(index, code, disrupted)
        return self.reconcile()

    def reconcile(self):
        """What is to be done now."""
        wanted = 0 if self.suspended or self.condition else self.parallelism
        if len(self.succeeded) == self.completions:
            self.condition = self.condition or ("Complete", "")
        surplus = len(self.active) - len(self.ending) - wanted
        if surplus > 0:
            last = sorted(self.active - self.ending, reverse=True)[:surplus]
            self.ending.update(last)
            return [End(index) for index in last]
        if self.condition:
            return []
        # A pod that has received SIGTERM keeps its place until it is gone (podReplacementPolicy: Failed).
        free = [i for i in range(self.completions) if i not in self.active | self.succeeded | self.failed_indexes]
        started = free[:max(0, wanted - len(self.active))]
        self.active.update(started)
        return [Start(index) for index in started]

    def _judge(self, index, code, disrupted):
        if code == 0:
            self.succeeded.add(index)
            return
        action = next((rule["action"] for rule in self.rules if self._applies(rule, code, disrupted)), "Count")
        if action == "Ignore":
            self.ignored += 1
        elif action == "FailJob":
            self.condition = ("Failed", "PodFailurePolicy")
        elif action == "FailIndex":
            self._fail_index(index)
        else:
            self._count(index)

    @staticmethod
    def _applies(rule, code, disrupted):
        if "onPodConditions" in rule:
            return disrupted and {"type": "DisruptionTarget", "status": "True"} in rule["onPodConditions"]
        codes = rule["onExitCodes"]
        return (code in codes["values"]) == (codes["operator"] == "In")

    def _count(self, index):
        self.failures[index] = self.failures.get(index, 0) + 1
        if self.per_index is not None and self.failures[index] > self.per_index:
            self._fail_index(index)
        if self.limit is not None and sum(self.failures.values()) > self.limit:
            self.condition = ("Failed", "BackoffLimitExceeded")

    def _fail_index(self, index):
        self.failed_indexes.add(index)
        if self.failed_indexes_max is not None and len(self.failed_indexes) > self.failed_indexes_max:
            self.condition = ("Failed", "MaxFailedIndexesExceeded")
