"""Flags of launch scripts that have no effect here, or that ask for something else than a run.

Owns: which flags of absl, Model Garden and TensorFlow's libraries these are, and what is said about each.
Does not own: reading them (`parser.py`).
"""

from __future__ import annotations

_OF_LEVELS = ("v", "verbosity", "stderrthreshold", "logger_levels")
_OF_GARDEN = ("tpu_platform", "tfhub_handle", "tflex_output_uri")
_OF_HUB = ("tfhub_cache_dir", "tfhub_model_load_format")
_LEVELS, _UNREAD = "there are no levels of messages", "nothing reads it in Model Garden's open source version either"
_DEBUGGER = "`python -m pdb -m official_trainer VERB …` starts a debugger"
_PROFILER = "`python -m cProfile -o FILE -m official_trainer VERB …` profiles Python, the action `profile` steps"
IDLE = {
    **dict.fromkeys(("logtostderr", "alsologtostderr"), "messages always go to standard error"),
    **dict.fromkeys(("showprefixforinfo", *_OF_LEVELS), _LEVELS),
    **dict.fromkeys(_OF_GARDEN, _UNREAD),
    "log_dir": "messages go to standard error alone; `2> FILE` keeps them",
    "use_cprofile_for_profiling": "no flag profiles",
}
"""Flags that launch scripts have: accepted, and why each does nothing."""
INSTEAD = {
    **dict.fromkeys(("pdb", "run_with_pdb", "pdb_post_mortem"), _DEBUGGER),
    **dict.fromkeys(("run_with_profiling", "profile_file"), _PROFILER),
    "only_check_args": "`official-trainer check` tries everything with the same flags, and trains nothing",
    "helpxml": "`--help` prints text",
    **{name: f"set {name.upper()} in the environment" for name in _OF_HUB},
}
"""Flags that ask for something else than a run: refused, and what does it."""
WITH_VALUE = {*_OF_LEVELS, *_OF_GARDEN, *_OF_HUB, "log_dir", "profile_file"}
"""Those of both that take a value."""
