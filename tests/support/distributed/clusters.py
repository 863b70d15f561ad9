"""Clusters of real processes on this machine, forked from one that has imported TensorFlow; see `forked.py`."""

import itertools
import json
import os
import signal
import time
from pathlib import Path

from official_trainer.processes.local import free_ports
from tests.support.forked import Command
from tests.support.waiting import until

TIMEOUT_SECONDS = 120


class LocalCluster:
    """The processes of one run, each with its own `TF_CONFIG` and output; use it in a `with` block.

    A process is named by role and index. One that has ended may be started again, with the address it had. Whatever
    still runs at the end of the block is killed.

    Attributes:
      addresses: `host:port` of every process, by role.
    """

    def __init__(self, roles, *, argv, cwd, folder, env=None, first=None):
        """Takes what is to run; nothing is started yet.

        Args:
          roles: how many processes of each role.
          argv: words after `official-trainer`, the same for all.
          cwd: where they run.
          folder: where each attempt of each process has a folder with its output.
          env: more of the environment, for all.
          first: called in each process before the command.
        """
        count = sum(roles.values())
        addresses = iter([f"127.0.0.1:{port}" for port in free_ports(count)])
        self.addresses = {role: [next(addresses) for _ in range(count)] for role, count in roles.items()}
        self._argv, self._cwd, self._folder = list(argv), cwd, Path(folder)
        self._env = dict(env or {})
        self._firsts = dict.fromkeys(self.names, first)
        self._commands = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for command in self._commands.values():
            command.process.kill()  # also ends what is stopped
        for command in self._commands.values():
            command.process.join(TIMEOUT_SECONDS)

    @property
    def names(self):
        """All processes, as `(role, index)`."""
        return [(role, index) for role, addresses in self.addresses.items() for index in range(len(addresses))]

    def first(self, role, index, first):
        """Has `first` called in one process before the command."""
        self._firsts[role, index] = first

    def start_all(self):
        for role, index in self.names:
            self.start(role, index)
        return self

    def start(self, role, index=0, *, argv=None, env=None):
        """Starts a process, or starts it again."""
        command = self._commands.get((role, index))
        assert command is None or command.process.exitcode is not None, f"{role} {index} still runs"
        folders = (self._folder / f"{role}-{index}-{attempt}" for attempt in itertools.count(1))
        folder = next(folder for folder in folders if not folder.exists())
        folder.mkdir(parents=True)
        tf_config = json.dumps({"cluster": self.addresses, "task": {"type": role, "index": index}})
        self._commands[role, index] = Command(
            self._argv if argv is None else argv,
            cwd=self._cwd,
            folder=folder,
            env={**self._env, "TF_CONFIG": tf_config, **(env or {})},
            first=self._firsts[role, index],
        )

    def signal(self, role, index=0, number=signal.SIGTERM):
        os.kill(self._commands[role, index].process.pid, number)

    def kill(self, role, index=0):
        """Kills a process with SIGKILL, and returns when it has ended."""
        self._commands[role, index].process.kill()
        self._commands[role, index].process.join(TIMEOUT_SECONDS)

    def pid(self, role, index=0):
        return self._commands[role, index].process.pid

    def is_alive(self, role, index=0):
        return self._commands[role, index].process.exitcode is None

    def out(self, role, index=0):
        """What the newest attempt of a process has printed so far."""
        return self._commands[role, index].out

    def err(self, role, index=0):
        return self._commands[role, index].err

    def wait(self, role, index=0, *, timeout_seconds=TIMEOUT_SECONDS):
        """Returns the exit code of a process when it has ended."""
        process = self._commands[role, index].process
        process.join(timeout_seconds)
        assert process.exitcode is not None, f"{role} {index} runs after {timeout_seconds} s\n{self.outputs()}"
        return process.exitcode

    def wait_all(self, timeout_seconds=TIMEOUT_SECONDS):
        """Returns the exit codes of all processes that were started, by `(role, index)`, when they have ended."""
        deadline = time.monotonic() + timeout_seconds
        return {
            name: self.wait(*name, timeout_seconds=max(0.1, deadline - time.monotonic())) for name in self._commands
        }

    def wait_for(self, condition):
        """Returns when `condition()` holds."""
        until(condition, self.outputs)

    def outputs(self):
        """What all processes have printed, for messages."""
        parts = [
            f"--- {role} {index}: {command.process.exitcode}\n{command.out}\n{command.err}"
            for (role, index), command in self._commands.items()
        ]
        return "\n".join(parts)
