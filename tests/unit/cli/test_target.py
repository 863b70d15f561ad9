"""Which config a verb takes: that of the experiment, or that of a run."""

from official_trainer import cli


def test_a_run_directory_that_is_not_there(engine, workspace, capsys):
    """N7: the nearest folder beside it is named."""
    (workspace / "runs" / "tickets").mkdir(parents=True)
    assert cli.main(["eval", "--model_dir=runs/ticket"]) == 2
    assert capsys.readouterr().err == "error: there is no folder runs/ticket; did you mean runs/tickets?\n"
    assert cli.main(["eval", "runs/ticket"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: there is no folder runs/ticket, and no experiment has this name")
    assert said.endswith("; did you mean 'runs/tickets'?\n")
    assert cli.main(["eval", "./runs/"]) == 2
    assert capsys.readouterr().err.startswith("error: ./runs/ holds no run, and no experiment has this name")
    assert cli.main(["eval", "--model_dir=nowhere"]) == 2
    assert capsys.readouterr().err == "error: there is no folder nowhere\n"


def test_a_run_may_stand_in_the_place_of_an_experiment(engine, run_dir):
    """N8: name and values are those the run recorded; a flag that names another place wins, as an experiment does."""
    for verb in ("check", "eval", "export"):
        assert cli.main([verb, str(run_dir), "runtime.seed=5"]) == 0
        _, job, _ = engine.calls.pop()
        assert (job.experiment, job.model_dir) == ("my_experiment", str(run_dir))
        assert (job.config.trainer.train_steps, job.config.runtime.seed) == (7, 5)
        assert cli.main([verb, str(run_dir), "--model_dir=other"]) == 2
    assert cli.main(["eval", "my_experiment", f"--model_dir={run_dir}"]) == 0
    assert engine.calls[0][1].config.trainer.train_steps == 200


def test_neither_a_run_nor_an_experiment(engine, workspace, tmp_path, monkeypatch, capsys):
    """N7: both are offered, and a command that can be given."""

    def said(*words):
        assert cli.main([*words]) == 2 and engine.calls == []
        return capsys.readouterr().err

    (workspace / "run").mkdir()
    without = "run holds no run (there is no run.json), so name the experiment with --experiment"
    for content, reason in (
        (None, without),
        ("{", "run/run.json cannot be read"),
        ("{}", "run/run.json was not written by this program"),
    ):
        if content is not None:
            (workspace / "run" / "run.json").write_text(content)
        assert f"error: {reason}" in said("export", "--model_dir=run")
    what = "error: name a run or an experiment: --model_dir=DIR or --experiment=NAME\nexperiments: my_experiment\n"
    command = "try: official-trainer predict --checkpoint=best --experiment=my_experiment\n"
    assert said("predict", "--checkpoint=best") == what + command
    monkeypatch.chdir(tmp_path)
    assert said("train").endswith("\nexperiments: none here; `official-trainer init DIR` writes a new workspace\n")
