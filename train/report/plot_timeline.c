/* plot_timeline.c: a chart of live bytes during a step, stacked by kind above the resident bytes. See plot.h. */
#include "train/report/plot.h"

#include "memory/host.h"
#include "train/text.h"

#include <stdarg.h>
#include <string.h>

/* From bottom to top. The largest kind is on top. */
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
    const remat_live_point *shown; /* the filled areas: measured if available, else planned */
    int64_t n, peak;
    double peak_ns;                 /* the middle of the peak's step */
    char peak_label[128];           /* to the left of a late peak, else to the right */
    bool peak_is_late, levels_left; /* levels_left: labels of levels are at the left end, where there is more space */
    double resident, process;       /* resident bytes; the process's maximum, 0: not measured */
    double unit, time_unit;         /* bytes and ns per unit of the axes */
    const char *unit_name, *time_name;
    double low, high, end_ns; /* ranges of the axes */
} chart;

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

/* Keeps the first, smallest, largest and last point of each pixel column, so that no peak or trough is lost. Writes
 * their indices in ascending order, at most four per column. */
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

/* Columns: time, top of the resident bytes, top of each layer, the process, the planned sum. */
static void write_point(const chart *p, double x, int64_t i) {
    const remat_live_point *point = &p->shown[i];
    double sum = p->resident / p->unit;
    fprintf(p->plot.script, "%.9g %.9g", x / p->time_unit, sum);
    for (int k = 0; k < REMAT_LIVE_KINDS; k++)
        fprintf(p->plot.script, " %.9g", sum += (double)point->bytes[layer[k].kind] / p->unit);
    fprintf(p->plot.script, " %.9g %.9g\n", (double)point->resident_bytes / p->unit,
            (p->resident + (double)total(&p->timeline->planned[i])) / p->unit);
}

/* Each step is constant until the next one starts. */
static remat_status write_data(const chart *p) {
    int64_t *kept = rm_malloc((size_t)(4 * COLUMNS + 8 < p->n ? 4 * COLUMNS + 8 : p->n + 1) * sizeof *kept);
    REQUIRE(kept, MEMORY, "no memory to draw %lld steps", (long long)p->n);
    int64_t count = thin(p->shown, p->n, p->end_ns, kept);
    fprintf(p->plot.script, "$step << END\n");
    for (int64_t i = 0; i < count; i++) {
        write_point(p, (double)p->shown[kept[i]].begin_ns, kept[i]);
        write_point(p, i + 1 < count ? (double)p->shown[kept[i + 1]].begin_ns : p->end_ns, kept[i]);
    }
    fprintf(p->plot.script, "END\n");
    rm_free(kept);
    return REMAT_OK;
}

/* ---- Ranges ----------------------------------------------------------------------------------------------------- */

/* A trace does not record its end; its last step is a FREE, which takes almost no time. */
static void choose_times(chart *p) {
    double last = (double)p->shown[p->n - 1].begin_ns + 1, predicted = (double)p->plan->step_ns;
    p->end_ns = !p->timeline->measured && predicted > last ? predicted : last;
    p->time_unit = p->end_ns >= 10e9 ? 1e9 : 1e6;
    p->time_name = p->end_ns >= 10e9 ? "s" : "ms";
}

/* If the resident bytes are much larger than the rest, the axis does not start at 0. The budget and the process are
 * shown unless they would make the rest too small. */
static void choose_bytes(chart *p) {
    const remat_plan_summary *plan = p->plan;
    double activations = (double)plan->activations_peak_bytes, arena = (double)plan->planned_peak_bytes;
    double budget = (double)plan->memory_budget;
    p->unit = rm_plot_bytes_unit(arena, &p->unit_name);
    p->resident = arena - activations;
    p->low = p->resident > 3 * activations ? p->resident - 0.4 * activations : 0;
    double limit = p->low + 1.35 * (arena - p->low);
    p->high = arena;
    for (int64_t i = 0; i < p->n; i++)
        if ((double)p->shown[i].resident_bytes > p->process) p->process = (double)p->shown[i].resident_bytes;
    if (budget > p->high && budget < limit) p->high = budget;
    if (p->process > p->high && p->process < limit) p->high = p->process;
    p->high = p->low + 1.16 * (p->high - p->low);
}

/* The peak is on the arena's line, and its label is next to that of the line. */
static void place_words(chart *p) {
    char text[RM_TEXT];
    p->peak = largest(p->shown, p->n);
    const remat_live_point *at = &p->shown[p->peak];
    p->peak_ns = 0.5 * ((double)at->begin_ns + (p->peak + 1 < p->n ? (double)at[1].begin_ns : p->end_ns));
    snprintf(p->peak_label, sizeof p->peak_label, "peak %s, at step %lld of %lld",
             rm_bytes_text((uint64_t)(p->resident + (double)total(at)), text), (long long)p->peak, (long long)p->n);
    double x = p->end_ns > 0 ? p->peak_ns / p->end_ns : 0, width = 0.0065 * (double)strlen(p->peak_label);
    p->peak_is_late = x > 0.5;
    p->levels_left = p->peak_is_late ? x - width > 1 - x : x > 1 - x - width;
}

/* ---- Axes and marks --------------------------------------------------------------------------------------------- */

static void write_axes(const chart *p) {
    FILE *out = p->plot.script;
    fprintf(out, "set xrange [0:%.9g]\nset yrange [%.9g:%.9g]\n", p->end_ns / p->time_unit, p->low / p->unit,
            p->high / p->unit);
    fprintf(out, "set xlabel '%s, %s' textcolor rgb '%s'\n",
            p->timeline->measured ? "measured time since the start of the step" : "predicted time", p->time_name,
            RM_PLOT_INK);
    fprintf(out, "set ylabel '%s' textcolor rgb '%s'\n", p->unit_name, RM_PLOT_INK);
    if (p->low > 0)
        fprintf(out,
                "set label 110 'the axis starts at %.4g %s: resident bytes reach down to 0' at graph 0.01,0.03 left "
                "font ',11' textcolor rgb '#444444' front\n",
                p->low / p->unit, p->unit_name);
}

/* A horizontal line. */
static void write_level(const chart *p, int tag, double bytes, const char *colour, int dash) {
    fprintf(p->plot.script,
            "set arrow %d from graph 0, first %.9g to graph 1, first %.9g nohead front linecolor rgb '%s' dashtype %d "
            "linewidth 1.4\n",
            tag, bytes / p->unit, bytes / p->unit, colour, dash);
}

/* The line's label, above it. */
static void name_level(const chart *p, int tag, double bytes, const char *colour, const char *name) {
    char quoted[512];
    fprintf(p->plot.script,
            "set label %d %s at graph %s, first %.9g %s offset 0,0.6 front noenhanced font ',11' textcolor rgb '%s'\n",
            tag, rm_plot_quote(name, quoted, sizeof quoted), p->levels_left ? "0.008" : "0.992", bytes / p->unit,
            p->levels_left ? "left" : "right", colour);
}

/* Draws the arena and the budget, with one label if they are close; then returns the upper of the two. */
static double write_levels(const chart *p) {
    char a[RM_TEXT], b[RM_TEXT], name[128];
    double arena = (double)p->plan->planned_peak_bytes, budget = (double)p->plan->memory_budget;
    bool shown = budget >= arena && budget < p->high, close = shown && budget - arena < 0.07 * (p->high - p->low);
    write_level(p, 130, arena, RM_PLOT_INK, 2);
    if (shown) write_level(p, 131, budget, RM_PLOT_GREEN, 1);
    rm_bytes_text(p->plan->planned_peak_bytes, a);
    rm_bytes_text(p->plan->memory_budget, b);
    snprintf(name, sizeof name, close ? "arena %s, session's budget %s" : "arena %s", a, b);
    name_level(p, 130, close ? budget : arena, RM_PLOT_INK, name);
    snprintf(name, sizeof name, "session's budget %s", b);
    if (shown && !close) name_level(p, 131, budget, RM_PLOT_GREEN, name);
    return close ? budget : arena;
}

static void write_peak(const chart *p, double above) {
    char quoted[512];
    double x = p->peak_ns / p->time_unit, bytes = p->resident + (double)total(&p->shown[p->peak]);
    fprintf(p->plot.script,
            "set label 120 '' at %.9g,%.9g point pointtype 7 pointsize 0.9 linecolor rgb '%s' front\n"
            "set label 121 %s at %.9g,%.9g %s offset %s,0.75 front noenhanced font ',12' textcolor rgb '%s'\n",
            x, bytes / p->unit, RM_PLOT_INK, rm_plot_quote(p->peak_label, quoted, sizeof quoted), x, above / p->unit,
            p->peak_is_late ? "right" : "left", p->peak_is_late ? "1" : "-1", RM_PLOT_INK);
}

/* ---- The chart ------------------------------------------------------------------------------------------------ */

/* Fills each layer down to the axis and lets lower layers cover it: bands between two curves would leave thin lines
 * where they are empty. */
static void write_curves(const chart *p) {
    FILE *out = p->plot.script;
    fprintf(out, "plot ");
    for (int k = REMAT_LIVE_KINDS - 1; k >= 0; k--)
        fprintf(out, "$step using 1:%d with filledcurves y1=%.9g linecolor rgb '%s' title '%s', \\\n     ", k + 3,
                p->low / p->unit, layer[k].colour, layer[k].name);
    fprintf(out, "$step using 1:2 with filledcurves y1=%.9g linecolor rgb '%s' title 'resident'", p->low / p->unit,
            RM_PLOT_GREY);
    if (p->timeline->measured)
        fprintf(out, ", \\\n     $step using 1:%d with lines linecolor rgb '%s' linewidth 1 title 'planned'",
                REMAT_LIVE_KINDS + 4, RM_PLOT_INK);
    if (p->process > 0 && p->process < p->high)
        fprintf(out, ", \\\n     $step using 1:%d with lines linecolor rgb '%s' linewidth 1.4 title 'the process'",
                REMAT_LIVE_KINDS + 3, RM_PLOT_PINK);
    fprintf(out, "\n");
}

/* Appends to the line of numbers. */
__attribute__((format(printf, 2, 3))) static void say(chart *p, const char *format, ...) {
    size_t n = strlen(p->plot.numbers);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->plot.numbers + n, sizeof p->plot.numbers - n, format, arguments);
    va_end(arguments);
}

static void write_numbers(chart *p, const rm_options *o) {
    char a[RM_TEXT], b[RM_TEXT];
    const remat_plan_summary *plan = p->plan;
    snprintf(p->plot.heading, sizeof p->plot.heading, "%s",
             p->timeline->measured ? "Live bytes during a step: measured (filled), planned (line)"
                                   : "Live bytes during a step, as planned");
    rm_plot_flags(o, p->plot.flags, sizeof p->plot.flags);
    say(p, "strategy %s; activations %s of an arena of %s", plan->strategy,
        rm_bytes_text(plan->activations_peak_bytes, a), rm_bytes_text(plan->planned_peak_bytes, b));
    if (p->process > 0) say(p, ", process %s", rm_bytes_text((uint64_t)p->process, a));
    say(p, "; predicted %.4g %s = forward %.4g + recompute %.4g + backward %.4g", (double)plan->step_ns / p->time_unit,
        p->time_name, (double)plan->forward_ns / p->time_unit, (double)plan->recompute_ns / p->time_unit,
        (double)plan->backward_ns / p->time_unit);
    if (plan->wait_ns) say(p, " + waits %.4g", (double)plan->wait_ns / p->time_unit);
    if (p->timeline->measured) say(p, "; measured %.4g %s", p->end_ns / p->time_unit, p->time_name);
}

static void write_table(chart *p) {
    char a[RM_TEXT];
    const remat_plan_summary *plan = p->plan;
    rm_plot *plot = &p->plot;
    rm_plot_row(plot, "strategy", "%s", plan->strategy);
    rm_plot_row(plot, "segments", "%lld", (long long)plan->segments);
    rm_plot_row(plot, "timesteps x batch", "%lld x %lld", (long long)plan->timesteps, (long long)plan->batch);
    rm_plot_row(plot, "tiles", "%lld of %lld timesteps", (long long)plan->n_tiles, (long long)plan->tile);
    rm_plot_row(plot, "peak of activations", "%s", rm_bytes_text(plan->activations_peak_bytes, a));
    rm_plot_row(plot, "arena", "%s", rm_bytes_text(plan->planned_peak_bytes, a));
    rm_plot_row(plot, "total that a budget covers", "%s", rm_bytes_text(plan->budgeted_bytes, a));
    if (plan->memory_budget) rm_plot_row(plot, "budget, without data", "%s", rm_bytes_text(plan->memory_budget, a));
    if (plan->spill_bytes) rm_plot_row(plot, "spilled", "%s", rm_bytes_text(plan->spill_bytes, a));
    rm_plot_row(plot, "steps of the plan", "%lld", (long long)plan->n_steps);
    rm_plot_row(plot, "forward, predicted", "%.1f ms", 1e-6 * (double)plan->forward_ns);
    rm_plot_row(plot, "recompute, predicted", "%.1f ms", 1e-6 * (double)plan->recompute_ns);
    rm_plot_row(plot, "backward, predicted", "%.1f ms", 1e-6 * (double)plan->backward_ns);
    if (plan->transfer_ns) rm_plot_row(plot, "waiting for transfers", "%.1f ms", 1e-6 * (double)plan->wait_ns);
    rm_plot_row(plot, "total, predicted", "%.1f ms", 1e-6 * (double)plan->step_ns);
    if (p->timeline->measured) rm_plot_row(plot, "total, measured", "%.1f ms", 1e-6 * p->end_ns);
    rm_plot_row(plot, "recompute factor", "%.3f", plan->recompute_factor);
}

remat_status rm_plot_timeline(const rm_options *o, const remat_plan_summary *plan, const rm_timeline *t) {
    REQUIRE(t->n > 0, INVALID, "the plan has no steps to draw");
    chart p = {.plan = plan, .timeline = t, .shown = t->measured ? t->measured : t->planned, .n = t->n};
    choose_times(&p);
    choose_bytes(&p);
    place_words(&p);
    write_numbers(&p, o);
    write_table(&p);
    TRY(rm_plot_begin(o->plot, &p.plot));
    remat_status status = write_data(&p);
    write_axes(&p);
    write_peak(&p, write_levels(&p));
    write_curves(&p);
    remat_status finished = rm_plot_finish(&p.plot);
    return status ? status : finished;
}
