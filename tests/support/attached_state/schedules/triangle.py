"""A learning rate of the workspace's own."""

import dataclasses

from official_trainer.config import CustomScheduleConfig, Positive, PositiveFloat


@dataclasses.dataclass(frozen=True, kw_only=True)
class TriangleConfig(CustomScheduleConfig):
    """Rises from 0 to a rate and falls again, over and over.

    Attributes:
      high: the highest rate.
      half_steps: steps from 0 up to it; follows `trainer.train_steps`.
    """

    high: PositiveFloat = 0.02
    half_steps: Positive | None = None

    def follows(self):
        yield "half_steps", "trainer.train_steps"

    def build(self):
        def rate(step):
            if step == 1:  # as AutoGraph has to convert it
                return self.high
            return self.high * (1 - abs(step % (2 * self.half_steps) / self.half_steps - 1))

        return rate
