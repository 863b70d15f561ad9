"""The section of TensorBoard's files."""

from official_trainer.tracking.tensorboard import TensorBoardConfig


def test_sub_folders_need_names_that_are_divided():
    """B14: else they would have no effect."""
    ((field, problem),) = TensorBoardConfig(sub_folders=("dev",)).problems()
    assert (field, problem) == (
        "sub_folders",
        "has no effect, because numbers are in none; set divide_at to first or last as well",
    )
    assert not list(TensorBoardConfig(sub_folders=("dev",), divide_at="last").problems())
