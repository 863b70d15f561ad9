"""Runs of the chaos experiment on two and more workers."""

from tests.support.chaos.compare import id_lines
from tests.support.chaos.run_directory import read_status
from tests.support.chaos.runs import Variant
from tests.support.distributed.clusters import LocalCluster

TWO_WORKERS = Variant("multi_worker_mirrored")
SETS = (
    "runtime.distribution_strategy=multi_worker_mirrored",
    "runtime.collective_timeout_seconds=20",
    "runtime.rendezvous_timeout_seconds=15",
)


def argv_of(workspace, model_dir, *sets, experiment="digits_chaos", variant=TWO_WORKERS):
    words = [f"--set={word}" for word in (*variant.sets(workspace), *SETS, *sets)]
    return ["train", f"--experiment={experiment}", f"--model_dir={model_dir}", *words]


def cluster(workspace, model_dir, *sets, workers=2, **options):
    """Returns two workers, of `TWO_WORKERS` if no other `variant` or `experiment` is given."""
    argv = argv_of(workspace, model_dir, *sets, **options)
    return LocalCluster({"worker": workers}, argv=argv, cwd=workspace, folder=f"{model_dir}.output")


def run_to_end(*arguments, **options):
    with cluster(*arguments, **options) as started:
        codes = set(started.start_all().wait_all().values())
        assert codes == {0}, started.outputs()


def phase_of(model_dir):
    """What the chief says it does, or None before it says anything."""
    return read_status(model_dir).get("phase")


def steps_done(model_dir):
    """The last step that some process has begun."""
    return max((step for _, step, _ in id_lines(model_dir)), default=0)
