import numpy as np
import pytest

from official_trainer.tracking import Histogram, Image, MediaError, MetricError, Table, Trackers


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (0.5, "'dev/x' is a float; what is published is a Histogram, an Image, a Text or a Table"),
        (np.zeros(3), r"'dev/x' has shape \[3\]; .* show it as a Histogram, an Image or a Table"),
        (Image(np.zeros((8, 4, 4, 3))), r"image 'dev/x' has shape \[8, 4, 4, 3\]; .* those of a batch one by one"),
        (Image(np.zeros((4, 4, 5))), r"image 'dev/x' has shape \[4, 4, 5\]; .* one to four channels"),
        (Image(np.zeros((0, 4, 3))), r"image 'dev/x' has shape \[0, 4, 3\]"),
        (Image(np.zeros((4, 4, 3), int)), "image 'dev/x' is of int64; pixels are uint8, or floats between 0 and 1"),
        (Histogram(np.array(["a"])), "histogram 'dev/x' is of <U1; a histogram is of numbers"),
        (
            Table(["a", "b"], [[1, 2], [3]]),
            r"'dev/x' has 2 columns \(a, b\) and a row of 1 cells; give each row one",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(thing, message):
    """T18: in the caller, with what is allowed."""
    with pytest.raises((MediaError, MetricError), match=message):
        Trackers([]).publish("train", 1, {"dev": {"x": thing}})
