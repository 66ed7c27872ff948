"""The process around a session: threads, forks, signals, the GIL, lifetimes, OpenMP."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from nets import batch, lstm_inputs

import remat


def run(program, **environment):
    """Runs a Python program in a process of its own; returns what it printed."""
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, **environment}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def slow_session(timesteps=60_000):
    g, _, loss = lstm_inputs(timesteps)
    s = remat.Session(g, loss, optimizer="sgd", strategy="segments", segments=8, threads=1)
    s.evaluate(**batch(timesteps=timesteps))
    return s


def test_arrays_outlive_their_session():
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss, optimizer="adam")
    s.step(lr=0.1, **batch())
    mapping = s.parameters
    arrays, handle = [s.parameters["w"], s.gradients["w"], s.optimizer_state["w.exp_avg"]], weakref.ref(s._handle)
    copies = [array.copy() for array in arrays]
    del s
    gc.collect()
    for array, copy in zip(arrays, copies):
        np.testing.assert_array_equal(array, copy)
        array[...] = 1
    assert (mapping["w_ih"] == mapping["w_ih"]).all()
    mapping["w"] = np.zeros((7, 5))
    del array, arrays, mapping
    assert handle() is None


def test_sessions_are_freed_without_the_collector():
    gc.disable()
    try:
        g, _, loss = lstm_inputs()
        s = remat.Session(g, loss)
        s.evaluate(**batch())
        handle = weakref.ref(s._handle)
        del s
        assert handle() is None
    finally:
        gc.enable()


def test_sessions_of_different_threads_have_the_bits_of_one():
    def train(seed, results):
        g, _, loss = lstm_inputs()
        s = remat.Session(g, loss, optimizer="adam", seed=seed, threads=2)
        for i in range(10):
            s.step(lr=0.01, **batch(i))
        results[seed] = s.parameters["w"].copy()

    alone, together = {}, {}
    for seed in range(4):
        train(seed, alone)
    threads = [threading.Thread(target=train, args=(seed, together)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for seed in range(4):
        np.testing.assert_array_equal(alone[seed], together[seed])


def test_one_session_in_two_threads_runs_one_pass_after_the_other():
    g, _, loss = lstm_inputs()
    s = remat.Session(g, loss, optimizer="sgd")
    s.evaluate(**batch())
    threads = [threading.Thread(target=lambda: [s.step(lr=0.01) for _ in range(50)]) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert s.step_count == 100


def turns_during_a_step(s):
    counted, begun, ended = 0, threading.Event(), threading.Event()

    def step():
        begun.set()
        s.step(lr=0.1)
        ended.set()

    thread = threading.Thread(target=step)
    thread.start()
    begun.wait()
    while not ended.is_set():
        counted += 1
        time.sleep(0)
    thread.join()
    return counted


def test_python_runs_during_a_step():
    s = slow_session()  # if its steps held Python's lock, the loop would run before or after them alone
    assert any(turns_during_a_step(s) > 20 for _ in range(10))  # a busy machine may leave no processor to the loop


def test_interrupt_comes_after_the_whole_step():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    s, begun = slow_session(), threading.Event()
    sender = threading.Thread(target=lambda: (begun.wait(), time.sleep(0.01), os.kill(os.getpid(), signal.SIGINT)))
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        begun.set()
        while True:
            s.step(lr=0.1)
    sender.join()
    signal.signal(signal.SIGINT, before)
    done = s.step_count
    s.step(lr=0.1)
    assert s.step_count == done + 1


FORK = """
import os
import numpy as np
from nets import language_model
import remat
g, loss = language_model(20, 16, hidden=128)
zeros = dict.fromkeys(("tokens", "targets"), np.zeros((20, 16), int))
s = remat.Session(g, loss, optimizer="sgd", threads=2)
s.step(lr=0.1, **zeros)
child = os.fork()
if not child:
    try:
        s.step(lr=0.1)
    except remat.Error as error:
        assert error.status == remat.Status.INVALID and "fork" in str(error), error
    else:
        os._exit(1)
    own = remat.Session(g, loss, optimizer="sgd", threads=1)
    own.step(lr=0.1, **zeros)
    del own, s  # the child frees its own session alone
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
s.step(lr=0.1)
print(s.step_count)
"""


FORK_DURING_A_STEP = """
import os, threading, time
from nets import batch, lstm_inputs
import remat
g, _, loss = lstm_inputs(60_000)
s = remat.Session(g, loss, optimizer="sgd", threads=1)
s.evaluate(**batch(timesteps=60_000))
begun = threading.Event()
thread = threading.Thread(target=lambda: (begun.set(), [s.step(lr=0.1) for _ in range(3)]))
thread.start()
begun.wait()
time.sleep(0.02)
child = os.fork()
if not child:
    try:
        s.parameters["w"] = s.parameters["w"] * 2
        s.evaluate()
    except remat.Error:
        pass
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
print(s.step_count)
"""


def test_worker_forked_during_a_step_does_not_hang():
    assert run(FORK_DURING_A_STEP) == "3"


def test_forked_workers_are_told_and_the_parent_goes_on():
    assert run(FORK) == "2"


OPENMP = """
{imports}
import re
from nets import batch, lstm_inputs
g, _, loss = lstm_inputs()
s = remat.Session(g, loss, optimizer="sgd", threads=2)
s.step(lr=0.1, **batch())
if "torch" in globals():
    torch.set_num_threads(2)
    (torch.randn(300, 300) @ torch.randn(300, 300)).relu().sum()
s.step(lr=0.1)
found = set(re.findall(r"\\S*/lib(?:gomp|omp|iomp5)\\S*", open("/proc/self/maps").read()))
print(len(found), *found)
"""


@pytest.mark.parametrize("imports", ["import remat", "import torch, remat", "import remat, torch"])
def test_process_has_one_openmp(imports):
    if "torch" in imports:
        pytest.importorskip("torch", reason="no torch here: OpenMP beside it is not tested")
    found = run(OPENMP.format(imports=imports))
    assert re.match("1 ", found), found


def test_instruction_set_can_be_forced():
    program = "import remat; print(remat.build()['instruction_set'])"
    assert run(program, REMAT_ISA="baseline") == "baseline"
