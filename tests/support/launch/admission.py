"""What an API server and the webhook of JobSet refuse that no schema says, as far as a job can run into it."""

import re

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
RULE = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
REASONS = {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"}


def problems_of_jobset(manifest):
    """Yields what would be refused."""
    name, spec = manifest["metadata"]["name"], manifest["spec"]
    jobs = {job["name"]: job for job in spec["replicatedJobs"]}
    if len(jobs) != len(spec["replicatedJobs"]):
        yield "two replicated jobs have one name"
    if not LABEL.fullmatch(spec["network"]["subdomain"]):
        yield "the subdomain is no label"
    rules = spec["failurePolicy"]["rules"]
    for place in (spec.get("successPolicy", {}), *rules):
        yield from (
            f"{target} is no replicated job" for target in place.get("targetReplicatedJobs", ()) if target not in jobs
        )
    for rule in rules:
        if not RULE.fullmatch(rule["name"]) or sum(other["name"] == rule["name"] for other in rules) > 1:
            yield f"{rule['name']} is no name of a rule, or of two"
        if not set(rule["onJobFailureReasons"]) <= REASONS:
            yield "a job does not fail for such a reason"
        yield from (
            f"{text} is no pattern" for text in rule.get("onJobFailureMessagePatterns", ()) if not _is_regex(text)
        )
    for job in jobs.values():
        inner = job["template"]["spec"]
        pod = f"{name}-{job['name']}-{job['replicas'] - 1}-{inner['completions'] - 1}-abcde"
        if not LABEL.fullmatch(pod):
            yield f"{pod} is no label"
        yield from _problems_of_job(inner)


def _is_regex(text):
    try:
        return re.compile(text)
    except re.error:
        return False


def _problems_of_job(job):
    if not 0 <= job["backoffLimit"] < 2**31:
        yield f"{job['backoffLimit']} is no limit"
    if job["completionMode"] != "Indexed":
        yield "the pods of a job that is not Indexed have no stable names"
    pod = job["template"]["spec"]
    names = [container["name"] for container in pod["containers"]]
    if pod["restartPolicy"] != "Never":
        yield "podFailurePolicy needs restartPolicy: Never"
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and (
            codes["containerName"] not in names or 0 in codes["values"] or codes["values"] != sorted(codes["values"])
        ):
            yield "exit codes are sorted, without 0, of a container that there is"
    yield from problems_of_pod(pod)


def problems_of_pod(pod):
    """Yields what would be refused."""
    volumes = [volume["name"] for volume in pod.get("volumes", ())]
    if len(set(volumes)) != len(volumes):
        yield "two volumes have one name"
    for container in pod["containers"]:
        mounts = container.get("volumeMounts", ())
        if not {mount["name"] for mount in mounts} <= set(volumes):
            yield "a volume is mounted that is not there"
        if len({mount["mountPath"] for mount in mounts}) != len(mounts):
            yield "two volumes are at one path"
        variables = [variable["name"] for variable in container["env"]]
        if len(set(variables)) != len(variables):
            yield "a variable is there twice"
        sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if sleep > pod["terminationGracePeriodSeconds"]:
            yield "the hook takes longer than the grace period"
        limits = container.get("resources", {}).get("limits", {})
        requests = container.get("resources", {}).get("requests", {})
        if any(requests.get(device, amount) != amount for device, amount in limits.items()):
            yield "devices cannot be shared, so requests are limits"
