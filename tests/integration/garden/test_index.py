"""Model Garden's experiments as configurations: found, read, changed and written as Model Garden itself would."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags
from official.common import flags as garden_flags
from official.core import config_definitions
from official.modeling import hyperparams

from official_trainer import cli
from official_trainer import config as configuration
from official_trainer.config import ConfigError
from official_trainer.garden import index, spec, to_garden
from official_trainer.tasks import registry
from tests import ROOT
from tests.support.garden.configs import assert_same, theirs
from tests.support.jobs import resolved
from tests.support.light import LIGHT

COMMON = (
    "resnet_imagenet",
    "retinanet_resnetfpn_coco",
    "seg_deeplabv3_pascal",
    "video_classification",
    "bert/sentence_prediction",
    "bert/pretraining",
)
"""Experiments whose modules import fast; the others come with `-m full`."""

UNREADABLE = {
    "maskconver_coco": "No module named 'official.vision.configs.google'",
    "maskconver_seg_cityscapes": "No module named 'official.vision.configs.google'",
    "maskconver_seg_pascal": "No module named 'official.vision.configs.google'",
    "multiscale_maskconver_coco": "No module named 'official.vision.configs.google'",
    "panoptic_fpn_coco": "No module named 'official.projects.uvit'",
}
"""Experiments that the installed release cannot import itself, and why."""


def experiments():
    marks = pytest.mark.full
    return [name if name in COMMON else pytest.param(name, marks=marks) for name in index.entries() if name != "mock"]


@pytest.mark.parametrize("name", experiments())
def test_an_experiment_is_read_and_written_as_model_garden_does(name, tmp_path):
    """T14, T20: its values are theirs, our params.yaml is one to them, and to us again."""
    if name in UNREADABLE:
        with pytest.raises(ConfigError, match=f"cannot load '{name}': .*{UNREADABLE[name]}"):
            registry.get_config(name)
        return
    needed = ["task.sentencepiece_model_path=x"] if name == "wmt_transformer/large" else []
    ours, live_config = resolved(name, *needed), theirs(name)
    hyperparams.override_params_dict(live_config, needed[0] if needed else {}, is_strict=True)
    assert_same(ours, live_config)
    params = tmp_path / "params.yaml"
    params.write_text(configuration.dump(ours, origins=True, shared=True))
    assert resolved(name, config_files=[str(params)]).config == ours.config
    assert_same(ours, hyperparams.override_params_dict(live_config, str(params), is_strict=True))


def test_a_task_that_no_module_registers_is_refused():
    """T20: with the name of its config, and what to do."""
    from official.core.config_definitions import TaskConfig

    said = (
        r"no Task of Model Garden is registered for official\.core\.config_definitions\.TaskConfig; import the module"
    )
    with pytest.raises(to_garden.UnregisteredTaskError, match=said):
        to_garden.build_task(TaskConfig())


def test_a_task_without_its_decorator_is_named():
    """T20: the decorator that is missing, and the line of the config."""
    from official.core import config_definitions

    @dataclasses.dataclass
    class RulerConfig(config_definitions.TaskConfig):
        """A config of a user's."""

    said = (
        r"test_index.py:\d+: task: no Task of Model Garden is registered for .*RulerConfig; put "
        r"@task_factory.register_task_cls\(RulerConfig\) above its Task class, and import the module"
    )
    with pytest.raises(to_garden.UnregisteredTaskError) as caught:
        to_garden.build_task(RulerConfig())
    assert re.search(said, " ".join(str(caught.value).split()))
    with pytest.raises(ConfigError, match=r"by @task_factory.register_task_cls\(RulerConfig\)"):
        registry.register_task_cls(RulerConfig)


def test_a_task_that_is_bound_to_its_config_is_built():
    """T14: by `base_config.bind`, which Model Garden asks before its registry of Tasks."""
    task = to_garden.build_task(resolved("mock").config.task)
    assert f"{type(task).__module__}.{type(task).__name__}" == "official.utils.testing.mock_task.MockTask"


OVERRIDES = {
    "resnet_imagenet": (
        "trainer.train_steps=10,trainer.steps_per_loop=5,runtime.num_gpus=1",
        "task.train_data.input_path=gs://bucket/train*",
        "task.model.backbone.type=mobilenet,task.model.backbone.mobilenet.model_id=MobileNetV2",
        "task.model.input_size=[64,64,3]",
        "task.model.num_classes=5,task.losses.one_hot=false",
        "task.train_data.aug_type.type=randaug,task.train_data.aug_type.randaug.magnitude=5",
        "runtime.mixed_precision_dtype=float16,runtime.loss_scale=dynamic",
        "{task: {model: {num_classes: 7}}, trainer: {validation_steps: 3}}",
        "trainer.optimizer_config.optimizer.type=adam,trainer.optimizer_config.optimizer.adam.beta_1=0.8",
        "trainer.optimizer_config.learning_rate.type=cosine,"
        "trainer.optimizer_config.learning_rate.cosine.decay_steps=100",
        "trainer.optimizer_config.learning_rate.stepwise.values=[0.1,0.01]",
    ),
    "retinanet_resnetfpn_coco": (
        "task.model.min_level=4,task.model.max_level=6",
        "task.model.anchor.num_scales=1,task.model.anchor.aspect_ratios=[1.0]",
        "task.model.backbone.resnet.model_id=18,task.model.decoder.fpn.num_filters=32",
        "task.annotation_file=null",
    ),
    "seg_deeplabv3_pascal": (
        "task.model.decoder.aspp.dilation_rates=[2,4]",
        "task.train_data.output_size=[64,64],task.train_data.crop_size=[64,64]",
    ),
    "bert/sentence_prediction": (
        "task.model.encoder.bert.num_layers=1,task.model.encoder.bert.hidden_size=16",
        "task.train_data.seq_length=32,task.train_data.global_batch_size=4",
        "task.hub_module_url=https://tfhub.dev/x/1",
        "task.init_checkpoint=/a/b/ckpt-1",
    ),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in OVERRIDES.items() for text in texts])
def test_overrides_mean_what_they_mean_there(name, text):
    """T20: the same words of a command line give the same configuration."""
    ours = resolved(name, params_overrides=[text])
    assert_same(ours, hyperparams.override_params_dict(theirs(name), text, is_strict=True))


HEADS = "task: {model: {cls_heads: [{inner_dim: 5, name: a}, {inner_dim: 6, name: b}]}}"
AS_THERE = (
    (
        "resnet_imagenet",
        ["task: {losses: {one_hot: null}}"],
        "one_hot: .*must be true or false, and its code receives null",
    ),
    (
        "resnet_imagenet",
        ["task: {init_checkpoint_modules: ~}"],
        "modules: .*it must be text, and its code receives null",
    ),
    ("resnet_imagenet", ["task: {model: {input_size: [Null, 9, 3]}}"], r"input_size\[0\]: .*it must be an integer"),
    ("resnet_imagenet", ["task: {model: {backbone: null}}"], r"backbone: .*it must be a section \(Backbone\), and"),
    ("resnet_imagenet", ["trainer: {optimizer_config: {ema: null, warmup: {type: null}}}"], None),
    (
        "vit_imagenet_finetune",
        ["trainer: {optimizer_config: {optimizer: {type: adamw, adamw: {include_in_weight_decay: kernel}}}}"],
        r"decay: .*a list of texts or null, and its code receives 'kernel'; write \['kernel'\], or each letter counts",
    ),
    ("resnet_imagenet", ["runtime: {enable_xla: true}", "runtime: {distribution_strategy: tpu}"], "enable_xla: has no"),
    ("resnet_imagenet", ["runtime: {loss_scale: dynamic}"], "loss_scale: has no effect unless mixed_precision"),
    (
        "resnet_imagenet",
        ["task: {train_data: {aug_type: {type: randaug}}}", "task: {train_data: {aug_type: autoaug}}"],
        r"aug_type: .*a section \(Augmentation\) or null, and its code receives 'autoaug'; write {type: 'autoaug'}, or",
    ),
    (
        "resnet_imagenet",
        ["task: {train_data: {aug_type: autoaug}}", "task: {train_data: {aug_type: {randaug: {}, type: randaug}}}"],
        None,
    ),
    ("resnet_imagenet", ["runtime: {tpu: x}", "runtime: {distribution_strategy: one_device}"], "tpu: has no effect"),
    ("resnet_imagenet", ["runtime: {tpu: '', distribution_strategy: one_device}"], None),
    ("bert/pretraining", [HEADS, "task: {model: {cls_heads: [{num_classes: 3}, {inner_dim: 7}]}}"], None),
    ("bert/pretraining", [HEADS, "task: {model: {cls_heads: [{num_classes: 3}]}}"], None),
    ("scaled_yolo", ["task: {model: {loss: {object_normalizer: {'4': 0.7}, cls_normalizer: {'all': 0.5}}}}"], None),
)
"""Texts of configuration files that Model Garden takes, and what is warned of."""


@pytest.mark.parametrize(("name", "texts", "warned"), AS_THERE)
def test_a_file_that_model_garden_takes_means_the_same_here(name, texts, warned, tmp_path):
    """T20, T26: null in any field, one text for a list, mappings and lists of sections that are merged; idle fields."""
    live_config, files = theirs(name), []
    for number, text in enumerate(texts):
        files.append(str(tmp_path / f"{number}.yaml"))
        Path(files[-1]).write_text(text)
        live_config = hyperparams.override_params_dict(live_config, files[-1], is_strict=True)
    ours = resolved(name, config_files=files)
    assert_same(ours, live_config)
    said = [str(warning) for warning in ours.warnings]
    assert len(said) == bool(warned), said
    assert not said or re.search(rf"\.yaml:1: .*{warned}", said[0]), said
    params = tmp_path / "params.yaml"
    params.write_text(configuration.dump(ours, origins=True, shared=True))
    assert resolved(name, config_files=[str(params)]).config == ours.config


def test_a_field_of_ours_is_never_null():
    """T20: what Model Garden's code does not get is as strict as ever."""
    with pytest.raises(ConfigError, match=r"trainer.train_steps: must be an integer"):
        resolved("resnet_imagenet", "trainer.train_steps=null")
    with pytest.raises(ConfigError, match=r"task.model.num_classes: must be an integer"):
        resolved("resnet_imagenet", "task.model.num_classes=''")


def test_task_and_optimizer_are_their_own_objects_and_locked():
    """T1: what their code reads is what it knows, locked as their own driver locks it."""
    read = to_garden.with_garden_objects(resolved("resnet_imagenet").config)
    assert type(read.task) is type(theirs("resnet_imagenet").task)
    for section in (read.task, read.trainer.optimizer_config):
        with pytest.raises(ValueError, match="has been locked"):
            section.new = 1


def said(capsys, *argv):
    code = cli.main([*argv])
    return code, *capsys.readouterr()


def test_what_goes_wrong_is_said_with_its_place(capsys):
    """T20: unknown fields, wrong types and choices in their sections too, all at once."""
    code, _, err = said(
        capsys,
        "show",
        "resnet_imagenet",
        "task.model.num_clases=3",
        "task.model.backbone.type=resnt",
        "task.train_data.global_batch_size=ten",
    )
    assert code == 2
    assert "task.model.num_clases: unknown field of ImageClassificationModel; did you mean 'num_classes'?" in err
    assert "did you mean 'resnet'?" in err
    assert "task.train_data.global_batch_size: must be an integer, got 'ten'" in err


def test_what_has_no_effect_is_warned_of(capsys):
    """T20: values of a choice that is not made, and fields that nobody reads."""
    code, out, err = said(
        capsys, "show", "resnet_imagenet", "task.model.backbone.mobilenet.model_id=x", "runtime.num_cores_per_replica=2"
    )
    assert code == 0
    assert "warning: --set: task.model.backbone.mobilenet.model_id: has no effect: " in err
    assert "warning: --set: runtime.num_cores_per_replica: has no effect, here and in" in err
    assert "num_cores_per_replica: 2" in out


def test_the_params_of_a_run_have_nothing_to_warn_of(tmp_path):
    """T20: they name every field, with the value that it has anyway."""
    params = tmp_path / "params.yaml"
    params.write_text(configuration.dump(resolved("resnet_imagenet"), origins=True))
    assert "use_tpu_mp_strategy" in params.read_text()
    assert list(resolved("resnet_imagenet", config_files=[str(params)]).warnings) == []


def test_a_restriction_of_the_experiment_is_held(capsys):
    """T20: what Model Garden's factory demands of its values."""
    code, _, err = said(capsys, "show", "wmt_transformer/large")
    assert (code, err) == (
        2,
        "error: task.sentencepiece_model_path: must be != None, as the experiment requires, got null\n",
    )


def test_a_restriction_on_a_choice_that_is_not_selected_has_no_say(tmp_path, capsys):
    """T20: here SpineNet's levels, which the params.yaml of a run with another backbone leaves out."""
    changed = ["task.model.max_level=4", "task.model.backbone.type=resnet"]
    params = tmp_path / "params.yaml"
    params.write_text(configuration.dump(resolved("maskrcnn_spinenet_coco", *changed), origins=True))
    assert resolved("maskrcnn_spinenet_coco", config_files=[str(params)]).config.task.model.max_level == 4
    code, _, err = said(capsys, "show", "maskrcnn_spinenet_coco", f"--set={changed[0]}")
    assert code == 2
    assert "task.model.max_level: must be == task.model.backbone.spinenet.max_level, as the experiment" in err


def test_names_are_offered_and_must_be_one(capsys, monkeypatch):
    """T14: the nearest of their names too; one that both have is refused."""
    _, _, err = said(capsys, "show", "resnet_imagnet")
    assert "did you mean 'resnet_imagenet'?" in err
    entry = dataclasses.replace(index.entries()["resnet_imagenet"], name="twice")
    monkeypatch.setattr(index, "entries", lambda: {"twice": entry})
    monkeypatch.setattr(registry, "_factories", {})
    registry.register_config_factory("twice")(configuration.ExperimentConfig)
    with pytest.raises(ConfigError, match=r"experiment 'twice' is registered twice, at .* and\s+.*image_classif"):
        registry.get_config("twice")


def test_what_cannot_be_had_is_said_and_why(capsys):
    """T14: an experiment that its release cannot import is no traceback."""
    code, _, err = said(capsys, "show", "maskconver_coco")
    assert code == 2
    assert "cannot load 'maskconver_coco': ModuleNotFoundError: No module named" in err
    _, out, _ = said(capsys, "list", "--all")
    assert "resnet_imagenet  " in out
    listed = json.loads(said(capsys, "list", "--json")[1])["garden"]
    assert len(listed) == 95


def test_what_was_read_once_answers_without_tensorflow(tmp_path, capsys):
    """T14: the second time an experiment is named, nothing heavy is imported; a damaged cache is read again."""
    resolved("resnet_imagenet")
    argv = [sys.executable, "-c", LIGHT, "show", "resnet_imagenet", "trainer.train_steps=3"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train_steps: 3" in done.stdout
    (kept,) = Path(os.environ["XDG_CACHE_HOME"]).rglob("experiment resnet_imagenet.json")
    for damaged in (kept.read_text()[:100], "[1]", "[" * 100_000):
        kept.write_text(damaged)
        assert index.description("resnet_imagenet")["format"] == spec.FORMAT
        assert json.loads(kept.read_text())["config"]


def test_a_module_that_the_release_lacks_is_named_when_its_task_is_built(capsys, tmp_path):
    """T14: in one line, as where the config itself cannot be imported."""
    name = "panoptic_deeplab_resnet_coco"
    code, _, err = said(capsys, "check", name, f"--model_dir={tmp_path / 'run'}")
    assert code == 2
    assert f"error: Model Garden {index.release()} cannot load the Task of {index.entries()[name].module}: " in err
    assert err.rstrip().endswith("ModuleNotFoundError: No module named 'official.projects.uvit'")


def test_the_flags_of_its_drivers_are_taken(capsys):
    """T20: a flag that stands for a field sets it, and one that is not given changes nothing."""
    _, out, _ = said(capsys, "show", "resnet_imagenet", "--noenable_async_checkpointing", "--tpu=local")
    assert "async_checkpoint: false  # --noenable_async_checkpointing" in out
    assert "tpu: local  # --tpu" in out
    _, out, _ = said(capsys, "show", "resnet_imagenet", "--enable_async_checkpointing=true")
    assert "async_checkpoint: true\n" in out


def test_the_page_names_every_flag_and_field_of_theirs():
    """T20: whoever comes from Model Garden finds what becomes of each word."""
    names = {
        field.name
        for section in (config_definitions.TrainerConfig, config_definitions.RuntimeConfig)
        for field in dataclasses.fields(section)
    } - {"default_params", "restrictions"}
    before = set(flags.FLAGS)
    garden_flags.define_flags()
    names |= {f"--{name}" for name in set(flags.FLAGS) - before}
    page = (ROOT / "docs/guides/model_garden.md").read_text()
    assert {name for name in names if f"`{name}`" not in page} == set()
