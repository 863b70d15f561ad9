import pytest

from official_trainer.tracking.prometheus import PrometheusConfig


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({}, "port", "is not set, and textfile_dir is not either; set port, 0 for a free one, or textfile_dir"),
        ({"port": 0, "address": "localhost"}, "address", "is 'localhost'; it must be an IP address, such as 127.0.0.1"),
        ({"textfile_dir": "gs://b/x"}, "textfile_dir", "is the URL 'gs://b/x'; Prometheus's programs read a local"),
        ({"port": 0, "targets_dir": "gs://b/x"}, "targets_dir", "is the URL 'gs://b/x'"),
    ],
)
def test_a_section_that_would_do_nothing_is_refused(fields, field, said):
    """N48: before the run starts."""
    ((place, problem),) = PrometheusConfig(**fields).problems()
    assert place == field
    assert problem.startswith(said)


@pytest.mark.parametrize("fields", [{"port": 9400}, {"port": 0, "address": "::1"}, {"textfile_dir": "/var/lib/node"}])
def test_other_sections_are_taken(fields):
    """N48."""
    assert not list(PrometheusConfig(**fields).problems())
