"""T26: every flag of a launch script of Model Garden: read, or accepted with a word."""

import ast
import importlib.util
import types

import absl.flags
import absl.logging
import pytest

from official_trainer.cli import verbs
from official_trainer.config import modes
from official_trainer.garden import index


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
    """Returns the flags of absl's logging and those for flags, and whether each takes no value."""
    flags = absl.flags.FLAGS.flags_by_module_dict()["absl.logging"]
    names = {name: bool(flag.boolean) for flag in flags for name in (flag.name, flag.short_name) if name}
    return {**names, "flagfile": False, "undefok": False}


FLAGS = {**defined_by_model_garden(), **defined_by_absl()}


def read(*words):
    return verbs.parser_of(verbs.load("train"), "train").read([*words, "--experiment=digits"])


def outcomes(name, words):
    """Returns how the flag is taken: `read` or `idle`."""
    arguments = read(*words)
    assert arguments.experiment == "digits", "what stands behind the flag is read as ever"
    assert all(line.startswith(f"--{name} has no effect: ") for line in arguments.idle)
    return "idle" if arguments.idle else "read"


def test_every_flag_is_read_or_accepted_with_a_word(tmp_path):
    """T26: in each spelling that absl takes, all with one outcome; none is unknown."""
    (tmp_path / "flags").write_text("--quiet\n")
    assert len(FLAGS) >= 12 + 7 + 2
    for name, is_switch in FLAGS.items():
        value = str(tmp_path / "flags") if name == "flagfile" else "digits"
        spellings = [[f"--{name}={value}"], [f"--{name}", value], [f"-{name}={value}"], [f"-{name}", value]]
        if is_switch:
            spellings = [[f"--{name}"], [f"-{name}"], [f"--{name}=true"], [f"--{name}=1"], [f"--no{name}"]]
        assert len({outcomes(name, words) for words in spellings}) == 1, name


def test_what_model_garden_reads_is_read():
    """T26: its own flags, but for those that nothing reads there."""
    unread = {"tpu_platform", "tfhub_handle", "tflex_output_uri"}
    for name in defined_by_model_garden().keys() - unread:
        assert hasattr(read(f"--{name}=x"), name)
        assert outcomes(name, [f"--{name}=digits"]) == "read"
    assert all(outcomes(name, [f"--{name}=x"]) == "idle" for name in unread)


def test_every_mode_of_model_garden_but_the_one_that_it_lacks():
    """T26, T10: `train_and_validate` is a word of its flag, and not implemented there."""
    tree = ast.parse((index.package_dir() / "common" / "flags.py").read_text())
    [theirs] = [ast.literal_eval(word.value) for node in ast.walk(tree) if isinstance(node, ast.Call)
                for word in node.keywords if word.arg == "enum_values"]  # fmt: skip
    assert set(theirs) - set(modes.MODES) == {"train_and_validate"}
    with pytest.raises(modes.ModeError, match="no such mode; did you mean train_and_eval"):
        modes.refuse_unknown("train_and_validate")


def test_every_spelling_of_help():
    """T26."""
    assert all(read(word, "--wrong").help for word in ("-h", "-?", "--help", "--helpshort", "--helpfull"))
