"""The picture `docs/images/packages.svg`: which package imports which. It needs Graphviz (`apt-get install graphviz`).

Owns: which arrows are drawn. Does not own: which are allowed (the contracts in `pyproject.toml`).
"""

from __future__ import annotations

import subprocess

import grimp

_PACKAGE = "official_trainer"
_STYLE = """
  bgcolor=transparent; nodesep=0.35; ranksep=0.45;
  node [fontname="Helvetica", fontsize=13, shape=box, style="rounded,filled", fillcolor="#eef3fb", color="#5b7db1"];
  edge [color="#8a8f98", arrowsize=0.7];
"""


def picture() -> str:
    """Returns the picture, an SVG."""
    arrows = "".join(f'  "{importer}/" -> "{imported}/";\n' for importer, imported in sorted(drawn_imports()))
    graph = f"digraph packages {{{_STYLE}{arrows}}}\n"
    return subprocess.run(["dot", "-Tsvg"], input=graph, text=True, capture_output=True, check=True).stdout


def drawn_imports() -> set[tuple[str, str]]:
    """Returns (importer, imported) of packages, without those that a longer path implies."""
    graph = grimp.build_graph(_PACKAGE)
    packages = sorted(name for name in graph.find_children(_PACKAGE) if graph.find_children(name))
    imports: dict[str, set[str]] = {
        name: {other for other in packages if other != name and graph.direct_import_exists(
            importer=name, imported=other, as_packages=True)}
        for name in packages
    }  # fmt: skip

    def reached(name: str) -> set[str]:
        return imports[name].union(*(reached(other) for other in imports[name]))

    def short(name: str) -> str:
        return name.removeprefix(f"{_PACKAGE}.")

    return {
        (short(name), short(other))
        for name in packages
        for other in imports[name]
        if not any(other in reached(between) for between in imports[name])
    }
