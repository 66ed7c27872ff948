/* test_timeline.c: the file of --timeline, as a trace viewer reads it: whole JSON at any time, a lane for each thread in
 * which spans nest, every rank, every step that is to be written and all of its stages. */
#define _GNU_SOURCE
#include "tests/train/train_test.h"

#include <jansson.h>
#include <time.h>

#include "memory/clock.h"

#define FLAGS                                                                                                          \
    "--hidden=12 --layers=2 --seq-len=48 --tile=8 --batch=2 --threads=1 --bucket-cap-mb=0.001 --checkpoint=sqrt "
enum { MOST = 20000, STAGES = 6 };

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

typedef struct {
    int rank;
    long long lane, number;
    double begin, end; /* microseconds */
    const char *name, *id, *about;
    char phase;
} span;

static span spans[MOST];
static int n_spans;

static const char *text_of(const json_t *event, const char *key) {
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

static void take(const json_t *event) {
    const json_t *more = json_object_get(event, "args");
    const char *number = json_object_get(more, "stage") ? "stage" : "step";
    ck_assert_int_lt(n_spans, MOST);
    span *s = &spans[n_spans++];
    *s = (span){.rank = (int)json_integer_value(json_object_get(event, "pid")),
                .lane = json_integer_value(json_object_get(event, "tid")),
                .begin = json_number_value(json_object_get(event, "ts")),
                .number = json_integer_value(json_object_get(more, number)),
                .name = text_of(event, "name"),
                .id = text_of(event, "id"),
                .about = text_of(more, "for"),
                .phase = *text_of(event, "ph")};
    s->end = s->begin + json_number_value(json_object_get(event, "dur"));
}

static json_t *read_timeline(const char *path) {
    json_error_t error;
    json_t *all = json_load_file(path, 0, &error), *event;
    size_t i;
    ck_assert_msg(all != NULL, "%s: %s in line %d", path, error.text, error.line);
    n_spans = 0;
    json_array_foreach(json_object_get(all, "traceEvents"), i, event) take(event);
    return all;
}

static int count(int rank, const char *name) {
    int n = 0;
    for (int i = 0; i < n_spans; i++)
        n += spans[i].phase == 'X' && spans[i].rank == rank && !strncmp(spans[i].name, name, strlen(name));
    return n;
}

static int by_time(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->rank != y->rank) return x->rank - y->rank;
    if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end < y->end) - (x->end > y->end);
}

/* Of the spans of a lane, two follow each other or one contains the other. Times are rounded to a nanosecond. */
static void check_nesting(void) {
    const span *open[64];
    int depth = 0;
    const double least = 0.002;
    qsort(spans, (size_t)n_spans, sizeof *spans, by_time);
    for (int i = 0; i < n_spans; i++) {
        const span *s = &spans[i];
        if (s->phase != 'X') continue;
        while (depth && (open[depth - 1]->lane != s->lane || open[depth - 1]->rank != s->rank ||
                         open[depth - 1]->end <= s->begin + least))
            depth--;
        ck_assert_msg(!depth || s->end <= open[depth - 1]->end + least, "rank %d: %s [%f, %f] begins in %s, ends at %f",
                      s->rank, s->name, s->begin, s->end, open[depth - 1]->name, open[depth - 1]->end);
        ck_assert_int_lt(depth, 64);
        open[depth++] = s;
    }
}

/* Every bucket that becomes ready arrives, later, once. */
static void check_pairs(void) {
    int n = 0;
    for (int i = 0; i < n_spans; i++) {
        if (spans[i].phase != 'b') continue;
        int ends = 0;
        for (int k = 0; k < n_spans; k++)
            if (spans[k].phase == 'e' && !strcmp(spans[k].id, spans[i].id))
                ends += spans[k].begin >= spans[i].begin && spans[k].rank == spans[i].rank;
        ck_assert_int_eq(ends, 1);
        n++;
    }
    ck_assert_int_gt(n, 0);
}

/* Steps 0 to 15, every second one to 31, every fourth one from 32 on; and the last two. */
static bool is_written(int step, int steps) {
    return step < 16 || (step < 32 && step % 2 == 0) || step % 4 == 0 || step == steps - 1;
}

/* Each of `times` kinds of passes ran every stage. */
static void check_stages(int rank, const char *name, int passes) {
    int seen[STAGES] = {0};
    for (int i = 0; i < n_spans; i++)
        if (spans[i].phase == 'X' && spans[i].rank == rank && !strcmp(spans[i].name, name)) seen[spans[i].number]++;
    for (int k = 0; k < STAGES; k++)
        ck_assert_msg(seen[k] == passes, "rank %d ran %s of stage %d %d times, not %d", rank, name, k, seen[k], passes);
}

/* Stages run within the pass that is named, and take time. */
static void check_passes(int rank, const char *stage, const char *pass) {
    for (int i = 0; i < n_spans; i++) {
        const span *s = &spans[i];
        bool within = s->phase != 'X' || s->rank != rank || strncmp(s->name, stage, strlen(stage)) != 0;
        ck_assert(within || s->end > s->begin);
        for (int k = 0; k < n_spans && !within; k++)
            within = spans[k].rank == rank && spans[k].lane == s->lane && !strcmp(spans[k].name, pass) &&
                     spans[k].begin <= s->begin + 0.002 && s->end <= spans[k].end + 0.002;
        ck_assert_msg(within, "rank %d ran %s of stage %lld outside of %s", rank, s->name, (long long)s->number, pass);
    }
}

static void check_steps(int rank, int steps) {
    int passes = 0;
    for (int step = 0; step < steps; step++) {
        int seen = 0;
        for (int i = 0; i < n_spans; i++)
            seen += spans[i].rank == rank && spans[i].number == step && !strcmp(spans[i].name, "update");
        ck_assert_msg(seen == is_written(step, steps), "rank %d has %d updates of step %d", rank, seen, step);
        passes += seen;
    }
    ck_assert_int_eq(count(rank, "gradients"), passes);
    ck_assert_int_eq(count(rank, "load batch"), passes);
    check_stages(rank, "forward", passes);
    check_stages(rank, "backward", passes);
    check_passes(rank, "forward", "gradients");
    check_passes(rank, "backward", "gradients");
    ck_assert_int_gt(count(rank, "recompute"), 0);
}

/* ---- Running ---------------------------------------------------------------------------------------------------- */

START_TEST(ranks_write_one_file_that_nests) {
    const char *text = make_text("text", 20000), *path = in_scratch("ranks.json");
    for (int again = 0; again < 2; again++) { /* a second run replaces the first one's events */
        ck_runs("launch --nproc-per-node=2 remat train --data=%s --steps=36 " FLAGS "--timeline=%s", text, path);
        json_t *all = read_timeline(path);
        check_nesting();
        check_pairs();
        for (int rank = 0; rank < 2; rank++) {
            check_steps(rank, 36);
            ck_assert_int_gt(count(rank, "bucket 2"), 0);
            ck_assert_int_gt(count(rank, "wait"), 0);
        }
        json_decref(all);
    }
}
END_TEST

/* Opens the file as a restarted job does, which restores a missing end. */
static void restore(const char *path) {
    remat_timeline_config config = {.struct_bytes = sizeof config, .append = true, .path = path};
    remat_timeline *timeline;
    ck_assert_msg(!remat_timeline_open(&config, &timeline), "%s", remat_last_error());
    ck_assert_msg(!remat_timeline_close(timeline), "%s", remat_last_error());
}

/* As if the process had been killed when all but the last `missing` bytes were written. */
static void tear(const char *path) {
    static char text[1 << 20];
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    ck_assert_uint_lt(length, sizeof text);
    for (size_t missing = 1; missing < 400; missing += 3) {
        file = fopen(path, "wb");
        ck_assert_ptr_nonnull(file);
        ck_assert_uint_eq(fwrite(text, 1, length - missing, file), length - missing);
        fclose(file);
        restore(path);
        json_decref(read_timeline(path));
    }
}

START_TEST(timeline_is_whole_after_a_kill) {
    const char *text = make_text("text", 20000), *path = in_scratch("killed.json");
    char line[1024];
    snprintf(line, sizeof line, "train --data=%s --steps=1000000 " FLAGS "--timeline=%s", text, path);
    for (int i = 0; i < 6; i++) {
        int out = temporary(), err = temporary(), status, found = 0;
        unlink(path); /* what is counted below is this run's, not the last one's */
        pid_t process = start_program(line, out, err);
        for (int wait = 0; wait < 3000 && found < 5 + i; wait++) {
            nanosleep(&(struct timespec){.tv_nsec = 10000000 + i * 1700000}, NULL);
            if (access(path, R_OK)) continue;
            json_t *all = json_load_file(path, 0, NULL); /* NULL in the moment of a write */
            found = all ? (int)json_array_size(json_object_get(all, "traceEvents")) / 100 : 0;
            json_decref(all);
        }
        kill(process, SIGKILL);
        ck_assert_int_eq(waitpid(process, &status, 0), process);
        close(out), close(err);
        restore(path);
        json_t *all = read_timeline(path);
        ck_assert_int_gt(count(0, "gradients"), 0);
        check_nesting();
        json_decref(all);
    }
    tear(path);
}
END_TEST

/* A rank that opens the file last begins it anew, when another rank may already be joining. */
START_TEST(event_begins_before_the_file) {
    const char *path = in_scratch("early.json");
    remat_timeline_config config = {.struct_bytes = sizeof config, .path = path};
    remat_timeline *timeline;
    uint64_t early_ns = rm_now_ns();
    ck_assert_int_eq(remat_timeline_open(&config, &timeline), REMAT_OK);
    uint64_t end_ns = rm_now_ns();
    const remat_observer *observer = remat_timeline_observer(timeline);
    const remat_event events[] = {{.kind = REMAT_EVENT_JOIN, .begin_ns = early_ns - 5000000000, .end_ns = end_ns},
                                  {.kind = REMAT_EVENT_WAIT, .begin_ns = end_ns + 1000, .end_ns = end_ns + 9000000000}};
    for (int i = 0; i < 2; i++) observer->event(observer->context, &events[i]);
    ck_assert_msg(!remat_timeline_close(timeline), "%s", remat_last_error());
    json_t *all = read_timeline(path);
    check_nesting();
    ck_assert_int_eq(count(0, "join"), 1);
    json_decref(all);
}
END_TEST

START_TEST(timeline_replaces_no_other_file) {
    const char *text = make_text("text", 20000), *other = make_file("other", "a poem\n", 7);
    ck_refuses(2, "other|timeline|another", "train --data=%s --steps=1 " FLAGS "--timeline=%s", text, other);
    ck_refuses(2, "text|overwrite", "train --data=%s --steps=1 " FLAGS "--timeline=%s", text, text);
    ck_refuses(1, "no/such.json|No such file", "train --data=%s --steps=1 " FLAGS "--timeline=%s/no/such.json", text,
               scratch());
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("timeline");
    tcase_add_test(tests, ranks_write_one_file_that_nests);
    tcase_add_test(tests, timeline_is_whole_after_a_kill);
    tcase_add_test(tests, event_begins_before_the_file);
    tcase_add_test(tests, timeline_replaces_no_other_file);
    return run_suite("train/timeline", tests);
}
