"""Jobs as Google Cloud gets them: `tests/data/rendered/google/`. `rendered.py` writes them."""

import dataclasses
import shlex

from official_trainer import config
from official_trainer.launch import targets
from official_trainer.launch.spec import training_job
from official_trainer.launch.targets import vertex
from tests import ROOT

FOLDER = ROOT / "tests" / "data" / "rendered" / "google"
NAME = "digits-1a2b3c4d"

TPU = """
project: my-project
zone: us-central2-b
accelerator_type: v4-8
runtime_version: tpu-ubuntu2204-base
source: gs://my-bucket/code.tar.gz
"""
VERTEX = """
project: my-project
region: us-central1
image_uri: us-docker.pkg.dev/my-project/images/trainer:1
machine_type: n1-standard-8
"""
FIELDS = {
    **vertex.FIELDS,
    "workerPoolSpecs": ("containerSpec", "diskSpec", "machineSpec", "nfsMounts", "pythonPackageSpec", "replicaCount"),
    "containerSpec": ("args", "command", "env", "imageUri"),
    "env": ("name", "value"),
    "machineSpec": ("acceleratorCount", "acceleratorType", "machineType", "reservationAffinity", "tpuTopology"),
    "diskSpec": ("bootDiskSizeGb", "bootDiskType"),
}
"""The names of the API's fields in a job of Vertex AI, by the field that contains them; those of the job first."""

PROFILES = {
    "tpu-queued": ("tpu", f"{TPU}gcloud: [--spot]\n"),
    "tpu-pod": (
        "tpu",
        """
project: my-project
zone: us-central2-b
accelerator_type: v4-32
runtime_version: tpu-vm-tf-2.18.0-pod-pjrt
source: gs://my-bucket/code.tar.gz
setup: [[systemctl, restart, tpu-runtime]]
install: ['-r', requirements.lock]
gcloud:
- --internal-ips
- --labels=team=vision,cost=a1
- --reserved
- --tags=train
- --scopes=https://www.googleapis.com/auth/cloud-platform
- --network=train
- --subnetwork=train-b
- --service-account=trainer@my-project.iam.gserviceaccount.com
environ: {GREETING: "it's $5"}
max_restarts: 3
""",
    ),
    "vertex-alone": ("vertex", VERTEX),
    "vertex-servers": (
        "vertex",
        f"""{VERTEX}workers: 2
ps: 1
evaluator: true
ps_machine_type: n1-highmem-4
accelerator_type: NVIDIA_TESLA_T4
resources: {{gpus: 2}}
boot_disk_gb: 200
labels: {{team: vision}}
spec:
  scheduling: {{strategy: SPOT, timeout: 172800s, restartJobOnWorkerRestart: true}}
  serviceAccount: trainer@my-project.iam.gserviceaccount.com
  network: projects/1/global/networks/train
  baseOutputDirectory: {{outputUriPrefix: 'gs://my-bucket/out'}}
  enableWebAccess: true
environ: {{GREETING: costs $5}}
max_restarts: 0
""",
    ),
}


def profile_of(target, text):
    return config.resolve(targets.get(target).profile_class(), params_overrides=[text]).config


def job_for(profile, *words, model_dir="gs://my-bucket/digits", name=NAME, **changes):
    argv = ["--experiment=digits_mlp", f"--model_dir={model_dir}", *words, "--mode=train"]
    job = training_job(profile.counts, argv, grace_seconds=35.0)
    return dataclasses.replace(job, name=name, model_dir=model_dir, **{"strategy": "auto", **changes})


def rendered(target, text, *words, **changes):
    profile = profile_of(target, text)
    return targets.get(target)(profile).render(job_for(profile, *words, **changes))


def texts():
    """Returns all files by name: each file of a job, unless `launch/examples/tpu.*` are the same, and its commands."""
    found = {}
    for name, (target, text) in PROFILES.items():
        job = rendered(target, text)
        found |= {f"{name}.{file}": content for file, content in job.files.items() if name != "tpu-queued"}
        found[f"{name}.commands"] = "".join(" \\\n  ".join(map(shlex.quote, argv)) + "\n" for argv in job.submit)
    return found
