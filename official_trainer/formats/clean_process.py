"""A function called in a process of its own: what crashes there ends no training, and the memory it takes is its own.

Owns: the process, how arguments and results get there and back, its errors. Does not own: the functions.

`python -m official_trainer.formats.clean_process FILE` reads a pickled call from a file of the process that started it,
and writes the answer into it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from official_trainer.errors import describe_error
from official_trainer.formats.kinds import FormatError

Result = TypeVar("Result")


def call(function: Callable[..., Result], *args: object) -> Result:
    """Returns what a function at the top of a module returns, called without a GPU.

    Raises:
      FormatError: it raised an error, or the process ended before it returned.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "call"
        with path.open("wb") as file:
            pickle.dump((function, args), file)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-m", __name__, str(path)]
        code = subprocess.run(command, env=environment, capture_output=True, check=False).returncode
        if code:
            how = f"by signal {-code}" if code < 0 else f"with {code}"
            raise FormatError(f"the process that was to compute {function.__name__} ended {how}")
        with path.open("rb") as file:
            result: Result
            result, error = pickle.load(file)
    if error:
        raise FormatError(error)
    return result


def main(path: str) -> None:
    """Does what a file says, in this process."""
    with open(path, "rb") as file:
        function, args = pickle.load(file)
    answer: tuple[object, str | None]
    try:
        answer = function(*args), None
    except Exception as error:  # of any library
        answer = None, describe_error(error)
    with open(path, "wb") as file:
        pickle.dump(answer, file)


if __name__ == "__main__":
    main(sys.argv[1])
