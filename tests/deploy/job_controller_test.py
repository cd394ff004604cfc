"""The stand-in for the Job controller: what it does with a Job of deploy/kubernetes, step by step."""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import ddprun_case
from ddprun_case import skip_all
from job_controller import End, JobController, Start

try:
    import kustomize
except ImportError:
    kustomize = None  # Without PyYAML.


def job_of(folder="job", **changed):
    (job,) = [thing for thing in kustomize.build(folder) if thing["kind"] == "Job"]
    spec = {**job["spec"], **changed}
    return {**job, "spec": {key: value for key, value in spec.items() if value is not None}}


class Controller(unittest.TestCase):
    def started(self, *changes, **spec):
        controller = JobController(job_of(*changes, **spec))
        self.assertEqual(controller.reconcile(), [Start(i) for i in range(4)])
        return controller

    def test_all_succeed(self):
        controller = self.started()
        for index in range(4):
            self.assertEqual(controller.ended(index, 0), [])
        self.assertEqual(controller.condition, ("Complete", ""))

    def test_a_pod_that_is_killed_is_replaced_and_costs_its_index_an_attempt(self):
        controller = self.started()
        self.assertEqual(controller.ended(2, 137), [Start(2)])
        self.assertEqual(controller.failures, {2: 1})

    def test_evictions_and_75_cost_nothing(self):
        controller = self.started()
        for _ in range(20):
            self.assertEqual(controller.ended(1, 137, disrupted=True), [Start(1)])
            self.assertEqual(controller.ended(0, 75), [Start(0)])
        self.assertEqual((controller.failures, controller.ignored, controller.condition), ({}, 40, None))

    def test_codes_that_the_next_pod_would_have_too_fail_the_job(self):
        for code in (2, 126, 127):
            controller = self.started()
            self.assertEqual(controller.ended(3, code), [End(2), End(1), End(0)])
            self.assertEqual(controller.condition, ("Failed", "PodFailurePolicy"))
            self.assertEqual([controller.ended(i, 143) for i in range(3)], [[], [], []])
            self.assertEqual(controller.failures, {})

    def test_an_index_has_four_attempts(self):
        controller = self.started()
        for _ in range(3):
            self.assertEqual(controller.ended(1, 1), [Start(1)])
        self.assertEqual(controller.ended(1, 1), [End(3), End(2), End(0)])
        self.assertEqual(controller.condition, ("Failed", "MaxFailedIndexesExceeded"))

    def test_a_common_limit_is_used_up_by_one_failure_of_all(self):
        controller = self.started(backoffLimitPerIndex=None, maxFailedIndexes=None, backoffLimit=3)
        for index in range(3):
            self.assertEqual(controller.ended(index, 1), [Start(index)])
        self.assertEqual(controller.ended(3, 1), [End(2), End(1), End(0)])
        self.assertEqual(controller.condition, ("Failed", "BackoffLimitExceeded"))

    def test_parallelism_changes(self):
        controller = self.started("elastic")
        self.assertEqual(controller.scale(2), [End(3), End(2)])
        self.assertEqual(controller.scale(3), [])  # One that ends keeps its place.
        self.assertEqual(controller.ended(3, 75), [])
        self.assertEqual(controller.ended(2, 75), [Start(2)])
        self.assertEqual(controller.scale(4), [Start(3)])
        self.assertEqual(controller.failures, {})

    def test_a_queue_suspends_the_job(self):
        controller = JobController(job_of("kueue"))
        self.assertEqual(controller.reconcile(), [])
        self.assertEqual(controller.suspend(False), [Start(i) for i in range(4)])
        self.assertEqual(controller.suspend(True), [End(i) for i in (3, 2, 1, 0)])
        self.assertEqual([controller.ended(i, 75) for i in range(4)], [[]] * 4)
        self.assertEqual(controller.suspend(False), [Start(i) for i in range(4)])
        self.assertEqual(controller.failures, {})


if __name__ == "__main__":
    if kustomize is None:
        skip_all("there is no PyYAML (package python3-yaml)")
    ddprun_case.main()
