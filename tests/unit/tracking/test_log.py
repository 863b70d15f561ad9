import logging

from official_trainer.tracking.log import LogConfig


def test_a_row_is_a_line_of_the_log(place, caplog):
    """B14: of the splits, at the level and to the logger that the section names."""
    with caplog.at_level(logging.DEBUG, logger="mine"):
        tracker = LogConfig(logger="mine", level="debug", splits=("train", "mine")).build(place)
        tracker.log("train", 100, {"training_loss": 0.53125, "dev/accuracy": 1.0})
        tracker.log("validation", 100, {"validation_loss": 0.5})
        tracker.log("mine", 100, {"norm": float("nan")})
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("mine", "DEBUG", "train @ 100: training_loss 0.5312, dev/accuracy 1"),
        ("mine", "DEBUG", "mine @ 100: norm NaN"),
    ]
