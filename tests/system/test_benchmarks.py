"""The benchmarks run: every variant trains, and what was measured becomes tables. Nothing here is timed."""

import functools
import io
import shlex
import sys

import pytest
from rich.console import Console

import benchmarks.__main__ as command
from benchmarks import (
    actions,
    bookkeeping,
    clusters,
    commands,
    data,
    goodput,
    goodput_notes,
    gpu,
    growth,
    keras3,
    models,
    pages,
    processes,
    refusals,
    report,
    resume,
    rounds,
    saves,
    steps,
    sweeps,
)
from official_trainer import config as configuration
from official_trainer.config import ExperimentConfig
from official_trainer.runs.health.watchdog import probe_of
from tests.support.cases import cases
from tests.support.forked import start_server


@pytest.mark.parametrize("name", cases(list(steps.VARIANTS), *list(steps.VARIANTS)[::4]))
def test_each_variant_trains(name):
    train = steps.VARIANTS[name]()
    calls = []
    first = train(1, 2, lambda: calls.append("window"))
    last = train(2, 25, lambda: calls.append("window"))
    assert len(calls) == 3
    assert last < first < 4, "the loss of ten digits starts at ln 10 = 2.3 and falls"


@pytest.mark.parametrize("name", keras3.VARIANTS)
def test_each_variant_of_keras_3_trains(name, monkeypatch):
    """Same weights, same batches in order: each ends with the loss of a loop by hand."""
    import keras

    images, labels = steps.digits()
    in_order = steps.tf.data.Dataset.from_tensor_slices((images[:1792], labels[:1792])).repeat().batch(steps.BATCH)
    monkeypatch.setattr(steps, "shuffle_batch", lambda: in_order)
    fit = keras.Model.fit
    monkeypatch.setattr(keras.Model, "fit", lambda *args, **options: fit(*args, shuffle=False, **options))
    subject, build_model = keras3.SUBJECTS["64 units"], keras3.build_model
    keras.utils.set_random_seed(0)
    start = build_model(subject).get_weights()
    monkeypatch.setattr(keras3, "build_model", lambda subject: with_weights(build_model(subject), start))
    if name == keras3.OURS_MEMORY:  # in an order of its own
        assert keras3.VARIANTS[name](subject)(2, 28, lambda: None) < 2.3
        return
    windows = []
    loss = keras3.VARIANTS[name](subject)(2, 28, lambda: windows.append(name))
    expected = keras3.VARIANTS[keras3.HAND](subject)(2, 28, lambda: None)
    assert (len(windows), loss) == (2, pytest.approx(expected, abs=1e-5))


def with_weights(model, weights):
    model.set_weights(weights)
    return model


def test_variants_compute_the_same_steps(monkeypatch):
    """Same weights, same batches in order: the hand-written loop, both trainers and fit end with the same loss."""
    images, labels = steps.digits()
    in_order = steps.tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(steps.BATCH)
    monkeypatch.setattr(steps, "shuffle_batch", lambda: in_order)
    steps.keras.utils.set_random_seed(0)
    start = steps.build_model().get_weights()
    build_model = steps.build_model

    def build_equal_model():
        model = build_model()
        model.set_weights(start)
        return model

    monkeypatch.setattr(steps, "build_model", build_equal_model)
    variants = {
        "hand-written": lambda: steps.hand_written(steps.shuffle_batch),
        "ours": lambda: steps.ours(steps.shuffle_batch_of),
        "ours, XLA": lambda: steps.ours(steps.shuffle_batch_of, enable_xla=True),
        "Model Garden": lambda: steps.model_garden("off"),
        "fit": lambda: steps.keras_fit(1),
    }
    losses = {name: build()(1, 30, lambda: None) for name, build in variants.items()}
    assert losses == dict.fromkeys(variants, pytest.approx(losses["hand-written"], rel=1e-4))


def test_both_loops_over_a_task_learn():
    """The first window, of 30 steps, has a higher loss than the next; both see all examples of the task."""
    subject = models.Subject(build=functools.partial(models.dense, 16, 1, 64), window_steps=30)
    for build in (models.hand_written, models.ours):
        train = build(subject)
        assert train(1, 30, lambda: None) > train(1, 30, lambda: None), build


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(gpu.devices, "gpus", lambda environ: ())
    assert gpu.compare(1) == []
    assert capsys.readouterr().out == "no GPU: nothing is measured\n"


@pytest.mark.parametrize("name", ["digits_cnn", "digits_mlp"])
def test_the_job_is_the_same_for_all_drivers(name):
    """Model, data, batch, steps and intervals are the same in ours, Model Garden's and the hand-written script."""
    from benchmarks import garden, hand_written
    from official_trainer.tasks import registry

    ours = registry.get_config(name, processes.ROOT)
    theirs = getattr(garden, name)()
    for name in ("train_steps", "summary_interval", "checkpoint_interval", "validation_interval", "validation_steps"):
        assert getattr(ours.trainer, name) == getattr(theirs.trainer, name), name
    for section in ("train_data", "validation_data"):
        batch = getattr(theirs.task, section).global_batch_size
        assert getattr(ours.task, section).global_batch_size == batch
    models = [registry.get_task_cls(ours.task)(ours.task).build_model(), garden.DigitsTask(theirs.task).build_model()]
    if name == "digits_mlp":
        models.append(hand_written.build_model())
        settings, script = ours.trainer, hand_written
        assert (settings.train_steps, settings.summary_interval) == (script.TRAIN_STEPS, script.SUMMARY_STEPS)
        intervals = settings.validation_interval, settings.checkpoint_interval
        assert intervals == (script.EVALUATION_STEPS, script.CHECKPOINT_STEPS)
    layers = [[(type(layer).__name__, layer.output_shape) for layer in model.layers] for model in models]
    assert layers == [layers[0]] * len(models)


def test_rounds_are_interleaved():
    order = []

    def measure(name):
        order.append(name)
        return {"seconds": float(len(order))}

    results = rounds.interleave({name: functools.partial(measure, name) for name in "AB"}, 2)
    assert order == ["A", "B", "B", "A"]
    assert results == {"seconds": {"A": (1.0, 4.0), "B": (2.0, 3.0)}}


TARGETS = [
    report.Target(name="fast", against="slow", at_most=0.5),
    report.Target(name="slow", against="fast", at_most=0.5),
    report.Target(name="fast", at_most=2.0),
]
COMPARISON = report.Comparison(
    title="work",
    unit="s",
    digits=1,
    values={"slow": [4.0, 5.0, 10.0], "fast": [1.0, 2.0, 2.0]},
    baseline="slow",
    targets=TARGETS,
)


def test_ratios_are_formed_round_by_round():
    assert COMPARISON.ratios("fast", "slow") == [0.25, 0.4, 0.2]
    assert [COMPARISON.is_met(target) for target in TARGETS] == [True, False, True]


def test_tables_as_markdown():
    assert report.markdown([COMPARISON]) == (
        "| work | s | min to max | × slow | min to max |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| slow | 5.0 | 4.0 to 10.0 | 1.00 | 1.00 to 1.00 |\n"
        "| fast | 2.0 | 1.0 to 2.0 | 0.25 | 0.20 to 0.40 |\n"
        "\n"
        "| promise | against | median | min to max | at most | met |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| fast | slow | 0.25 | 0.20 to 0.40 | 0.50 × | yes |\n"
        "| slow | fast | 4.00 | 2.50 to 5.00 | 0.50 × | **no** |\n"
        "| fast | – | 2.00 | 1.00 to 2.00 | 2.00 s | yes |\n"
    )


def test_quartiles_as_spread():
    values = {"only": [1.0, 2.0, 3.0, 4.0, 100.0]}
    table = report.markdown([report.Comparison(title="work", unit="s", values=values, quartiles=True)])
    assert "| work | s | quartiles |" in table and "| only | 3 | 2 to 4 |" in table


def test_tables_on_a_terminal():
    console = Console(width=120, record=True, file=io.StringIO())
    report.print_text([COMPARISON], console)
    rows = [line.split() for line in console.export_text().splitlines()]
    assert ["fast", "2.0", "1.0", "to", "2.0", "0.25", "0.20", "to", "0.40"] in rows
    assert ["slow", "fast", "4.00", "2.50", "to", "5.00", "0.50", "×", "no"] in rows


def test_the_readme_has_a_section_for_each_part():
    text = command.README.read_text()
    for name in command.PARTS:
        replaced = report.replace_section(text, name, "new\n")
        assert f"<!-- {name}: begin -->\nnew\n<!-- {name}: end -->" in replaced
    with pytest.raises(ValueError, match="no section between"):
        report.replace_section(text, "nothing", "new")


def test_the_command_writes_tables_and_says_what_was_missed(monkeypatch, tmp_path, capsys):
    readme = tmp_path / "README.md"
    sections = [f"<!-- {name}: begin -->\nold\n<!-- {name}: end -->\n" for name in (command.PROMISES, *command.PARTS)]
    readme.write_text("".join(["before\n", *sections, "after\n"]))
    monkeypatch.setattr(command, "README", readme)
    monkeypatch.setitem(command.PARTS, "cli", (lambda num_rounds: [COMPARISON], 3))
    assert command.main(["--only=cli", "--markdown"]) == 1
    text = readme.read_text()
    section = report.section_of(text, "cli")
    assert "old" not in section and "| fast | 2.0 |" in section and f"Measured on {report.machine()}." in section
    assert "| `cli` | work | slow | fast | 4.00 × | 0.50 × | **no** |" in report.section_of(text, command.PROMISES)
    assert capsys.readouterr().out.endswith("1 target missed\n")


def test_a_part_that_goes_on_in_the_next_call_has_no_tables_yet(monkeypatch, capsys):
    monkeypatch.setitem(command.PARTS, "goodput", (lambda num_rounds: [], 3))
    monkeypatch.setattr(command, "_write", lambda name, tables: pytest.fail("there are no tables"))
    assert command.main(["--only=goodput", "--markdown"]) == 0
    assert "not finished: goodput\n" in capsys.readouterr().out


def test_all_promises_stand_at_the_top_of_the_page():
    """The table is that of the sections' own tables, and each part is in it."""
    text = command.README.read_text()
    assert command.with_promises(text) == text, "run `python -m benchmarks --only=PART --markdown` for a part"
    table = report.promises(f"<!-- a: begin -->\n{report.markdown([COMPARISON])}<!-- a: end -->\n<!-- b: begin -->\n"
                            "none\n<!-- b: end -->", ["a", "b"])  # fmt: skip
    assert table == (
        "\n2 of 3 promises are kept.\n\n"
        "| part | of | promise | against | measured | at most | met |\n"
        "| --- | --- | --- | --- | ---: | ---: | ---: |\n"
        "| `a` | work | fast | slow | 0.25 × | 0.50 × | yes |\n"
        "| `a` | work | slow | fast | 4.00 × | 0.50 × | **no** |\n"
        "| `a` | work | fast | – | 2.00 s | 2.00 s | yes |\n"
        "| `b` | not measured | – | – | – | – | – |\n\n"
    )


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["--only=steps,stpes"])
    assert "no such part: stpes; parts are steps, models, keras3, gpu, job, start" in capsys.readouterr().err


def test_usage_of_a_process():
    usage = processes.run([sys.executable, "-c", "held = bytearray(100 << 20)"])
    assert usage.wall_seconds > 0
    assert usage.peak_bytes > 100 << 20
    with pytest.raises(RuntimeError, match=r"ended with 3:\nbad luck"):
        processes.run([sys.executable, "-c", "print('bad luck'); raise SystemExit(3)"])
    talks = "print('begun', flush=True); input(); print('done')"
    usage = processes.run(["sh", "-c", f"echo | {sys.executable} -c {shlex.quote(talks)}"], mark="be.un")
    assert usage.mark_seconds is not None and 0 < usage.mark_seconds < usage.wall_seconds
    with pytest.raises(RuntimeError, match="ended with 0 without 'other':\nbegun"):
        processes.run([sys.executable, "-c", "print('begun')"], mark="other")


def test_commands_are_measured():
    (comparison,) = commands.compare(1)
    assert set(comparison.values) == {commands.BARE, *commands.COMMANDS}
    assert {target.name for target in comparison.targets} == set(commands.COMMANDS)


def test_the_page_of_a_report_is_measured(monkeypatch):
    """N22: the runs that the benchmark writes are all on the page, which is smaller than is promised."""
    monkeypatch.setattr(pages, "NUM_RUNS", 20)
    seconds, megabytes = pages.compare(1)
    assert set(seconds.values) == {"report of 20 runs"}
    assert 0.1 < megabytes.values["report of 20 runs"][0] < pages.LIMIT_MEGABYTES
    (table,) = pages.compare_runs(1)
    assert set(table.values) == {"compare of 20 runs"}


@pytest.mark.full
def test_hostile_configurations_are_refused():
    (comparison,) = refusals.compare(1)
    assert set(comparison.values) == set(refusals.FILES)


def _as_measured_by_a_child(monkeypatch, module):
    """Has `module.compare` measure in this process."""
    monkeypatch.setattr(processes, "results_of", lambda name, num_rounds: module.measure_all(num_rounds))


def test_saves_are_measured_apart_from_the_steps_beside_them(monkeypatch):
    for task in (saves.DenseTask, saves.SmallTask):
        monkeypatch.setattr(task, "units", 8)
    _as_measured_by_a_child(monkeypatch, saves)
    call, extra, _, parts, restoring, runs, of_runs = saves.compare(2)
    savers = {saves.OURS, saves.OURS_ASYNC, saves.OURS_UNSYNCED, saves.MANAGER, saves.MANAGER_ASYNC}
    assert set(call.values) == set(extra.values) == savers
    named = (saves.VALUES, saves.WRITE, saves.SYNC, saves.DELETE, saves.REST)
    for number, whole in enumerate(parts.values[saves.WHOLE]):
        assert all(parts.values[name][number] > 0 for name in named), "each part was seen"
        assert sum(parts.values[name][number] for name in named) == pytest.approx(whole)
    assert len(restoring.values) == 3
    assert all(
        len(values) == 2
        for comparison in (call, extra, parts, restoring, runs, of_runs)
        for values in comparison.values.values()
    )
    assert set(runs.values) == {saves.SAVING, saves.NOT_SAVING}


def test_savers_that_are_compared_save_the_same(monkeypatch, tmp_path):
    """Every way to save leaves the values of the moment it was called, though training went on."""
    monkeypatch.setattr(saves.DenseTask, "units", 8)
    trainer = saves.build_trainer()
    trainer.run_steps(3)
    expected = trainer.model.get_weights()
    savers = {
        "ours": saves.Ours(f"{tmp_path}/ours", trainer),
        "ours_async": saves.Ours(f"{tmp_path}/ours_async", trainer, asynchronous=True),
        "manager": saves.Manager(f"{tmp_path}/manager", trainer),
        "manager_async": saves.Manager(f"{tmp_path}/manager_async", trainer, asynchronous=True),
    }
    for saver in savers.values():
        saver.save(7)
    waiting = set(savers)
    while waiting:
        trainer.run_steps(1)
        assert trainer.global_step < 10_000, f"never done: {waiting}"
        waiting -= {name for name in waiting if savers[name].is_done(7)}
    for name in savers:
        saves.tf.train.Checkpoint(model=trainer.model).read(f"{tmp_path}/{name}/ckpt-7").expect_partial()
        for value, was in zip(trainer.model.get_weights(), expected, strict=True):
            assert (value == was).all(), name


@pytest.mark.full
def test_starts_at_a_step_are_measured(monkeypatch):
    whole = resume.NUM_RECORDS * resume.RECORD_BYTES
    assert (resume.BATCH * (resume.LATE - resume.EARLY)) % resume.NUM_RECORDS == 0, "the same place of an epoch"
    assert resume.BATCH * resume.EPOCH_FIRST % resume.NUM_RECORDS < resume.BATCH
    left = resume.NUM_RECORDS - resume.BATCH * resume.EPOCH_LAST % resume.NUM_RECORDS
    assert resume.BATCH <= left < 2 * resume.BATCH
    assert whole < 100e6, "the records fit into memory"
    monkeypatch.setattr(resume, "NUM_RECORDS", 27 * 8)
    monkeypatch.setattr(resume, "FOREIGN_STEPS", (2, 4))
    _as_measured_by_a_child(monkeypatch, resume)
    starts, reading_over = resume.compare(1)
    assert {target.name for target in starts.targets} == {
        resume.name(kind, resume.LATE) for kind in (resume.MEMORY, resume.CACHED, resume.RECORDS, resume.SOURCE)
    }
    assert resume.name(resume.FOREIGN, 4) in starts.values
    assert list(reading_over.values) == [resume.FOREIGN]


READERS = [(kind, name) for kind, readers in data.READERS.items() for name in readers if data.is_there(name)]


@pytest.fixture(scope="module")
def data_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    data.write(folder, dict.fromkeys(data.SIZES, data.Sizes(64, 8, 2)))
    return folder


@pytest.mark.parametrize(("kind", "name"), READERS)
def test_readers_that_are_compared_yield_the_same_shapes(kind, name, data_files):
    """N41: batches of all fields, of their sizes."""
    batch = next(iter(data.READERS[kind][name](data_files, data.Sizes(64, 8, 2))))
    shapes = sorted(tuple(leaf.shape) for leaf in _leaves(batch))
    rows = [(8,)] * (data.COLUMNS + 1)
    assert shapes == {"images": [(8,), (8, 64, 64, 3)], "Parquet": rows, "CSV": rows}.get(kind, [(8, data.TOKENS)])


def _leaves(batch):
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple | list) else None
    return [batch] if parts is None else [leaf for part in parts for leaf in _leaves(part)]


@pytest.mark.full
def test_readers_are_measured(monkeypatch):
    """N41"""
    monkeypatch.setattr(data, "SIZES", dict.fromkeys(data.SIZES, data.Sizes(64, 8, 2)))
    _as_measured_by_a_child(monkeypatch, data)
    comparisons = data.compare(1)
    assert len(comparisons) == len(data.READERS)
    assert all({data.OURS, data.BEST} < {*each.values} for each in comparisons)


def test_bookkeeping_left_out_or_done_more_often_trains_the_same():
    """Random streams depend on the step and nothing else; the mark and the trace change no result."""
    weights = []
    for times in ((1, 1, 1), (3, 3, 0)):
        trainer = bookkeeping.build_trainer("digits_mlp", *times)
        trainer.run_steps(5)
        assert probe_of(trainer)()["waiting_for_input"] is False
        weights.append(trainer.model.get_weights())
    for once, often in zip(*weights, strict=True):
        assert (once == often).all()


@pytest.mark.full
def test_bookkeeping_is_measured(monkeypatch):
    monkeypatch.setattr(bookkeeping, "WINDOW_STEPS", {"digits_mlp": 2, "digits_cnn": 2})
    monkeypatch.setattr(bookkeeping, "WINDOWS", 2)
    _as_measured_by_a_child(monkeypatch, bookkeeping)
    comparisons = bookkeeping.compare(1)
    assert [target.name for each in comparisons for target in each.targets] == [bookkeeping.ALL]
    assert all(list(each.values) == list(bookkeeping.VARIANTS) for each in comparisons)


@pytest.mark.full
def test_actions_are_measured(monkeypatch):
    monkeypatch.setattr(actions, "STRETCH_STEPS", 20)
    _as_measured_by_a_child(monkeypatch, actions)
    (comparison,) = actions.compare(1)
    assert {name: len(values) for name, values in comparison.values.items()} == {actions.NONE: 1, actions.ALL: 1}


def test_actions_of_the_benchmark_can_be_read():
    """B1: each is one that there is."""
    found = configuration.resolve(
        ExperimentConfig(), sets=[f"trainer.actions={actions.ACTIONS}"]
    ).config.trainer.actions
    assert len({action.type for action in found}) == len(found) > 8


@pytest.fixture
def preloaded():
    """Has the fork server import what jobs on strategies need, beside what other tests need, if it is not there yet."""
    clusters._context.set_forkserver_preload(["tests.support.preload", "benchmarks.cluster_jobs"])
    start_server()


@pytest.mark.full
@pytest.mark.parametrize(
    ("side", "strategy"),
    [pytest.param("garden", "parameter_server", marks=pytest.mark.full), ("ours", "multi_worker_mirrored")],
)
@pytest.mark.usefixtures("preloaded")
def test_loops_on_clusters_are_timed(monkeypatch, side, strategy):
    """Real processes train, of both sides."""
    monkeypatch.setattr(clusters, "WARM_SUMMARIES", 1)
    monkeypatch.setattr(clusters, "TIMED_SUMMARIES", 1)
    monkeypatch.setattr(clusters, "WINDOW_STEPS", {("small", strategy): 4})
    assert clusters.milliseconds_per_step(side, strategy, "small")["milliseconds"] > 0


@pytest.mark.usefixtures("preloaded")
def test_a_job_on_a_strategy_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"exit codes \{'alone': 1\}(.|\n)*KeyError: 'no such model'"):
        clusters.milliseconds_per_step("garden", "off", "no such model")


def test_loops_that_were_not_all_timed_are_refused(tmp_path):
    times = tmp_path / "times.jsonl"
    num_loops = (clusters.WARM_SUMMARIES + clusters.TIMED_SUMMARIES) * clusters.WINDOWS_PER_SUMMARY
    stood_still = num_loops - clusters.WINDOWS_PER_SUMMARY  # once, for a minute
    times.write_text("".join(f"[{10 * n}, {0.5 * n + 60 * (n > stood_still)}]\n" for n in range(1, num_loops + 1)))
    assert clusters._timed(times, 10) == pytest.approx(50)
    with pytest.raises(RuntimeError, match="loops ended at steps"):
        clusters._timed(times, 5)


def test_jobs_on_strategies_are_the_same_for_both_sides():
    from benchmarks import cluster_jobs

    settings = {"model": "small", "window_steps": 5, "num_windows": 4, "windows_per_summary": 2, "folder": "."}
    for strategy in clusters.ROLES:
        ours = cluster_jobs.our_config(cluster_jobs.Assignment(side="ours", strategy=strategy, **settings))
        theirs = cluster_jobs.garden_config(cluster_jobs.Assignment(side="garden", strategy=strategy, **settings))
        for name in ("train_steps", "steps_per_loop", "summary_interval", "checkpoint_interval"):
            assert getattr(ours.trainer, name) == getattr(theirs.trainer, name), name
        assert ours.task.train_data.global_batch_size == theirs.task.train_data.global_batch_size
        assert ours.runtime.distribution_strategy == theirs.runtime.distribution_strategy
        for section in ("optimizer", "learning_rate"):
            ours_of, theirs_of = (getattr(side.trainer.optimizer_config, section) for side in (ours, theirs))
            assert ours_of.type == theirs_of.type
            shared = ours_of.get().as_dict() if hasattr(ours_of.get(), "as_dict") else vars(ours_of.get())
            for name in shared.keys() & theirs_of.get().as_dict().keys():
                assert shared[name] == theirs_of.get().as_dict()[name], name


def test_strategies_are_compared_side_by_side(monkeypatch):
    values = {clusters.name(strategy, side): [1.0, 2.0] for strategy in clusters.ROLES for side in clusters.SIDES}
    monkeypatch.setattr(processes, "results_of", lambda name, num_rounds: dict.fromkeys(clusters.STRATEGIES, values))
    *alike, accelerated = clusters.compare(2)
    for comparison in alike:
        assert all(map(comparison.is_met, comparison.targets))
    (target,) = accelerated.targets
    assert not accelerated.is_met(target), "as fast as Model Garden is not enough there"


@pytest.mark.full
def test_a_sweep_and_commands_reach_their_first_step():
    """One trial of each; a first step that was not reached would have no time."""
    assert sweeps.sweep(1)["first"] > 0 and sweeps.commands(1)["first"] > 0


def test_growth_is_the_slope_between_the_two_largest_sizes():
    assert growth.exponent([10, 100, 1000], [9.0, 2.0, 20.0], least=0.0) == pytest.approx(1)
    assert growth.exponent([10, 100, 1000], [9.0, 1.0, 100.0], least=0.0) == pytest.approx(2)
    assert growth.exponent([10, 100, 1000], [0.1, 0.1, 0.9], least=1.0) == 0, "noise does not grow"


@pytest.mark.parametrize("thing", cases(growth.THINGS, *growth.THINGS[::6]), ids=lambda thing: thing.name)
def test_what_grows_is_measured(thing, tmp_path):
    """Its data can be written, and what is measured works on them."""
    if thing.command is not None:
        seconds, mebibytes = growth.measured(thing, tmp_path, 24)
        assert seconds > 0 and mebibytes > 0
    else:
        thing.prepare(tmp_path, 24)()  # not in a fork: this process has started TensorFlow


def test_growth_has_a_target_for_each_thing():
    things = growth.THINGS[:2]
    found = [[[(0.01, 9.0), (0.1, 90.0), (1.0, 900.0)]], [[(0.01, 0.0), (0.1, 0.0), (10.0, 0.0)]]]
    time, memory = growth.comparisons(things, found)
    names = [f"{thing.of}: {thing.name}" for thing in things]
    assert [target.name for target in time.targets] == [target.name for target in memory.targets] == names
    assert time.values == {
        names[0]: [pytest.approx(0.5 if things[0].sizes[-1] > 10**7 else 1)],
        names[1]: [pytest.approx(1)],
    }
    assert time.rows_of_values()[1][1:] == ["100,000: 0.010", "1,000,000: 0.100", "10,000,000: 1.000", "1.00"]


def _notes(*steps_and_seconds):
    notes = goodput_notes.np.zeros(len(steps_and_seconds), goodput_notes.NOTE)
    for place, (step, seconds) in enumerate(steps_and_seconds):
        first = step * goodput_notes.BATCH % goodput_notes.EXAMPLES
        notes[place] = step, seconds, range(first, first + goodput_notes.BATCH)
    return notes


def test_notes_tell_what_a_kill_cost():
    """N27: steps after a kill that were made before are computed again; the last of each is the final history."""
    notes = _notes((0, 1.0), (1, 2.0), (2, 3.0), (1, 7.0), (2, 8.0), (3, 9.0))
    assert goodput_notes.after(notes, 3.5) == (3.5, 2)
    assert goodput_notes.after(notes, 9.5) is None
    history = goodput_notes.final_history(notes)
    assert list(history["step"]) == [0, 1, 2, 3] and list(history["seconds"]) == [1.0, 7.0, 8.0, 9.0]
    epoch = goodput_notes.EXAMPLES // goodput_notes.BATCH
    whole = _notes(*((step, float(step)) for step in range(2 * epoch)))
    assert goodput_notes.misread(whole) == 0
    whole["ids"][5] = whole["ids"][6]
    assert goodput_notes.misread(whole) == pytest.approx(1000 * 128 / 12800)


@pytest.mark.full
def test_goodput_goes_on_in_the_next_call_until_all_parts_are_there(monkeypatch, tmp_path, capsys):
    """N27: a job of ours that is killed makes the same history as one that is not."""
    monkeypatch.setenv(goodput.FOLDER, str(tmp_path))
    monkeypatch.setattr(goodput, "CALL_SECONDS", 0.0)
    every = [(0, 3), (15, 30)]
    segments = [goodput.Segment(side=goodput.OURS, every=each, seconds=seconds) for each, seconds in every]
    assert goodput.compare(1, segments) == [] and "2 of 3 parts are missing" in capsys.readouterr().out
    assert goodput.compare(1, segments) == []
    lost, latency, repeated, misread, same = goodput.compare(1, segments)
    name = goodput.title(goodput.OURS, 15)
    assert set(lost.values) == set(latency.values) == set(repeated.values) == set(misread.values) == {name}
    assert misread.values[name] == [0.0]
    assert all(values == [0.0] for values in same.values.values())
