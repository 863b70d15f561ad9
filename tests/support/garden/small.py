"""What makes each of Model Garden's experiments so small that it trains in seconds: an overlay, and settings."""

import dataclasses

from tests.support.garden.data import HOT
from tests.support.garden.families import FAMILIES

STEPS = (
    "trainer.train_steps=4",
    "trainer.steps_per_loop=2",
    "trainer.summary_interval=2",
    "trainer.checkpoint_interval=2",
    "trainer.validation_interval=2",
    "trainer.validation_steps=2",
    "trainer.async_checkpoint=false",
    "trainer.export.at_end=false",
)


@dataclasses.dataclass(frozen=True)
class Small:
    """How an experiment is made small.

    Attributes:
      overlay: name of an overlay in `configs/garden/`, which is read first; empty for none.
      data: kind of data, a name of `tests.support.garden.data.KINDS`; empty where the experiment brings its own.
      serving: its export module in Model Garden, as in `families.py`; empty where none is known.
      sets: what is set after the overlay, for `--set`.
      mode: for `--mode`; empty for the one that also evaluates.
    """

    overlay: str = ""
    data: str = ""
    serving: str = ""
    sets: tuple[str, ...] = ()
    mode: str = ""


def _after(overlay, *sets):
    """Returns how an experiment that is like that of an overlay is made small."""
    family = FAMILIES[overlay]
    return Small(overlay, family.data, family.serving, sets)


def _alone(data, *sets, serving=""):
    """Returns how an experiment that no overlay fits is made small."""
    return Small("", data, serving, sets)


def _served(small, serving):
    """Returns an entry whose export module is another one."""
    return dataclasses.replace(small, serving=f"official.projects.{serving}")


def _backbone(name, values):
    return f"task.model.backbone={{type: {name}, {name}: {values}}}"


_OPTIMIZER = (
    "trainer.optimizer_config.optimizer=sgd",
    "trainer.optimizer_config.learning_rate={type: constant, constant: {learning_rate: 0.01}}",
)
_MOBILENET = _backbone("mobilenet", "{model_id: MobileNetV2, filter_size_scale: 0.1}")
_CROP = ("task.model.decoder.aspp.pool_kernel_size=null", "task.train_data.crop_size=[32,32]")
_RESNET = _backbone("resnet", "{model_id: 10, depth_multiplier: 0.25}")
_SPINENET = (
    _backbone("spinenet", "{model_id: 49S, min_level: 3, max_level: 7}"),
    "task.model={input_size: [128, 128, 3], max_level: 7}",
)
_SPINENET_MOBILE = (
    _backbone("spinenet_mobile", "{model_id: 49XS, min_level: 3, max_level: 7}"),
    "task.model={input_size: [128, 128, 3], max_level: 7}",
)
_FPN = (_RESNET, "task.model.decoder={type: fpn, fpn: {num_filters: 16}}")  # SpineNet has fifty layers of convolution
_MAXVIT = _backbone(
    "maxvit",
    "{stem_hsize: [8, 8], block_type: [maxvit, maxvit, maxvit, maxvit], num_blocks: [1, 1, 1, 1], "
    "hidden_size: [8, 8, 16, 16], head_size: 8, window_size: 2, grid_size: 2, scale_ratio: null}",
)
_NO_AVERAGES = "trainer.optimizer_config.ema=null"  # Model Garden exports the weights, we their averages
_FLOAT32 = "runtime.mixed_precision_dtype=float32"
_QAT_SERVING = "qat.vision.serving.export_module"
_DEEP_MASK_SERVING = "deepmac_maskrcnn.serving.detection:DetectionModule"
_YOLO_SERVING = "official.projects.yolo.serving.export_module_factory:get_export_module"


def _sections(where, *settings):
    """Returns settings for sections of data that no overlay fits; `{name}` in `where` is train or validation."""
    common = ", ".join([where, "global_batch_size: 4", "shuffle_buffer_size: 24", *settings])
    return tuple(f"task.{name}_data={{{common.replace('{name}', name)}}}" for name in ("train", "validation"))


def _boxes(*settings):
    return _sections("input_path: 'tiny_data/detection/{name}*.tfrecord'", *settings)


def _yolo(*sets, parser="max_num_instances: 8"):
    decoder = "decoder: {simple_decoder: {coco91_to_80: false}}"
    common = (
        *_boxes("dtype: float32", decoder, f"parser: {{{parser}}}"),
        "task.train_data.parser.mosaic={mosaic_frequency: 0, mixup_frequency: 0}",
        "task.annotation_file=null",
        "task.model={input_size: [64, 64, 3], num_classes: 4}",
        _FLOAT32,
    )
    return Small("", "detection", _YOLO_SERVING, (*common, *sets))


def _darknet(*sets):
    """Returns how one with YOLO v4 is made small: each slot has a box, as its loss writes the others to index -1."""
    return _yolo(
        _backbone("darknet", "{model_id: cspdarknettiny, width_scale: 0.25}"),
        "task.model.decoder={type: yolo_decoder, yolo_decoder: {version: v4, type: tiny}}",
        *sets,
        parser="max_num_instances: 1, anchor_thresh: 1000, area_thresh: 0, aug_scale_min: 1, aug_scale_max: 1, "
        "aug_rand_translate: 0, jitter: 0",
    )


def _detr(data, *sets):
    small = (
        f"task.annotation_file=tiny_data/{data}/validation-00000-of-00001.json",
        "task.model={input_size: [64, 64, 3], num_classes: 4, hidden_size: 16, num_queries: 100, "
        "num_encoder_layers: 1, num_decoder_layers: 1, backbone: {resnet: {model_id: 10, depth_multiplier: 0.25}}}",
        "task.init_checkpoint=''",
    )
    return _served(_alone(data, *sets, *small), "detr.serving.export_module:DETRModule")


_TFDS = "tfds_data_dir: tiny_data/coco"
_PICO = (_backbone("yolov7", "{model_id: yolov7-pico}"), "task.model.decoder.yolov7.model_id=yolov7-pico")
_SIZES = "12,16", "19,36", "40,28", "36,75", "76,55", "72,146", "142,110", "192,243", "459,401"
_ANCHORS = f"task.model.anchor_boxes.boxes=[{', '.join(f'{{box: [{size}]}}' for size in _SIZES)}]"

_TINY_BERT = (
    "{vocab_size: 31, hidden_size: 16, num_layers: 2, num_attention_heads: 2, intermediate_size: 32, "
    "max_position_embeddings: 16}"
)
_ENCODER = (f"task.model.encoder={{type: bert, bert: {_TINY_BERT}}}",)
_HEADS = ("task.model.cls_heads=[{inner_dim: 16, num_classes: 2, dropout_rate: 0.1, name: next_sentence}]",)
_WARMUP = (
    "trainer.optimizer_config.learning_rate.polynomial.decay_steps=8",
    "trainer.optimizer_config.warmup.polynomial.warmup_steps=2",
)

_BLOCKS = (  # as many positions as an example has tokens: a block attends to blocks drawn over all positions
    "task.model.encoder={type: bigbird, bigbird: {vocab_size: 31, hidden_size: 16, num_layers: 2, "
    "num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 16, block_size: 2, num_rand_blocks: 1}}"
)

_ANY = (
    f"task.model.encoder={{type: any, any: {_TINY_BERT}}}",
    *_WARMUP,
)

SMALL = {
    "mock": _alone("", *_OPTIMIZER),
    # images
    **dict.fromkeys(("resnet_imagenet", "resnet_rs_imagenet"), _after("resnet")),
    "resnet_imagenet_qat": _served(
        _after("resnet", "task.model.backbone.resnet.model_id=50"), f"{_QAT_SERVING}:ClassificationModule"
    ),
    "image_classification": _after("resnet", *_OPTIMIZER),
    "revnet_imagenet": _after("resnet", _backbone("revnet", "{model_id: 38}")),
    "mobilenet_imagenet": _after("resnet", _MOBILENET),
    "mobilenet_imagenet_qat": _served(_after("resnet", _MOBILENET), f"{_QAT_SERVING}:ClassificationModule"),
    "maxvit_imagenet": _after("resnet", _MAXVIT, _NO_AVERAGES, _FLOAT32, "task.model.input_size=[64,64,3]"),
    **dict.fromkeys(("vit_imagenet_finetune", "vit_imagenet_pretrain"), _after("vision_transformer")),
    "deit_imagenet_pretrain": _after("vision_transformer", "trainer.optimizer_config.warmup.linear.warmup_steps=2"),
    "darknet_classification": _after("darknet"),
    # segmentation
    "mnv2_deeplabv3_pascal": _after("mobilenet_segmentation"),
    "mnv2_deeplabv3_pascal_qat": _served(_after("mobilenet_segmentation"), f"{_QAT_SERVING}:SegmentationModule"),
    **dict.fromkeys(
        ("mnv2_deeplabv3_cityscapes", "mnv2_deeplabv3plus_cityscapes"), _after("mobilenet_segmentation", *_CROP)
    ),
    **dict.fromkeys(
        ("mnv2_deeplabv3_cityscapes_qat", "mnv2_deeplabv3plus_cityscapes_qat"),
        _served(_after("mobilenet_segmentation", *_CROP), f"{_QAT_SERVING}:SegmentationModule"),
    ),
    **dict.fromkeys(
        ("seg_deeplabv3_pascal", "seg_deeplabv3plus_pascal", "seg_deeplabv3plus_cityscapes"),
        _after("mobilenet_segmentation", _RESNET, *_CROP),
    ),
    "seg_resnetfpn_pascal": _after(
        "mobilenet_segmentation",
        _RESNET,
        "task.model.decoder.fpn.num_filters=16",
    ),
    "semantic_segmentation": _after("mobilenet_segmentation", *_OPTIMIZER, _RESNET),
    **dict.fromkeys(
        ("maxvit_seg_coco", "maxvit_seg_pascal"),
        _after(
            "mobilenet_segmentation",
            _MAXVIT,
            _NO_AVERAGES,
            "task.model={input_size: [64, 64, 3], max_level: 5}",
            "task.train_data.output_size=[64,64]",
            "task.validation_data={output_size: [64, 64], groundtruth_padded_size: [64, 64]}",
        ),
    ),
    "seg_unet3d_test": _after("unet3d"),
    # boxes
    "retinanet_resnetfpn_coco": _after("retinanet"),
    "retinanet": _after("retinanet", *_OPTIMIZER),
    "retinanet_spinenet_coco": _after("retinanet", *_SPINENET),
    "retinanet_mobile_coco": _after("retinanet", *_SPINENET_MOBILE),
    "retinanet_mobile_coco_qat": _served(_after("retinanet", *_SPINENET_MOBILE), f"{_QAT_SERVING}:DetectionModule"),
    "retinanet_maxvit_coco": _after("retinanet", _MAXVIT, _FLOAT32),
    "maskrcnn_resnetfpn_coco": _after("maskrcnn"),
    "deep_mask_head_rcnn_resnetfpn_coco": _served(_after("maskrcnn", _FLOAT32), _DEEP_MASK_SERVING),
    "fasterrcnn_resnetfpn_coco": _after("maskrcnn", _FLOAT32, "trainer.best_checkpoint_eval_metric=AP"),
    "maskrcnn_mobilenet_coco": _after("maskrcnn", _FLOAT32, _MOBILENET),
    **dict.fromkeys(("maskrcnn_spinenet_coco", "cascadercnn_spinenet_coco"), _after("maskrcnn", _FLOAT32, *_FPN)),
    "deep_mask_head_rcnn_spinenet_coco": _served(_after("maskrcnn", _FLOAT32, *_FPN), _DEEP_MASK_SERVING),
    "rcnn_maxvit_coco": _after("maskrcnn", _FLOAT32, _MAXVIT, _NO_AVERAGES),
    "centernet_hourglass_coco": _alone(
        "detection",
        *_boxes("dtype: float32"),
        "task.annotation_file=tiny_data/detection/validation-00000-of-00001.json",
        # With 8 channels, oneDNN of TensorFlow 2.20 crashes.
        _backbone("hourglass", "{model_id: 10, input_channel_dims: 16, num_hourglasses: 2}"),
        # Each slot has a box: on a CPU its loss cannot read the others, at index -1.
        "task.model={input_size: [128, 128, 3], num_classes: 4, max_num_instances: 2}",
    ),
    "yolo_darknet": _darknet(),
    "scaled_yolo": _darknet(_NO_AVERAGES),
    "yolo": _darknet(_ANCHORS, *_OPTIMIZER),
    "yolov7": _yolo(*_PICO, _ANCHORS, *_OPTIMIZER),
    "coco_yolov7_pico": _yolo(*_PICO),
    **dict.fromkeys(
        ("coco_yolov7", "coco_yolov7tiny", "coco91_yolov7tiny", "coco_yolov7_nano", "coco_yolov7x"),
        _yolo(*_PICO, _NO_AVERAGES),
    ),
    "detr_coco_tfrecord": _detr("detection", *_boxes("dtype: float32")),
    "detr_coco": _detr("coco", *_sections(_TFDS, "output_size: [64, 64]")),
    "detr_coco_tfds": _detr("coco", *_sections(_TFDS)),
    **dict.fromkeys(  # modules that they need are not in the release
        (
            "panoptic_deeplab_mobilenetv3_large_coco",
            "panoptic_deeplab_mobilenetv3_small_coco",
            "panoptic_deeplab_resnet_coco",
            "yt8m_experiment",
        ),
        _alone(""),
    ),
    # clips
    "video_classification": _after("video_classification", *_OPTIMIZER),
    **dict.fromkeys(
        (
            "video_classification_kinetics400",
            "video_classification_kinetics600",
            "video_classification_kinetics700",
            "video_classification_kinetics700_2020",
        ),
        _after("video_classification"),
    ),
    "video_classification_ucf101": _after(
        "video_classification",
        *(f"task.{name}_data={{tfds_name: '', tfds_split: ''}}" for name in ("train", "validation")),
    ),
    "movinet_kinetics600": _after("video_classification"),
    **dict.fromkeys(
        ("video_ssl_linear_eval_kinetics400", "video_ssl_linear_eval_kinetics600"),
        _after(
            "video_classification",
            "task.model.projection_dim=4",
            "task.validation_data={num_test_clips: 1, num_test_crops: 1}",
        ),
    ),
    **dict.fromkeys(  # their task has no evaluation
        ("video_ssl_pretrain_kinetics400", "video_ssl_pretrain_kinetics600"),
        dataclasses.replace(_after("video_classification"), mode="train", serving=""),
    ),
    # language
    "bert/sentence_prediction": _after("bert_sentence_prediction"),
    "bert/tagging": _after("bert_tagging"),
    "bert/pretraining": _after("bert_pretraining"),
    "bert/pretraining_dynamic": _alone(
        "masked_words",
        *_ENCODER,
        *_HEADS,
        *_WARMUP,
        "task.train_data={input_path: 'tiny_data/masked_words/train*', global_batch_size: 8, seq_bucket_lengths: [16], "
        "deterministic: true}",
        "task.validation_data={input_path: 'tiny_data/masked_words/validation*', global_batch_size: 8, seq_length: 16, "
        "max_predictions_per_seq: 3}",
        serving=FAMILIES["bert_pretraining"].serving,
    ),
    "bert/text_wiki_pretraining": _alone(
        "texts",
        *_ENCODER,
        *_HEADS,
        *_WARMUP,
        *(
            f"task.{name}_data={{input_path: 'tiny_data/texts/{name}*', vocab_file_path: tiny_data/texts/vocab.txt, "
            "tfds_name: '', tfds_split: '', global_batch_size: 8, seq_length: 16, max_predictions_per_seq: 3}"
            for name in ("train", "validation")
        ),
        serving=FAMILIES["bert_pretraining"].serving,
    ),
    "bert/sentence_prediction_text": _alone(
        "texts",
        *_ENCODER,
        *_WARMUP,
        "task.model.num_classes=2",
        *(
            f"task.{name}_data={{input_path: 'tiny_data/texts/{name}*', vocab_file: tiny_data/texts/vocab.txt, "
            "global_batch_size: 8, seq_length: 16, text_fields: [first, second]}"
            for name in ("train", "validation")
        ),
        serving=FAMILIES["bert_sentence_prediction"].serving,
    ),
    "electra/pretraining": _after("electra"),
    "roformer/pretraining": _after(
        "bert_pretraining",
        f"task.model.encoder={{type: any, any: {_TINY_BERT}}}",
        *(f"task.{name}_data.use_v2_feature_names=false" for name in ("train", "validation")),
    ),
    "teams/pretraining": _alone(
        "masked_words",
        f"task.model={{candidate_size: 3, num_shared_generator_hidden_layers: 1, "
        f"num_discriminator_task_agnostic_layers: 1, generator: {_TINY_BERT}, discriminator: {_TINY_BERT}}}",
        *_WARMUP,
        *(
            f"task.{name}_data={{input_path: 'tiny_data/masked_words/{name}*', global_batch_size: 8, seq_length: 16, "
            "max_predictions_per_seq: 3}"
            for name in ("train", "validation")
        ),
    ),
    **dict.fromkeys(("bert/squad", "bert/squad_qat"), _after("bert_question_answering")),
    "bigbird/squad": _after("bert_question_answering", _BLOCKS),
    "bigbird/glue": _after("bert_sentence_prediction", _BLOCKS),
    "teams/squad": _after("bert_question_answering", *_ANY),
    **dict.fromkeys(("roformer/glue", "teams/sentence_prediction"), _after("bert_sentence_prediction", *_ANY)),
    "wmt_transformer/large": _after("wmt_transformer"),
    # clicks
    **dict.fromkeys(("dlrm_criteo", "dcn_criteo"), _after("dlrm")),
    "dlrm_dcn_v2_criteo": _after(
        "dlrm",
        "task.use_tf_record_reader=true",
        "task.train_data.input_path=tiny_data/clicks/train*.tfrecord",
        "task.validation_data.input_path=tiny_data/clicks/validation*.tfrecord",
        f"task.model.multi_hot_sizes=[{', '.join([str(HOT)] * 26)}]",
        "task.model.dcn_low_rank_dim=4",
    ),
}

_IMAGE = ("task.model.input_size=[256,256,3]", "task.model.num_classes=21")
NEEDED = {
    "bert/tagging": ("task.class_names=[O, NOUN, VERB]",),
    "centernet_hourglass_coco": ("task.model.input_size=[512,512,3]",),
    "darknet_classification": _IMAGE,
    "image_classification": _IMAGE,
    "rcnn_maxvit_coco": (
        "task.model.backbone.maxvit.window_size=20",
        "task.model.backbone.maxvit.grid_size=20",
        "task.model.backbone.maxvit.scale_ratio='20/7'",
    ),
    "retinanet": _IMAGE,
    "semantic_segmentation": _IMAGE,
    "video_classification": ("task.train_data.num_classes=9", "task.validation_data.num_classes=9"),
    "wmt_transformer/large": (
        "task.sentencepiece_model_path=tiny_data/translation/sentencepiece.model",
        "task.validation_data={tfds_name: '', tfds_split: '', input_path: 'tiny_data/translation/validation*'}",
    ),
    "yolo": (*_IMAGE, _ANCHORS),
    "yolov7": (*_IMAGE, _ANCHORS),
}
"""What an experiment leaves to its user, and cannot be shown or built without at its real size."""

EXPLAINED = {
    ("dcn_criteo", "exports"): "the model squeezes its batch, so it cannot be traced for any number of examples",
    ("dlrm_dcn_v2_criteo", "exports"): "its inputs are not dense tensors",
    ("maskrcnn_resnetfpn_coco", "same export"): "ours computes in bfloat16 as the run, theirs in float32; with float32 "
    "they are equal",
    **dict.fromkeys(
        (("resnet_rs_imagenet", "same export"), ("yolo_darknet", "same export"), ("coco_yolov7_pico", "same export")),
        "ours has the averages of trainer.optimizer_config.ema; with ema=null they are equal",
    ),
    **dict.fromkeys(
        [
            (f"mnv2_{name}_qat", "model")
            for name in ("deeplabv3_cityscapes", "deeplabv3_pascal", "deeplabv3plus_cityscapes")
        ],
        "the installed tensorflow-model-optimization cannot read a layer that is called with a mapping, as the decoder "
        "is; Model Garden's task alone ends so too",
    ),
    **dict.fromkeys(
        [(f"video_ssl_pretrain_kinetics{number}", "evaluates") for number in (400, 600)],
        "its task has no evaluation: validation_step only raises this",
    ),
    **dict.fromkeys(
        [(name, "resumes") for name in ("maxvit_seg_coco", "maxvit_seg_pascal", "video_classification_ucf101")],
        "weights are equal; its validation_data.is_training is true, so each evaluation of a process sees other "
        "examples",
    ),
}
"""Why a cell is not "yes", as has been tried."""
