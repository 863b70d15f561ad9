"""What is tried with one experiment of Model Garden, each command in a process of its own, with bounds."""

import dataclasses
import functools
import re
import resource
import shutil
from pathlib import Path

import yaml

from tests.support import forked
from tests.support.garden.families import CONFIGS, Family
from tests.support.garden.small import STEPS, Small

LIMIT_CPU_SECONDS = 400
LIMIT_WALL_SECONDS = 1500
LIMIT_BYTES = 20 << 30


class FailedError(Exception):
    """What was tried does not work; the text is what was observed."""


@dataclasses.dataclass
class Trial:
    """One experiment, with a folder for its runs.

    Attributes:
      experiment: its name.
      small: what makes it small.
      needed: what it cannot be resolved or built without at its real size.
      folder: where its runs are; `tiny_data` in it is the data.
    """

    experiment: str
    small: Small | None
    needed: tuple[str, ...]
    folder: Path

    def flags(self):
        """Returns the words that name it, with what makes it small."""
        overlay = [f"--config_file={CONFIGS / self.small.overlay}.yaml"] if self.small.overlay else []
        mode = [f"--mode={self.small.mode}"] if self.small.mode else []
        sets = [f"--set={text}" for text in (*STEPS, *self.small.sets)]
        return [f"--experiment={self.experiment}", *overlay, *mode, *sets]

    def command(self, *argv, killed=False):
        """Runs `official-trainer ARGV…`, and returns what it printed."""
        return self.call(functools.partial(forked._run, list(map(str, argv))), killed=killed)

    def call(self, target, killed=False):
        """Calls `target` in a process of its own, and returns what it printed; fails as it does."""
        child = forked.Child(target, cwd=self.folder, folder=self.folder, first=_bound)
        child.process.join(LIMIT_WALL_SECONDS)
        if child.process.exitcode is None:
            child.process.kill()
            raise FailedError(f"not done within {LIMIT_WALL_SECONDS} s")
        ended, wanted = child.process.exitcode, -9 if killed else 0
        if ended != wanted:
            raise FailedError(_ended(ended, child.err))
        return child.out


def _bound():
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU_SECONDS, LIMIT_CPU_SECONDS))


def _ended(code, err):
    words = {0: "was to be killed, and ended", -24: f"used more than {LIMIT_CPU_SECONDS} s of a core", -9: "was killed"}
    return words.get(code) or (_error(err) if code > 0 else f"ended by signal {-code}: {_error(err)}")


def _error(err):
    """Returns what the last error of a process says, in one line."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    begins = [n for n, line in enumerate(lines) if re.match(r"(error: |[\w.]*(Error|Exception|Exit)\b)", line)]
    said = " ".join(lines[begins[-1] :] if begins else lines[-1:]) or "nothing was printed"
    return re.sub(r"^error: |^[\w.]*FailedError: |[^\s']*/site-packages/| traceback: \S+ \(--traceback.*", "", said)


# The columns.


def shows(trial):
    """`show` prints it as YAML, and reads that back as the same."""
    sets = [f"--set={text}" for text in trial.needed]
    shown = trial.command("show", trial.experiment, *sets)
    path = trial.folder / "shown.yaml"
    path.write_text(shown)
    again = trial.command("show", trial.experiment, f"--config_file={path}")
    if yaml.safe_load(again) != yaml.safe_load(shown):  # comments say what set a value
        raise FailedError("what is shown is read back as something else")
    return "yes"


def builds(trial):
    """The model at its real size; returns its trainable parameters."""
    trial.call(functools.partial(_build, trial.experiment, trial.needed))
    return (trial.folder / "parameters.txt").read_text()


def _build(name, needed):
    from official_trainer import config as configuration
    from official_trainer.garden import ranking
    from official_trainer.garden.to_garden import with_garden_objects
    from official_trainer.tasks import registry, variables

    resolved = configuration.resolve(registry.get_config(name), experiment=name, sets=list(needed))
    read = with_garden_objects(resolved.config)
    if ranking.is_ranking(resolved.config.task):
        task = ranking.build_task(read, ".")
    else:
        task = registry.get_task_cls(resolved.config.task)(read.task, logging_dir=".")
    model = task.build_model()
    try:
        count = variables.count(model).trainable
    except ValueError:  # it has none before it is called
        count = 0
    words = f"{count / 1e6:.1f} M" if count >= 50_000 else str(count or "yes")
    Path("parameters.txt").write_text(words)


def checks(trial):
    """`check`: every part of a run is tried once."""
    trial.command("check", *trial.flags(), "--model_dir=checked")
    return "yes"


def trains(trial):
    """`train`, to its end, with evaluations and checkpoints."""
    shutil.rmtree(trial.folder / "unbroken", ignore_errors=True)
    trial.command("train", *trial.flags(), "--model_dir=unbroken", "--quiet")
    return "yes"


def evaluates(trial):
    """`eval` of the run's newest checkpoint."""
    _trained(trial)
    trial.command("eval", "--model_dir=unbroken", "--json")
    return "yes"


_KILL = "trainer.actions=[{type: command, events: [step], when: {at_steps: [3]}, argv: [sh, -c, 'kill -9 $PPID']}]"


def resumes(trial):
    """A run that is killed after three of four steps continues from step 2, bit-equal to the unbroken one."""
    _trained(trial)
    shutil.rmtree(trial.folder / "broken", ignore_errors=True)
    command = ["train", *trial.flags(), "--model_dir=broken", "--quiet"]
    trial.command(*command, f"--set={_KILL}", killed=True)
    trial.command(*command)
    trial.call(_compare)
    return "yes"


def _compare():
    from tests.support import runs

    found = runs.differences("broken", "unbroken")
    if found:
        raise FailedError(f"{len(found)} values differ, {found[0]}")


def exports(trial):
    """`export` of the run's newest checkpoint."""
    _trained(trial)
    trial.command("export", "--model_dir=unbroken", "--output_dir=ours")
    if not (trial.folder / "ours" / "saved_model.pb").is_file():
        raise FailedError("there is no saved_model.pb")
    return "yes"


def same_export(trial):
    """Model Garden's own export of that checkpoint gives the same outputs."""
    if not trial.small.serving:
        raise FailedError("Model Garden has no export module for it")
    _trained(trial)
    if not (trial.folder / "ours").is_dir():
        exports(trial)
    trial.call(functools.partial(_export_and_compare, trial.experiment, trial.small))
    return "yes"


def _export_and_compare(experiment, small):
    import numpy as np

    from tests.support.garden.served import served

    shutil.rmtree("theirs", ignore_errors=True)
    _AsRun("", experiment, small.data, "", small.serving).export("unbroken/ckpt-4", "theirs")
    ours, theirs = served("ours"), served("theirs")
    assert ours.keys() == theirs.keys(), f"outputs {sorted(ours)}, there {sorted(theirs)}"
    for name, value in ours.items():
        if value.dtype == object:  # texts
            np.testing.assert_array_equal(value, theirs[name], err_msg=name)
        else:
            np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)


class _AsRun(Family):
    """A family whose experiment has the values of the run in `unbroken`."""

    def params(self):
        from official_trainer import config as configuration
        from official_trainer.garden import to_garden
        from official_trainer.tasks import registry

        base = registry.get_config(self.experiment)
        config = configuration.resolve(base, experiment=self.experiment, config_files=["unbroken/params.yaml"]).config
        to_garden.with_garden_objects(config)  # imports what registers the task
        return to_garden.to_object(config)


def _trained(trial):
    if not (trial.folder / "unbroken" / "ckpt-4.index").is_file():
        trains(trial)


COLUMNS = {
    "shows": shows,
    "model": builds,
    "checks": checks,
    "trains": trains,
    "evaluates": evaluates,
    "resumes": resumes,
    "exports": exports,
    "same export": same_export,
}
"""By name, in the order in which they are tried. Those after `model` need tiny data, and end with the first failure."""
WITHOUT_DATA = ("shows", "model")
ENDS = ("shows", "trains")
"""After an experiment that fails in one of these, the columns behind are not tried."""
