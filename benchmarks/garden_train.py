"""Model Garden's training driver for its digits experiments: what its own `train.py` files do, and import."""

from absl import app, flags
from official.common import distribute_utils
from official.common import flags as tfm_flags
from official.core import exp_factory, task_factory, train_lib, train_utils
from official.modeling import performance

from benchmarks import garden

FLAGS = flags.FLAGS

flags.DEFINE_bool("registry_imports", True, "whether all of Model Garden's experiments are imported, as its drivers do")


def main(_):
    if FLAGS.registry_imports:
        from official.common import registry_imports  # noqa: F401
    params = train_utils.parse_configuration(FLAGS)
    train_utils.serialize_config(params, FLAGS.model_dir)
    if params.runtime.mixed_precision_dtype:
        performance.set_mixed_precision_policy(params.runtime.mixed_precision_dtype)
    strategy = distribute_utils.get_distribution_strategy(
        distribution_strategy=params.runtime.distribution_strategy,
        all_reduce_alg=params.runtime.all_reduce_alg,
        num_gpus=params.runtime.num_gpus,
        tpu_address=params.runtime.tpu,
    )
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=FLAGS.model_dir)
    train_lib.run_experiment(
        distribution_strategy=strategy, task=task, mode=FLAGS.mode, params=params, model_dir=FLAGS.model_dir
    )


if __name__ == "__main__":
    for factory in (garden.digits_cnn, garden.digits_mlp):
        exp_factory.register_config_factory(factory.__name__)(factory)
    tfm_flags.define_flags()
    flags.mark_flags_as_required(["experiment", "mode", "model_dir"])
    app.run(main)
