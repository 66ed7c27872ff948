"""Ranks: the same script under `remat launch`, and torchrun where there is one."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import remat

PROGRAM = os.path.join(os.environ.get("REMAT_BUILD", ""), "remat")
SCRIPT = """
import sys, numpy as np, remat
if "torch" in sys.argv:
    import torch.distributed
    torch.distributed.init_process_group("gloo")
remat.distributed.init()
rank, size = remat.distributed.rank(), remat.distributed.world_size()
g = remat.Graph()
x, y = (g.input(n, "f32", "static", (8 // size, d)) for n, d in (("x", 3), ("y", 1)))
loss = g.mse(g.linear(x, g.param("w", (1, 3), remat.uniform(1.0))), y)
if rank == 0:
    remat.Session(g, loss, optimizer="sgd", threads=1, alone=True)
s = remat.Session(g, loss, optimizer="sgd", threads=1, seed=rank)
draw = np.random.default_rng(0)
for _ in range(5):
    data = draw.standard_normal((8, 4)).astype("f")[rank::size]
    result = s.step(x=data[:, :3], y=data[:, 3:], lr=0.1)
assert remat.distributed.all_reduce([1.0])[0] == size
if "torch" in sys.argv:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
np.save(f"{sys.argv[1]}/{rank}.npy", s.parameters["w"])
"""


@pytest.fixture
def train(tmp_path):
    """Runs the script and returns every rank's weights."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*launcher, arguments=()):
        command = [*launcher, sys.executable, str(tmp_path / "train.py"), str(tmp_path), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert ran.returncode == 0, ran.stderr
        return [np.load(path) for path in sorted(tmp_path.glob("*.npy"))]

    return run


def check(train, *launcher, arguments=()):
    (alone,) = train()
    first, second = train(*launcher, arguments=arguments)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, alone, rtol=1e-5)


@pytest.mark.skipif(not os.access(PROGRAM, os.X_OK), reason="the program remat was not built")
def test_ranks_under_remat_launch_train_the_same(train):
    check(train, PROGRAM, "launch", "--nproc-per-node=2", "--")


@pytest.mark.parametrize("beside", [(), ("torch",)])
def test_ranks_under_torchrun_train_the_same(train, beside):
    pytest.importorskip("torch", reason="no torch here: torchrun is not tested")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    check(train, *torchrun, arguments=beside)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun here")
def test_ranks_under_mpirun_train_the_same(train):
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    check(train, "mpirun", "-np", "2", "--oversubscribe", *root)


def test_sampler_is_torchs_distributed_sampler():
    sampler = remat.distributed.Sampler(10, shuffle=False)
    assert list(sampler) == list(range(10)) and len(sampler) == 10


def test_calls_without_a_job_are_refused():
    with pytest.raises(remat.Error, match="init"):
        remat.distributed.rank()
