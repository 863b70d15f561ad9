"""T26: every flag of a launch script of Model Garden: read, accepted with a word, or refused with the fix."""

import ast
import importlib.util
import types

import absl.app
import absl.flags
import absl.logging
import pytest

from official_trainer.cli import verbs
from official_trainer.cli.parser import UsageError
from official_trainer.config import modes
from official_trainer.garden import index

OTHERS = {
    "tensorflow/python/ops/parallel_for/pfor.py": {"op_conversion_fallback_to_while_loop"},
    "tensorflow/python/tpu/tensor_tracer_flags.py": {
        *("delta_threshold", "tt_check_filter", "tt_single_core_summaries"),
    },
    "tensorflow/python/tpu/client/client.py": {"runtime_oom_exit", "hbm_oom_exit"},
    "tensorflow_hub/resolver.py": {"tfhub_cache_dir", "tfhub_model_load_format"},
}
"""Flags that modules of TensorFlow define when Model Garden's driver imports them."""
UNKNOWN = {name for file, names in OTHERS.items() if "tensorflow/" in file for name in names}
"""Switches of TensorFlow's own developers, which no launch script has: unknown here, so `--undefok` is for them."""


def defined_by_model_garden():
    """Returns the flags of `official.common.flags` and whether each takes no value, without importing `official`."""
    found = {}

    def define(kind):
        return lambda name, *args, **options: found.update({name: kind == "boolean"})

    kinds = ("string", "enum", "multi_string", "boolean", "bool", "integer", "float", "list")
    recorder = types.SimpleNamespace(**{f"DEFINE_{kind}": define(kind) for kind in kinds})
    recorder.DuplicateFlagError = absl.flags.DuplicateFlagError
    spec = importlib.util.spec_from_file_location("garden_flags", index.package_dir() / "common" / "flags.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.flags = recorder
    module.define_flags()
    return found


def defined_by_absl():
    """Returns the flags of absl's programs and of its logging, and whether each takes no value."""
    by_module = absl.flags.FLAGS.flags_by_module_dict()
    flags = [flag for name in ("absl.app", "absl.logging") for flag in by_module[name]]
    names = {name: bool(flag.boolean) for flag in flags for name in (flag.name, flag.short_name) if name}
    return {**names, "helpxml": True, "flagfile": False, "undefok": False}


FLAGS = {**defined_by_model_garden(), **defined_by_absl()}
ALL = [*sorted(FLAGS), *sorted(name for names in OTHERS.values() for name in names - UNKNOWN)]


def read(*words):
    return verbs.parser_of(verbs.load("train"), "train").read([*words, "--experiment=digits"])


def test_the_flags_are_those_of_the_installed_packages():
    """T26: there are as many as when this was written, or more; TensorFlow's are read from its source."""
    assert len(FLAGS) >= 12 + 7 + 7
    root = index.package_dir().parent
    for file, names in OTHERS.items():
        calls = [node for node in ast.walk(ast.parse((root / file).read_text())) if isinstance(node, ast.Call)]
        defined = {call.args[0].value for call in calls if "DEFINE_" in ast.unparse(call.func)}
        assert defined == names, file


def outcomes(name, words):
    """Returns how the flag is taken: `read`, `idle` or `refused`."""
    try:
        arguments = read(*words)
    except UsageError as error:
        assert f"--{name} is not for official-trainer: " in str(error), str(error)
        return "refused"
    assert arguments.experiment == "digits", "what stands behind the flag is read as ever"
    if arguments.idle:
        assert len(arguments.idle) == 1
        assert " has no effect: " in arguments.idle[0]
        return "idle"
    return "read"


@pytest.mark.parametrize("name", ALL)
def test_every_flag_is_read_or_accepted_with_a_word_or_refused_with_the_fix(name, tmp_path):
    """T26: in each spelling that absl takes, all with one outcome; none is unknown."""
    is_switch = FLAGS.get(name, False)
    value = str(tmp_path / "flags") if name == "flagfile" else "digits"
    (tmp_path / "flags").write_text("--quiet\n")
    spellings = [[f"--{name}"], [f"-{name}"], [f"--{name}=true"], [f"--{name}=1"]]
    if not is_switch:
        spellings = [[f"--{name}={value}"], [f"--{name}", value], [f"-{name}={value}"], [f"-{name}", value]]
    assert len({outcomes(name, words) for words in spellings}) == 1
    if is_switch:
        off = {outcomes(name, words) for words in ([f"--no{name}"], [f"--{name}=false"], [f"--{name}=0"])}
        assert off <= {"read", "idle"}, "what is off is refused nowhere"


def test_what_model_garden_reads_is_read():
    """T26: its own flags, but for those that nothing reads there."""
    unread = {"tpu_platform", "tfhub_handle", "tflex_output_uri"}
    for name in defined_by_model_garden().keys() - unread:
        assert hasattr(read(f"--{name}=x"), name)
        assert outcomes(name, [f"--{name}=digits"]) == "read"
    assert all(outcomes(name, [f"--{name}=x"]) == "idle" for name in unread)


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("--pdb", "`python -m pdb -m official_trainer VERB …` starts a debugger"),
        ("--run_with_pdb", "`python -m pdb -m official_trainer VERB …` starts a debugger"),
        ("--only_check_args", "`official-trainer check` tries everything with the same flags, and trains nothing"),
        ("--profile_file=x", "`python -m cProfile -o FILE -m official_trainer VERB …` profiles Python, the action"),
        ("--helpxml", "`--help` prints text"),
        ("--tfhub_cache_dir=/x", "set TFHUB_CACHE_DIR in the environment"),
    ],
)
def test_what_is_no_run_is_refused_with_what_does_it(word, fix):
    """T26: training for a week is not what these ask for."""
    with pytest.raises(UsageError) as error:
        read(word)
    assert str(error.value).startswith(f"{word.partition('=')[0]} is not for official-trainer: {fix}")


@pytest.mark.parametrize("word", ["--nopdb", "--only_check_args=false", "--profile_file=", "--norun_with_profiling"])
def test_what_is_off_says_nothing(word):
    """T26: it is so by default."""
    assert read(word).idle == []


@pytest.mark.parametrize("name", sorted(UNKNOWN))
def test_a_switch_of_tensorflows_developers_is_unknown(name):
    """T26: `--undefok` lets it pass, as for any binary that does not have it."""
    with pytest.raises(UsageError, match=f"^unknown flag --{name}"):
        read(f"--{name}=1")
    assert read(f"--{name}=1", f"--undefok={name}").experiment == "digits"


def test_every_mode_of_model_garden_but_the_one_that_it_lacks():
    """T26, T10: `train_and_validate` is a word of its flag, and not implemented there."""
    tree = ast.parse((index.package_dir() / "common" / "flags.py").read_text())
    [theirs] = [ast.literal_eval(word.value) for node in ast.walk(tree) if isinstance(node, ast.Call)
                for word in node.keywords if word.arg == "enum_values"]  # fmt: skip
    assert set(theirs) - set(modes.MODES) == {"train_and_validate"}
    with pytest.raises(modes.ModeError, match="no such mode; did you mean train_and_eval"):
        modes.refuse_unknown("train_and_validate")


@pytest.mark.parametrize("word", ["-h", "-?", "--help", "--helpshort", "--helpfull"])
def test_every_spelling_of_help(word):
    """T26."""
    assert read(word, "--wrong").help
