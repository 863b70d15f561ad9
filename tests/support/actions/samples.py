"""One sample of each action, in YAML: what the contract tests run."""

SAMPLES = {
    "average_checkpoints": "{type: average_checkpoints, last: 2}",
    "checkpoint": "{type: checkpoint, monitor: accuracy, max_to_keep: 2}",
    "command": "{type: command, events: [start, eval, end], argv: ['true']}",
    "early_stopping": "{type: early_stopping, monitor: accuracy, patience: 50}",
    "export_saved_model": "{type: export_saved_model}",
    "profile": "{type: profile, when: {at_steps: [11]}, steps: 2}",
    "publish_environment": "{type: publish_environment}",
    "publish_intermediates": "{type: publish_intermediates, when: {exponential: {start: 3}}}",
    "replica_integrity": "{type: replica_integrity, when: {every: 10}}",
}
