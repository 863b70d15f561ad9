"""Model Garden's driver, with the experiments of this project."""

import tasks  # noqa: F401
from absl import app
from official.common import flags as tfm_flags
from official.vision import train

import configs  # noqa: F401

if __name__ == "__main__":
    tfm_flags.define_flags()
    app.run(train.main)
