"""Every script of examples/python runs at a small size."""

import os
import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def test_character_language_model_trains_within_its_budget(tmp_path):
    small = "--timesteps=300 --rows=2 --hidden=32 --steps=12 --memory-budget=1600KiB".split()
    command = [sys.executable, EXAMPLES / "char_language_model.py", *small, f"--save={tmp_path}/weights.safetensors"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert ran.returncode == 0, ran.stderr
    losses = [float(line.split()[2]) for line in ran.stdout.splitlines() if line.startswith("step ")]
    assert losses[-1] < losses[0] - 0.5
    peak, planned = next(line for line in ran.stdout.splitlines() if "peak of the arena" in line).split(" bytes, as planned: ")
    assert peak.split()[-1] == planned
    assert (tmp_path / "weights.safetensors").stat().st_size > 4 * 32 * 32
