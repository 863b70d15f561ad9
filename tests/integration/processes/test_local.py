"""What a job on this machine says of its run."""

from official_trainer.checkpoints import manifest
from official_trainer.processes import local
from tests.support import toy


def test_the_newest_checkpoint_is_one_that_is_committed(tmp_path):
    assert local.newest_step(str(tmp_path / "none")) is None
    toy.commit(str(tmp_path), 20, {})
    (tmp_path / manifest.name(30)).write_text("{")
    assert local.newest_step(str(tmp_path)) == 20
