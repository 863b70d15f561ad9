"""The notebook in docs/ runs, from its first cell to its last, and what is stored in it is what comes of it.

To store new outputs: copy it into an empty folder, `jupyter execute --inplace keras_notebook.ipynb` there, and copy it
back.
"""

import nbformat
import pytest
from nbclient import NotebookClient

from tests import ROOT

NOTEBOOK = ROOT / "docs/guides/keras_notebook.ipynb"


def outputs(notebook):
    """Returns, for each cell of code, its text and how many pictures it has."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            text = "".join(output.text for output in cell.outputs if output.output_type == "stream")
            found.append((text, sum("image/png" in output.get("data", {}) for output in cell.outputs)))
    return found


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
            patch.setenv(name, str(folder / name))
        place = {"metadata": {"path": str(folder)}}
        return NotebookClient(notebook, timeout=240, resources=place, coalesce_streams=True).execute()


def test_it_runs_and_draws(executed):
    """K2, K6: an error in a cell ends this; the killed run and the unbroken one are alike, on any machine."""
    found, stored = outputs(executed), outputs(nbformat.read(NOTEBOOK, 4))
    assert [pictures for _, pictures in found] == [pictures for _, pictures in stored]
    assert sum(pictures for _, pictures in found) == 3
    assert [bool(text) for text, _ in found] == [bool(text) for text, _ in stored]
    text = "".join(text for text, _ in found)
    for line in ("exit code -9", "the same weights, bit for bit: True", "the same history: True"):
        assert line in text


def test_it_is_stored_as_it_was_run():
    """In order, without errors, and without a place on somebody's machine."""
    notebook = nbformat.read(NOTEBOOK, 4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output.output_type in ("stream", "display_data") for cell in cells for output in cell.outputs)
    text = "".join(text for text, _ in outputs(notebook))
    assert not any(place in text for place in ("/home/", "/root/", "/tmp/", "Traceback", "Warning"))
