"""Plans: texts, numbers, and the picture."""

import os
import subprocess
import xml.etree.ElementTree as xml

import pytest
from nets import batch, language_model, lstm_inputs

import remat

PROGRAM = os.path.join(os.environ.get("REMAT_BUILD", ""), "remat")


def planned(**config):
    g, _, loss = lstm_inputs(200)
    return remat.Session(g, loss, optimizer="adam", tile=10, threads=1, **config)


@pytest.mark.skipif(not os.access(PROGRAM, os.X_OK), reason="the program remat was not built")
def test_plan_prints_as_remat_plan_does(tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(256)) * 20)
    flags = f"--data={tmp_path}/text --hidden=8 --embed=6 --seq-len=600 --batch=2 --threads=1 --calibration=off"
    command = [PROGRAM, "plan", *flags.split(), "--checkpoint-segments=4"]
    told = subprocess.run([*command, "--checkpoint=segments"], check=True, capture_output=True, text=True).stdout
    g, loss = language_model(600, 2)
    plan = remat.Session(g, loss, optimizer="adam", threads=1, segments=4, plan_only=True).plan
    times = told.index("Predicted time")  # which is estimated from rates that each process measures
    assert times > 1000 and str(plan)[:times] == told[:times]


def test_numbers_agree_with_the_timeline():
    s = planned(segments=5)
    line, plan = s.plan.timeline, s.plan
    live = sum(line[name].astype(int) for name in ("states", "saved", "gradients", "scratch"))
    assert len(live) == plan.n_steps and live.max() <= plan.activations_peak_bytes
    assert plan.recompute_factor > 1 and plan.strategy == "segments" and plan.segments == 5
    assert plan.peak["saved_bytes"] == line["saved"][plan.peak["step"]]
    assert len(plan.stages) == plan.n_stages and plan.convolutions == []
    with pytest.raises(AttributeError, match="n_steps"):
        plan.nothing


def test_steps_are_a_plan_for_another_session():
    g, _, loss = lstm_inputs(200)
    a = planned(segments=5)
    b = planned(plan_steps=a.plan.steps)
    data = batch(timesteps=200)
    assert a.step(lr=0.1, **data) == b.step(lr=0.1, **data)


def test_pareto_has_a_frontier():
    points = planned().plan.pareto()
    assert {"none", "optimal"} <= {p["strategy"] for p in points} and any(p["frontier"] for p in points)


def test_notebook_shows_a_picture():
    plan = planned(memory_budget="1MiB").plan
    picture = xml.fromstring(plan.svg())
    assert len(picture.findall("{*}polygon")) == 5 and "svg" in plan._repr_html_()
