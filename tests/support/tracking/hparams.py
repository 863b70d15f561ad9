"""What TensorBoard's HParams tab lists, by the backend of TensorBoard's own server."""

from tensorboard import context as request_context
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups


def hparams_tab(logdir):
    """Returns for each run its folder, name, status, hyperparameters and metrics."""
    listed, _ = _read(logdir)
    return [
        (
            session.name,
            group.name,
            session.status,
            {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()},
            {f"{v.name.group}:{v.name.tag}": (v.training_step, v.value) for v in session.metric_values},
        )
        for group in listed.session_groups
        for session in group.sessions
    ]


def hparams_columns(logdir):
    """Returns the names of the columns: of hyperparameters, and of metrics."""
    _, experiment = _read(logdir)
    drawn = {each.display_name or each.name for each in experiment.hparam_infos}
    return drawn, {f"{each.name.group}:{each.name.tag}" for each in experiment.metric_infos}


def _read(logdir):
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(logdir))
    tab = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    context = request_context.RequestContext()
    content = tab.hparams_metadata(context, "")
    experiment = tab.experiment_from_metadata(context, "", True, content, [])
    every = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_RUNNING, api_pb2.STATUS_FAILURE]
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=every, include_metrics=True, slice_size=100)
    for info in experiment.metric_infos:
        request.col_params.add(metric=info.name)
    return list_session_groups.Handler(context, tab, "", request).run(), experiment
