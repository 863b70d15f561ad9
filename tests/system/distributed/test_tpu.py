"""Cloud TPUs: servers on loopback stand for them, in processes that connect and lose them."""

import os

import tensorflow as tf

from official_trainer.config.schema import RuntimeConfig
from official_trainer.distributed import strategy, tpu
from official_trainer.errors import ExitCode
from official_trainer.processes.local import free_ports
from tests import ROOT
from tests.support import forked


def runtime(where=None, **fields):
    return RuntimeConfig(distribution_strategy="tpu", tpu=where, **fields)


def serve(addresses, index):
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    tf.distribute.Server({"worker": addresses}, job_name="worker", task_index=index).join()


def connect(where, write):
    import time

    deadline = time.monotonic() + 60
    while True:  # servers take a while to listen
        try:
            strategy.build_strategy(runtime(where))
        except tpu.TPUError as error:
            if error.exit_code == ExitCode.RETRY and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            write.send((str(error), int(error.exit_code), [d.name for d in tf.config.list_logical_devices("CPU")]))
            return


def test_two_servers_are_connected_to():
    """T16: both hosts of an address are part of the process's devices; that they have no TPU is said."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    context = forked._context
    read, write = context.Pipe()
    servers = [context.Process(target=serve, args=(addresses, index), daemon=True) for index in range(2)]
    client = context.Process(target=connect, args=(",".join(addresses), write), daemon=True)
    for process in (*servers, client):
        process.start()
    try:
        assert read.poll(forked.TIMEOUT_SECONDS)
        said, exit_code, devices = read.recv()
    finally:
        for process in (*servers, client):
            process.kill()
            process.join()
    assert "there is no TPU (TPUs not found in the cluster" in said
    assert f"Servers that were reached have none that TensorFlow {tf.__version__} can use" in said
    assert exit_code == ExitCode.CONFIG
    assert [name for name in devices if "task:0" in name and "worker" in name]
    assert [name for name in devices if "task:1" in name and "worker" in name]


def lose_the_tpu():
    """In the child: the default strategy stands for a TPU, which goes away after some windows."""
    from official_trainer.engine.trainer import Trainer

    strategy._CLUSTER_BUILDERS["tpu"] = lambda runtime, cluster: tf.distribute.get_strategy()
    run_steps = Trainer.run_steps

    def run(self, *args, **kwargs):
        if int(self.global_step.numpy()) >= 40:
            raise tf.errors.UnavailableError(None, None, "Socket closed\nAdditional GRPC error information")
        return run_steps(self, *args, **kwargs)

    Trainer.run_steps = run


def test_a_run_whose_tpu_is_taken_away_can_be_started_again(tmp_path):
    """T16, N6: 75 and what happened, on the console and in the record; the checkpoints before are there."""
    import json

    model_dir = tmp_path / "run"
    sets = ["trainer.train_steps=100", "trainer.checkpoint_interval=20", "trainer.steps_per_loop=20"]
    argv = [
        "train",
        "--experiment=diabetes",
        f"--model_dir={model_dir}",
        "--tpu=local",
        "--set=runtime.distribution_strategy=tpu",
        *(f"--set={change}" for change in sets),
    ]
    done = forked.Command(argv, cwd=ROOT, folder=tmp_path, first=lose_the_tpu).wait()
    assert done.code == ExitCode.RETRY, done.err
    assert (
        "the TPU was taken away, by a preemption or a restart of its host (UnavailableError: Socket closed)" in done.err
    )
    assert json.loads((model_dir / "status.json").read_text())["exit_code"] == ExitCode.RETRY
    assert (model_dir / "ckpt-40.manifest.json").exists()
