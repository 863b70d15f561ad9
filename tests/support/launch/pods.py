"""What the controllers of Kubernetes make of a manifest: pods with names, labels and environments; run as processes.

Each pod has a network namespace with an address of its own, and sees the others' names in an `/etc/hosts` of its own
mount namespace.
"""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

from tests import ROOT
from tests.support.distributed import networks

CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
TIMEOUT_SECONDS = 150


class Pod:
    """A pod as its controller makes it: name of its host, labels, the manifest's spec, variables on top of it."""

    def __init__(self, host, labels, spec, more):
        self.host, self.spec = host, spec
        (self.container,) = spec["containers"]
        self._labels = labels
        self.environ = {}
        for each in self.container["env"]:
            self.environ[each["name"]] = self._value(each)
        self.environ = more | self.environ  # the controller leaves a variable of its own that is there
        words = [*self.container["command"], *self.container["args"]]
        self.argv = [_expanded(word, self.environ) for word in words]

    def _value(self, variable):
        if "value" in variable:
            return _expanded(variable["value"], self.environ)
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        return self._labels[re.fullmatch(r"metadata\.(?:labels|annotations)\['(.*)'\]", path)[1]]


def pods_of_jobset(manifest):
    """Returns the pods by (role, index), as the JobSet and Job controllers make them."""
    name, pods = manifest["metadata"]["name"], {}
    subdomain = manifest["spec"]["network"]["subdomain"]
    for replicated in manifest["spec"]["replicatedJobs"]:
        job, role = replicated["template"]["spec"], replicated["name"]
        assert (job["completionMode"], job["completions"]) == ("Indexed", job["parallelism"])
        for number in range(replicated["replicas"]):
            labels = {
                "jobset.sigs.k8s.io/jobset-name": name,
                "jobset.sigs.k8s.io/jobset-uid": f"uid-of-{name}",
                "jobset.sigs.k8s.io/replicatedjob-name": role,
                "jobset.sigs.k8s.io/job-index": str(number),
                **job["template"]["metadata"]["labels"],
            }
            for index in range(job["completions"]):
                labels = {**labels, "batch.kubernetes.io/job-completion-index": str(index)}  # it is an annotation too
                host = f"{name}-{role}-{number}-{index}.{subdomain}"
                more = {"JOB_COMPLETION_INDEX": str(index)}
                pods[role, number * job["completions"] + index] = Pod(host, labels, job["template"]["spec"], more)
    return pods


def _expanded(text, environ):
    """Puts variables in as Kubernetes does."""

    def put_in(match):
        if match[0] == "$$":
            return "$"
        return environ.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", put_in, text)


def run(pods, folder, cwd):
    """Runs pods as processes with nothing in their environment but what the manifest says, until all have ended.

    Returns exit codes and outputs, by (role, index).
    """
    running = {}
    with networks.Network(len(pods)) as network:
        rows = [f"{address} {pod.host}" for address, pod in zip(network.addresses, pods.values(), strict=True)]
        hosts = Path(folder) / "hosts"
        hosts.write_text("\n".join(["127.0.0.1 localhost", *rows, ""]))
        for number, (name, pod) in enumerate(pods.items()):
            machine = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
            running[name] = subprocess.Popen(
                [sys.executable, *pod.argv[1:]],
                cwd=cwd,
                env={**machine, **pod.environ},
                preexec_fn=Entrance(network.entrance(number), str(hosts)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        try:
            said = {name: process.communicate(timeout=TIMEOUT_SECONDS)[0] for name, process in running.items()}
        finally:
            for process in running.values():
                process.kill()
    return {name: process.returncode for name, process in running.items()}, said


class Entrance:
    """What a process has to call to be in a pod."""

    def __init__(self, network, hosts):
        self._network, self._hosts = network, hosts

    def __call__(self):
        self._network()
        libc = ctypes.CDLL(None, use_errno=True)
        private = libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        if private or libc.mount(self._hosts.encode(), b"/etc/hosts", None, MS_BIND, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def why_not():
    """Returns why no pods can be run here; an empty text if they can."""
    if os.geteuid():
        return "only root may make the namespaces that stand for pods"
    return networks.why_not()
