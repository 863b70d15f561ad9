"""Pictures, texts, checkpoints and links to other tools in a report."""

import base64
import json

import numpy as np

from official_trainer.reports import exhibits, gathered
from official_trainer.tracking import Histogram, Image, Table, Text
from official_trainer.tracking.tensorboard import TensorBoardTracker
from tests.support.reports import kinds


def runs(folder):
    return gathered.gather([str(folder)], now_seconds=kinds.NOW).runs


def publish(folder, **steps):
    board = TensorBoardTracker(str(folder))
    for step, media in steps.items():
        board.publish("validation", int(step.removeprefix("step")), media)
    board.close()


def test_the_newest_of_each_name_is_shown(tmp_path):
    """N22: images, texts and tables of evaluations are in the page, each as of its newest step."""
    kinds.write_run(tmp_path / "run")
    table = Table(["is", "called|as"], [["malignant", 3], ["a\nb", 4]])
    old, new = (Image(np.full([4, 6, 1], shade, np.uint8)) for shade in (0, 255))
    publish(
        tmp_path / "run", step10={"m": old, "t": Text("old")}, step20={"m": new, "t": Text("**new** <b>"), "c": table}
    )
    shown, about = exhibits.media(runs(tmp_path / "run"), [0], str(tmp_path))
    by_name = {each["name"]: each for each in shown}
    picture = by_name["validation: m"]
    assert (picture["kind"], picture["step"], picture["width"], picture["height"]) == ("image", 20, 6, 4)
    assert base64.b64decode(picture["source"].removeprefix("data:image/png;base64,")) == new.png()
    assert by_name["validation: t"]["text"] == "**new** <b>"
    assert by_name["validation: c"]["columns"] == ["is", "called|as"]
    assert by_name["validation: c"]["rows"] == [["malignant", "3"], ["a\nb", "4"]]
    assert about == "The newest of each name."


def test_too_many_pictures_are_left_out_and_counted(tmp_path):
    """N22: the page stays small, and says how many pictures it leaves out."""
    kinds.write_run(tmp_path / "a")
    kinds.write_run(tmp_path / "b", seed=2)
    image = Image(np.zeros([2, 2, 1], np.uint8))
    publish(tmp_path / "b", step10={f"image_{n:02}": image for n in range(14)}, step20={"z": image})
    shown, about = exhibits.media(runs(tmp_path), [0], str(tmp_path))
    assert len(shown) == exhibits.MOST_PICTURES
    newest_first = [("validation: z", 20), ("validation: image_00", 10)]
    assert [(each["name"], each["step"]) for each in shown][:2] == newest_first
    assert "3 more are left out, to keep this page small. TensorBoard shows them: tensorboard --logdir=" in about
    assert "Those of the runs that were highlighted at first." in about


def test_what_the_page_does_not_draw_is_said(tmp_path):
    """N22: histograms are named, with the command that shows them; the config as a text of step 0 is no result."""
    kinds.write_run(tmp_path / "run")
    publish(tmp_path / "run", step0={"config": Text("x"), "sample": Text("y")}, step10={"w": Histogram(np.arange(9.0))})
    shown, about = exhibits.media(runs(tmp_path / "run"), [0], str(tmp_path))
    assert [each["text"] for each in shown] == ["y"]
    said = f"Histograms are not drawn here: validation: w. TensorBoard shows them: tensorboard --logdir={tmp_path}/run"
    assert about == f"The newest of each name. {said}"


def test_checkpoints_and_exports_have_steps_sizes_and_paths(tmp_path):
    """N22: what was saved: the newest checkpoint, the best one with its value, exports."""
    kinds.KINDS["of_an_earlier_version"](tmp_path / "run")
    (tmp_path / "run" / "export" / "18").mkdir(parents=True)
    (tmp_path / "run" / "export" / "18" / "saved_model.pb").write_bytes(b"12345")
    found = runs(tmp_path / "run")
    rows = exhibits.checkpoints(found, [0], str(tmp_path))
    assert [(row["kind"].split(",")[0], row["step"], row["path"]) for row in rows] == [
        ("checkpoint: latest", 18, "run/ckpt-18"),
        ("checkpoint: best", 11, "run/best/ckpt-11"),
        ("export (SavedModel)", 18, "run/export/18"),
    ]
    assert rows[0]["size_bytes"] > 0 and rows[2]["size_bytes"] == 5
    assert rows[1]["value"] == found[0].best


def test_formats_of_exports_have_what_was_measured(tmp_path):
    """N46: size and difference; a row of another form is left out, the page stays."""
    kinds.write_run(tmp_path / "run")
    folder = tmp_path / "run" / "export" / "18"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").touch()
    onnx = {"bytes": 900, "difference": {"a": {"max": 1e-7}, "b": {"max": 2e-7}}, "limit": 1e-5, "limit_of": "max"}
    weights = {"bytes": 800, "difference": {}, "limit": 0.0}
    held = {"onnx": onnx, "weights": weights, "damaged": 3, "other": {"limit_of": "max", "difference": {"a": {}}}}
    (folder / "export.json").write_text(json.dumps({"step": 18, "formats": held}))
    found = exhibits.formats(runs(tmp_path / "run"), [0])
    assert [(each["format"], each["size_bytes"], each["difference"], each["limit"]) for each in found] == [
        ("onnx", 900, 2e-7, 1e-5),
        ("weights", 800, None, None),
    ]
    (folder / "export.json").write_text("[]")
    assert exhibits.formats(runs(tmp_path / "run"), [0]) == []


def test_links_lead_to_the_tools_that_a_run_used(tmp_path):
    """N22: TensorBoard, MLflow and W&B stay what they are; the page says how to open them."""
    for name, uri in (("local", ""), ("server", "http://mlflow.example:5000"), ("secret", "https://me:pw@host")):
        params = kinds.write_run(tmp_path / name) / "params.yaml"
        line = f"\n    tracking_uri: {uri}" if uri else ""
        params.write_text(f"{params.read_text()}  trackers:\n  - type: mlflow{line}\n")
        (tmp_path / name / "mlflow.json").write_text("{}")
    (tmp_path / "local" / "wandb.json").write_text("{}")
    (tmp_path / "server" / "wandb.json").write_text('{"run": "1", "url": "https://wandb.ai/me/digits/runs/1"}')
    (tmp_path / "secret" / "wandb.json").write_text('{"run": "1", "url": "javascript:alert(1)"}')
    (tmp_path / "local" / "train").mkdir()
    found = exhibits.links(runs(tmp_path), [0, 1, 2], str(tmp_path))
    assert found[0] == {"run": None, "tool": "TensorBoard", "command": f"tensorboard --logdir={tmp_path}", "url": ""}
    names = [runs(tmp_path)[each["run"]].name for each in found[1:]]
    by_tool = {
        (name, each["tool"]): each["command"] or each["url"] for name, each in zip(names, found[1:], strict=True)
    }
    assert by_tool["server", "MLflow"] == "http://mlflow.example:5000"
    assert by_tool["local", "MLflow"] == f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/local/mlflow.db"
    assert by_tool["local", "Weights & Biases"] == f"wandb sync {tmp_path}/local/wandb/offline-run-*"
    assert "pw" not in by_tool["secret", "MLflow"]
    assert by_tool["server", "Weights & Biases"] == "https://wandb.ai/me/digits/runs/1"
    assert by_tool["secret", "Weights & Biases"] == f"wandb sync {tmp_path}/secret/wandb/offline-run-*"
