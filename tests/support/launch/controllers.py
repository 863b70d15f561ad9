"""What two controllers make of pods that have ended: Kubernetes' own for each Job, then JobSet's for all of them.

Written after their sources, `pkg/controller/job/pod_failure_policy.go` of Kubernetes 1.34 and
`pkg/controllers/failure_policy.go` of JobSet 0.12, with their messages.
"""

import re

ALONE, ALL, ALL_COUNTED, FAILED = "another pod", "all again", "all again, which counts", "the job has failed"


class Controllers:
    """A JobSet that runs.

    Attributes:
      restarts: how often all have been restarted; `counted` of them count.
    """

    def __init__(self, manifest, matched="matching"):
        """Takes the object, and a word of the Job controller's message, which another version could change."""
        self._name, self._policy = manifest["metadata"]["name"], manifest["spec"]["failurePolicy"]
        self._jobs = {job["name"]: job["template"]["spec"] for job in manifest["spec"]["replicatedJobs"]}
        self._matched = matched
        self._failures = dict.fromkeys(self._jobs, 0)
        self.restarts = self.counted = 0

    def end(self, *ends):
        """Returns what follows from pods that end at the same time: role, exit code, and whether it was evicted."""
        failed = {}
        for role, code, is_evicted in ends:
            found = self._of_job(role, code, is_evicted)
            if found and role not in failed:
                failed[role] = found
        return self._of_jobset(failed) if failed else ALONE

    def _of_job(self, role, code, is_evicted):
        """Returns the reason and message with which a Job fails; None if it makes another pod."""
        job, pod = self._jobs[role], f"default/{self._name}-{role}-0-0-abcde"
        for index, rule in enumerate(job["podFailurePolicy"]["rules"]):
            how = self._matches(rule, pod, code, is_evicted)
            if how and rule["action"] == "Ignore":
                return None
            if how and rule["action"] == "FailJob":
                return "PodFailurePolicy", f"{how} {self._matched} FailJob rule at index {index}"
        self._failures[role] += 1
        if self._failures[role] > job["backoffLimit"]:
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        return None

    def _matches(self, rule, pod, code, is_evicted):
        codes = rule.get("onExitCodes")
        if codes and code in codes["values"]:
            return f"Container {codes['containerName']} for pod {pod} failed with exit code {code}"
        for condition in rule.get("onPodConditions", ()):
            if is_evicted and (condition["type"], condition["status"]) == ("DisruptionTarget", "True"):
                return f"Pod {pod} has condition DisruptionTarget"
        return None

    def _of_jobset(self, failed):
        actions = (
            rule["action"] for rule in self._policy["rules"] if any(_applies(rule, *each) for each in failed.items())
        )
        action = next(actions, "RestartJobSet")
        counts = action == "RestartJobSet"
        if action == "FailJobSet" or (counts and self.counted >= self._policy["maxRestarts"]):
            return FAILED
        assert counts or action == "RestartJobSetAndIgnoreMaxRestarts", action
        self.restarts += 1
        self.counted += counts
        self._failures = dict.fromkeys(self._jobs, 0)  # every Job is made anew
        return ALL_COUNTED if counts else ALL


def _applies(rule, role, failure):
    reason, message = failure
    patterns, targets = rule.get("onJobFailureMessagePatterns", ()), rule.get("targetReplicatedJobs", ())
    return (
        reason in rule.get("onJobFailureReasons", (reason,))
        and (not patterns or any(re.search(pattern, message) for pattern in patterns))
        and (not targets or role in targets)
    )
