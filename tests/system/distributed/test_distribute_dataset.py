"""`distribute_dataset` under a coordinator, with servers and workers of its own."""

import functools
import json
import socket

from tests import ROOT
from tests.support import forked

NUM_READ = 4


def servers_of_this_process():
    import tensorflow as tf

    with socket.socket() as one, socket.socket() as two, socket.socket() as three:
        sockets = one, two, three
        for each in sockets:
            each.bind(("localhost", 0))
        addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    spec = tf.train.ClusterSpec({"worker": addresses[:2], "ps": addresses[2:]})
    servers = [tf.distribute.Server(spec, role, index) for role, index in (("worker", 0), ("worker", 1), ("ps", 0))]
    return servers, tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")


def read(out):
    """Writes what two workers read in `NUM_READ` steps from each way to give a dataset."""
    import tensorflow as tf

    from tests.support import toy

    def batches(size, scale=1, input_context=None):
        assert input_context.num_replicas_in_sync == 1
        return tf.data.Dataset.range(24).map(lambda number: number * scale).batch(size)

    def without_context(size):
        return tf.data.Dataset.range(24).batch(size)

    _servers, resolver = servers_of_this_process()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        config = toy.experiment()
        task = toy.ToyTask(config.task)
        optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
        trainer = toy.Trainer(config, task, task.build_model(), optimizer)
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    ways = {
        "dataset": ((tf.data.Dataset.range(24).batch(4),), {}),
        "dataset with options": ((tf.data.Dataset.range(24).batch(4),), {"input_options": options}),
        "function": ((without_context, 4), {}),
        "function of its context": ((batches, 4), {"scale": 2, "input_options": options}),
    }
    step = tf.function(lambda iterator: strategy.run(lambda batch: batch, args=(next(iterator),)))
    found = {}
    for way, (positional, named) in ways.items():
        iterator = iter(trainer.distribute_dataset(*positional, **named))
        made = [trainer.coordinator_for_async().schedule(step, args=(iterator,)) for _ in range(NUM_READ)]
        trainer.join()
        found[way] = [batch.fetch().tolist() for batch in made]
    out.write_text(json.dumps(found))


def test_each_worker_reads_the_dataset_from_its_start(tmp_path):
    """T8: what Model Garden's does with a function; it has nothing for a dataset, which every worker gets here."""
    out = tmp_path / "found.json"
    completed = forked.Child(functools.partial(read, out), cwd=ROOT, folder=tmp_path).wait()
    assert completed.code == 0, completed.err
    for way, found in json.loads(out.read_text()).items():
        scale = 2 if "context" in way else 1
        batches = [[scale * number for number in range(first, first + 4)] for first in range(0, 24, 4)]
        possible = [sorted(batches[:count] + batches[: NUM_READ - count]) for count in range(NUM_READ + 1)]
        assert sorted(found) in possible, way
