"""Flags of launch scripts that have no effect here, or that ask for something else than a run.

Owns: which flags of absl, Model Garden and TensorFlow's libraries these are, and what is said about each.
Does not own: reading them (`parser.py`).
"""

from __future__ import annotations

_STDERR, _LEVELS = "messages always go to standard error", "there are no levels of messages"
_UNREAD = "nothing reads it in Model Garden's open source version either"
IDLE_SWITCHES = {
    **dict.fromkeys(("logtostderr", "alsologtostderr"), _STDERR),
    "showprefixforinfo": _LEVELS,
    "use_cprofile_for_profiling": "no flag profiles",
}
IDLE_VALUES = {
    **dict.fromkeys(("v", "verbosity", "stderrthreshold", "logger_levels"), _LEVELS),
    **dict.fromkeys(("tpu_platform", "tfhub_handle", "tflex_output_uri"), _UNREAD),
    "log_dir": "messages go to standard error alone; `2> FILE` keeps them",
}
"""Flags of absl and of Model Garden that launch scripts have: accepted, and why each does nothing."""

_DEBUGGER = "`python -m pdb -m official_trainer VERB …` starts a debugger"
_PROFILER = "`python -m cProfile -o FILE -m official_trainer VERB …` profiles Python, the action `profile` steps"
INSTEAD = {
    **dict.fromkeys(("pdb", "run_with_pdb", "pdb_post_mortem"), _DEBUGGER),
    **dict.fromkeys(("run_with_profiling", "profile_file"), _PROFILER),
    "only_check_args": "`official-trainer check` tries everything with the same flags, and trains nothing",
    "helpxml": "`--help` prints text",
    **{name: f"set {name.upper()} in the environment" for name in ("tfhub_cache_dir", "tfhub_model_load_format")},
}
"""Flags of absl and of TensorFlow's libraries that ask for something else than a run: refused, and what does it."""
INSTEAD_VALUES = ("profile_file", "tfhub_cache_dir", "tfhub_model_load_format")
"""Those of them that take a value."""
