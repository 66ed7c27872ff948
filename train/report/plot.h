/* plot.h: charts, drawn by the program gnuplot. plot.c writes a script with its data to a temporary directory, runs gnuplot, and
 * writes the result to the file of --plot. plot_timeline.c and plot_pareto.c contain one chart each.
 *
 *     .svg   a drawing     .png   1600 x 900 pixels     .html   a page with the drawing and a table of its numbers
 */
#ifndef RM_PLOT_H
#define RM_PLOT_H

#include "train/flags/options.h"

/* Call before the run. INVALID: the name does not end in .svg, .png or .html. MISSING: gnuplot is not installed. IO: the file cannot
 * be created. path NULL: OK. */
remat_status rm_plot_check(const char *path);

/* Live bytes during a step of n plan steps, stacked by kind: as planned; or as measured, with the planned sum as a line. */
typedef struct {
    const remat_live_point *planned, *measured; /* measured may be NULL */
    int64_t n;
} rm_timeline;
remat_status rm_plot_timeline(const rm_options *options, const remat_plan_summary *plan, const rm_timeline *timeline);

/* Memory against time for every strategy; `plan` is marked. */
remat_status rm_plot_pareto(const rm_options *options, const remat_plan_summary *plan, const remat_pareto_point *points,
                            int64_t count);

/* ---- For the charts ------------------------------------------------------------------------------------------- */

#define RM_PLOT_ROWS 24
typedef struct {
    FILE *script;
    const char *path;
    int format;
    char directory[256];
    char heading[128], flags[400], numbers[400]; /* three lines of text above the chart */
    struct {
        char name[64], value[96];
    } row[RM_PLOT_ROWS]; /* of the HTML page's table */
    int n_rows;
} rm_plot;

/* Opens the script and writes the settings that all charts share. Set heading, flags and numbers before. */
remat_status rm_plot_begin(const char *path, rm_plot *plot);
/* Runs gnuplot and writes the file. Frees the plot even after an error. */
remat_status rm_plot_finish(rm_plot *plot);

void rm_plot_row(rm_plot *plot, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Lists the given flags, quoted for a shell. */
void rm_plot_flags(const rm_options *options, char *text, size_t bytes);
/* Quotes any text as a gnuplot string that cannot run commands; returns `out`. Use it for all text that is not from Remat's own
 * sources. Needs up to 4 * strlen(text) + 7 bytes. */
const char *rm_plot_quote(const char *text, char *out, size_t bytes);

/* A unit for axes: the largest power of 1024 with most / unit >= 1. */
double rm_plot_bytes_unit(double most, const char **name);

/* Okabe and Ito's palette, which is safe for colour-blind readers. */
#define RM_PLOT_BLUE "#0072B2"
#define RM_PLOT_SKY "#56B4E9"
#define RM_PLOT_ORANGE "#E69F00"
#define RM_PLOT_RED "#D55E00"
#define RM_PLOT_GREEN "#009E73"
#define RM_PLOT_PINK "#CC79A7"
#define RM_PLOT_GREY "#D9D9D9"
#define RM_PLOT_INK "#222222"

#endif
