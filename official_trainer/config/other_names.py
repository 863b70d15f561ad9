"""Names that fields of ours have in Keras, Lightning, Transformers and Model Garden's older flags.

Owns: the tables. Does not own: the message about an unknown field (`fields.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

THEIRS: Mapping[str, str] = {
    "global_batch_size": "batch_size train_batch_size eval_batch_size",
    "train_epochs": "epochs num_epochs max_epochs num_train_epochs",
    "train_steps": "steps max_steps num_steps num_train_steps total_steps training_steps iterations",
    "learning_rate initial_learning_rate": "lr learning_rate base_lr base_learning_rate init_lr",
    "checkpoint_interval": "save_interval save_steps save_freq save_checkpoints_steps checkpoint_every",
    "validation_interval": "eval_interval eval_freq eval_every validation_freq val_check_interval",
    "validation_steps": "eval_steps num_eval_steps limit_val_batches",
    "summary_interval": "log_interval log_steps logging_steps log_every_n_steps summary_steps",
    "max_to_keep": "keep_checkpoint_max save_total_limit max_checkpoints",
    "best_checkpoint_eval_metric": "monitor metric_for_best_model",
    "checkpoint": "restore_best_weights load_best_model_at_end",
    "steps_per_loop": "steps_per_execution iterations_per_loop",
    "gradient_accumulation_steps": "accumulate_grad_batches accumulation_steps",
    "global_clipnorm": "clip_norm gradient_clip_val max_grad_norm grad_clip",
    "weight_decay_rate": "weight_decay",
    "init_checkpoint": "pretrained checkpoint checkpoint_path resume_from",
    "input_path": "file_pattern data_path",
    "seed": "random_seed rng_seed",
    "num_gpus": "gpus devices",
    "distribution_strategy": "strategy",
    "mixed_precision_dtype": "mixed_precision precision dtype fp16 bf16",
    "enable_xla": "jit_compile xla",
}
"""Our name, or two of ours for one thing, and the names that it has elsewhere."""

OF_ITEMS: Mapping[str, str] = {
    "metrics_port": "add {type: prometheus, port: …} to trainer.trackers",
    "prometheus_port": "add {type: prometheus, port: …} to trainer.trackers",
    "wandb_project": "add {type: wandb, project: …} to trainer.trackers",
    "patience": "add {type: early_stopping, monitor: …, patience: …} to trainer.actions",
    "callbacks": "Keras's callbacks are actions here: list them in trainer.actions, or return them from build_actions",
    "loss": "the loss is what build_losses of the Task returns",
    "metrics": "the metrics are what build_metrics of the Task returns",
    "early_stopping_patience": "add {type: early_stopping, monitor: …, patience: …} to trainer.actions",
}
"""Where a name leads to an item of a list or to a method of the Task: what to write; no configuration has it yet."""

OF_SECTIONS: Mapping[str, str] = {
    "OptimizationConfig": "write opt.adam(0.001), or another of `from official_trainer.config import opt`",
}
"""What Python code writes for a section that is more than one class."""

_OURS = {their: tuple(ours.split()) for ours, theirs in THEIRS.items() for their in theirs.split()}


def ours(name: str) -> tuple[str, ...]:
    """Returns the names of the fields that elsewhere are called `name`.

    Example:
      >>> from official_trainer.config.other_names import ours
      >>> ours("batch_size"), ours("lr"), ours("colour")
      (('global_batch_size',), ('learning_rate', 'initial_learning_rate'), ())
    """
    return _OURS.get(name.lower(), ())
