#!/usr/bin/env python3
"""chaos.py: an elastic job (`remat launch --nnodes=1:N`, N launchers of one rank each on this host) under faults. Calm
periods and periods with faults alternate. Prints the throughput of both, and for each kind of fault how long no step was
finished. Then it compares parameters and optimizer state with those of an undisturbed job, bit by bit, and looks for what
is left: processes, shared memory, unfinished training states.

    bench/chaos.py [--program=build/release/remat] [--ranks=4] [--every=5] [--minutes=5] [--kinds=kill,...] [--engine=local]

    kill   a rank by SIGKILL; its launcher starts it again
    host   a launcher by SIGKILL, and its rank with it; started again at once
    stop   a rank by SIGSTOP, for three seconds (--stop-for); --hang-timeout is two
    cut    a rank's connection to the launcher of host 0
    disk   no rank can write files for a second, while a training state is due
"""
import argparse, ctypes, filecmp, glob, os, random, re, resource, shutil, signal, socket, statistics, subprocess, sys
import tempfile, threading, time

from restarts import alive, children, wait_until

MARK = "REMAT_CHAOS"  # in the environment of all processes of the job
PERIOD = 3  # faults in a period


def reserved_port():
    """A socket, and the port that it keeps from others while it is open: only a listener that sets SO_REUSEADDR may use it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder, holder.getsockname()[1]


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def of_job(mark):
    """Processes with the mark in their environment."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if f"{MARK}={mark}".encode() in file.read().split(b"\0"):
                    found.append(int(path.split("/")[2]))
        except OSError:
            pass
    return found


class Job:
    """N launchers, and for each a thread that notes when steps were finished."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.holder, self.port = reserved_port()
        self.text = os.path.join(folder, "text")
        self.mark = str(random.getrandbits(60))
        with open(self.text, "wb") as file:
            file.write(random.Random(1).randbytes(1 << 20))
        self.errors = open(os.path.join(folder, "errors"), "ab")
        self.steps = [(time.time(), 0)]
        self.launchers = [self.start(host) for host in range(options.ranks)]

    def train(self, batch, folder):
        o = self.options
        return [o.program, "train", f"--data={self.text}", f"--hidden={o.hidden}", "--seq-len=128", f"--batch={batch}",
                "--threads=1", f"--deterministic-world={o.ranks}", f"--save={folder}", "--lr=0.003"]

    def start(self, host):
        o = self.options
        line = [o.program, "launch", f"--nnodes=1:{o.ranks}", f"--node-rank={host}", "--master-addr=127.0.0.1",
                f"--master-port={self.port}", "--max-restarts=1000000", "--", *self.train(4, f"{self.folder}/st"),
                "--steps=100000000", f"--save-every={o.save_every}", f"--hang-timeout={o.hang_timeout}", "--log-every=1",
                f"--dist-backend={o.engine}"]
        launcher = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                    env={**os.environ, MARK: self.mark})
        threading.Thread(target=self.note, args=[launcher.stdout], daemon=True).start()
        return launcher

    def rank_of(self, host):
        while True:
            for supervisor in children(self.launchers[host].pid):
                for rank in children(supervisor):
                    if alive(rank) and name_of(rank) != "remat-world":
                        return rank
            time.sleep(0.002)

    def note(self, lines):
        for line in lines:
            found = re.match(r"\[\d+\] step +(\d+)/", line)
            if found and int(found[1]) > self.steps[-1][1]:
                self.steps.append((time.time(), int(found[1])))

    def step(self):
        return self.steps[-1][1]

    def wait_for_step(self, step):
        wait_until(lambda: self.step() > step)

    def longest_pause(self, since):
        times = [t for t, _ in self.steps if t >= since] + [time.time()]
        return max([b - a for a, b in zip([since] + times, times)])

    def stop(self):
        """All ranks stop after the same step and save it."""
        for launcher in self.launchers:
            launcher.send_signal(signal.SIGTERM)
        return [launcher.wait() for launcher in self.launchers]


# ---- Faults ----------------------------------------------------------------------------------------------------------


def kill(job):
    os.kill(job.rank_of(random.randrange(job.options.ranks)), signal.SIGKILL)


def host(job):
    """Any but host 0, whose launcher keeps the world."""
    number = random.randrange(1, job.options.ranks)
    job.launchers[number].kill()
    job.launchers[number].wait()
    job.launchers[number] = job.start(number)


def stop(job):
    rank = job.rank_of(random.randrange(job.options.ranks))
    os.kill(rank, signal.SIGSTOP)
    time.sleep(job.options.stop_for)
    try:
        os.kill(rank, signal.SIGCONT)
    except ProcessLookupError:
        pass


def cut(job):
    """Shuts the socket down from outside, by a copy of its descriptor."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    pid = job.rank_of(random.randrange(job.options.ranks))
    pidfd = call(434, pid, 0)
    for number in range(3, 100):
        fd = call(438, pidfd, number, 0)
        if fd < 0:
            continue
        try:
            with socket.socket(fileno=fd) as copy:
                if copy.getpeername()[1] == job.port:
                    copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    if pidfd >= 0:
        os.close(pidfd)


def limit_files(job, size):
    for number in range(job.options.ranks):
        try:
            resource.prlimit(job.rank_of(number), resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        except ProcessLookupError:
            pass


def disk(job):
    limit_files(job, 0)
    time.sleep(1)
    limit_files(job, resource.RLIM_INFINITY)


FAULTS = {"kill": kill, "host": host, "stop": stop, "cut": cut, "disk": disk}


# ---- The run ----------------------------------------------------------------------------------------------------------


def calm_period(job):
    start, before = time.time(), job.step()
    time.sleep(job.options.every * PERIOD)
    return time.time() - start, job.step() - before


def storm(job, pauses, kinds):
    start, before = time.time(), job.step()
    for _ in range(PERIOD):
        began, kind = time.time(), next(kinds)
        FAULTS[kind](job)
        time.sleep(max(0, began + job.options.every - time.time()))
        pauses[kind].append(job.longest_pause(began))
    return time.time() - start, job.step() - before


def in_turn(kinds):
    while True:
        yield from random.sample(kinds, len(kinds))


def disturb(job, options):
    kinds = options.kinds.split(",")
    turns, pauses, calm, stormy = in_turn(kinds), {kind: [] for kind in kinds}, [], []
    job.wait_for_step(0)
    end = time.time() + 60 * options.minutes
    while time.time() < end or not stormy:
        calm.append(calm_period(job))
        stormy.append(storm(job, pauses, turns))
    return pauses, calm, stormy


def rate(periods):
    return sum(steps for _, steps in periods) / sum(seconds for seconds, _ in periods)


def same_bits(job, options):
    """Trains as far without faults, on two ranks at once, and compares the files."""
    last = sorted(glob.glob(f"{job.folder}/st/step-*"))[-1]
    steps = int(last.rsplit("-", 1)[1])
    line = [*job.train(4 * options.ranks // 2, f"{job.folder}/alone"), f"--steps={steps}", "--devices=cpu:2"]
    subprocess.run(line, stdout=subprocess.DEVNULL, check=True)
    names = ["model.safetensors", "optimizer.safetensors"]
    _, differ, missing = filecmp.cmpfiles(last, f"{job.folder}/alone/{os.path.basename(last)}", names, shallow=False)
    return steps, not differ and not missing


def left_behind(job, shared_before):
    left = [f"process {pid} ({name_of(pid)})" for pid in of_job(job.mark)]
    left += sorted(set(glob.glob("/dev/shm/*remat*")) - shared_before)
    return left + glob.glob(f"{job.folder}/st/.tmp*")


def report(options, pauses, calm, stormy):
    """Comes before the undisturbed job, which takes about as long as the disturbed one."""
    faults = sum(len(some) for some in pauses.values())
    of_calm = f": {100 * rate(stormy) / rate(calm):.0f} %" if rate(calm) else ""  # nothing if no step ended while it was calm
    print(f"{options.ranks} ranks, {options.engine}: {faults} faults in {sum(s for s, _ in stormy):.0f} s, one every "
          f"{options.every:g} s: {rate(stormy):.1f} steps/s, calm {rate(calm):.1f}{of_calm}")
    for kind, some in pauses.items():
        if some:
            print(f"  {kind:5} {len(some):3} times; no step for {statistics.median(some):.2f} s, at most {max(some):.2f} s")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/remat")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--every", type=float, default=5)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--kinds", default=",".join(FAULTS))
    parser.add_argument("--engine", default="local")
    parser.add_argument("--hang-timeout", type=float, default=2)
    parser.add_argument("--stop-for", type=float, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--errors", help="keep what the job wrote to stderr in this file")
    options = parser.parse_args()
    shared = set(glob.glob("/dev/shm/*remat*"))
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, folder)
        try:
            pauses, calm, stormy = disturb(job, options)
        finally:
            codes = job.stop()
            if options.errors:
                shutil.copy(f"{folder}/errors", options.errors)
        left = left_behind(job, shared)
        report(options, pauses, calm, stormy)
        steps, same = same_bits(job, options)
    print(f"after {steps} steps the bits are {'the same' if same else 'OTHERS'} as undisturbed; exit codes {codes}")
    print("left behind: " + (", ".join(left) if left else "nothing"))
    sys.exit(not same or bool(left))


if __name__ == "__main__":
    main()
