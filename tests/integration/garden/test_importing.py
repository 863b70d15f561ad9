"""Modules of Model Garden that Python 3.11 and newer refuse to import."""

from official.modeling import optimization

from official_trainer.garden import index, to_garden


def test_a_section_as_a_default_is_imported_and_leaves_nothing_behind(tmp_path, monkeypatch):
    """T14: which Python 3.11 refuses; its values are theirs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = index.experiment("teams/squad")
    assert found.trainer.optimizer_config.optimizer.adamw.exclude_from_weight_decay == (
        "LayerNorm",
        "layer_norm",
        "bias",
    )
    assert optimization.OptimizerConfig.__hash__ is None
    assert to_garden.to_object(found.trainer.optimizer_config).warmup.polynomial.warmup_steps == 10_000
