"""Our Trainer and driver with the constructors and signatures of Model Garden's for several tasks."""

from official_trainer.engine.step_context import TrainerOptions
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import tf
from official_trainer.program.run_experiment import run_experiment
from official_trainer.tasks.multi_task.garden import from_garden
from official_trainer.tasks.multi_task.task import Part


class JointTrainer(Trainer):
    """Model Garden's `MultiTaskBaseTrainer`."""

    trainer_type = "joint"

    def __init__(self, multi_task, multi_task_model, optimizer, trainer_options=None, train_datasets=None, **sampling):
        from official.modeling.multitask import configs

        trainer = configs.MultiTaskTrainerConfig(trainer_type=self.trainer_type, **sampling)
        config = configs.MultiTaskExperimentConfig(trainer=trainer)
        super().__init__(config, from_garden(multi_task, multi_task_model), multi_task_model, optimizer, evaluate=False)


class InterleavingTrainer(JointTrainer):
    """Model Garden's `MultiTaskInterleavingTrainer`, which is given a sampler."""

    trainer_type = "interleaving"

    def __init__(self, multi_task, multi_task_model, optimizer, task_sampler, **options):
        from official.modeling.multitask import configs

        kind = type(task_sampler).__name__.removesuffix("TaskSampler").lower()
        chosen = {"type": kind}
        if kind == "annealing":
            steps = float(task_sampler._steps_per_epoch)
            total = steps * float(task_sampler._total_epochs)
            chosen[kind] = {"steps_per_epoch": int(steps), "total_steps": int(total)}
        sampling = configs.TaskSamplingConfig(chosen)
        super().__init__(multi_task, multi_task_model, optimizer, task_sampler=sampling, **options)

    def task_step_counter(self, name):
        """Returns the number of steps that trained a task."""
        chosen = self.task._sampler.choose(tf.range(self.global_step), 0)
        number = list(self.task.parts).index(name)
        return tf.reduce_sum(tf.cast(tf.equal(chosen, number), tf.int64))


class SeveralEvaluator(Trainer):
    """Model Garden's `MultiTaskEvaluator`."""

    def __init__(self, eval_tasks, model, global_step=None, eval_steps=None, checkpoint_exporter=None):
        from official.modeling.multitask import configs

        parts = [
            Part(name=task.name, task=task, weight=1.0, eval_steps=(eval_steps or {}).get(task.name))
            for task in eval_tasks
        ]
        config = configs.MultiEvalExperimentConfig(task=eval_tasks[0].task_config)
        options = TrainerOptions(eval_tasks=parts)
        super().__init__(config, eval_tasks[0], model, None, train=False, options=options)


def run_several(*, distribution_strategy, task, model, mode, params, model_dir, **options):
    """Model Garden's `run_experiment` for several tasks."""
    return run_experiment(distribution_strategy, from_garden(task, model), mode, params, model_dir, **options)[0]


def run_several_evaluations(*, distribution_strategy, train_task, eval_tasks, mode, params, model_dir, **options):
    """Model Garden's `run_experiment_with_multitask_eval`."""
    from official.core import train_utils

    steps = [routine.eval_steps for routine in params.eval_tasks]
    parts = [
        Part(name=task.name, task=task, weight=1.0, eval_steps=n) for task, n in zip(eval_tasks, steps, strict=True)
    ]
    with distribution_strategy.scope():
        trainer = Trainer(
            params,
            train_task,
            train_task.build_model(),
            train_utils.create_optimizer(train_task, params),
            options=TrainerOptions(eval_tasks=parts),
        )
    return run_experiment(distribution_strategy, train_task, mode, params, model_dir, trainer=trainer, **options)
