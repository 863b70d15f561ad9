"""The profile of a Cloud TPU slice.

Owns: `TpuProfile`.
Does not own: the names of types and versions, which Google's API checks; what a job needs of a profile, and commands
(`tpu.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from official_trainer.launch.profile import Profile, command_problems, flag_problems
from official_trainer.shown import without_secrets

_OF_CREATE = {
    **{name: f"set {name.replace('-', '_')}" for name in ("project", "zone", "accelerator-type", "runtime-version")},
    **dict.fromkeys(("async", "format", "metadata-from-file", "node-id", "quiet"), "leave it out"),
}
_TYPE = re.compile(r"v[0-9]+[a-z]*-([0-9]+)")
_ONE_HOST_CORES = 8  # of every generation's types, whether they count cores or chips


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuProfile(Profile):
    """A Cloud TPU slice.

    Attributes:
      project: Google Cloud project.
      zone: such as us-central2-b.
      accelerator_type: such as v4-8 or v5litepod-16.
      runtime_version: the machines' software; `gcloud compute tpus tpu-vm versions list` lists the names.
      source: the code: gs://….tar.gz, with `experiments/` at its top, as `git archive --format=tar.gz HEAD` makes it.
      setup: commands, each a list of words, that each host runs once as root, before all else.
      install: arguments of `pip install`, in the folder of the source; `-r` and a lock file install its versions.
      python: version of Python.
      tensorflow_tpu: version of the package that is installed in place of tensorflow.
      libtpu: version of the library below it; it has to be the one of that release.
      gcloud: other flags of the command that requests the slice, such as `--spot` or `--service-account=NAME`.
    """

    project: str = ""
    zone: str = ""
    accelerator_type: str = ""
    runtime_version: str = ""
    source: str = ""
    setup: tuple[tuple[str, ...], ...] = ()
    install: tuple[str, ...] = (".",)
    python: str = "3.11"
    tensorflow_tpu: str = "2.20.0"
    libtpu: str = "0.0.14"
    gcloud: tuple[str, ...] = ()

    secrets_go = "keep it in Google's Secret Manager, from which the service account reads it"

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.source and not re.fullmatch(r"gs://.*\.(tar\.gz|tgz)", self.source):
            what = (
                f"{without_secrets(self.source)!r} is no code that a machine can get; use gs://….tar.gz, of the folder"
            )
            yield "source", f"{what} that holds experiments/"
        yield from command_problems("setup", self.setup)
        if not self.install:
            yield "install", "is empty, so nothing would be installed; leave it out to install the source"
        yield from flag_problems("gcloud", self.gcloud, _OF_CREATE)

    @property
    def is_pod(self) -> bool:
        """Whether the slice has several hosts."""
        size = _TYPE.fullmatch(self.accelerator_type)
        return size is not None and int(size[1]) > _ONE_HOST_CORES
