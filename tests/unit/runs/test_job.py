"""What a job knows of its run without TensorFlow."""

import textwrap

import pytest

from official_trainer import config as configuration
from official_trainer.config import ExperimentConfig
from official_trainer.distributed.cluster import checked_cluster
from official_trainer.runs.job import Job, Prebuilt, check_ready
from official_trainer.tasks import registry
from tests.support import packages

SETS = ["trainer.validation_interval=5", "runtime.seed=0", "task.train_data.global_batch_size=16"]


def test_the_fields_that_tell_a_run_from_others():
    """T18: those that were set, also to the value that they have; not those that leave the weights as they are."""
    resolved = configuration.resolve(ExperimentConfig(), experiment="e", sets=[*SETS, "task.init_checkpoint=w"])
    job = Job(experiment="e", resolved=resolved, model_dir="d", mode="train")
    assert job.chosen_fields >= {"runtime.seed", "task.train_data.global_batch_size", "task.init_checkpoint"}
    assert "trainer.validation_interval" not in job.chosen_fields


def test_a_program_has_chosen_what_is_no_default():
    """T18: it makes its config itself, without files and flags."""
    made = configuration.resolve(ExperimentConfig(), experiment="e", sets=SETS).config
    resolved = configuration.resolve(made, experiment="e")
    job = Job(experiment="e", resolved=resolved, model_dir="d", mode="train", prebuilt=Prebuilt(trainer=None))
    assert "task.train_data.global_batch_size" in job.chosen_fields
    assert not {"trainer.validation_interval", "trainer.train_steps", "runtime.run_eagerly"} & job.chosen_fields


EXPERIMENT = '''
    """An experiment of Keras 3, or of tf_keras."""
    IMPORT
    from official_trainer import Task, register_config_factory
    from official_trainer.config import ExperimentConfig, TaskConfig, TrainerConfig, opt


    class Zeros(Task):
        def build_model(self):
            return keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])


    @register_config_factory("zeros", task_cls=Zeros)
    def zeros():
        trainer = TrainerConfig(train_steps=0, optimizer_config=opt.adam(0.01))
        return ExperimentConfig(task=TaskConfig(), trainer=trainer)
'''


def refusal(monkeypatch, path, imports, *sets, about="Keras 3", mode="train", cluster=None):
    """Returns the first problem with a word, of a job that has another one as well; empty if there is none."""
    (path / "experiments").mkdir(parents=True)
    (path / "experiments" / "zeros.py").write_text(textwrap.dedent(EXPERIMENT).replace("IMPORT", imports))
    with packages.as_it_was(monkeypatch):
        resolved = configuration.resolve(registry.get_config("zeros", path), experiment="zeros", sets=sets)
        job = Job(experiment="zeros", resolved=resolved, model_dir="d", mode=mode, cluster=cluster)
        messages = []
        try:
            check_ready(job)
        except configuration.ConfigError as refused:
            messages = [problem.message for problem in refused.problems]
    assert any("trainer.train_steps: is 0" in message for message in messages) or mode == "predict"
    return next((message for message in messages if about in message), "")


@pytest.mark.parametrize(
    ("train", "validation", "difference"),
    [
        ("a", "a, classes: [cat, dog]", ""),
        ("a", "nowhere", ""),
        ("a", "b", "it lacks dog, and it adds eel"),
        ("a", "b, classes: [cat, dog, eel]", "it adds eel"),
        ("a, classes: [cat, dog]", "b, classes: [dog, cat]", "the classes are in another order"),
    ],
)
def test_labels_mean_the_same_classes_in_training_and_validation(train, validation, difference, tmp_path, monkeypatch):
    """N45: each section numbers its own classes, so these must be the same; a prediction needs no labels."""
    pytest.importorskip("official_trainer.sources", reason="the source of this test is of a satellite")
    for name in ("a/cat", "a/dog", "b/cat", "b/eel"):
        (tmp_path / name).mkdir(parents=True)
    both = {"train_data": train, "validation_data": validation}
    sets = [f"task.{name}.source={{type: images, folder: {tmp_path}/{text}}}" for name, text in both.items()]
    message = (
        f"--set: task.validation_data.source: its labels are not those of task.train_data.source: {difference}; name "
        "all classes, in one order, in the field `classes` of both"
    )
    assert refusal(monkeypatch, tmp_path, "import keras", *sets, about="labels") == (message if difference else "")
    assert not refusal(monkeypatch, tmp_path / "other", "import keras", *sets, about="labels", mode="predict")


@pytest.mark.parametrize("name", ["parameter_server", "tpu"])
def test_strategies_that_keras_3_lacks_are_refused(name, tmp_path, monkeypatch):
    """N37: by name, with line and fix, before TensorFlow is imported; not for an experiment of tf_keras."""
    asked = f"runtime.distribution_strategy={name}"
    message = refusal(monkeypatch, tmp_path / "three", "import keras", asked)
    assert message == (
        f"--set: runtime.distribution_strategy: {name} is for models of tf_keras, and this experiment's is of Keras 3; "
        "use mirrored or multi_worker_mirrored; or build the model with `from official_trainer.lazy import keras`"
    )
    assert not refusal(monkeypatch, tmp_path / "two", "from official_trainer.lazy import keras", asked)
    assert not refusal(monkeypatch, tmp_path / "mirrored", "import keras", "runtime.distribution_strategy=mirrored")


def test_parameter_servers_of_the_environment(tmp_path, monkeypatch):
    """N37: the strategy follows from the cluster, and so does the fix."""
    addresses = {"chief": ["a:1"], "worker": ["a:2", "a:3"], "ps": ["a:4"]}
    cluster = checked_cluster(addresses, "chief", 0, "TF_CONFIG")
    message = refusal(monkeypatch, tmp_path, "import keras", cluster=cluster)
    assert "parameter_server is for models of tf_keras" in message
    assert "leave out the parameter servers of TF_CONFIG; or build the model with" in message


def test_what_does_not_go_with_the_cluster_is_refused(tmp_path, monkeypatch):
    """T16: a strategy, with what would go, and what has no effect; before TensorFlow is imported."""
    two = checked_cluster({"worker": ["a:1", "a:2"]}, "worker", 1, "TF_CONFIG")
    for text, cluster, said in (
        ("mirrored", two, "mirrored is for one process, and by TF_CONFIG this is worker 1 of 2 × worker; use auto"),
        (
            "parameter_server",
            two,
            "parameter_server needs a chief, workers and parameter servers, and TF_CONFIG has no",
        ),
        ("multi_worker_mirrored", None, "multi_worker_mirrored needs several workers, and their addresses are not "),
        ("auto, num_logical_cpus: 2", two, "num_logical_cpus: has no effect in the cluster of TF_CONFIG; leave it out"),
    ):
        asked, imports = f"runtime={{distribution_strategy: {text}}}", "from official_trainer.lazy import keras"
        assert refusal(monkeypatch, tmp_path / text, imports, asked, cluster=cluster, about=said)
