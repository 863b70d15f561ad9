"""The signatures of a SavedModel of a Model Garden task, from the export module that Model Garden has for the task.

Owns: the export module of each task. Does not own: writing SavedModels (`tasks/export.py`), the modules themselves.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable, Mapping
from typing import Any

_IMAGES = {"image_tensor": "serving_default", "image_bytes": "image_bytes", "tf_example": "tf_example"}
"""The formats of an image, and the signature for each."""
_CLIPS = {"image_tensor": "serving_default", "tf_example": "tf_example"}
_TENSORS = {"serve": "serving_default"}
_TEXTS = {"serve_text": "serving_default"}


def export_module(task: Any, model: Any) -> Any:
    """Returns the export module for a task of Model Garden around `model`, or None if there is none for the task."""
    for cls in type(task).__mro__:
        key = f"{cls.__module__}:{cls.__qualname__}"
        if key in _MODULES:
            make, path = _MODULES[key]
            module, _, name = path.partition(":")
            return make(getattr(importlib.import_module(f"official.{module}"), name), task, model)
        if key in _WITHOUT:
            break
    return None


def signatures(module: Any) -> Mapping[str, Any]:
    """Returns the signatures of an export module by name; `serving_default` takes tensors."""
    keys = _IMAGES if hasattr(module, "inference_from_image_bytes") else _TENSORS
    if hasattr(module, "inference_from_image_audio_tensors"):
        keys = _CLIPS
    if hasattr(module, "serve_text"):
        keys = _TEXTS
    signatures: Mapping[str, Any] = module.get_inference_signatures(dict(keys))
    return signatures


def resources(module: Any) -> list[Any]:
    """Returns what the signatures of an export module, or of None, use beside the model: a tokenizer."""
    tokenizer = getattr(module, "_sp_tokenizer", None)
    return [] if tokenizer is None else [tokenizer]


def _image(make: Any, task: Any, model: Any) -> Any:
    size = list(task.task_config.model.input_size)[:2]
    return make(params=_experiment(task), batch_size=None, input_image_size=size, model=model)


def _volume(make: Any, task: Any, model: Any) -> Any:
    config = task.task_config.model
    size, channels = list(config.input_size), config.num_channels
    return make(params=_experiment(task), batch_size=None, input_image_size=size, num_channels=channels, model=model)


def _clip(make: Any, task: Any, model: Any) -> Any:
    data = task.task_config.train_data
    if data.output_audio:
        return None  # its signature for frames alone cannot be traced with a model that takes audio
    module = make(params=_experiment(task), batch_size=None, input_image_size=[None, None, None], model=model)
    # The module sets these only when it builds the model itself.
    module._num_frames, module._crop_size = data.feature_shape[0], data.feature_shape[1]
    module._stride, module._min_resize = data.temporal_stride, data.min_image_size
    module._output_audio = False
    return module


def _yolo(make: Any, task: Any, model: Any) -> Any:
    size = list(task.task_config.model.input_size)[:2]
    module = make(_experiment(task), "image_tensor", None, size)
    # It builds its own model; it is used for what it does before and after the model.
    step = module.inference_step
    module.inference_step = functools.partial(step.func, model=model) if hasattr(step, "func") else model.call
    module.model = model
    return module


def _language(make: Any, task: Any, model: Any) -> Any:
    return make(params=make.Params(), model=model)


def _translation(make: Any, task: Any, model: Any) -> Any:
    path = task.task_config.sentencepiece_model_path
    # A request is one text: Model Garden's beam search cannot be traced without a number of texts.
    return make(params=make.Params(sentencepiece_model_path=path, batch_size=1), model=model) if path else None


def _experiment(task: Any) -> Any:
    """Returns what the modules accept as an experiment, because they read only its task."""
    return types.SimpleNamespace(task=task.task_config)


_Make = Callable[[Any, Any, Any], Any]
_MODULES: Mapping[str, tuple[_Make, str]] = {
    f"official.{task}": (make, path)
    for make, task, path in (
        (_image, "vision.tasks.image_classification:ImageClassificationTask",
         "vision.serving.image_classification:ClassificationModule"),
        (_image, "vision.tasks.maskrcnn:MaskRCNNTask", "vision.serving.detection:DetectionModule"),
        (_image, "projects.deepmac_maskrcnn.tasks.deep_mask_head_rcnn:DeepMaskHeadRCNNTask",
         "projects.deepmac_maskrcnn.serving.detection:DetectionModule"),
        (_image, "projects.detr.tasks.detection:DetectionTask", "projects.detr.serving.export_module:DETRModule"),
        (_image, "vision.tasks.retinanet:RetinaNetTask", "vision.serving.detection:DetectionModule"),
        (_image, "vision.tasks.semantic_segmentation:SemanticSegmentationTask",
         "vision.serving.semantic_segmentation:SegmentationModule"),
        (_clip, "vision.tasks.video_classification:VideoClassificationTask",
         "vision.serving.video_classification:VideoClassificationModule"),
        (_volume, "projects.volumetric_models.tasks.semantic_segmentation_3d:SemanticSegmentation3DTask",
         "projects.volumetric_models.serving.semantic_segmentation_3d:SegmentationModule"),
        (_yolo, "projects.yolo.tasks.image_classification:ImageClassificationTask",
         "projects.yolo.serving.export_module_factory:get_export_module"),
        (_yolo, "projects.yolo.tasks.yolo:YoloTask", "projects.yolo.serving.export_module_factory:get_export_module"),
        (_yolo, "projects.yolo.tasks.yolov7:YoloV7Task",
         "projects.yolo.serving.export_module_factory:get_export_module"),
        (_language, "nlp.tasks.masked_lm:MaskedLMTask", "nlp.serving.serving_modules:MaskedLM"),
        (_language, "nlp.tasks.question_answering:QuestionAnsweringTask",
         "nlp.serving.serving_modules:QuestionAnswering"),
        (_language, "nlp.tasks.sentence_prediction:SentencePredictionTask",
         "nlp.serving.serving_modules:SentencePrediction"),
        (_language, "nlp.tasks.tagging:TaggingTask", "nlp.serving.serving_modules:Tagging"),
        (_translation, "nlp.tasks.translation:TranslationTask", "nlp.serving.serving_modules:Translation"),
    )
}  # fmt: skip
"""For each task, the function that makes its export module, and the module's class. Subclasses inherit the entry."""
_WITHOUT = {"official.projects.video_ssl.tasks.pretrain:VideoSSLPretrainTask"}
"""Tasks whose model has other outputs than that of their base class, so that the base's module does not fit."""
