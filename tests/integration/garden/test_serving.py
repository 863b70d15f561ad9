"""Export modules of Model Garden's projects: each Task has its own, and it computes what theirs computes."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.garden import serving
from official_trainer.garden.to_garden import with_garden_objects
from official_trainer.tasks import registry


@pytest.mark.full
def test_a_project_is_served_by_its_own_module(tmp_path):
    """T19: what stands before and after the model is the project's, from the same weights the same outputs."""
    name, sets = "coco_yolov7_pico", ["task.model.input_size=[64,64,3]"]
    config = configuration.resolve(registry.get_config(name), experiment=name, sets=sets).config
    read = with_garden_objects(config)
    task = registry.get_task_cls(config.task)(read.task, logging_dir="")
    model = task.build_model()
    ours = serving.signatures(serving.export_module(task, model))["serving_default"]
    make = importlib.import_module("official.projects.yolo.serving.export_module_factory").get_export_module
    theirs = make(params=read, input_type="image_tensor", batch_size=1, input_image_size=[64, 64])
    expected = theirs.get_inference_signatures({"image_tensor": "serving_default"})["serving_default"]
    checkpoint = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    tf.train.Checkpoint(model=theirs.model).read(checkpoint).assert_existing_objects_matched()
    image = tf.constant(np.random.default_rng(0).integers(0, 255, [1, 80, 48, 3]), tf.uint8)
    found, wanted = ours(image), expected(image)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-4, err_msg=key)


def test_a_task_whose_model_gives_something_else_has_no_module():
    """T19: what a base class's module would make of embeddings means nothing."""
    from official.projects.video_ssl.tasks.pretrain import VideoSSLPretrainTask  # here, as it takes seconds

    assert serving.export_module(object.__new__(VideoSSLPretrainTask), None) is None
