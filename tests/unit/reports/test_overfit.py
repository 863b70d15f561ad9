"""`train --overfit_batches`, up to the training itself."""

from official_trainer import cli
from official_trainer.reports import overfit


def test_overfitting_is_handed_over_with_the_config_of_the_run(engine, workspace, capsys, monkeypatch):
    """N36: the flag is no setting, so the config is that of the run, and its digest too; what came of it is printed."""
    calls = []
    monkeypatch.setattr(overfit, "overfit_job", lambda job, num_batches: calls.append((job, num_batches)) or "it fell")
    assert cli.main(["train", "my_experiment", "--overfit_batches=3", "trainer.train_steps=9"]) == 0
    assert cli.main(["train", "my_experiment", "trainer.train_steps=9"]) == 0
    [(job, num_batches)], [(_, trained, _)] = calls, engine.calls
    assert num_batches == 3
    assert job.resolved.config == trained.resolved.config
    assert capsys.readouterr().out.startswith("it fell\nmodel and loss can learn; nothing was kept")
