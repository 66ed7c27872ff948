/* test_shard_files.c: the files of a sharded training state: damaged, missing and foreign ones are refused. */
#include "train/state/optimizer_shards.h"
#include "train/state/state_directory.h"
#include "train/state/state_json.h"
#include "memory/host.h"
#include "tests/cases.h"
#include "tests/train/shard_jobs.h"

/* ---- Files on the disk ---- */

START_TEST(incomplete_states_are_ignored) {
    job *j = open_job(3, true, FLAGS);
    save_job(j, in_scratch("st"));
    ck_assert(rm_state_is_whole(in_scratch("st/step-00000012")));
    unlink(in_scratch("st/step-00000012/optimizer-1-of-3.safetensors"));
    ck_assert(!rm_state_is_whole(in_scratch("st/step-00000012")));
    make_file("st/step-00000012/optimizer-1-of-4.safetensors", "x", 1);
    ck_assert(!rm_state_is_whole(in_scratch("st/step-00000012")));
    rm_state_remove(in_scratch("st/step-00000012"));
    ck_assert(!rm_path_exists(in_scratch("st/step-00000012")));
    close_job(j);
}
END_TEST

START_TEST(names_of_shard_files_are_parsed) {
    static const char *const bad[] = {
        "optimizer-3-of-3.safetensors",  "optimizer--1-of-3.safetensors", "optimizer-01-of-3.safetensors",
        "optimizer-0-of-3.safetensors~", "optimizer.safetensors",         "optimizer-0-of-3",
        "optimizer-0-of-0.safetensors",  "optimizer- 0-of-3.safetensors", "x/optimizer-0-of-3.safetensors"};
    char name[RM_STATE_SHARD_NAME];
    rm_state_shard_name(6, 7, name);
    ck_assert_str_eq(name, "optimizer-6-of-7.safetensors");
    ck_assert_int_eq(rm_state_ranks_of(name), 7);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert_int_eq(rm_state_ranks_of(bad[i]), 0);
}
END_TEST

/* Only files that are read are checked: a rank of a job of the same size reads only its own shard. */
START_TEST(changed_bits_of_shards_are_detected) {
    job *j = open_job(3, true, FLAGS);
    rm_state_point point = saved_point;
    fill_job(j, 1);
    save_job(j, in_scratch("st"));
    saved_ok(j);
    FILE *file = fopen(in_scratch("st/step-00000012/optimizer-1-of-3.safetensors"), "r+b");
    fseek(file, -3, SEEK_END);
    fputc(0x55, file);
    fclose(file);
    ck_ok(rm_state_restore(in_scratch("st/step-00000012"), &point, true, j->session[0]));
    ck_fails(rm_state_restore(in_scratch("st/step-00000012"), &point, true, j->session[1]), REMAT_IO,
             "not as it was saved");
    ck_ok(rm_state_restore(in_scratch("st/step-00000012"), &point, false, j->session[1])); /* eval, sample */
    close_job(j);
}
END_TEST

START_TEST(another_optimizer_or_model_is_refused) {
    job *a = open_job(2, true, FLAGS), *sgd = open_job(2, true, FLAGS "--optimizer=sgd --momentum=0.9"),
        *wide = open_job(2, true, FLAGS "--hidden=10");
    rm_state_point point = saved_point;
    save_job(a, in_scratch("st"));
    saved_ok(a);
    const char *state = in_scratch("st/step-00000012");
    ck_fails(rm_state_restore(state, &point, true, sgd->session[1]), REMAT_INVALID, "model");
    ck_fails(rm_state_restore(state, &point, true, wide->session[1]), REMAT_INVALID, "flags|model");
    close_job(a);
    close_job(sgd);
    close_job(wide);
}
END_TEST

static void state_json(const char *files) {
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "{\"format\":2,\"step\":12,\"epoch\":3,\"consumed\":31,\"samples\":99,\"last_lr\":0.1,"
                     "\"world_size\":2,\"zero\":1,\"shards\":0,\"flags\":{},\"files\":%s}",
                     files);
    make_file("st/step-00000012/state.json", text, (size_t)n);
}

START_TEST(lists_of_files_are_not_trusted) {
    job *j = open_job(2, true, FLAGS);
    rm_state_point point = saved_point;
    save_job(j, in_scratch("st"));
    saved_ok(j);
    const char *state = in_scratch("st/step-00000012");
#define MODEL "\"model.safetensors\":{\"bytes\":1,\"crc32\":1}"
#define FIRST "\"optimizer-0-of-2.safetensors\":{\"bytes\":1,\"crc32\":1}"
    static const char *const lists[][2] = {
        {"{" MODEL ",\"../../../etc/passwd\":{\"bytes\":1,\"crc32\":1}}", "training state|2 ranks"},
        {"{" MODEL "," FIRST ",\"optimizer-0-of-3.safetensors\":{\"bytes\":1,\"crc32\":1}}", "'optimizer-0-of-3"},
        {"{" MODEL ",\"optimizer.safetensors\":{\"bytes\":1,\"crc32\":1}}", "--zero=1"},
        {"{" MODEL ",\"optimizer-0-of-2.safetensors\":{\"bytes\":1}}", "optimizer-0-of-2"},
        {"{" MODEL ",\"optimizer-0-of-2.safetensors\":{\"bytes\":-1,\"crc32\":1}}", "optimizer-0-of-2"},
        {"{" MODEL ",\"optimizer-0-of-2.safetensors\":{\"bytes\":1,\"crc32\":4294967296}}", "optimizer-0"},
        {"{" MODEL "," FIRST "}", "optimizer-1-of-2.safetensors"},
        {"{" FIRST "}", "model"},
        {"7", "model"},
        {"{" MODEL "," FIRST ",\"optimizer-1-of-2.safetensors\":{\"bytes\":1,\"crc32\":1}}", "model.safetensors|saved"},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        state_json(lists[i][0]);
        ck_fails(rm_state_restore(state, &point, true, j->session[0]), REMAT_IO, lists[i][1]);
    }
    close_job(j);
}
END_TEST

/* state.json with one changed number and a correct checksum. */
START_TEST(inconsistent_counts_are_refused) {
    static const struct {
        const char *name;
        json_int_t value;
        const char *part;
    } cases[] = {{"world_size", 2, "training state|2 ranks"},
                 {"world_size", 4, "training state|4 ranks"},
                 {"world_size", 0, "0 ranks"},
                 {"world_size", 1, "1 rank|zero"},
                 {"world_size", 32768, "32768 ranks"},
                 {"world_size", INT64_MAX, "resume"},
                 {"zero", 0, "training state|3 ranks"},
                 {"zero", 2, "zero 2"},
                 {"zero", 4294967297, "zero 4294967297"},
                 {"shards", -1, "-1 shards"},
                 {"shards", 1 << 20, "1048576 shards"},
                 {"step", 13, "step 13|step-00000012"},
                 {"consumed", 100, "100|samples|99"},
                 {"samples", 1, "31|samples|1"},
                 {"epoch", INT64_MAX, "resume"}};
    job *j = open_job(3, true, FLAGS);
    rm_state_point point = saved_point;
    rm_options options;
    save_job(j, in_scratch("st"));
    saved_ok(j);
    const char *state = in_scratch("st/step-00000012");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[RM_PATH_BYTES];
        json_t *root;
        ck_ok(rm_state_json_read(state, path, &root));
        json_int_t before = json_integer_value(json_object_get(root, cases[i].name));
        json_object_set_new(root, cases[i].name, json_integer(cases[i].value));
        ck_ok(rm_state_json_write(path, root));
        ck_fails(rm_state_restore(state, &point, true, j->session[0]), REMAT_IO, cases[i].part);
        ck_ok(rm_options_defaults(&options));
        ck_fails(rm_state_read(state, RM_TRAIN, &options, &point), REMAT_IO, cases[i].part);
        ck_fails(rm_state_check(state), REMAT_IO, cases[i].part);
        rm_options_free(&options);
        json_object_set_new(root, cases[i].name, json_integer(before));
        ck_ok(rm_state_json_write(path, root));
        json_decref(root);
    }
    point = saved_point;
    ck_ok(rm_state_restore(state, &point, true, j->session[0]));
    close_job(j);
}
END_TEST

/* ---- Damage ---- */

enum { FILES = 5 };

static const char *const names[FILES] = {"state.json", "model.safetensors", "optimizer-0-of-3.safetensors",
                                         "optimizer-1-of-3.safetensors", "optimizer-2-of-3.safetensors"};

typedef struct {
    uint8_t *data;
    size_t size;
} content;

static content contents[FILES], strange[FILES]; /* of this state, and of the state of another step */

static const char *path_of(const char *directory, const char *name) {
    static char path[RM_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s/step-00000012/%s", scratch(), directory, name);
    return path;
}

static content read_content(const char *directory, const char *name) {
    content c;
    ck_ok(rm_file_read(path_of(directory, name), 1 << 24, &c.data, &c.size));
    return c;
}

static void write_content(const char *name, const void *data, size_t size) {
    char relative[128];
    snprintf(relative, sizeof relative, "st/step-00000012/%s", name);
    make_file(relative, data, size);
}

/* A random number below n; the same sequence in every run. */
static uint64_t seed = 20;
static size_t below(size_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(seed >> 33) % n;
}

/* Damages file f, and describes the damage in `text`. */
static void damage(int f, char text[200]) {
    content c = contents[f];
    uint8_t *copy = malloc(c.size + 64);
    size_t at = below(c.size), bits = 1 + below(8);
    memcpy(copy, c.data, c.size);
    switch (below(9)) {
    case 0:
        snprintf(text, 200, "%s cut at %zu", names[f], at);
        c.size = at;
        break;
    case 1:
        snprintf(text, 200, "%s longer", names[f]);
        memset(copy + c.size, 0, 64);
        c.size += 1 + bits;
        break;
    case 2:
        snprintf(text, 200, "%s missing", names[f]);
        unlink(path_of("st", names[f]));
        free(copy);
        return;
    case 3:
        snprintf(text, 200, "%s of another step", names[f]);
        write_content(names[f], strange[f].data, strange[f].size);
        free(copy);
        return;
    case 4:
        snprintf(text, 200, "%s with zeros from %zu", names[f], at);
        memset(copy + at, 0, c.size - at);
        break;
    case 5: /* the file can still be parsed */
        while (copy[at] < '0' || copy[at] > '9') at = (at + 1) % c.size;
        snprintf(text, 200, "%s with another digit at %zu", names[f], at);
        copy[at] = (uint8_t)('0' + (copy[at] - '0' + bits) % 10);
        break;
    default:
        if (below(2)) at = below(c.size < 400 ? c.size : 400); /* headers */
        snprintf(text, 200, "%s with %zu bits changed from %zu", names[f], bits, at);
        for (size_t i = 0; i < bits; i++) copy[at + i < c.size ? at + i : at] ^= (uint8_t)(1u << below(8));
    }
    write_content(names[f], copy, c.size);
    free(copy);
}

/* Everything that state.json says about a run, as text that the caller frees; "" if it is refused. */
static char *flags_of_state(const char *state) {
    rm_options o;
    rm_state_point p;
    char *text, value[RM_PATH_BYTES];
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    ck_ok(rm_options_defaults(&o));
    remat_status status = rm_state_read(state, RM_TRAIN, &o, &p);
    ck_assert_msg(!status || status == REMAT_IO, "status %d: %s", status, remat_last_error());
    for (int i = 0; i < rm_options_count() && !status; i++)
        fprintf(out, "%s %s\n", rm_options_name(i), rm_options_text(&o, i, value, sizeof value));
    if (!status)
        fprintf(out, "%lld %lld %lld %lld %.17g %lld %lld %d\n", (long long)p.step, (long long)p.epoch,
                (long long)p.consumed, (long long)p.samples, p.last_lr, (long long)p.shards, (long long)p.world_size,
                p.zero);
    fclose(out);
    rm_options_free(&o);
    return text;
}

static char *undamaged; /* the text before the damage */

/* Reads the damaged state. Either it is refused, with a message that names the file and a remedy, and the session is
 * unchanged; or the damage has no meaning, and the state is restored completely. */
static void read_damaged(remat_session *session, const char *text, bool may_work) {
    rm_state_point point = saved_point;
    const char *state = in_scratch("st/step-00000012");
    fill_session(session, REMAT_PARAM, 3);
    fill_session(session, REMAT_OPTIMIZER, 3);
    remat_set_step_count(session, 5);
    remat_status status = rm_state_restore(state, &point, true, session);
    ck_assert_msg(status == REMAT_IO || (may_work && !status), "%s: status %d: %s", text, status, remat_last_error());
    const char *sentence = remat_last_error();
    if (status)
        ck_assert_msg(strstr(sentence, state) && says_all(sentence, "resume") && !strchr(sentence, '\n'), "%s: %s",
                      text, sentence);
    check_filled(session, REMAT_PARAM, status ? 3 : 1);
    check_filled(session, REMAT_OPTIMIZER, status ? 3 : 1);
    ck_assert_int_eq(remat_step_count(session), status ? 5 : 12);
    ck_assert_msg(rm_state_check(state) == status, "%s: %s", text, remat_last_error());
    char *what = flags_of_state(state);
    ck_assert_msg(!*what || !strcmp(what, undamaged), "%s: it says\n%s", text, what);
    free(what);
}

START_TEST(any_damage_is_detected) {
    job *j = open_job(3, true, FLAGS), *one = open_job(1, false, FLAGS);
    char text[200];
    int trials = rm_cases(6000, 600);
    fill_job(j, 2);
    save_job(j, in_scratch("other"));
    saved_ok(j);
    fill_job(j, 1);
    save_job(j, in_scratch("st"));
    saved_ok(j);
    for (int f = 0; f < FILES; f++) {
        contents[f] = read_content("st", names[f]);
        strange[f] = read_content("other", names[f]);
    }
    undamaged = flags_of_state(in_scratch("st/step-00000012"));
    ck_assert_str_ne(undamaged, "");
    for (int i = 0; i < trials; i++) {
        int f = below(2) ? 0 : (int)below(FILES);
        damage(f, text);
        read_damaged(one->session[0], text, f == 0);
        write_content(names[f], contents[f].data, contents[f].size);
    }
    rm_state_point point = saved_point;
    ck_ok(rm_state_restore(in_scratch("st/step-00000012"), &point, true, one->session[0]));
    for (int f = 0; f < FILES; f++) {
        rm_free(contents[f].data);
        rm_free(strange[f].data);
    }
    free(undamaged);
    close_job(j);
    close_job(one);
}
END_TEST

/* The message names the shard: a missing one, and one that other ranks have saved. */
START_TEST(shards_of_other_states_are_refused) {
    job *three = open_job(3, true, FLAGS), *two = open_job(2, true, FLAGS);
    rm_state_point point = saved_point;
    char command[1024], state[RM_PATH_BYTES];
    bool found;
    save_job(three, in_scratch("st"));
    save_job(two, in_scratch("two"));
    saved_ok(three);
    saved_ok(two);
    snprintf(
        command, sizeof command,
        "cd %s && cp two/step-00000012/optimizer-0-of-2.safetensors st/step-00000012/optimizer-0-of-3.safetensors &&"
        " cp two/step-00000012/optimizer-*-of-2.safetensors st/step-00000012/",
        scratch());
    ck_assert_int_eq(system(command), 0);
    ck_ok(rm_state_find(in_scratch("st"), state, &found)); /* a state with additional shards is complete */
    ck_assert(found);
    ck_fails(rm_state_restore(state, &point, true, three->session[2]), REMAT_IO, "optimizer-0-of-3.safetensors");
    unlink(path_of("st", "optimizer-0-of-3.safetensors"));
    ck_fails(rm_state_restore(state, &point, true, three->session[2]), REMAT_IO,
             "optimizer-0-of-3.safetensors|missing");
    snprintf(command, sizeof command, "cd %s && cp two/step-00000012/state.json st/step-00000012/", scratch());
    ck_assert_int_eq(system(command), 0);
    ck_ok(rm_state_restore(state, &point, true, two->session[1])); /* all files are those of the other state */
    close_job(three);
    close_job(two);
}
END_TEST

/* ---- Shards ---- */

static const remat_array ours[2] = {{.name = "a", .rank = 2, .dim = {2, 3}}, {.name = "b.c", .rank = 1, .dim = {4}}};

/* One file for each text: "NAME DTYPE DIM [DIM]; ...". Returns the status of matching them. */
static remat_status match(const char *first, const char *second) {
    const char *text[2] = {first, second};
    static rm_safetensors file[2];
    rm_shard *shards = NULL;
    int64_t n_shards;
    remat_status status = REMAT_OK;
    int n = second ? 2 : 1;
    for (int f = 0; f < n && !status; f++) {
        char copy[256], header[1024] = "{", name[64], dtype[8];
        int at = 1, rows, columns, used = 0;
        uint64_t begin = 0;
        strcpy(copy, text[f]);
        for (char *one = strtok(copy, ";"); one; one = strtok(NULL, ";")) {
            used = sscanf(one, "%63s %7s %d %d", name, dtype, &rows, &columns);
            uint64_t bytes = (uint64_t)(dtype[1] == '3' ? 4 : 2) * (uint64_t)rows * (uint64_t)(used > 3 ? columns : 1);
            at +=
                sprintf(header + at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", at > 1 ? "," : "", name, dtype, rows);
            if (used > 3) at += sprintf(header + at, ",%d", columns);
            at += sprintf(header + at, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                          (unsigned long long)(begin + bytes));
            begin += bytes;
        }
        header[at++] = '}';
        uint8_t *all = calloc(1, 8 + (size_t)at + begin);
        all[0] = (uint8_t)at, all[1] = (uint8_t)(at >> 8);
        memcpy(all + 8, header, (size_t)at);
        status = rm_safetensors_parse(all, 8 + (size_t)at + begin, f ? "second" : "first", &file[f]);
        free(all);
    }
    if (!status) status = rm_optimizer_shards_match(ours, 2, file, n, &shards, &n_shards);
    for (int f = 0; f < n; f++) rm_safetensors_free(&file[f]);
    rm_free(shards);
    return status;
}

START_TEST(shards_must_cover_each_element_once) {
    ck_ok(match("a F32 2 3;b.c F32 4", NULL));
    ck_ok(match("a[0:6] F32 6;b.c F32 4", NULL));
    ck_ok(match("b.c[1:4] F32 3;a[3:6] F32 3", "b.c[0:1] F32 1;a[0:1] F32 1;a[1:3] F32 2"));
    ck_fails(match("a F32 2 3", NULL), REMAT_INVALID, "b.c");
    ck_fails(match("a F32 2 3;b.c[0:2] F32 2", NULL), REMAT_IO, "2 to 3|b.c");
    ck_fails(match("a F32 2 3;b.c[2:4] F32 2", NULL), REMAT_IO, "0 to 1|b.c");
    ck_fails(match("a[0:2] F32 2;a[4:6] F32 2;b.c F32 4", NULL), REMAT_IO, "2 to 3|'a'");
    ck_fails(match("a[0:4] F32 4;b.c F32 4", "a[3:6] F32 3"), REMAT_IO, "overlap|a[0:4]");
    ck_fails(match("a F32 2 3;b.c F32 4", "b.c F32 4"), REMAT_IO, "overlap");
    ck_fails(match("a F32 2 3;b.c F32 4", "b.c[3:4] F32 1"), REMAT_IO, "overlap");
}
END_TEST

START_TEST(invalid_shards_are_refused) {
    static const char *const names[] = {"a[]",
                                        "a[0:]",
                                        "a[:6]",
                                        "a[0:6",
                                        "a[0-6]",
                                        "a[6:0]",
                                        "a[0:0]",
                                        "a[-1:5]",
                                        "a[0:6]x",
                                        "a[+0:6]",
                                        "a[0:0x6]",
                                        "a[3:3]",
                                        "a[0:6][",
                                        "a[1e0:7]",
                                        "[",
                                        "a[0:6 ]",
                                        "a[ 0:6]",
                                        "a[0::6]",
                                        "a[0:99999999999999999999]"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        int64_t first, count;
        strcpy(name, names[i]);
        ck_assert_msg(!rm_shard_parse(name, &first, &count), "%s", names[i]);
    }
    ck_fails(match("a[0:x] F32 6;b.c F32 4", NULL), REMAT_IO, "shard");
    ck_fails(match("a[1:7] F32 6;b.c F32 4", NULL), REMAT_INVALID, "a[");
    ck_fails(match("a[9223372036854775800:9223372036854775806] F32 6;b.c F32 4", NULL), REMAT_INVALID, "a[");
    ck_fails(match("a[0:6] F32 5;b.c F32 4", NULL), REMAT_INVALID, "shape|name");
    ck_fails(match("a[0:6] F32 2 3;b.c F32 4", NULL), REMAT_INVALID, "shape|name");
    ck_fails(match("a F32 3 2;b.c F32 4", NULL), REMAT_INVALID, "shape");
    ck_fails(match("a F16 2 3;b.c F32 4", NULL), REMAT_INVALID, "'a'|F16");
    ck_fails(match("d[0:6] F32 6;b.c F32 4", NULL), REMAT_INVALID, "'d");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("shards");
    tcase_add_test(tests, incomplete_states_are_ignored);
    tcase_add_test(tests, names_of_shard_files_are_parsed);
    tcase_add_test(tests, changed_bits_of_shards_are_detected);
    tcase_add_test(tests, another_optimizer_or_model_is_refused);
    tcase_add_test(tests, lists_of_files_are_not_trusted);
    tcase_add_test(tests, inconsistent_counts_are_refused);
    tcase_add_test(tests, any_damage_is_detected);
    tcase_add_test(tests, shards_of_other_states_are_refused);
    tcase_add_test(tests, shards_must_cover_each_element_once);
    tcase_add_test(tests, invalid_shards_are_refused);
    return run_suite("train/shard_files", tests);
}
