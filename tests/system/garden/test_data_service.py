"""Experiments of Model Garden whose training data comes from a tf.data service."""

from tests.support.data_service import Service
from tests.support.forked import run_command
from tests.support.garden import data
from tests.support.garden.families import FAMILIES
from tests.support.runs import rows


def test_their_readers_leave_the_service_to_the_run(tmp_path):
    """T20: `--tf_data_service` alone turns it on; their own reader would send data through it a second time."""
    family, service = FAMILIES["bert_sentence_prediction"], Service(tmp_path)
    data.write(tmp_path / "tiny_data", [family.data])
    command = ["train", f"--experiment={family.experiment}", f"--config_file={family.overlay}", "--mode=train"]
    try:
        service.dispatcher()
        service.worker()
        done = run_command(
            [*command, f"--model_dir={tmp_path / 'run'}", f"--tf_data_service={service.address}"],
            cwd=tmp_path,
            folder=tmp_path,
        )
    finally:
        service.close()
    assert done.code == 0, done.err
    assert f"training data from the tf.data service at {service.address}" in done.out
    assert [row["step"] for row in rows(tmp_path / "run")] == [4, 8]
