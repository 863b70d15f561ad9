"""Settings of the documentation site. Its build first writes the pages of `docs/generate.py`.

To build it: `pip install -e '.[docs]' && sphinx-build -W --keep-going docs docs/_build/html`; then open
docs/_build/html/index.html.

References to names (`nitpicky`) are not checked: the signatures name classes of TensorFlow and Keras, which publish no
list of their names for Sphinx, and names in backticks are often not Python's. Links and headings are checked.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs import generate  # noqa: E402
from docs.extensions.repository_files import linkcode_resolve  # noqa: E402, F401 - Sphinx calls it

project = "official-trainer"
copyright = "the authors of official-trainer"
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = [
    "myst_nb",  # Markdown, and the notebook
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "sphinx_copybutton",
    "docs.extensions.docstrings",
    "docs.extensions.line_breaks",
    "docs.extensions.repository_files",
]
exclude_patterns = ["_build"]

# Pages
myst_heading_anchors = 4
nb_execution_mode = "off"  # tests/system/test_notebook.py runs it
copybutton_exclude = ".linenos, .gp, .go"  # copies neither prompts nor outputs
pygments_style = "friendly"

# Names of Python
default_role = "name"  # docs.extensions.docstrings
add_module_names = False
autoclass_content = "both"  # the class and its constructor
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False  # what Keras and orbit say of their methods stands there
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
maximum_signature_line_length = 90
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = True
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True

# The site
html_theme = "furo"
html_title = f"official-trainer {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}


def setup(app: Any) -> None:
    """Writes the generated pages before Sphinx looks for pages."""
    app.connect("config-inited", lambda *_: generate.main([]))
