"""What `data-service` hands over to the process that it becomes."""

from official_trainer import cli
from official_trainer.inputs import data_service


def test_a_home_is_expanded(monkeypatch):
    """T20: which a shell leaves to the program behind a `=`."""
    served = []
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setattr(data_service, "serve", lambda role, **options: served.append((role, options["work_dir"])))
    assert cli.main(["data-service", "--role=dispatcher", "--port=5050", "--work_dir=~/journal"]) == 0
    assert served == [("dispatcher", "/home/someone/journal")]
