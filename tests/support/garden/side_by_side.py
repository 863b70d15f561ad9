"""One experiment by Model Garden's driver and by ours, from the same weights, on the same batches.

`compare(name, folder)` trains both for `STEPS` steps, breaks both off and has each finished by the other, evaluates
one checkpoint by both, and writes what it found to `found.json` in `folder`, which has `tiny_data`. One experiment
takes one process: see `tests/system/garden/test_side_by_side.py`.

What would differ for a reason is taken out by `COMPARED` and `DRAWN`. Random numbers: there they are drawn from hidden
state, here from keys of the step, so that a restart repeats them. So the batches are drawn once and stored, dropout and
stochastic depth are off, and samplers take all that there is. XLA: there it compiles on GPUs alone, here on CPUs too.
TensorFlow's graph optimizer adds terms up in another order where a sum has another reader, as the loss has here.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf
from official.core import train_lib

from official_trainer.lazy import keras
from official_trainer.program.run_experiment import run_experiment
from tests.support.garden.families import FAMILIES

STEPS, INTERVAL = 20, 10
SEED = 7
_BROKEN_OFF = 12  # between two checkpoints

COMPARED = {
    "runtime": {"enable_xla": False, "distribution_strategy": "off"},
    "trainer": {
        "train_steps": STEPS,
        "steps_per_loop": 1,
        "summary_interval": 1,
        "checkpoint_interval": INTERVAL,
        "validation_interval": INTERVAL,
        "best_checkpoint_export_subdir": "",
    },
}
_LAYERS = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "intermediate_dropout": 0.0}
DRAWN = {
    "maskrcnn": {"model": {"roi_sampler": {"num_sampled_rois": 28, "foreground_fraction": 1.0}}},
    "wmt_transformer": {"model": {"encoder": _LAYERS, "decoder": _LAYERS, "dropout_rate": 0.0}},
}
"""What of a task's section draws random numbers in a step, and the value with which it does not."""


def params_of(family):
    """Returns the parameters of a comparison."""
    params = family.params()
    params.override(COMPARED)
    params.override({"task": DRAWN.get(family.name, {})})
    optimizer_config = params.trainer.optimizer_config
    if hasattr(optimizer_config, "learning_rate"):  # ranking models have a schedule of their own
        optimizer_config.learning_rate.override(
            {"type": "polynomial", "polynomial": {"initial_learning_rate": 0.005, "decay_steps": 2 * STEPS}}
        )
    return params


class Batches:
    """The first batches of a task's training data, stored."""

    def __init__(self, folder, task, params):
        self._path = str(Path(folder) / "batches")
        keras.utils.set_random_seed(SEED)
        dataset = task.build_inputs(params.task.train_data).take(STEPS)
        self._spec = dataset.element_spec
        dataset.save(self._path)

    def after(self, step):
        """Returns them from that of step `step` on, for ever."""
        return tf.data.Dataset.load(self._path, self._spec).skip(step).repeat()


class Side:
    """One of the two drivers.

    Attributes:
      losses: by step, of all its training.
    """

    def __init__(self, family, drive, batches, first):
        """Takes the experiment, a driver's function, the data, and where the first weights are, or are to be stored."""
        self.losses = {}
        self._family, self._drive, self._batches, self._first = family, drive, batches, str(first)
        self._params = params_of(family)

    def __call__(self, mode, model_dir, first_batch=0, broken=None):
        """Runs a mode; returns the results of the last evaluation.

        Args:
          mode: of the driver.
          model_dir: the run directory.
          first_batch: of the stored ones, with which a training begins.
          broken: a copy of the run directory, as it is when the process is killed after step `_BROKEN_OFF`.
        """
        keras.backend.clear_session()
        keras.utils.set_random_seed(SEED)
        params = self._params
        Path(model_dir).mkdir(exist_ok=True)  # some tasks write into it when they are built
        task = self._family.task(params, model_dir)
        of_task, build_model, task.initialize = task.build_inputs, task.build_model, self._initialize
        task.build_model = lambda: without_dropout(build_model())
        task.build_inputs = lambda data, context=None: (
            self._batches.after(first_batch) if data.is_training else of_task(data, context)
        )

        def note(output):
            step = len(self.losses) + 1
            self.losses[step] = float(output["training_loss"])
            if step == _BROKEN_OFF and broken:
                shutil.copytree(model_dir, broken)

        actions = {"train_actions": [note]} if mode == "train" else {"run_post_eval": True, "save_summary": False}
        _, results = self._drive(tf.distribute.get_strategy(), task, mode, params, str(model_dir), **actions)
        return plain(results)

    def _initialize(self, model):
        first = tf.train.Checkpoint(model=model)
        if tf.io.gfile.glob(f"{self._first}*"):
            first.read(self._first)  # variables that are created later get their values then
        else:
            first.write(self._first)


def without_dropout(model):
    """Returns a model after it has set the rate of its dropout to 0; that of some models is not in the config."""
    for layer in model.submodules:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    return model


def their_run(strategy, task, mode, params, model_dir, **options):
    """Runs Model Garden's driver, for ranking models with the trainer that their program gives it."""
    trainer = None
    if not hasattr(params.trainer.optimizer_config, "learning_rate"):
        from official.recommendation.ranking.train import RankingTrainer

        model = task.build_model()
        kinds = {"train": "train" in mode, "evaluate": "eval" in mode}
        trainer = RankingTrainer(params, task, model, model.optimizer, **kinds)
    return train_lib.run_experiment(strategy, task, mode, params, model_dir, trainer=trainer, **options)


def plain(results):
    """Returns numbers and arrays of an evaluation by name, in a form that JSON has, exactly."""
    found = {}
    for name, value in results.items():
        if isinstance(value, dict):
            found |= {f"{name}/{key}": each for key, each in plain(value).items()}
        else:
            found[name] = np.asarray(value).astype(np.float64).ravel().tolist()
    return found


def newest(model_dir):
    """Returns the step of the newest checkpoint."""
    return int(tf.train.latest_checkpoint(str(model_dir)).rpartition("-")[2])


def saved(model_dir, step=STEPS):
    """Returns the values of a checkpoint that both have: weights, slots, the step.

    Ours has `training` too. Metrics that are in a model are left out: theirs resets them before it saves.
    """
    reader = tf.train.load_checkpoint(str(Path(model_dir) / f"ckpt-{step}"))
    names = reader.get_variable_to_shape_map()
    others = ("training/", "save_counter/", "_CHECKPOINTABLE_OBJECT_GRAPH")
    return {name: reader.get_tensor(name) for name in names if not name.startswith(others) and "_metrics/" not in name}


def differences(theirs, ours):
    """Returns the names that only one has, or whose values differ in a bit.

    Slots are zero before the first update, which theirs creates them with: of what has no gradient only ours has them.
    """
    waiting = {name for name in ours.keys() - theirs.keys() if "/.OPTIMIZER_SLOT/" in name and not np.any(ours[name])}
    names = (theirs.keys() ^ ours.keys()) - waiting
    both = theirs.keys() & ours.keys()
    return sorted(names | {name for name in both if theirs[name].tobytes() != ours[name].tobytes()})


def compare(name, folder):
    """Compares an experiment; see above."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    family, folder = FAMILIES[name], Path(folder)
    params = params_of(family)
    batches = Batches(folder, family.task(params, folder), params)
    ours, theirs, to_ours, to_theirs = (
        Side(family, drive, batches, folder / "first_weights") for drive in (run_experiment, their_run) * 2
    )
    ours("train", folder / "ours", broken=folder / "begun_here")
    theirs("train", folder / "theirs", broken=folder / "begun_there")
    found = {"losses": [list(side.losses.values()) for side in (theirs, ours)]}
    found["weights"] = differences(saved(folder / "theirs"), saved(folder / "ours"))
    found["results"] = [side("eval", folder / "ours") for side in (theirs, ours)]
    for key, side in (("begun_there", to_ours), ("begun_here", to_theirs)):
        step = newest(folder / key)
        first = saved(folder / key, step)
        # Ours goes on in the data after the step of the checkpoint; theirs begins it again.
        side("train", folder / key, first_batch=step if side is to_theirs else 0)
        last = saved(folder / key)
        found[key] = {
            "step": step,
            "losses": list(side.losses.values()),
            "weights": differences(saved(folder / "theirs"), last),
            "changed": len(differences(first, last)),
        }
    (folder / "found.json").write_text(json.dumps(found))
