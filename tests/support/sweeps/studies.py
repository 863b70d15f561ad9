"""The sweeps that are struck, each small."""

from tests.support.sweeps.campaign import Study

_RATE = "trainer.optimizer_config.learning_rate.constant.learning_rate"
_TPE = f"""
space:
  task.model.type: choice(deep, flat)
  task.model.deep.dropout: float(0, 0.4)
  {_RATE}: log(1e-4, 1)
pruner: MedianPruner
pruner_options: {{n_startup_trials: 1}}
sampler_options: {{n_startup_trials: 2}}
trials: 5
seed: 3
"""
_RANDOM = f"""
space:
  task.model.deep.hidden: list(1, 2, int(2, 6, 2))
  {_RATE}: log(1e-3, 1e-1)
sampler: RandomSampler
trials: 4
"""
_REFUSED = f"""
space:
  task.model.deep.dropout: float(0, 0.9)
  task.model.deep.hidden: list(1, 2, int(2, 6, 2))
  {_RATE}: log(1e-3, 1e-1)
on_refusal: prune
trials: 5
"""
_POPULATION = f"""
space:
  {_RATE}: log(1e-3, 1e-1)
  task.train_data.global_batch_size: int(4, 12, 4)
population: {{size: 2, interval: 2, replaced: 0.5}}
"""
_EXPERIMENT = f"""
from official_trainer import sweep

if __name__ == "__main__":
    space = {{
        "task.model": {{"choice": {{
            "small": {{"deep": {{"hidden": [2]}}}},
            "two": {{"deep": {{"hidden": [3, 2]}}}},
            "flat": {{"type": "flat"}},
        }}}},
        "task.train_data.global_batch_size": "int(4, 12, 4)",
        "{_RATE}": "choice(0.01, 0.1)",
    }}
    found = sweep("points", space, model_dir="out", trials=4)
    assert len(found.trials) == 4
"""
_FUNCTION = """
import numpy as np

from official_trainer import Program, sweep
from official_trainer.lazy import keras

GENERATOR = np.random.default_rng(0)


def train(trial):
    keras.utils.set_random_seed(0)
    x = GENERATOR.uniform(-1, 1, size=(32, 1)).astype("float32")
    model = keras.Sequential([keras.Input([1]), *(keras.layers.Dense(units) for units in trial.values["units"])])
    model.add(keras.layers.Dense(1))
    program = Program(model, model_dir=trial.model_dir)
    program.compile(keras.optimizers.SGD(trial.values["rate"]), "mse", steps_per_execution=2)
    program.fit(x, 3 * x, batch_size=16, epochs=3, validation_data=(x, 3 * x), verbose=0)


if __name__ == "__main__":
    found = sweep(
        train,
        {"rate": "log(1e-3, 1e-1)", "units": "list(0, 2, int(2, 4))"},
        model_dir="out",
        trials=4,
        objective={"metric": "loss", "direction": "min"},
        pruner="MedianPruner",
        pruner_options={"n_startup_trials": 1},
    )
    assert len(found.trials) == 4
"""


def _command(name, text, trials, *words, **options):
    words = ("sweep", "points", "--space=space.yaml", "--model_dir=out", *words)
    return Study(name, words, trials, {"space.yaml": text}, **options)


STUDIES = {
    each.name: each
    for each in (
        _command("tpe", _TPE, 5),
        _command("parallel", _RANDOM, 4, "--parallel=2"),
        _command("parallel_tpe", _TPE, 5, "--parallel=2", is_exact=False),
        _command("two_join", _RANDOM, 4, "--join", drivers=2),
        _command("three_join", _RANDOM, 4, "--join", drivers=3),
        _command("refused", _REFUSED, 5),
        _command("population", _POPULATION, 6),
        _command("population_parallel", _POPULATION, 6, "--parallel=2"),
        _command("population_join", _POPULATION, 6, "--join", drivers=2),
        Study("experiment", ("tune.py",), 4, {"tune.py": _EXPERIMENT}),
        Study("function", ("tune.py",), 4, {"tune.py": _FUNCTION}),
    )
}
