#!/usr/bin/env python3
"""Distance of the planner from the optimum: solves the same problem as an integer program by HiGHS (PyPI: highspy).

  remat plan --model=... --problem >net.problem
  bench/integer_program.py [--seconds=300] [--budgets=4] net.problem ...

The program is Checkmate's (Jain et al., "Checkmate: Breaking the memory wall with optimal tensor rematerialization", 2020)
for the problems of memory/problem.h: between the first runs of two stages, or between two backward runs, any stage may be recomputed, in
ascending order and at most once; each stage saves its block in any option, in one run of its choice; any state may be dropped
and recomputed at any time. Gradients of states are never dropped. So plans need not consist of chains, segments or nests.

For budgets spread evenly from the planner's least to keeping everything, it prints the predicted step time of the fastest
plan of `optimal` and of HiGHS, and HiGHS's lower bound if its time ran out (--seconds per budget)."""
import argparse
import subprocess
import sys


def read_problem(path):
    """Parses the output of problem_text.c into lists by stage and by state."""
    problem = dict(stages=[], made=[], reads={}, keeps={}, adds={}, pieces={}, dpieces={}, piece=[])
    for line in open(path):
        word = line.split("#")[0].split()
        if not word:
            continue
        kind, number = word[0], int(word[1]) if word[1].isdigit() else None
        if kind == "piece":
            problem["piece"].append(int(word[3]))
        elif kind == "stage" and word[2] == "drop":
            problem["stages"].append(dict(drop=(int(word[4]), int(word[6])), keep=[]))
        elif kind == "stage":
            problem["stages"][number]["keep"].append(
                dict(saved=int(word[5]), forward=(int(word[8]), int(word[10])), backward=(int(word[13]), int(word[15]))))
        elif kind == "state":
            problem["made"].append(int(word[3]))
            problem["pieces"][number] = int(word[5])
        elif kind == "dstate":
            problem["dpieces"][number] = int(word[3])
        elif kind in ("reads", "keeps", "adds"):
            problem[kind][number] = [int(w) for w in word[3:]]
    piece, at = problem["piece"], 0
    for name, pieces in (("bytes", problem["pieces"]), ("dbytes", problem["dpieces"])):
        problem[name] = {}
        for i in sorted(pieces):
            problem[name][i] = sum(piece[at:at + pieces[i]])
            at += pieces[i]
    return problem


class Program:
    """Collects the rows and columns of a mixed integer program."""

    def __init__(self):
        self.cost, self.upper, self.integer = [], [], []
        self.rows = []

    def column(self, cost=0.0, integer=False):
        self.cost.append(cost)
        self.integer.append(integer)
        return len(self.cost) - 1

    def row(self, low, terms, high):
        total = {}
        for column, value in terms:
            total[column] = total.get(column, 0) + value
        self.rows.append((low, sorted(total.items()), high))

    def solve(self, seconds):
        import highspy
        import numpy as np

        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("threads", 1)
        highs.setOptionValue("time_limit", float(seconds))
        highs.setOptionValue("mip_rel_gap", 1e-3)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.rows)
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.ones(lp.num_col_)
        lp.row_lower_ = np.array([r[0] for r in self.rows], dtype=float)
        lp.row_upper_ = np.array([r[2] for r in self.rows], dtype=float)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0] + [len(r[1]) for r in self.rows])
        lp.a_matrix_.index_ = np.array([c for r in self.rows for c, _ in r[1]])
        lp.a_matrix_.value_ = np.array([v for r in self.rows for _, v in r[1]], dtype=float)
        lp.integrality_ = [highspy.HighsVarType.kInteger if i else highspy.HighsVarType.kContinuous for i in self.integer]
        assert highs.passModel(lp) == highspy.HighsStatus.kOk
        highs.run()
        info = highs.getInfo()
        found = info.primal_solution_status == 2
        return (info.objective_function_value if found else None), info.mip_dual_bound


def integer_program(problem, limit, scale):
    """The fastest plan within `limit` bytes. Times are in units of `scale` ns, bytes in units of `limit`."""
    stages, made = problem["stages"], problem["made"]
    count, inf = len(stages), float("inf")
    makes = [[i for i, s in enumerate(made) if s == j] for j in range(count)]
    reads, keeps = ([problem[kind].get(j, []) for j in range(count)] for kind in ("reads", "keeps"))
    adders = {i: max(j for j in problem["adds"] if i in problem["adds"][j]) for i in problem["dbytes"]}
    p = Program()
    run, keep = {}, {}            # by (phase, stage), (phase, stage, option)
    kept = [[[] for _ in stage["keep"]] for stage in stages]  # so far, columns by stage and option
    alive = {}                    # by state, in the previous slot; missing: it cannot be alive
    saved_terms = []              # of blocks saved so far and not yet read

    def slot(phase, j, needed, scratch, dstates):
        """Constraints on live states: each was alive before or has just been computed."""
        nonlocal alive
        now = {}
        last = 2 * count - 1 - phase if phase >= count else count
        for i, maker in enumerate(made):
            new = [run[phase, j]] if j is not None and maker == j and (phase, j) in run else []
            if (i not in alive and not new) or maker > last:
                continue
            now[i] = p.column()
            p.row(-inf, [(now[i], 1)] + [(c, -1) for c in new] + ([(alive[i], -1)] if i in alive else []), 0)
            for c in new:
                p.row(0, [(now[i], 1), (c, -1)], inf)
        for i, by in needed:      # by: the column that needs it; None: always
            if i not in now:
                p.row(1, [], inf) if by is None else p.row(-inf, [(by, 1)], 0)
            else:
                p.row(1 if by is None else 0, [(now[i], 1)] + ([] if by is None else [(by, -1)]), inf)
        fixed = sum(dstates) / limit
        p.row(-inf, [(c, problem["bytes"][i] / limit) for i, c in now.items()] +
              [(c, b / limit) for c, b in saved_terms] + [(c, b / limit) for c, b in scratch], 1 - fixed)
        alive = now

    def forward(phase, j, first, dstates):
        stage = stages[j]
        run[phase, j] = p.column(stage["drop"][0] / scale, True)
        options = []
        for k, option in enumerate(stage["keep"]):
            c = p.column((option["forward"][0] + option["backward"][0] - stage["drop"][0]) / scale, True)
            keep[phase, j, k] = c
            kept[j][k].append(c)
            options.append(c)
            saved_terms.append((c, option["saved"]))
        p.row(0, [(run[phase, j], 1)] + [(c, -1) for c in options], inf)
        if first:
            p.row(1, [(run[phase, j], 1)], 1)
        scratch = [(run[phase, j], stage["drop"][1])]
        scratch += [(c, o["forward"][1] - stage["drop"][1]) for c, o in zip(options, stage["keep"])]
        slot(phase, j, [(i, run[phase, j]) for i in reads[j]], scratch, dstates)

    for s in range(count):
        for j in range(s + 1):
            forward(s, j, j == s, [])
    for b in reversed(range(count)):
        phase = 2 * count - 1 - b
        before = [x for i, x in problem["dbytes"].items() if adders[i] > b and made[i] <= b]
        during = [x for i, x in problem["dbytes"].items() if adders[i] >= b and made[i] <= b]
        for j in range(b + 1):
            forward(phase, j, False, before)
        scratch = [(c, o["backward"][1]) for o, columns in zip(stages[b]["keep"], kept[b]) for c in columns]
        p.row(1, [(c, 1) for columns in kept[b] for c in columns], 1)
        slot(phase, None, [(i, None) for i in keeps[b]], scratch, during)
        gone = {c for columns in kept[b] for c in columns}
        saved_terms[:] = [(c, x) for c, x in saved_terms if c not in gone]
    p.names = run, keep
    return p


def planned(planner, path, budgets):
    """(bytes, ns) of the planner's plans, from the smallest to the one that keeps everything."""
    lines = subprocess.run([planner, "frontier", path, str(budgets)], check=True, capture_output=True, text=True).stdout
    return [tuple(int(word) for word in line.split()) for line in lines.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", nargs="+")
    parser.add_argument("--planner", default="build/release/bench/bench_planner")
    parser.add_argument("--budgets", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=300)
    args = parser.parse_args()
    print("| problem | stages | bytes | `optimal` | HiGHS | proved bound | above the best known | above the bound |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for path in args.problem:
        problem = read_problem(path)
        plans = planned(args.planner, path, args.budgets)
        most_bytes, least_ns = plans[-1]
        for limit, ns in plans[:-1]:
            scale = least_ns / 100  # so that times are per cent of keeping everything
            program = integer_program(problem, limit, scale)
            found, bound = program.solve(args.seconds)
            ours = ns / scale
            best = ours if found is None else min(ours, found)
            bound = min(bound, best)
            print(f"| {path.split('/')[-1].removesuffix('.problem')} | {len(problem['stages'])} | {limit / most_bytes:.0%} "
                  f"| {ours - 100:+.2f} % | {'-' if found is None else f'{found - 100:+.2f} %'} | {bound - 100:+.2f} % "
                  f"| {ours / best - 1:.2%} | {ours / bound - 1:.2%} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
