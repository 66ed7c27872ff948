#!/usr/bin/env python3
"""restarts.py: the cost of a restart. Two ranks train under `remat launch --max-restarts`, and one of them is killed
every few seconds. Prints the throughput, that of the undisturbed periods, and the medians of the phases of a restart.

    bench/restarts.py [--program=build/release/remat] [--every=2] [--kills=10] [--engine=local] [--zero=0]
"""
import argparse, json, os, random, signal, statistics, subprocess, tempfile, time


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def ranks_of(launcher):
    return [rank for keeper in children(launcher) for rank in children(keeper) if alive(rank)]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition):
    while not (found := condition()):
        time.sleep(0.003)
    return found


class Job:
    """A job of two ranks that trains for ever, in its own folder."""

    def __init__(self, options, folder):
        self.metrics = os.path.join(folder, "run.jsonl")
        text = os.path.join(folder, "text")
        with open(text, "wb") as file:
            file.write(random.Random(1).randbytes(1 << 20))
        line = [options.program, "launch", "--nproc-per-node=2", "--max-restarts=100000", options.program, "train",
                f"--data={text}", "--hidden=64", "--seq-len=128", "--batch=4", "--steps=1000000", "--threads=1",
                f"--save={folder}/st", "--save-every=10", f"--metrics={self.metrics}", f"--zero={options.zero}",
                f"--dist-backend={options.engine}"]
        self.process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def last_event(self):
        """The last complete line, parsed; nothing while a restarted job truncates the steps that it repeats."""
        try:
            with open(self.metrics, "rb") as file:
                file.seek(max(0, os.path.getsize(self.metrics) - 4096))
                return json.loads(file.read().rsplit(b"\n", 2)[-2])
        except (OSError, ValueError, IndexError):
            return {}

    def step(self):
        return self.last_event().get("step", 0)

    def wait_for_step(self, step):
        wait_until(lambda: self.step() > step)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def kill_one(job):
    """One restart: seconds until the old ranks have ended, the new ones have started, are set up, and have made a new step."""
    old, step = ranks_of(job.process.pid), job.step()
    start = time.time()
    os.kill(random.choice(old), signal.SIGKILL)
    wait_until(lambda: not any(alive(rank) for rank in old))
    gone = time.time()
    wait_until(lambda: len(ranks_of(job.process.pid)) == 2)
    started = time.time()
    planned = None

    def goes_on():
        nonlocal planned
        event = job.last_event()
        if planned is None and event.get("event") == "plan":
            planned = time.time()
        return event.get("step", 0) > step

    wait_until(goes_on)
    done = time.time()
    planned = planned or done
    return [gone - start, started - gone, planned - started, done - planned]


def disturb(job, options):
    """The phases of each restart; steps per second before each kill, and overall."""
    job.wait_for_step(0)
    parts, calm, begin, start = [], [], job.step(), time.time()
    for _ in range(options.kills):
        step, since = job.step(), time.time()
        time.sleep(options.every / 2)
        calm.append((job.step() - step) / (time.time() - since))
        parts.append(kill_one(job))
        time.sleep(max(0, since + options.every - time.time()))
    return parts, statistics.mean(calm), (job.step() - begin) / (time.time() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/remat")
    parser.add_argument("--every", type=float, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--zero", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, folder)
        try:
            parts, calm, storm = disturb(job, options)
        finally:
            job.end()
    medians = [statistics.median(part) for part in zip(*parts)]
    names = ["the others end", "they are started again", "they meet, read the state, plan", "a new step"]
    of_calm = f": {100 * storm / calm:.0f} %" if calm > 0 else ""  # nothing if no step ended while it was calm
    print(f"{options.engine}, zero {options.zero}: calm {calm:.1f} steps/s, a fault every {options.every:g} s {storm:.1f}"
          f"{of_calm}; a restart {sum(medians):.2f} s")
    for name, seconds in zip(names, medians):
        print(f"  {seconds:5.2f} s  {name}")


if __name__ == "__main__":
    main()
