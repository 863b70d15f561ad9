"""Jobs as schedulers get them, in files that people read: `launch/examples/`, what the commands of `launch/README.md`
print; other cases, `tests/data/rendered/`.

`python -m tests.support.launch.rendered` writes them anew, after a change that is meant; the difference is the review.
"""

import contextlib
import dataclasses
import re
import shlex
import sys
from pathlib import Path

import yaml

from official_trainer import config
from official_trainer.cli import flags
from official_trainer.launch import submit, targets
from official_trainer.launch.spec import Code, in_copy, training_job
from official_trainer.launch.targets.kubernetes import Kubernetes
from official_trainer.launch.targets.kubernetes_profile import KubernetesProfile
from official_trainer.launch.verbs import launch
from tests import ROOT

FOLDER, EXAMPLES = ROOT / "tests" / "data" / "rendered", ROOT / "launch" / "examples"
WORKSPACE = "/shared/workspace"
IMAGE = "image: registry.example.com/trainer:1\n"
RUN = "gs://bucket/digits"
NAME = "digits-1a2b3c4d"
TPU = """
project: my-project
zone: us-central2-b
accelerator_type: v4-8
runtime_version: tpu-ubuntu2204-base
source: gs://my-bucket/code.tar.gz
"""
KUBERNETES = {
    "jobset-workers": f"""{IMAGE}
workers: 2
namespace: research
resources: {{cpus: 8, memory_gib: 30, gpus: 2}}
volumes: [{{claim: datasets, path: /data, read_only: true}}]
environ: {{GREETING: costs $5, SWITCH: 'y', RATE: '1e3'}}
secrets: {{WANDB_API_KEY: {{secret: wandb, key: api-key}}}}
pod:
  metadata: {{labels: {{team: vision}}}}
  spec:
    priorityClassName: batch
    serviceAccountName: trainer
    imagePullSecrets: [{{name: registry}}]
    nodeSelector: {{disk: ssd}}
    tolerations: [{{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}}]
job:
  metadata: {{labels: {{team: vision, kueue.x-k8s.io/queue-name: team-a}}}}
  spec: {{ttlSecondsAfterFinished: 86400}}
""",
    "jobset-servers": f"""{IMAGE}
workers: 2
ps: 1
evaluator: true
max_restarts: 3
resources: {{cpus: 4}}
ps_resources: {{memory_gib: 1.5}}
""",
    "jobset-fragments": f"""{IMAGE}
workers: 4
evaluator: true
volumes: [{{claim: datasets, path: /data}}]
pod:
  metadata: {{annotations: {{gke-gcsfuse/volumes: 'true'}}}}
  spec:
    securityContext: {{runAsUser: 4711, runAsGroup: 4711, fsGroup: 4711}}
    affinity:
      nodeAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{{matchExpressions: [{{key: zone, operator: In, values: [a]}}]}}]
    topologySpreadConstraints:
    - {{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule, labelSelector: {{matchLabels: {{a: b}}}}}}
    volumes: [{{name: scratch, emptyDir: {{sizeLimit: 10Gi}}}}]
    containers:
    - name: trainer
      envFrom: [{{configMapRef: {{name: proxy}}}}]
      volumeMounts: [{{name: scratch, mountPath: /scratch}}]
job:
  metadata: {{annotations: {{alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool}}}}
  spec:
    failurePolicy: {{rules: [{{name: late, action: FailJobSet, onJobFailureReasons: [DeadlineExceeded]}}]}}
    replicatedJobs: [{{name: worker, template: {{spec: {{activeDeadlineSeconds: 86400}}}}}}]
""",
    "jobset-tpu": (ROOT / "launch" / "gke.yaml").read_text(),
}


def profile_of(text, kind=KubernetesProfile):
    return config.resolve(kind(), params_overrides=[text]).config


def job_for(profile, *words, model_dir=RUN, name=NAME, strategy="auto"):
    argv = ["--experiment=digits_mlp", f"--model_dir={model_dir}", *words]
    mode = [] if any(word.startswith("--mode=") for word in words) else ["--mode=train"]
    job = training_job(profile.counts, [*argv, *mode], grace_seconds=35.0)
    return dataclasses.replace(job, name=name, model_dir=model_dir, cwd="/home/me/workspace", strategy=strategy)


def manifest_of(text, *words, **changes):
    """Returns the object that kubectl gets, as plain values."""
    profile = profile_of(text)
    (file,) = Kubernetes(profile).render(job_for(profile, *words, **changes)).files.values()
    return yaml.safe_load(file)


def commands():
    """Returns the words after `official-trainer launch` of each command in the README."""
    lines = re.findall(r"^official-trainer launch (.*)$", (ROOT / "launch/README.md").read_text(), flags=re.MULTILINE)
    return [shlex.split(line) for line in lines]


def examples():
    """Returns each example by its file name, `PROFILE.suffix`, or `PROFILE.FILE` for one of several."""
    shown = {}
    with contextlib.chdir(ROOT):
        for words in commands():
            if words[0] != launch.LOCAL:
                name, files = _example(words)
                for file, text in files.items():
                    end = Path(file).suffix if len(files) == 1 else f".{file}"
                    shown[name + end] = text.replace(sys.executable, f"{WORKSPACE}/.venv/bin/python")
    return shown


def _example(words):
    """Returns the profile's name and what the engine gets, as in a workspace at WORKSPACE."""
    parser = flags.Parser("launch", usage="", description="")
    launch.add_flags(parser)
    arguments = parser.read(words)
    arguments.home, arguments.argv = None, []
    engine, job = submit.checked(arguments, targets.get(arguments.target))
    job = dataclasses.replace(job, cwd=WORKSPACE)
    if engine.copies_code:
        folder = f"{WORKSPACE}/launches/{job.name}/code-0123456789ab"
        job = in_copy(job, Code(commit="0123456789ab" * 3 + "0123", workspace=WORKSPACE, folder=folder), [])
    assert not [*engine.problems(job)]
    return Path(arguments.profile).stem, engine.render(job).files


def others():
    """Returns the files by name, without what `launch/examples/` shows too."""
    engines = {
        f"{name}.yaml": Kubernetes(profile_of(text)) for name, text in KUBERNETES.items() if name != "jobset-tpu"
    }
    return {name: "".join(engine.render(job_for(engine.profile)).files.values()) for name, engine in engines.items()}


def expected():
    """Returns every file that is kept, by its path."""
    sources = {EXAMPLES: examples(), FOLDER: others()}
    return {folder / name: text for folder, texts in sources.items() for name, text in texts.items()}


def kept():
    """Returns the paths of the files that are there."""
    return {path for folder in (EXAMPLES, FOLDER) for path in folder.iterdir() if path.is_file()}


if __name__ == "__main__":
    for path in kept():
        path.unlink()
    for path, text in expected().items():
        path.write_text(text)
