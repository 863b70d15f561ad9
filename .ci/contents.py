"""Whether an sdist and a wheel hold the package, all of it, and nothing else.

`python3 .ci/contents.py SOURCE SDIST WHEEL`, where SOURCE is the folder that they were built from.
"""

import os
import sys
import tarfile
import zipfile

PACKAGE = "official_trainer"
OF_SDIST = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
OF_EGG_INFO = {"PKG-INFO", "SOURCES.txt", "dependency_links.txt", "entry_points.txt", "requires.txt", "top_level.txt"}
OF_DIST_INFO = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}


def package_files(source: str) -> set[str]:
    """Returns the files of the package, with those of the folder to which the template has a link."""
    folders = os.walk(os.path.join(source, PACKAGE), followlinks=True)
    return {os.path.relpath(os.path.join(folder, name), source) for folder, _, names in folders for name in names}


def problems(archive: str, names: set[str], expected: set[str]) -> list[str]:
    """Returns a line for each file that is missing, and for each that is too much."""
    missing = [f"{archive} lacks {name}" for name in sorted(expected - names)]
    return missing + [f"{archive} holds {name}" for name in sorted(names - expected)]


def main(source: str, sdist: str, wheel: str) -> int:
    """Prints what is wrong; returns the exit code."""
    package = package_files(source)
    with tarfile.open(sdist) as archive:
        in_sdist = {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    version = os.path.basename(wheel).split("-")[1]
    in_egg_info = {f"{PACKAGE}.egg-info/{name}" for name in OF_EGG_INFO}
    in_dist_info = {f"{PACKAGE}-{version}.dist-info/{name}" for name in OF_DIST_INFO}
    lines = [
        *problems(os.path.basename(sdist), in_sdist, package | OF_SDIST | in_egg_info),
        *problems(os.path.basename(wheel), in_wheel, package | in_dist_info),
    ]
    print("\n".join(lines) or f"sdist and wheel hold the {len(package)} files of {PACKAGE}", flush=True)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
