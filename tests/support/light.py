"""A command that fails if it imports what is heavy."""

LIGHT = """
import sys
from official_trainer import cli
code = cli.main(sys.argv[1:])
heavy = {"tensorflow", "tf_keras", "keras", "numpy", "rich", "sklearn", "orbit"} & set(sys.modules)
raise SystemExit(f"imported {heavy}" if heavy else code)
"""
