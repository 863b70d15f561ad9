"""`python train.py --experiment=NAME` trains an experiment of this workspace; `--help` lists the flags."""

from official_trainer.cli import train

if __name__ == "__main__":
    raise SystemExit(train.main(script=__file__))
