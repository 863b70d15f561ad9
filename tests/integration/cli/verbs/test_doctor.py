"""`doctor` asks TensorFlow itself."""

import json

from official_trainer.cli.verbs import doctor


def test_what_tensorflow_is_asked(capsys):
    exec(compile(doctor._LIST_DEVICES, "list_devices", "exec"), {})
    report = json.loads(capsys.readouterr().out)
    assert report["counts"]["CPU"] == 1
    assert doctor.check_devices(report, "2.20.0", has_nvidia=False, environ={}).detail.startswith("1 CPU")
