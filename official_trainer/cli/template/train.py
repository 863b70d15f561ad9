"""`python train.py --experiment=NAME` trains an experiment of this workspace; `--help` lists the flags."""

from official_trainer.cli import main

if __name__ == "__main__":
    raise SystemExit(main(script=__file__))
