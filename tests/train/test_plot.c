/* test_plot.c: pictures. What cannot be drawn is refused before anything runs; what is drawn is whole, of the kind its
 * name says, and holds the peak, however many steps are thinned. Skips the drawing where gnuplot is not installed. */
#include "train/report/plot_timeline.c" /* for thin() */

#include "tests/train/train_test.h"

static bool have_gnuplot(void) { return system("command -v gnuplot >/dev/null 2>&1") == 0; }

static const char *contents(const char *path) {
    static char text[1 << 20];
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file, "%s is not there", path);
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    return text;
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

START_TEST(refused_before_anything) {
    ck_fails(rm_plot_check("a.jpg"), REMAT_INVALID, "ends in .svg, .png or .html");
    ck_fails(rm_plot_check(".svg"), REMAT_INVALID, "ends in .svg");
    ck_fails(rm_plot_check("svg"), REMAT_INVALID, "ends in .svg");
    ck_ok(rm_plot_check(NULL));
    if (have_gnuplot()) {
        ck_fails(rm_plot_check("/nowhere/a.svg"), REMAT_IO, "choose another place for --plot");
        ck_ok(rm_plot_check(in_scratch("a.svg")));
        ck_assert(access(in_scratch("a.svg"), F_OK)); /* trying leaves nothing behind */
        make_file("there.svg", "there", 5);
        ck_ok(rm_plot_check(in_scratch("there.svg")));
        ck_assert_str_eq(contents(in_scratch("there.svg")), "there");
    }
    char *path = strdup(getenv("PATH"));
    setenv("PATH", scratch(), 1);
    ck_fails(rm_plot_check(in_scratch("a.svg")), REMAT_MISSING, "apt-get install gnuplot-nox");
    setenv("PATH", path, 1);
    free(path);
}
END_TEST

/* ---- Thinning ---------------------------------------------------------------------------------------------------- */

/* Random walks of many steps, in which many take no time: the largest and the least of every column stay. */
START_TEST(thinning_loses_no_peak) {
    enum { MOST = 200000 };
    static remat_live_point point[MOST];
    static int64_t kept[4 * COLUMNS + 8];
    srand((unsigned)_i);
    int64_t n = _i < 4 ? 1 + _i * 7 : MOST - rand() % 1000;
    uint64_t now = 0;
    for (int64_t i = 0; i < n; i++) {
        point[i] = (remat_live_point){.step = i, .begin_ns = now, .bytes = {(uint64_t)rand() % 1000, 500}};
        now += rand() % 3 ? 0 : (uint64_t)rand() % 100000;
    }
    point[rand() % n].bytes[REMAT_LIVE_SCRATCH] = 5000;
    int64_t count = thin(point, n, (double)now, kept), low = -1, high = -1;
    ck_assert_int_le(count, 4 * COLUMNS + 8);
    ck_assert(count >= 1 && kept[0] == 0 && kept[count - 1] == n - 1);
    for (int64_t i = 0; i < count; i++) {
        ck_assert(!i || kept[i] > kept[i - 1]);
        if (low < 0 || total(&point[kept[i]]) < total(&point[low])) low = kept[i];
        if (high < 0 || total(&point[kept[i]]) > total(&point[high])) high = kept[i];
    }
    for (int64_t i = 0; i < n; i++)
        ck_assert(total(&point[i]) >= total(&point[low]) && total(&point[i]) <= total(&point[high]));
    ck_assert_uint_ge(total(&point[high]), 5500);
}
END_TEST

/* ---- Words ------------------------------------------------------------------------------------------------------- */

/* Wherever the peak is, its words leave room at one end for those of the arena and the budget, which go there. */
START_TEST(words_are_not_written_over_each_other) {
    remat_live_point point[] = {{0, 0, {0}, 0}, {1, 0, {64800}, 0}, {2, 0, {0}, 0}};
    for (uint64_t begin = 0; begin < 1000; begin += 50)
        for (uint64_t end = begin + 1; end < 1000; end += 50) {
            picture p = {.shown = point, .n = 3, .end_ns = 1000};
            point[1].begin_ns = begin, point[2].begin_ns = end;
            place_words(&p);
            double x = (double)(begin + end) / 2000, width = 0.0065 * (double)strlen(p.peak_label);
            double first = p.peak_is_late ? x - width : x, last = first + width;
            ck_assert(first >= 0 && last <= 1);
            ck_assert_msg((p.levels_left ? first : 1 - last) > 0.37, "peak at %g", x);
        }
}
END_TEST

/* ---- Drawing ----------------------------------------------------------------------------------------------------- */

/* Names that would break a script or a page if they were not quoted. */
static const char *const names[] = {"plain.svg", "it's 100% \"quoted\".svg", "p.png", "a<b>&c.html"};

START_TEST(drawings_are_whole) {
    remat_live_point point[] = {{0, 0, {10, 0, 0, 5}, 0}, {1, 10, {10, 1000, 0, 70}, 0}, {2, 20, {10, 500, 30, 0}, 0}};
    remat_live_point measured[] = {
        {0, 3, {10, 0, 0, 5}, 9000}, {1, 15, {10, 1000, 0, 70}, 9100}, {2, 35, {10, 500, 30, 0}, 9200}};
    remat_plan_summary plan = {.strategy = "segments",
                               .device = "cpu",
                               .planned_peak_bytes = 4080,
                               .budgeted_bytes = 4200,
                               .activations_peak_bytes = 1080,
                               .memory_budget = 4300,
                               .step_ns = 30,
                               .timesteps = 3};
    rm_options o;
    if (!have_gnuplot()) return;
    ck_ok(rm_options_defaults(&o));
    o.plot = in_scratch(names[_i]);
    rm_timeline timeline = {.planned = point, .measured = _i % 2 ? measured : NULL, .n = 3};
    ck_ok(rm_plot_timeline(&o, &plan, &timeline));
    const char *text = contents(o.plot);
    if (strstr(names[_i], ".png")) ck_assert(!memcmp(text, "\x89PNG", 4));
    if (strstr(names[_i], ".svg")) ck_assert(strstr(text, "<svg") && strstr(text, "</svg>"));
    if (strstr(names[_i], ".html"))
        ck_assert(strstr(text, "<!DOCTYPE html>") && strstr(text, "</svg>") && strstr(text, "</html>") &&
                  !strstr(text, "<script"));
    if (!strstr(names[_i], ".png")) ck_assert_ptr_nonnull(strstr(text, "peak 4.0 KiB, at step 1 of 3"));
    remat_pareto_point pareto[] = {{"none", 1, 2000, 5000, 0, 30, 1, true},
                                   {"segments", 2, 1080, 4200, 0, 40, 1.5, true},
                                   {"optimal", 2, 900, 4100, 0, 400, 9, true}};
    ck_ok(rm_plot_pareto(&o, &plan, pareto, 3));
    text = contents(o.plot);
    if (!strstr(names[_i], ".png")) ck_assert_ptr_nonnull(strstr(text, "this plan: segments"));
    o.plot = NULL;
    rm_options_free(&o);
}
END_TEST

/* One that says nothing: how it ended is told. */
START_TEST(a_failing_gnuplot_is_told) {
    make_file("gnuplot", "#!/bin/sh\necho no fonts today\nexit 3\n", 37);
    chmod(in_scratch("gnuplot"), 0755);
    char path[4096];
    snprintf(path, sizeof path, "%s:%s", scratch(), getenv("PATH"));
    setenv("PATH", path, 1);
    setenv("TMPDIR", scratch(), 1);
    rm_options o;
    remat_live_point point[] = {{0, 0, {10, 0, 0, 5}, 0}};
    remat_plan_summary plan = {
        .strategy = "none", .planned_peak_bytes = 100, .activations_peak_bytes = 15, .step_ns = 3};
    rm_timeline timeline = {.planned = point, .n = 1};
    ck_ok(rm_options_defaults(&o));
    o.plot = in_scratch("a.svg");
    ck_fails(rm_plot_timeline(&o, &plan, &timeline), REMAT_INTERNAL, "no fonts today");
    make_file("gnuplot", "#!/bin/sh\nexit 4\n", 17);
    ck_fails(rm_plot_timeline(&o, &plan, &timeline), REMAT_INTERNAL, "it ended with status 4 and no picture");
    make_file("gnuplot", "#!/bin/sh\nkill -9 $$\n", 21);
    ck_fails(rm_plot_timeline(&o, &plan, &timeline), REMAT_INTERNAL, "it was ended by signal 9");
    make_file("gnuplot", "#!/bin/sh\nexit 0\n", 17);
    ck_fails(rm_plot_timeline(&o, &plan, &timeline), REMAT_INTERNAL, "it ended with status 0 and no picture");
    ck_assert(access(in_scratch("a.svg"), F_OK));
    unlink(in_scratch("gnuplot"));
    ck_assert_msg(rmdir(scratch()) == 0, "something was left behind"); /* nothing else is in it */
    mkdir(scratch(), 0700);
    o.plot = NULL;
    rm_options_free(&o);
}
END_TEST

/* As they would be typed. */
START_TEST(flags_are_readable) {
    char *line[] = {"--dropout=0.2", "--lr=1e-3", "--memory-budget=64MiB", "--no-fold", "--json", "--seq-len=4096"};
    char text[400];
    rm_options o;
    ck_ok(rm_options_parse(&o, RM_PLAN, 6, line));
    rm_plot_flags(&o, text, sizeof text);
    ck_assert_str_eq(text, "--dropout=0.2 --seq-len=4096 --lr=0.001 --memory-budget=64MiB --no-fold");
    char *decimal[] = {"--memory-budget=3MB", "--device=null", "--assume-flops=60T"};
    rm_plot_flags(&o, text, 40);
    ck_assert_uint_lt(strlen(text), 40);
    rm_options_free(&o);
    ck_ok(rm_options_parse(&o, RM_PLAN, 3, decimal));
    rm_plot_flags(&o, text, sizeof text);
    ck_assert_str_eq(text, "--memory-budget=3MB --device=null --assume-flops=6e+13");
    rm_options_free(&o);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("plot");
    tcase_add_test(tests, refused_before_anything);
    tcase_add_loop_test(tests, thinning_loses_no_peak, 0, 12);
    tcase_add_test(tests, words_are_not_written_over_each_other);
    tcase_add_loop_test(tests, drawings_are_whole, 0, (int)(sizeof names / sizeof names[0]));
    tcase_add_test(tests, a_failing_gnuplot_is_told);
    tcase_add_test(tests, flags_are_readable);
    return run_suite("train/plot", tests);
}
