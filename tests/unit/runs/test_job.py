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


def refusal(monkeypatch, path, imports, *sets, cluster=None, about="Keras 3"):
    """Returns the problem of a job that is about something; the job has another one as well."""
    (path / "experiments").mkdir(parents=True)
    (path / "experiments" / "zeros.py").write_text(textwrap.dedent(EXPERIMENT).replace("IMPORT", imports))
    with packages.as_it_was(monkeypatch):
        resolved = configuration.resolve(registry.get_config("zeros", path), experiment="zeros", sets=sets)
        job = Job(experiment="zeros", resolved=resolved, model_dir="d", mode="train", cluster=cluster)
        with pytest.raises(configuration.ConfigError) as refused:
            check_ready(job)
    messages = [problem.message for problem in refused.value.problems]
    assert any("trainer.train_steps: is 0" in message for message in messages)
    return next((message for message in messages if about in message), "")


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
