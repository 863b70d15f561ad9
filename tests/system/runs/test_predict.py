"""`--mode=predict` of `train` is the verb `predict`."""

from tests import ROOT
from tests.support.forked import run_command, trained_digits
from tests.support.runs import contents


def test_mode_predict_of_train_is_the_same(tmp_path):
    """N18, T20: with the same flags; in other modes they are refused."""
    digits = trained_digits(tmp_path)
    batch = "task.validation_data.global_batch_size=17"
    argv = ["predict", f"--model_dir={digits}", batch, "--format=jsonl", "--shard_size=50", f"--output={tmp_path}/by"]
    done = run_command(argv, cwd=ROOT, folder=tmp_path)
    assert "wrote 360 predictions of ckpt-20, 8 files in all: " in done.err
    words = ["--experiment=digits_mlp", "--config_file=configs/smoke/digits_mlp.yaml", f"--model_dir={digits}"]
    words += ["trainer.export.at_end=false", batch]
    flags = ["--format=jsonl", "--shard_size=50", f"--output={tmp_path}/out"]
    done = run_command(["train", "--mode=predict", *words, *flags], cwd=ROOT, folder=tmp_path)
    assert done.code == 0, done.err
    assert contents(tmp_path / "out") == contents(tmp_path / "by")
    refused = run_command(["train", *words, *flags], cwd=ROOT, folder=tmp_path)
    assert refused.code == 2
    assert "--output and --format and --shard_size would have no effect with --mode=train_and_eval" in refused.err
