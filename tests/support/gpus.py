"""A machine with GPUs, as far as it can be seen without CUDA: a program that lists them as NVIDIA's does."""


def nvidia_smi(folder, count, code=0):
    """Writes `nvidia-smi` into a folder; returns a `PATH` with nothing else.

    Args:
      folder: where.
      count: of the GPUs that it lists.
      code: its exit code.
    """
    lines = [f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number:08d}-1111)" for number in range(count)]
    file = folder / "nvidia-smi"
    file.write_text("\n".join(["#!/bin/sh", *(f'echo "{line}"' for line in lines), f"exit {code}", ""]))
    file.chmod(0o755)
    return {"PATH": str(folder)}
