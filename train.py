"""`python train.py --experiment=NAME --mode=… --model_dir=…`: Model Garden's entry point, same flags."""

from official_trainer.cli import main

if __name__ == "__main__":
    raise SystemExit(main(script=__file__))
