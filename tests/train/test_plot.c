/* test_plot.c: plots. An impossible plot is refused before anything runs. Files are complete, of the kind given by
 * their name, and show the peak even if steps are thinned. Skips the drawing if gnuplot is not installed. */
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

START_TEST(impossible_plots_are_refused_first) {
    ck_fails(rm_plot_check("a.jpg"), REMAT_INVALID, ".svg|.png|.html");
    ck_fails(rm_plot_check(".svg"), REMAT_INVALID, ".svg");
    ck_fails(rm_plot_check("svg"), REMAT_INVALID, ".svg");
    ck_ok(rm_plot_check(NULL));
    if (have_gnuplot()) {
        ck_fails(rm_plot_check("/nowhere/a.svg"), REMAT_IO, "--plot");
        ck_ok(rm_plot_check(in_scratch("a.svg")));
        ck_assert(access(in_scratch("a.svg"), F_OK)); /* the check leaves no file */
        make_file("there.svg", "there", 5);
        ck_ok(rm_plot_check(in_scratch("there.svg")));
        ck_assert_str_eq(contents(in_scratch("there.svg")), "there");
    }
    char *path = strdup(getenv("PATH"));
    setenv("PATH", scratch(), 1);
    ck_fails(rm_plot_check(in_scratch("a.svg")), REMAT_MISSING, "gnuplot-nox");
    setenv("PATH", path, 1);
    free(path);
}
END_TEST

/* ---- Thinning ---------------------------------------------------------------------------------------------------- */

/* Random walks of many steps, many of which take no time: the maximum and minimum of every column stay. */
START_TEST(thinning_keeps_peaks) {
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

/* Wherever the peak is, its label leaves space at one end for the labels of the arena and the budget. */
START_TEST(labels_do_not_overlap) {
    remat_live_point point[] = {{0, 0, {0}, 0, {0}}, {1, 0, {64800}, 0, {0}}, {2, 0, {0}, 0, {0}}};
    for (uint64_t begin = 0; begin < 1000; begin += 50)
        for (uint64_t end = begin + 1; end < 1000; end += 50) {
            chart p = {.shown = point, .n = 3, .end_ns = 1000};
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

/* Names that would break an unquoted script or page. */
static const char *const names[] = {"plain.svg", "it's 100% \"quoted\".svg", "p.png", "a<b>&c.html"};

START_TEST(plots_are_complete) {
    remat_live_point point[] = {
        {0, 0, {10, 0, 0, 5}, 0, {0}}, {1, 10, {10, 1000, 0, 70}, 0, {0}}, {2, 20, {10, 500, 30, 0}, 0, {0}}};
    remat_live_point measured[] = {
        {0, 3, {10, 0, 0, 5}, 9000, {0}}, {1, 15, {10, 1000, 0, 70}, 9100, {0}}, {2, 35, {10, 500, 30, 0}, 9200, {0}}};
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
    remat_pareto_point pareto[] = {{"none", 1, 2000, 5000, 0, 30, 1, true, {0}},
                                   {"segments", 2, 1080, 4200, 0, 40, 1.5, true, {0}},
                                   {"optimal", 2, 900, 4100, 0, 400, 9, true, {0}}};
    ck_ok(rm_plot_pareto(&o, &plan, pareto, 3));
    text = contents(o.plot);
    if (!strstr(names[_i], ".png")) ck_assert_ptr_nonnull(strstr(text, "this plan: segments"));
    for (int i = 0; i < 3 && strstr(names[_i], ".svg"); i++) /* in the legend */
        ck_assert(strstr(text, (const char *[]){">none<", ">segments<", ">optimal<"}[i]));
    o.plot = NULL;
    rm_options_free(&o);
}
END_TEST

/* ---- Untrusted texts --------------------------------------------------------------------------------------------- */

/* Each would create a file `ran`, or break a script, a page or a terminal, if a program interpreted it. */
static const char *const hostile[] = {"a\nsystem('touch ran')\n#",
                                      "'\nsystem(\"touch ran\")\n'",
                                      "`touch ran`",
                                      "\"`touch ran`\"",
                                      "$(touch ran)",
                                      "'; touch ran; '",
                                      "' . system('touch ran') . '",
                                      "\\\n!touch ran\n",
                                      "\r!touch ran\r",
                                      "<touch ran",
                                      "|touch ran",
                                      "@ran",
                                      "{*9 big}^_",
                                      "$ran",
                                      "x\\",
                                      "%s%n%",
                                      "<script>alert(1)<!--&\"']]>",
                                      "\x1b]0;owned\x07",
                                      "\xff\xfe\x80\xed\xa0\x80\xc3"};
enum { HOSTILE = sizeof hostile / sizeof *hostile };

static const char *output_of(const char *command) {
    static char text[1 << 12];
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    text[fread(text, 1, sizeof text - 1, pipe)] = 0;
    ck_assert_int_eq(pclose(pipe), 0);
    return text;
}

/* gnuplot prints exactly this text, except for unprintable bytes. */
START_TEST(gnuplot_does_not_interpret_untrusted_texts) {
    if (!have_gnuplot()) return;
    ck_assert_int_eq(chdir(scratch()), 0);
    char quoted[256], shown[256], script[300];
    rm_plot_quote(hostile[_i], quoted, sizeof quoted);
    snprintf(script, sizeof script, "ran = 'touch ran'\nset print '-'\nprint %s", quoted);
    make_file("script", script, strlen(script));
    snprintf(shown, sizeof shown, "%s", hostile[_i]);
    strcat(rm_printable(shown), "\n");
    ck_assert_str_eq(output_of("gnuplot -d script"), shown);
    char cut[4096] = "";
    for (size_t room = 8; room < 24; room++) { /* truncated anywhere, it is still one string */
        strcat(strcat(cut, "\nprint "), rm_plot_quote(hostile[_i], quoted, room));
        ck_assert_uint_lt(strlen(quoted), room);
    }
    make_file("script", cut, strlen(cut));
    (void)output_of("gnuplot -d script 2>&1");
    ck_assert(access("ran", F_OK));
}
END_TEST

START_TEST(shells_do_not_interpret_untrusted_texts) {
    ck_assert_int_eq(chdir(scratch()), 0);
    char quoted[256], command[300];
    snprintf(command, sizeof command, "printf %%s %s", rm_shell_quote(hostile[_i], quoted, sizeof quoted));
    ck_assert_str_eq(output_of(command), hostile[_i]);
    ck_assert(access("ran", F_OK));
    for (size_t room = 8; room < 24; room++) ck_assert_uint_lt(strlen(rm_shell_quote(hostile[_i], quoted, room)), room);
}
END_TEST

/* In flags, the file's name and the temporary directory's name: nothing runs, and the plot is complete. */
START_TEST(plots_do_not_run_untrusted_texts) {
    if (!have_gnuplot()) return;
    ck_assert_int_eq(chdir(scratch()), 0);
    ck_assert_int_eq(mkdir(hostile[_i], 0700), 0); /* a relative path that starts with the text */
    setenv("TMPDIR", hostile[_i], 1);
    remat_live_point point[] = {{0, 0, {10, 0, 0, 5}, 0, {0}}, {1, 10, {10, 1000, 0, 70}, 0, {0}}};
    remat_plan_summary plan = {
        .strategy = "none", .planned_peak_bytes = 4080, .activations_peak_bytes = 1080, .step_ns = 30};
    remat_pareto_point pareto[] = {{"none", 1, 2000, 5000, 0, 30, 1, true, {0}}};
    rm_timeline timeline = {.planned = point, .n = 2};
    static const char *const endings[] = {".svg", ".html", ".png"};
    char data[300], *line[] = {data};
    snprintf(data, sizeof data, "--data=%s", hostile[_i]);
    for (int chart = 0; chart < 2; chart++) {
        rm_options o;
        int format = (_i + chart) % 3;
        char path[300];
        ck_ok(rm_options_parse(&o, RM_TRAIN, 1, line));
        snprintf(path, sizeof path, "%s/%s%s", hostile[_i], hostile[_i], endings[format]);
        o.plot = path;
        ck_ok(chart ? rm_plot_pareto(&o, &plan, pareto, 1) : rm_plot_timeline(&o, &plan, &timeline));
        const char *text = contents(path);
        if (format == 2)
            ck_assert(!memcmp(text, "\x89PNG", 4));
        else
            ck_assert(strstr(text, "</svg>") && strstr(text, "--data=") && !strstr(text, "<script"));
        for (const char *c = text; format < 2 && *c; c++) ck_assert((unsigned char)*c >= ' ' || strchr("\n\t", *c));
        o.plot = NULL;
        rm_options_free(&o);
    }
    ck_assert(access("ran", F_OK));
}
END_TEST

/* If gnuplot prints nothing, its exit status is reported. */
START_TEST(failing_gnuplot_is_reported) {
    make_file("gnuplot", "#!/bin/sh\necho no fonts today >&2\nexit 3\n", 41);
    chmod(in_scratch("gnuplot"), 0755);
    char path[4096];
    snprintf(path, sizeof path, "%s:%s", scratch(), getenv("PATH"));
    setenv("PATH", path, 1);
    setenv("TMPDIR", scratch(), 1);
    rm_options o;
    remat_live_point point[] = {{0, 0, {10, 0, 0, 5}, 0, {0}}};
    remat_plan_summary plan = {
        .strategy = "none", .planned_peak_bytes = 100, .activations_peak_bytes = 15, .step_ns = 3};
    rm_timeline timeline = {.planned = point, .n = 1};
    ck_ok(rm_options_defaults(&o));
    o.plot = in_scratch("a.svg");
    ck_fails(rm_plot_timeline(&o, &plan, &timeline), REMAT_INTERNAL, "no fonts today");
    make_file("gnuplot", "#!/bin/sh\nexit 4\n", 17);
    ck_fails(rm_plot_timeline(&o, &plan, &timeline), REMAT_INTERNAL, "status 4");
    make_file("gnuplot", "#!/bin/sh\nkill -9 $$\n", 21);
    ck_fails(rm_plot_timeline(&o, &plan, &timeline), REMAT_INTERNAL, "signal 9");
    make_file("gnuplot", "#!/bin/sh\nexit 0\n", 17);
    ck_fails(rm_plot_timeline(&o, &plan, &timeline), REMAT_INTERNAL, "status 0");
    ck_assert(access(in_scratch("a.svg"), F_OK));
    unlink(in_scratch("gnuplot"));
    ck_assert_msg(rmdir(scratch()) == 0, "files are left"); /* the directory must be empty */
    mkdir(scratch(), 0700);
    o.plot = NULL;
    rm_options_free(&o);
}
END_TEST

/* Flags are shown as they would be typed. */
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
    char *odd[] = {"--data=it's $HOME\n.txt"};
    rm_options_free(&o);
    ck_ok(rm_options_parse(&o, RM_PLAN, 1, odd));
    rm_plot_flags(&o, text, sizeof text);
    ck_assert_str_eq(text, "'--data=it'\\''s $HOME?.txt'");
    rm_options_free(&o);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("plot");
    tcase_add_test(tests, impossible_plots_are_refused_first);
    tcase_add_loop_test(tests, thinning_keeps_peaks, 0, 12);
    tcase_add_test(tests, labels_do_not_overlap);
    tcase_add_loop_test(tests, plots_are_complete, 0, (int)(sizeof names / sizeof names[0]));
    tcase_add_loop_test(tests, gnuplot_does_not_interpret_untrusted_texts, 0, HOSTILE);
    tcase_add_loop_test(tests, shells_do_not_interpret_untrusted_texts, 0, HOSTILE);
    tcase_add_loop_test(tests, plots_do_not_run_untrusted_texts, 0, HOSTILE);
    tcase_add_test(tests, failing_gnuplot_is_reported);
    tcase_add_test(tests, flags_are_readable);
    return run_suite("train/plot", tests);
}
