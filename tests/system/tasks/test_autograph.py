"""AutoGraph rewrites what users write, in the replica threads of a strategy too."""

from tests.support.branching import check_branches_change_nothing


def test_users_may_branch_on_tensors_in_all_that_they_define():
    """T3, T4: steps, losses and what a Trainer of one's own reads; the same numbers as without the branches."""
    check_branches_change_nothing("mirrored1")
