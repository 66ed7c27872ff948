"""Every script of examples/python runs at a small size."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"
PROGRAM = os.path.join(os.environ.get("REMAT_BUILD", ""), "remat")


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


@pytest.mark.skipif(not os.access(PROGRAM, os.X_OK), reason="the program remat was not built")
def test_two_ranks_end_with_the_same_bits():
    launch = [PROGRAM, "launch", "--nproc-per-node=2", "--", sys.executable, EXAMPLES / "two_ranks.py", "--steps=20"]
    ran = subprocess.run(launch, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    bits = re.findall(r"rank \d of 2: parameters (\w+)", ran.stdout)
    assert len(bits) == 2 and bits[0] == bits[1]
