"""What a SavedModel of a Model Garden task takes and gives: the signatures of that task's own export module.

Owns: which export module goes with which task. Does not own: writing SavedModels (`export.py`), what the modules do.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Mapping
from typing import Any

_VISION = {
    "image_classification:ImageClassificationTask": "image_classification:ClassificationModule",
    "maskrcnn:MaskRCNNTask": "detection:DetectionModule",
    "retinanet:RetinaNetTask": "detection:DetectionModule",
    "semantic_segmentation:SemanticSegmentationTask": "semantic_segmentation:SegmentationModule",
}
_LANGUAGE = {
    "masked_lm:MaskedLMTask": "MaskedLM",
    "question_answering:QuestionAnsweringTask": "QuestionAnswering",
    "sentence_prediction:SentencePredictionTask": "SentencePrediction",
    "tagging:TaggingTask": "Tagging",
}
_IMAGES = {"image_tensor": "serving_default", "image_bytes": "image_bytes", "tf_example": "tf_example"}
"""What an image may come as, and the signature for it."""


def export_module(task: Any, model: Any) -> Any:
    """Returns the export module for a task of Model Garden around `model`, or None if it has none for that task."""
    for cls in type(task).__mro__:
        package, _, name = cls.__module__.rpartition(".")
        key = f"{name}:{cls.__qualname__}"
        if package == "official.vision.tasks" and key in _VISION:
            return _vision(_VISION[key], task, model)
        if package == "official.nlp.tasks" and key in _LANGUAGE:
            return _language(_LANGUAGE[key], model)
    return None


def signatures(module: Any) -> Mapping[str, Any]:
    """Returns the signatures of an export module by name; `serving_default` takes tensors."""
    keys = _IMAGES if hasattr(module, "inference_from_image_bytes") else {"serve": "serving_default"}
    found: Mapping[str, Any] = module.get_inference_signatures(dict(keys))
    return found


def _vision(place: str, task: Any, model: Any) -> Any:
    module, _, name = place.partition(":")
    make = getattr(importlib.import_module(f"official.vision.serving.{module}"), name)
    size = list(task.task_config.model.input_size)[:2]
    experiment = types.SimpleNamespace(task=task.task_config)
    return make(params=experiment, batch_size=None, input_image_size=size, model=model)


def _language(name: str, model: Any) -> Any:
    make = getattr(importlib.import_module("official.nlp.serving.serving_modules"), name)
    return make(params=make.Params(), model=model)
