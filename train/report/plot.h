/* plot.h: charts, drawn by gnuplot, a program of its own: a script with its data goes to a temporary directory, and
 * what gnuplot made of it is written to the file that --plot names. plot.c runs it; plot_timeline.c and plot_pareto.c
 * each know one chart.
 *
 *     .svg   a drawing     .png   1600 x 900 pixels     .html   one page: the drawing, and its numbers as a table
 * / */
#ifndef RM_PLOT_H
#define RM_PLOT_H

#include "train/flags/options.h"

/* Before anything runs. INVALID: not a name that ends in .svg, .png or .html. MISSING: there is no gnuplot. IO: the
 * file cannot be created. path NULL: nothing is asked for. */
remat_status rm_plot_check(const char *path);

/* Bytes alive over a step, n steps of its plan: filled by kind as planned; or as measured, at the times measured, and
 * the planned sum as a line over it. */
typedef struct {
    const remat_live_point *planned, *measured; /* measured may be NULL */
    int64_t n;
} rm_timeline;
remat_status rm_plot_timeline(const rm_options *options, const remat_plan_summary *plan, const rm_timeline *timeline);

/* Memory against time, for every strategy; the plan of `plan` is marked. */
remat_status rm_plot_pareto(const rm_options *options, const remat_plan_summary *plan, const remat_pareto_point *points,
                            int64_t count);

/* ---- For the charts ------------------------------------------------------------------------------------------- */

#define RM_PLOT_ROWS 24
typedef struct {
    FILE *script;
    const char *path;
    int format;
    char directory[256];
    char heading[128], flags[400], numbers[400]; /* the three lines above the chart */
    struct {
        char name[64], value[96];
    } row[RM_PLOT_ROWS]; /* of the page's table */
    int n_rows;
} rm_plot;

/* Opens the script, with the terminal and what all charts share; fill in the three lines before. */
remat_status rm_plot_begin(const char *path, rm_plot *plot);
/* Runs it, and writes the file. Ends the plot in any case. */
remat_status rm_plot_finish(rm_plot *plot);

void rm_plot_row(rm_plot *plot, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The flags that were given, quoted as a shell wants them typed again. */
void rm_plot_flags(const rm_options *options, char *text, size_t bytes);
/* Any text as one string of gnuplot's, which runs nothing; returns `out`. Whatever a script is told that did not come from Remat's
 * own sources goes through here. Up to 4 * strlen(text) + 7 bytes. */
const char *rm_plot_quote(const char *text, char *out, size_t bytes);

/* A unit for axes: the largest power of 1024 that leaves `most` at 1 or more. */
double rm_plot_bytes_unit(double most, const char **name);

/* Okabe and Ito's palette, which people with any colour vision can tell apart. */
#define RM_PLOT_BLUE "#0072B2"
#define RM_PLOT_SKY "#56B4E9"
#define RM_PLOT_ORANGE "#E69F00"
#define RM_PLOT_RED "#D55E00"
#define RM_PLOT_GREEN "#009E73"
#define RM_PLOT_PINK "#CC79A7"
#define RM_PLOT_GREY "#D9D9D9"
#define RM_PLOT_INK "#222222"

#endif
