"""Jobs as schedulers get them, in files that people read: `launch/examples/`; other cases, `tests/data/rendered/`.

`python -m tests.support.launch.rendered` writes them anew, after a change that is meant; the difference is the review.
"""

import dataclasses

import yaml

from official_trainer import config
from official_trainer.launch.spec import training_job
from official_trainer.launch.targets.kubernetes import Kubernetes
from official_trainer.launch.targets.kubernetes_profile import KubernetesProfile
from official_trainer.launch.targets.tpu import CloudTpu
from official_trainer.launch.targets.tpu_profile import TpuProfile
from tests import ROOT
from tests.support.launch import examples

FOLDER = ROOT / "tests" / "data" / "rendered"
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
TPU_POD = f"""{TPU.replace("v4-8", "v4-32")}
setup: [[systemctl, restart, tpu-runtime]]
install: ['-r', requirements.lock]
environ: {{GREETING: "it's $5"}}
max_restarts: 3
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


def texts():
    """Returns the files by name, without what `launch/examples/` shows too."""
    targets = {
        f"{name}.yaml": Kubernetes(profile_of(text)) for name, text in KUBERNETES.items() if name != "jobset-tpu"
    }
    targets["tpu-pod.startup.sh"] = CloudTpu(profile_of(TPU_POD, TpuProfile))
    found = {}
    for name, target in targets.items():
        (found[name],) = target.render(job_for(target.profile)).files.values()
    return found


def expected():
    """Returns every file that is kept, by its path."""
    sources = {examples.FOLDER: examples.texts(), FOLDER: texts()}
    return {folder / name: text for folder, found in sources.items() for name, text in found.items()}


def kept():
    """Returns the paths of the files that are there."""
    return {path for folder in (examples.FOLDER, FOLDER) for path in folder.iterdir() if path.is_file()}


if __name__ == "__main__":
    for path in kept():
        path.unlink()
    for path, text in expected().items():
        path.write_text(text)
