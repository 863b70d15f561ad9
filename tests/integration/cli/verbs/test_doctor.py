"""`doctor` asks TensorFlow itself."""

import json

from official_trainer.cli.verbs import doctor


def test_what_tensorflow_is_asked(capsys):
    exec(compile(doctor._LIST_DEVICES, "list_devices", "exec"), {})
    listed = json.loads(capsys.readouterr().out)
    assert ["CPU", ""] in listed
    assert doctor.check_devices(listed, has_nvidia=False).detail.startswith("1 CPU")
