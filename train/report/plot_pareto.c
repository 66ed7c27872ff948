/* plot_pareto.c: a chart of memory against time, with a point per plan and the frontier as a line. See plot.h. */
#include "train/report/plot.h"

#include "train/text.h"

#include <math.h>
#include <string.h>

/* The styles of strategies, in the order of their points. The shapes differ even without colour. */
static const struct {
    const char *colour;
    int shape;
} style[] = {
    {RM_PLOT_INK, 5}, {RM_PLOT_SKY, 7}, {RM_PLOT_ORANGE, 13}, {RM_PLOT_GREEN, 9}, {RM_PLOT_RED, 11}, {RM_PLOT_PINK, 15},
};
enum { STYLES = sizeof style / sizeof style[0] };

typedef struct {
    rm_plot plot;
    const remat_plan_summary *plan;
    const remat_pareto_point *point;
    int64_t count;
    double none_ns; /* reference for relative times: strategy `none`, or else the fastest plan */
    double low, high, slowest;
} chart;

static double ratio(const chart *p, uint64_t ns) { return (double)ns / p->none_ns; }

static bool is(const remat_pareto_point *point, const char *strategy) { return !strcmp(point->strategy, strategy); }

static void find_ranges(chart *p) {
    p->none_ns = INFINITY;
    p->low = INFINITY;
    bool none = false;
    for (int64_t i = 0; i < p->count; i++) {
        const remat_pareto_point *q = &p->point[i];
        if (is(q, "none") && !none) none = true, p->none_ns = (double)q->step_ns;
        if (!none && (double)q->step_ns < p->none_ns) p->none_ns = (double)q->step_ns;
        if ((double)q->activations_peak_bytes < p->low) p->low = (double)q->activations_peak_bytes;
        if ((double)q->activations_peak_bytes > p->high) p->high = (double)q->activations_peak_bytes;
    }
    if (!(p->none_ns > 0)) p->none_ns = 1;
    for (int64_t i = 0; i < p->count; i++)
        if (ratio(p, p->point[i].step_ns) > p->slowest) p->slowest = ratio(p, p->point[i].step_ns);
}

/* ---- Axes ------------------------------------------------------------------------------------------------------- */

/* 2^i bytes as an integer with a unit. */
static const char *power_text(int i, char text[RM_TEXT]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    snprintf(text, RM_TEXT, "%d %s", 1 << i % 10, unit[i / 10]);
    return text;
}

/* Ticks at powers of two, thinned out if there are many. */
static void write_memory_axis(const chart *p) {
    char text[RM_TEXT];
    double low = p->low > 0 ? p->low / 1.25 : 1, high = p->high > low ? p->high * 1.25 : low * 2;
    int first = (int)ceil(log2(low)), last = (int)floor(log2(high)), step = 1;
    while ((last - first) / step > 12) step++;
    fprintf(p->plot.script, "set logscale x 2\nset xrange [%.9g:%.9g]\nset xtics (", low, high);
    for (int i = first; i <= last; i += step)
        fprintf(p->plot.script, "%s'%s' %.9g", i == first ? "" : ", ", power_text(i, text), ldexp(1, i));
    fprintf(p->plot.script, ")\nset grid x y linecolor rgb '#dddddd' linewidth 0.8\n");
    fprintf(p->plot.script, "set xlabel 'peak of activations' textcolor rgb '%s'\n", RM_PLOT_INK);
}

/* Times differ by a few per cent or by a factor of ten, so the axis is linear in speed, 1 / time, with ticks for
 * times. */
static double height(const chart *p, uint64_t ns) { return 1 - p->none_ns / (double)ns; }

static void write_time_axis(const chart *p) {
    static const double tick[] = {1,    1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6,
                                  1.75, 2,    2.5,  3,    4,   5,    7,   10,   20,  50,  1000};
    double most = p->slowest > 1.02 ? 1 - 1 / p->slowest : 0.02, last = -1;
    fprintf(p->plot.script, "set yrange [%.9g:%.9g]\nset ytics ('1.00' 0", -0.06 * most, 1.1 * most);
    for (size_t i = 0; i < sizeof tick / sizeof *tick && 1 - 1 / tick[i] < 1.1 * most; i++) {
        double at = 1 - 1 / tick[i];
        if (at - last < 0.055 * most) continue;
        fprintf(p->plot.script, ", '%.2f' %.9g", tick[i], last = at);
    }
    fprintf(p->plot.script, ")\nset ylabel 'time of a step, relative to none' textcolor rgb '%s'\n", RM_PLOT_INK);
}

/* Marks the part of the budget that this plan leaves for activations. */
static void write_budget(const chart *p) {
    const remat_plan_summary *plan = p->plan;
    uint64_t others = plan->budgeted_bytes - plan->activations_peak_bytes;
    char text[RM_TEXT], label[96], quoted[4 * sizeof label];
    if (plan->memory_budget <= others) return;
    double x = (double)(plan->memory_budget - others);
    if (x < p->low / 1.25 || x > p->high * 1.25) return;
    snprintf(label, sizeof label, "session's budget: %s", rm_bytes_text(plan->memory_budget, text));
    fprintf(p->plot.script,
            "set arrow 130 from first %.9g, graph 0 to first %.9g, graph 1 nohead linecolor rgb '%s' linewidth 1.4\n"
            "set label 130 %s at first %.9g, graph 0.98 right offset -0.6,0 noenhanced font ',11' textcolor rgb '%s'\n",
            x, x, RM_PLOT_GREEN, rm_plot_quote(label, quoted, sizeof quoted), x, RM_PLOT_GREEN);
}

/* ---- Points ----------------------------------------------------------------------------------------------------- */

static void write_point(const chart *p, const remat_pareto_point *q) {
    fprintf(p->plot.script, "%.9g %.9g\n", (double)q->activations_peak_bytes, height(p, q->step_ns));
}

/* The end of a strategy's points, which are consecutive and start at `first`. */
static int64_t end_of_strategy(const chart *p, int64_t first) {
    int64_t k = first;
    while (k < p->count && is(&p->point[k], p->point[first].strategy)) k++;
    return k;
}

static void write_strategy(const chart *p, int64_t first) {
    fprintf(p->plot.script, "$s%lld << END\n", (long long)first);
    for (int64_t k = first; k < end_of_strategy(p, first); k++) write_point(p, &p->point[k]);
    fprintf(p->plot.script, "END\n");
}

/* The least time for a given number of bytes, as steps. Sorts the few points by searching for the next larger one. */
static void write_frontier(const chart *p) {
    double last = -1;
    fprintf(p->plot.script, "$frontier << END\n");
    for (;;) {
        const remat_pareto_point *next = NULL;
        for (int64_t k = 0; k < p->count; k++) {
            const remat_pareto_point *q = &p->point[k];
            if (!q->frontier || (double)q->activations_peak_bytes <= last) continue;
            if (!next || q->activations_peak_bytes < next->activations_peak_bytes) next = q;
        }
        if (!next) break;
        last = (double)next->activations_peak_bytes;
        write_point(p, next);
    }
    fprintf(p->plot.script, "END\n");
}

/* Marks this plan with a ring; its label is at the top right, where the frontier leaves space. */
static void write_own(const chart *p) {
    char text[RM_TEXT], label[160], quoted[4 * sizeof label];
    double x = (double)p->plan->activations_peak_bytes, y = height(p, p->plan->step_ns);
    snprintf(label, sizeof label, "ring = this plan: %s, %s, x %.2f", p->plan->strategy,
             rm_bytes_text(p->plan->activations_peak_bytes, text), ratio(p, p->plan->step_ns));
    fprintf(p->plot.script,
            "set label 140 '' at %.9g,%.9g point pointtype 6 pointsize 2.6 linecolor rgb '%s' linewidth 2 front\n"
            "set style textbox opaque fillcolor rgb '#ffffff' noborder margins 0.4,0.4\n"
            "set label 141 %s at graph 0.985, graph 0.9 right front boxed noenhanced font ',12' textcolor rgb '%s'\n",
            x, y, RM_PLOT_INK, rm_plot_quote(label, quoted, sizeof quoted), RM_PLOT_INK);
}

static void draw(const chart *p) {
    FILE *out = p->plot.script;
    write_memory_axis(p);
    write_time_axis(p);
    write_budget(p);
    for (int64_t k = 0; k < p->count; k = end_of_strategy(p, k)) write_strategy(p, k);
    write_frontier(p);
    write_own(p);
    fprintf(out, "plot $frontier using 1:2 with fsteps linecolor rgb '#999999' linewidth 1.6 title 'least time for the "
                 "bytes'");
    int i = 0;
    for (int64_t k = 0; k < p->count; k = end_of_strategy(p, k), i = (i + 1) % STYLES)
        fprintf(out, ", \\\n     $s%lld using 1:2 with points pointtype %d pointsize %s linecolor rgb '%s' title '%s'",
                (long long)k, style[i].shape, style[i].shape == 7 ? "1.0" : "1.3", style[i].colour,
                p->point[k].strategy);
    fprintf(out, "\n");
}

/* ---- Text ------------------------------------------------------------------------------------------------------- */

static void write_numbers(chart *p, const rm_options *o) {
    char a[RM_TEXT], b[RM_TEXT];
    rm_plot *plot = &p->plot;
    const remat_plan_summary *plan = p->plan;
    snprintf(plot->heading, sizeof plot->heading, "Memory against time: the cost of each strategy for activations");
    rm_plot_flags(o, plot->flags, sizeof plot->flags);
    snprintf(plot->numbers, sizeof plot->numbers,
             "%lld timesteps x batch %lld in %lld tile%s; none takes %.4g ms (%s); every plan also needs %s besides "
             "activations%s%s",
             (long long)plan->timesteps, (long long)plan->batch, (long long)plan->n_tiles,
             plan->n_tiles == 1 ? "" : "s", 1e-6 * p->none_ns,
             plan->measured_busy    ? "from kernels measured here on a busy machine"
             : plan->measured_times ? "from kernels measured here"
                                    : "estimated from rates",
             rm_bytes_text(plan->planned_peak_bytes - plan->activations_peak_bytes, a),
             plan->memory_budget ? "; the session's budget is " : "",
             plan->memory_budget ? rm_bytes_text(plan->memory_budget, b) : "");
    for (int64_t i = 0; i < p->count && plot->n_rows < RM_PLOT_ROWS; i++) {
        const remat_pareto_point *q = &p->point[i];
        if (q->frontier)
            rm_plot_row(plot, q->strategy, "%s of activations, %.1f ms, x %.3f",
                        rm_bytes_text(q->activations_peak_bytes, a), 1e-6 * (double)q->step_ns, ratio(p, q->step_ns));
    }
}

remat_status rm_plot_pareto(const rm_options *o, const remat_plan_summary *plan, const remat_pareto_point *points,
                            int64_t count) {
    REQUIRE(count > 0, INVALID, "there are no plans to draw");
    chart p = {.plan = plan, .point = points, .count = count};
    find_ranges(&p);
    write_numbers(&p, o);
    TRY(rm_plot_begin(o->plot, &p.plot));
    draw(&p);
    return rm_plot_finish(&p.plot);
}
