"""Commands that tests do not run are read: their verb, flags, experiment, files and values have to be right."""

import importlib.util
import os

from official_trainer import config
from official_trainer.cli import flags, target, verbs
from official_trainer.launch import job_spec, targets
from official_trainer.launch.profile import Profile
from official_trainer.launch.verbs import launch
from tests import ROOT

_TOOLS = {"pip", "pytest", "ruff", "mypy", "lint-imports", ".ci/run"}
"""The project's own tools; the files in their command lines have to exist."""


def verb_and_arguments(words):
    """Returns the verb of `official-trainer VERB …` or `python train.py …` and the words after it; else None."""
    if words[0] == "official-trainer":
        return words[1], words[2:]
    return ("train", words[2:]) if words[:2] == ["python", "train.py"] else None


def check(words):
    """Reads a command of this project in the current directory, a workspace; raises what is wrong."""
    found = verb_and_arguments(words)
    if found is None:
        return _check_other_program(words)
    verb, rest = found
    module = verbs.load_some(verbs.names())[verb]
    parser = flags.Parser(verb, usage="", description="")
    module.add_flags(parser)
    arguments = parser.read(rest)
    arguments.home, arguments.argv = None, words
    if arguments.help:
        return None
    if verb == "launch":
        job_spec.read_mode(arguments, job_spec.read_profile(arguments, _profile_of(arguments.target), starts=False))
    if verb in ("train", "check", "launch"):
        flags.read_mode(arguments)
        if arguments.name or arguments.experiment:  # else it is that of the run directory
            target.from_flags(arguments, "train")
    if verb in ("eval", "export", "predict"):
        flags.read_checkpoint(arguments)
    if verb == "predict":
        flags.read_prediction(arguments)
    if verb in ("eval", "export", "predict", "show") and (arguments.name or arguments.experiment):
        if "/" in (arguments.name or ""):  # the directory of a run
            return None
        resolved = target.resolve(target.named_experiment(arguments), arguments)
        if verb == "show" and arguments.explain:
            assert config.explain(resolved, arguments.explain)
    return None


def _profile_of(name):
    """Returns the section that a target's profiles fill."""
    return Profile() if name == launch.LOCAL else targets.get(name).profile_class()


def _check_other_program(words):
    """A tool of the project with files that exist, or a module that does."""
    if words[:2] == ["python", "-m"]:
        name = words[2].partition(".")[0]
        assert (ROOT / name).is_dir() or importlib.util.find_spec(name), words
        assert words[2].partition(".")[0] != "tests" or importlib.util.find_spec(words[2]), words
    elif words[0] in _TOOLS:
        for word in words[1:]:
            if "/" in word or word.endswith(".py"):
                assert (ROOT / word.partition("::")[0]).exists(), words
        if words[0] == ".ci/run":
            assert os.access(ROOT / words[0], os.X_OK)
