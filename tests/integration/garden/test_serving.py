"""Export modules of Model Garden's projects: each Task has its own, and it computes what theirs computes."""

from official_trainer.garden import serving


def test_a_task_whose_model_gives_something_else_has_no_module():
    """T19: what a base class's module would make of embeddings means nothing."""
    from official.projects.video_ssl.tasks.pretrain import VideoSSLPretrainTask  # here, as it takes seconds

    assert serving.export_module(object.__new__(VideoSSLPretrainTask), None) is None
