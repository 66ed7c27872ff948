/* plot_timeline.c: bytes alive over a step, stacked by kind above what stays. See plot.h. */
#include "train/plot.h"

#include "memory/host.h"
#include "train/text.h"

#include <math.h>
#include <string.h>

/* From the bottom of the stack to its top: the large one above the small ones. */
static const struct {
    remat_live kind;
    const char *name, *colour;
} layer[REMAT_LIVE_KINDS] = {
    {REMAT_LIVE_STATES, "states, checkpoints", RM_PLOT_BLUE},
    {REMAT_LIVE_GRADIENTS, "gradients of states", RM_PLOT_ORANGE},
    {REMAT_LIVE_SAVED, "saved for backward", RM_PLOT_SKY},
    {REMAT_LIVE_SCRATCH, "scratch", RM_PLOT_RED},
};

typedef struct {
    rm_plot plot;
    const remat_plan_summary *plan;
    const rm_timeline *timeline;
    const remat_live_point *shown; /* filled: as measured if it was, else as planned */
    int64_t n_shown;
    double resident;        /* bytes that stay */
    double unit, time_unit; /* bytes and ns of an axis's 1 */
    const char *unit_name, *time_name;
    double end_ns;
} picture;

static uint64_t total(const remat_live_point *point) {
    uint64_t sum = 0;
    for (int k = 0; k < REMAT_LIVE_KINDS; k++) sum += point->bytes[k];
    return sum;
}

static int64_t largest(const remat_live_point *point, int64_t n) {
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++)
        if (total(&point[i]) > total(&point[at])) at = i;
    return at;
}

/* ---- Thinning --------------------------------------------------------------------------------------------------- */

enum { COLUMNS = 1600 };

static int64_t column(const remat_live_point *point, double end_ns) {
    return (int64_t)((double)point->begin_ns / (end_ns > 0 ? end_ns : 1) * COLUMNS);
}

/* Of the points of one pixel column the first, the least, the largest and the last: no peak and no trough is lost. Writes their
 * numbers, ascending; at most four a column. */
static int64_t thin(const remat_live_point *point, int64_t n, double end_ns, int64_t *kept) {
    int64_t count = 0;
    for (int64_t i = 0, j; i < n; i = j) {
        int64_t low = i, high = i;
        for (j = i; j < n && column(&point[j], end_ns) == column(&point[i], end_ns); j++) {
            if (total(&point[j]) < total(&point[low])) low = j;
            if (total(&point[j]) > total(&point[high])) high = j;
        }
        int64_t pick[3] = {i, low < high ? low : high, low < high ? high : low};
        for (int k = 0; k < 3; k++)
            if (!k || pick[k] > pick[k - 1]) kept[count++] = pick[k];
        if (j - 1 > kept[count - 1]) kept[count++] = j - 1;
    }
    return count;
}

/* ---- Data ------------------------------------------------------------------------------------------------------- */

static void write_point(const picture *p, double x, const remat_live_point *point) {
    double sum = p->resident / p->unit;
    fprintf(p->plot.script, "%.9g %.9g", x / p->time_unit, sum);
    for (int k = 0; k < REMAT_LIVE_KINDS; k++)
        fprintf(p->plot.script, " %.9g", sum += (double)point->bytes[layer[k].kind] / p->unit);
    fprintf(p->plot.script, " %.9g\n", (double)point->resident_bytes / p->unit);
}

/* Columns: time, top of the resident band, top of each layer, the process. Each step is level from where it begins to
 * where the next one does. */
static remat_status write_data(const picture *p, const char *name, const remat_live_point *point, int64_t n,
                               double end) {
    int64_t *kept = rm_malloc((size_t)(4 * COLUMNS + 8 < n ? 4 * COLUMNS + 8 : n + 1) * sizeof *kept);
    REQUIRE(kept, MEMORY, "no memory to draw %lld steps", (long long)n);
    int64_t count = thin(point, n, end, kept);
    fprintf(p->plot.script, "$%s << END\n", name);
    for (int64_t i = 0; i < count; i++) {
        const remat_live_point *at = &point[kept[i]];
        write_point(p, (double)at->begin_ns, at);
        write_point(p, i + 1 < count ? (double)point[kept[i + 1]].begin_ns : end, at);
    }
    fprintf(p->plot.script, "END\n");
    rm_free(kept);
    return REMAT_OK;
}

/* ---- Axes and marks --------------------------------------------------------------------------------------------- */

static double predicted_end(const picture *p) {
    double last = (double)p->timeline->planned[p->timeline->n_planned - 1].begin_ns;
    return (double)p->plan->step_ns > last ? (double)p->plan->step_ns : last;
}

/* The trace has no end of its own: the last step is a FREE, and takes next to nothing. */
static double shown_end(const picture *p) {
    return p->timeline->n_measured ? (double)p->shown[p->n_shown - 1].begin_ns + 1 : predicted_end(p);
}

static void choose_units(picture *p) {
    double most = p->end_ns = shown_end(p);
    if (predicted_end(p) > most) most = predicted_end(p);
    p->time_unit = most >= 10e9 ? 1e9 : 1e6;
    p->time_name = most >= 10e9 ? "s" : "ms";
    p->resident = (double)(p->plan->planned_peak_bytes - p->plan->activations_peak_bytes);
    p->unit = rm_plot_bytes_unit((double)p->plan->planned_peak_bytes, &p->unit_name);
}

/* What stays can dwarf what moves: then the axis begins inside its band. */
static double bottom(const picture *p) {
    double activations = (double)p->plan->activations_peak_bytes;
    return p->resident > 3 * activations ? p->resident - 0.4 * activations : 0;
}

static double top(const picture *p) {
    double arena = (double)p->plan->planned_peak_bytes, most = arena, budget = (double)p->plan->memory_budget;
    double low = bottom(p);
    for (int64_t i = 0; i < p->timeline->n_measured; i++)
        if ((double)p->timeline->measured[i].resident_bytes > most)
            most = (double)p->timeline->measured[i].resident_bytes;
    if (most - low > 2 * (arena - low)) most = arena;
    if (budget > most && budget - low < 2 * (arena - low)) most = budget;
    return low + 1.14 * (most - low);
}

static void write_axes(const picture *p) {
    FILE *out = p->plot.script;
    double end = p->end_ns > predicted_end(p) ? p->end_ns : predicted_end(p);
    fprintf(out, "set xrange [0:%.9g]\nset yrange [%.9g:%.9g]\n", end / p->time_unit, bottom(p) / p->unit,
            top(p) / p->unit);
    fprintf(out, "set xlabel '%s, %s' textcolor rgb '%s'\n",
            p->timeline->n_measured ? "time since the step began" : "predicted time", p->time_name, RM_PLOT_INK);
    fprintf(out, "set ylabel '%s' textcolor rgb '%s'\n", p->unit_name, RM_PLOT_INK);
    if (bottom(p) > 0)
        fprintf(out,
                "set label 110 'the axis begins at %.4g %s; what stays reaches down to 0' at graph 0.01,0.02 left "
                "font ',10' textcolor rgb '#555555' front\n",
                bottom(p) / p->unit, p->unit_name);
}

static bool peak_is_late(const picture *p) {
    return (double)p->shown[largest(p->shown, p->n_shown)].begin_ns > 0.5 * p->end_ns;
}

/* A level line over the whole width, with its name at the end where the peak is not. */
static void write_level(const picture *p, int tag, double bytes, const char *name, const char *colour, int dash) {
    char text[RM_TEXT], label[128], quoted[160];
    double y = bytes / p->unit;
    bool late = peak_is_late(p);
    if (bytes > top(p)) return;
    snprintf(label, sizeof label, "%s %s", name, rm_bytes_text((uint64_t)bytes, text));
    fprintf(p->plot.script,
            "set arrow %d from graph 0, first %.9g to graph 1, first %.9g nohead front linecolor rgb '%s' dashtype %d "
            "linewidth 1.4\n",
            tag, y, y, colour, dash);
    fprintf(p->plot.script,
            "set label %d %s at graph %s, first %.9g %s offset 0,0.55 front noenhanced font ',11' textcolor rgb "
            "'%s'\n",
            tag, rm_plot_quote(label, quoted, sizeof quoted), late ? "0.008" : "0.992", y, late ? "left" : "right",
            colour);
}

static void write_peak(const picture *p) {
    char text[RM_TEXT], label[128], quoted[160];
    int64_t at = largest(p->shown, p->n_shown);
    double next = at + 1 < p->n_shown ? (double)p->shown[at + 1].begin_ns : p->end_ns;
    double x = 0.5 * ((double)p->shown[at].begin_ns + next) / p->time_unit;
    double y = (p->resident + (double)total(&p->shown[at])) / p->unit;
    bool right = peak_is_late(p);
    snprintf(label, sizeof label, "peak: %s at step %lld of %lld",
             rm_bytes_text((uint64_t)(p->resident + (double)total(&p->shown[at])), text), (long long)at,
             (long long)p->n_shown);
    fprintf(p->plot.script,
            "set label 120 '' at %.9g,%.9g point pointtype 7 pointsize 0.9 linecolor rgb '%s' front\n"
            "set label 121 %s at %.9g,%.9g %s offset %s,0.9 front noenhanced font ',12' textcolor rgb '%s'\n",
            x, y, RM_PLOT_INK, rm_plot_quote(label, quoted, sizeof quoted), x, y, right ? "right" : "left",
            right ? "1" : "-1", RM_PLOT_INK);
}

/* ---- The picture ------------------------------------------------------------------------------------------------ */

static void write_curves(const picture *p) {
    FILE *out = p->plot.script;
    const char *data = p->timeline->n_measured ? "$measured" : "$planned";
    fprintf(out, "plot %s using 1:2 with filledcurves y1=%.9g linecolor rgb '%s' title 'what stays'", data,
            bottom(p) / p->unit, RM_PLOT_GREY);
    for (int k = 0; k < REMAT_LIVE_KINDS; k++)
        fprintf(out, ", \\\n     %s using 1:%d:%d with filledcurves linecolor rgb '%s' title '%s'", data, k + 2, k + 3,
                layer[k].colour, layer[k].name);
    if (p->timeline->n_measured) {
        fprintf(out,
                ", \\\n     $planned using 1:%d with lines linecolor rgb '%s' linewidth 1.2 title 'planned, in all'",
                REMAT_LIVE_KINDS + 2, RM_PLOT_INK);
        fprintf(
            out,
            ", \\\n     $measured using 1:%d with lines linecolor rgb '%s' linewidth 1.2 dashtype 3 title 'resident "
            "set of the process'",
            REMAT_LIVE_KINDS + 3, RM_PLOT_PINK);
    }
    fprintf(out, "\n");
}

static void write_numbers(picture *p, const rm_options *o) {
    char a[RM_TEXT], b[RM_TEXT];
    const remat_plan_summary *plan = p->plan;
    rm_plot *plot = &p->plot;
    const char *what = p->timeline->n_measured ? "Bytes alive over a step: measured, and as planned (line)"
                                               : "Bytes alive over a step, as planned";
    snprintf(plot->heading, sizeof plot->heading, "%s", what);
    rm_plot_flags(o, plot->flags, sizeof plot->flags);
    int n = snprintf(
        plot->numbers, sizeof plot->numbers,
        "strategy %s; activations %s of an arena of %s; predicted %.4g %s = forward %.4g + recompute %.4g + "
        "backward %.4g",
        plan->strategy, rm_bytes_text(plan->activations_peak_bytes, a), rm_bytes_text(plan->planned_peak_bytes, b),
        (double)plan->step_ns / p->time_unit, p->time_name, (double)plan->forward_ns / p->time_unit,
        (double)plan->recompute_ns / p->time_unit, (double)plan->backward_ns / p->time_unit);
    if (plan->wait_ns && n < (int)sizeof plot->numbers)
        n += snprintf(plot->numbers + n, sizeof plot->numbers - (size_t)n, " + waits %.4g",
                      (double)plan->wait_ns / p->time_unit);
    if (p->timeline->n_measured && n < (int)sizeof plot->numbers)
        snprintf(plot->numbers + n, sizeof plot->numbers - (size_t)n, "; measured %.4g %s", p->end_ns / p->time_unit,
                 p->time_name);
}

static void write_table(picture *p) {
    char a[RM_TEXT];
    const remat_plan_summary *plan = p->plan;
    rm_plot *plot = &p->plot;
    rm_plot_row(plot, "strategy", "%s", plan->strategy);
    rm_plot_row(plot, "segments", "%lld", (long long)plan->segments);
    rm_plot_row(plot, "timesteps x batch", "%lld x %lld", (long long)plan->timesteps, (long long)plan->batch);
    rm_plot_row(plot, "tiles", "%lld of %lld timesteps", (long long)plan->n_tiles, (long long)plan->tile);
    rm_plot_row(plot, "activations at their peak", "%s", rm_bytes_text(plan->activations_peak_bytes, a));
    rm_plot_row(plot, "the arena", "%s", rm_bytes_text(plan->planned_peak_bytes, a));
    rm_plot_row(plot, "all that a budget covers", "%s", rm_bytes_text(plan->budgeted_bytes, a));
    if (plan->memory_budget) rm_plot_row(plot, "the budget", "%s", rm_bytes_text(plan->memory_budget, a));
    if (plan->spill_bytes) rm_plot_row(plot, "spilled", "%s", rm_bytes_text(plan->spill_bytes, a));
    rm_plot_row(plot, "steps of the plan", "%lld", (long long)plan->n_steps);
    rm_plot_row(plot, "forward, predicted", "%.1f ms", 1e-6 * (double)plan->forward_ns);
    rm_plot_row(plot, "recompute, predicted", "%.1f ms", 1e-6 * (double)plan->recompute_ns);
    rm_plot_row(plot, "backward, predicted", "%.1f ms", 1e-6 * (double)plan->backward_ns);
    if (plan->transfer_ns) rm_plot_row(plot, "waiting for transfers", "%.1f ms", 1e-6 * (double)plan->wait_ns);
    rm_plot_row(plot, "in all, predicted", "%.1f ms", 1e-6 * (double)plan->step_ns);
    if (p->timeline->n_measured) rm_plot_row(plot, "in all, measured", "%.1f ms", 1e-6 * p->end_ns);
    rm_plot_row(plot, "recompute factor", "%.3f", plan->recompute_factor);
}

static remat_status draw(picture *p) {
    const rm_timeline *t = p->timeline;
    remat_status status = write_data(p, "planned", t->planned, t->n_planned, predicted_end(p));
    if (!status && t->n_measured) status = write_data(p, "measured", t->measured, t->n_measured, p->end_ns);
    write_axes(p);
    write_level(p, 130, (double)p->plan->planned_peak_bytes, "arena", RM_PLOT_INK, 2);
    if (p->plan->memory_budget) write_level(p, 131, (double)p->plan->memory_budget, "budget", RM_PLOT_GREEN, 1);
    write_peak(p);
    write_curves(p);
    return status;
}

remat_status rm_plot_timeline(const rm_options *o, const remat_plan_summary *plan, const rm_timeline *t) {
    REQUIRE(t->n_planned > 0, INVALID, "the plan has no steps to draw");
    bool measured = t->n_measured > 0;
    picture p = {.plan = plan,
                 .timeline = t,
                 .shown = measured ? t->measured : t->planned,
                 .n_shown = measured ? t->n_measured : t->n_planned};
    choose_units(&p);
    write_numbers(&p, o);
    write_table(&p);
    TRY(rm_plot_begin(o->plot, &p.plot));
    remat_status status = draw(&p), finished = rm_plot_finish(&p.plot);
    return status ? status : finished;
}
