"""What a job knows of its run without TensorFlow."""

from official_trainer import config as configuration
from official_trainer.config import ExperimentConfig
from official_trainer.runs.job import Job, Prebuilt

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
