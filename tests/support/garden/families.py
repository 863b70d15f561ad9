"""Experiments of Model Garden that train in seconds on tiny data: what each is, and how it is exported there."""

import dataclasses
import importlib
from pathlib import Path

from tests import ROOT

CONFIGS = ROOT / "configs" / "garden"

_VISION = "official.vision.serving"
_LANGUAGE = "official.nlp.serving.serving_modules"


@dataclasses.dataclass(frozen=True)
class Family:
    """One experiment, with its overlay `configs/garden/<name>.yaml`.

    Attributes:
      name: name of the overlay.
      experiment: name for `--experiment`.
      data: kind of data, a name of `tests.support.garden.data.KINDS`.
      metric: which result decides about the best checkpoint.
      serving: its export module in Model Garden, `module:class`; empty where it has none.
      registers: modules that register what the experiment needs, besides `official.common.registry_imports`.
    """

    name: str
    experiment: str
    data: str
    metric: str
    serving: str = ""
    registers: tuple[str, ...] = ()

    @property
    def overlay(self):
        return CONFIGS / f"{self.name}.yaml"

    def params(self):
        """Returns the experiment as Model Garden reads it from its overlay."""
        for module in ("official.common.registry_imports", *self.registers):
            importlib.import_module(module)
        from official.core import exp_factory
        from official.modeling import hyperparams

        params = exp_factory.get_exp_config(self.experiment)
        params = hyperparams.override_params_dict(params, str(self.overlay), is_strict=True)
        params.validate()
        return params

    def task(self, params, model_dir):
        """Returns the experiment's task as Model Garden's program builds it."""
        if self.experiment.endswith("_criteo"):
            from official.recommendation.ranking.task import RankingTask

            return RankingTask(params.task, params.trainer, logging_dir=str(model_dir))
        from official.core import task_factory

        return task_factory.get_task(params.task, logging_dir=str(model_dir))

    def export(self, checkpoint, directory):
        """Writes a SavedModel as Model Garden does, from a checkpoint that has a `model`."""
        from official.core import export_base, task_factory

        params = self.params()
        module, _, name = self.serving.partition(":")
        make = getattr(importlib.import_module(module), name)
        if module == _LANGUAGE:
            model = task_factory.get_task(params.task, logging_dir=str(Path(directory).parent)).build_model()
            reads_text = name == "Translation"
            path = params.task.get("sentencepiece_model_path")
            words = {"sentencepiece_model_path": path, "batch_size": 1} if reads_text else {}
            exported, keys = make(params=make.Params(**words), model=model), ["serve_text" if reads_text else "serve"]
        else:
            task = params.task
            clip, voxels = task.train_data.get("feature_shape", None), task.model.get("num_channels", None)
            size = list(clip)[:3] if clip else list(task.model.input_size)[: 3 if voxels else 2]
            exported = make(
                params=params, input_type="image_tensor", batch_size=1, input_image_size=size, num_channels=voxels or 3
            )
            keys = ["image_tensor"]
        if name == "MaskedLM":  # its heads have no variables before they are called
            exported.get_inference_signatures({"serve": "serving_default"})
        return export_base.export(exported, keys, str(directory), str(checkpoint), timestamped=False)


FAMILIES = {
    family.name: family
    for family in (
        Family("resnet", "resnet_imagenet", "images", "accuracy",
               f"{_VISION}.image_classification:ClassificationModule"),
        Family("vision_transformer", "vit_imagenet_finetune", "images", "accuracy",
               f"{_VISION}.image_classification:ClassificationModule"),
        Family("mobilenet_segmentation", "mnv2_deeplabv3_pascal", "segmentation", "mean_iou",
               f"{_VISION}.semantic_segmentation:SegmentationModule"),
        Family("retinanet", "retinanet_resnetfpn_coco", "detection", "AP", f"{_VISION}.detection:DetectionModule"),
        Family("maskrcnn", "maskrcnn_resnetfpn_coco", "detection", "mask_AP", f"{_VISION}.detection:DetectionModule"),
        Family("video_classification", "video_classification_kinetics400", "videos", "accuracy",
               f"{_VISION}.video_classification:VideoClassificationModule"),
        Family("bert_sentence_prediction", "bert/sentence_prediction", "sentences", "cls_accuracy",
               f"{_LANGUAGE}:SentencePrediction"),
        Family("bert_tagging", "bert/tagging", "tagging", "f1", f"{_LANGUAGE}:Tagging"),
        Family("bert_pretraining", "bert/pretraining", "masked_words", "masked_lm_accuracy", f"{_LANGUAGE}:MaskedLM"),
        Family("bert_question_answering", "bert/squad", "questions", "final_f1",
               f"{_LANGUAGE}:QuestionAnswering"),
        Family("wmt_transformer", "wmt_transformer/large", "translation", "validation_loss",
               f"{_LANGUAGE}:Translation"),
        Family("dlrm", "dlrm_criteo", "clicks", "auc", registers=("official.recommendation.ranking.configs.config",)),
        Family("electra", "electra/pretraining", "masked_words", "discriminator_accuracy"),
        Family("darknet", "darknet_classification", "images", "accuracy",
               "official.projects.yolo.serving.export_module_factory:get_export_module",
               registers=("official.projects.yolo.common.registry_imports",)),
        Family("unet3d", "seg_unet3d_test", "volumes", "validation_loss",
               "official.projects.volumetric_models.serving.semantic_segmentation_3d:SegmentationModule",
               registers=("official.projects.volumetric_models.registry_imports",)),
    )
}  # fmt: skip
