"""What has changed since a checkpoint was saved, and what of that a run refuses.

Owns: the comparison of configs, gin bindings and data layouts with those of the checkpoint. Does not own: restoring
values (`checkpoints/`).
"""
