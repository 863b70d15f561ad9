"""What `predict` hands over to the engine."""

from official_trainer import cli
from official_trainer.runs.predictions import PredictionSettings


def test_predict_hands_over_to_the_engine(engine, run_dir):
    """N18: the experiment that ran there, configured as it ran."""
    argv = ["predict", f"--model_dir={run_dir}", "--checkpoint=best", "--output=out", "--format=npy", "runtime.seed=4"]
    assert cli.main(argv) == 0
    [(what, experiment, resolved, kwargs)] = engine.calls
    assert (what, experiment, kwargs["mode"], kwargs["checkpoint"]) == ("run", "my_experiment", "predict", "best")
    assert (resolved.config.trainer.train_steps, resolved.config.runtime.seed) == (7, 4)
    assert kwargs["model_dir"] == str(run_dir)
    assert kwargs["prediction"] == PredictionSettings(output_dir="out", format="npy")


def test_a_file_predicts_instead_of_a_checkpoint(engine, run_dir, capsys):
    """N46: and both together are refused."""
    assert cli.main(["predict", f"--model_dir={run_dir}", "--model=model.onnx"]) == 0
    assert engine.calls[0][3]["prediction"] == PredictionSettings(model="model.onnx")
    assert cli.main(["predict", f"--model_dir={run_dir}", "--model=model.onnx", "--checkpoint=3"]) == 2
    assert "--model and --checkpoint both say what predicts; keep one" in capsys.readouterr().err
