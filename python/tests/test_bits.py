"""Remat's bits from Python: those of `remat train`, under every plan."""

import os
import subprocess

import numpy as np
import pytest
from nets import batch, language_model, lstm_inputs

import remat

PROGRAM = os.path.join(os.environ.get("REMAT_BUILD", ""), "remat")
TEXT = bytes(np.random.default_rng(1).integers(97, 123, 2000, dtype=np.uint8))
STEPS, LENGTH, ROWS = 20, 16, 2


def windows(step):
    """Tokens and targets of a batch, in the order of the text."""
    first = [(step * ROWS + row) * LENGTH for row in range(ROWS)]
    tokens = np.array([list(TEXT[at : at + LENGTH + 1]) for at in first]).T
    return {"tokens": tokens[:-1], "targets": tokens[1:]}


@pytest.fixture
def train(tmp_path):
    """Runs `remat train` for some steps; returns the folder of its training states."""
    (tmp_path / "text").write_bytes(TEXT)
    flags = f"--hidden=8 --embed=6 --seq-len={LENGTH} --batch={ROWS} --seed=3 --no-shuffle --lr=0.01 --threads=1"

    def run(steps):
        files = [f"--data={tmp_path}/text", f"--save={tmp_path}/{steps}"]
        subprocess.run([PROGRAM, "train", *files, *flags.split(), f"--steps={steps}"], check=True, capture_output=True)
        return tmp_path / str(steps)

    return run


def session(**config):
    g, loss = language_model(LENGTH, ROWS)
    return remat.Session(g, loss, optimizer="adam", seed=3, threads=1, **config)


def assert_same(parameters, others):
    assert len(parameters) == len(others) == 11
    for name, value in parameters.items():
        np.testing.assert_array_equal(value.view("i4"), others[name].view("i4"), err_msg=name)


needs_program = pytest.mark.skipif(not os.access(PROGRAM, os.X_OK), reason="the program remat was not built")


@needs_program
def test_twenty_steps_have_the_bits_of_remat_train(train):
    s = session(strategy="segments", segments=4)
    for step in range(STEPS):
        s.step(lr=0.01, **windows(step))
    assert_same(s.parameters, remat.load(train(STEPS)).parameters)


@needs_program
def test_training_of_remat_train_goes_on_with_the_same_bits(train):
    s, folder = session(), train(7)
    s.load(folder, training=True)
    assert s.step_count == 7 and remat.load(folder).info["flags"]["model"] == "lstm"
    for step in range(7, STEPS):
        s.step(lr=0.01, **windows(step))
    assert_same(s.parameters, remat.load(train(STEPS)).parameters)


@needs_program
def test_damaged_and_missing_states_are_refused(train, tmp_path):
    folder = train(1) / "step-00000001"
    file = folder / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(remat.Error, match="damaged") as caught:
        remat.load(folder)
    assert caught.value.status == remat.Status.IO
    with pytest.raises(remat.Error, match="no training state"):
        remat.load(tmp_path / "nothing")


@pytest.mark.parametrize("config", [{"segments": 4}, {"strategy": "sqrt"}, {"strategy": "lean"}])
def test_plans_have_the_same_bits(config):
    def train(**config):
        g, _, loss = lstm_inputs()
        s = remat.Session(g, loss, optimizer="adam", tile=2, threads=1, **config)
        for i in range(5):
            s.step(lr=0.01, **batch(i))
        return s

    kept, planned = train(), train(**config)
    assert planned.plan.activations_peak_bytes < kept.plan.activations_peak_bytes
    for name, value in kept.parameters.items():
        np.testing.assert_array_equal(planned.parameters[name], value)


def test_training_goes_on_from_a_file(tmp_path):
    g, _, loss = lstm_inputs()
    whole, first, second = (remat.Session(g, loss, optimizer="adam", threads=1) for _ in range(3))
    for i in range(6):
        whole.step(lr=0.01, **batch(i))
        if i < 3:
            first.step(lr=0.01, **batch(i))
    first.save(tmp_path / "half.safetensors", training=True)
    second.load(tmp_path / "half.safetensors", training=True)
    for i in range(3, 6):
        second.step(lr=0.01, **batch(i))
    for name, value in whole.parameters.items():
        np.testing.assert_array_equal(second.parameters[name], value)
