"""A tf.data service of real processes."""

from official_trainer.processes.local import free_ports
from tests.support.forked import Command


class Service:
    """A dispatcher and data workers, each a process that runs the verb."""

    def __init__(self, folder):
        self.folder, (self.port,) = folder, free_ports(1)
        self.address = f"grpc://localhost:{self.port}"
        self.processes = []

    def start(self, role, *flags):
        folder = self.folder / f"{role}-{len(self.processes)}"
        folder.mkdir()
        command = Command(["data-service", f"--role={role}", *flags], cwd=self.folder, folder=folder)
        self.processes.append(command)
        return command

    def dispatcher(self):
        return self.start("dispatcher", f"--port={self.port}", f"--work_dir={self.folder}/run/.data_service")

    def worker(self):
        return self.start("data_worker", f"--dispatcher={self.address}")

    def close(self):
        for command in self.processes:
            if command.process.is_alive():
                command.process.kill()
            command.process.join()
