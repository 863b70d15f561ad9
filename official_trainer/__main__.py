"""`python -m official_trainer VERB`: the command line, for when its script is not on the path."""

from official_trainer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
