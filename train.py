"""`python train.py --experiment=NAME --mode=… --model_dir=…`: Model Garden's entry point, same flags."""

from official_trainer.cli import train

if __name__ == "__main__":
    raise SystemExit(train.main(script=__file__))
