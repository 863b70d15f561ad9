"""N30: experiments of Model Garden take references too."""

from official_trainer.config import dump, explain, resolve
from official_trainer.garden import index
from official_trainer.garden.to_garden import with_garden_objects

RATE = "trainer.optimizer_config.learning_rate"


def test_in_sections_of_model_garden(tmp_path):
    """N30: typed by its classes; its objects and `params.yaml` have the values."""
    file = tmp_path / "short.yaml"
    file.write_text(
        """\
trainer:
  train_steps: 2000
  validation_interval: 200
  optimizer_config:
    learning_rate:
      type: cosine
      cosine: {initial_learning_rate: 0.1, decay_steps: "${trainer.train_steps}"}
    warmup.linear.warmup_steps: ${trainer.validation_interval}
task:
  model:
    input_size: ["${task.train_data.global_batch_size}", 64, 3]
    backbone.resnet.model_id: ${task.model.num_classes}
"""
    )
    sets = ["trainer.train_steps=4000", "task.train_data.global_batch_size=32"]
    result = resolve(index.experiment("resnet_imagenet"), experiment="r", config_files=[str(file)], sets=sets)
    config = with_garden_objects(result.config)
    assert result.config.trainer.optimizer_config.learning_rate.get().decay_steps == 4000
    assert result.config.trainer.optimizer_config.warmup.get().warmup_steps == 200
    assert list(config.task.model.input_size) == [32, 64, 3]
    assert config.task.model.backbone.resnet.model_id == 1001
    text = dump(result, origins=True, shared=True)
    assert f"decay_steps: 4000  # = ${{trainer.train_steps}} of {file}:7\n" in text
    assert "short.yaml:7:57, as ${trainer.train_steps}" in explain(result, f"{RATE}.cosine.decay_steps")


def test_the_word_of_an_optional_one_of():
    """N30: selects it."""
    sets = ["task.train_data.aug_type=${task.train_data.tfds_name}", "task.train_data.tfds_name=randaug"]
    assert resolve(index.experiment("resnet_imagenet"), sets=sets).config.task.train_data.aug_type.type == "randaug"
