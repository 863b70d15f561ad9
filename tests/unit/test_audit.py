"""What `.ci/audit` says of each answer of pip-audit, which a script stands for."""

import os
import subprocess

import pytest

from tests import ROOT

PINS = (ROOT / "requirements.lock").read_text().count("==")
UNKNOWN = "Name Skip Reason\n" + "a Dependency not found on PyPI and could not be audited: a (1)\n"
CLEAN = "No known vulnerabilities found\n"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (CLEAN, 0, f"vulnerabilities: none but those accepted, in {PINS} of {PINS} releases\n"),
        (CLEAN + UNKNOWN, 0, f"vulnerabilities: none but those accepted, in {PINS - 1} of {PINS} releases\n"),
        (
            CLEAN + UNKNOWN * PINS,
            0,
            f"vulnerabilities: not known, PyPI's list of them has none of the {PINS} releases here\n",
        ),
        (
            "Traceback\nConnectionError: no route\n",
            1,
            "vulnerabilities: not known, PyPI's list of them does not answer "
            "(pip-audit: exit code 1, ConnectionError: no route)\n",
        ),
    ],
)
def test_what_has_no_answer_is_not_called_free_of_vulnerabilities(tmp_path, answer, code, said):
    done = audit(tmp_path, answer, code)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_a_vulnerability_ends_it(tmp_path):
    found = "Found 1 known vulnerability in 1 package\nName Version ID\nkeras 3.14.0 CVE-2026-1462\n"
    done = audit(tmp_path, found, 1)
    assert done.returncode == 1
    assert done.stderr.startswith(found)
    assert "requirements.lock, or accept them in this file, each with its reason" in done.stderr


def audit(folder, answer, code):
    """Returns how the script ends where `pip-audit` gives an answer."""
    (folder / "answer").write_text(answer)
    stand_in = folder / "pip-audit"
    stand_in.write_text(f'#!/bin/sh\ncat "{folder}/answer"\nexit {code}\n')
    stand_in.chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run([ROOT / ".ci/audit"], env=environ, capture_output=True, text=True, timeout=100, check=False)
