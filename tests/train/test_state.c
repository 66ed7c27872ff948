/* test_state.c: a training state is restored bit for bit; a failed save does no harm; unsuitable states are refused.
 * test_resume.c kills runs at any moment. */
#include "train/state/state.h"
#include "train/run/setup.h"
#include "train/data/loader.h"
#include "train/state/state_directory.h"
#include "train/state/weights.h"

#include "memory/host.h"
#include "tests/train/train_test.h"

#include <math.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define FLAGS "--task=copy --seq-len=21 --batch=2 --hidden=5 --layers=2 --samples=9 --threads=1 "

typedef struct {
    rm_options options;
    rm_dataset *dataset;
    rm_loader loader;
    rm_model model;
    remat_session *session;
} bench;

static void parse(rm_options *o, const char *line) {
    static char copy[512], *argv[20];
    int argc = 0;
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    ck_ok(rm_options_parse(o, RM_TRAIN, argc, argv));
}

static void open_bench(bench *b, const char *flags) {
    rm_model_spec spec;
    parse(&b->options, flags);
    remat_config config = rm_setup_training_config(&b->options);
    ck_ok(rm_setup_dataset(&b->options, false, &b->dataset));
    ck_ok(rm_setup_spec(&b->options, b->dataset, &spec));
    rm_loader_config order = {.batch = b->options.order.batch, .seed = b->options.data.seed, .shuffle = true};
    ck_ok(rm_loader_create(b->dataset, &order, &b->loader));
    ck_ok(rm_model_build(&spec, b->options.order.batch, true, &b->model));
    ck_ok(remat_session_create(b->model.graph, b->model.loss, &config, &b->session));
}

static void close_bench(bench *b) {
    remat_session_free(b->session);
    rm_model_free(&b->model);
    rm_loader_free(&b->loader);
    rm_dataset_close(b->dataset);
    rm_options_free(&b->options);
}

static double step(bench *b) {
    remat_step_result result;
    ck_ok(rm_loader_next(&b->loader));
    ck_ok(rm_batch_write(&b->loader.batch, rm_batch_whole(&b->loader.batch), b->session));
    ck_ok(remat_step(b->session, 0.01, &result));
    return result.loss;
}

static rm_state_point point_of(const bench *b) {
    return (rm_state_point){.step = remat_step_count(b->session),
                            .epoch = b->loader.epoch,
                            .consumed = b->loader.consumed,
                            .samples = b->dataset->count};
}

static void save_ok(rm_state_store *store, bench *b) {
    ck_ok(rm_state_save(store, b->session, &b->options, point_of(b)));
}

/* The number of names in a directory that start with `prefix`. */
static int count_entries(const char *directory, const char *prefix) {
    char command[400];
    snprintf(command, sizeof command, "ls -A %s | grep -c '^%s'", directory, prefix);
    FILE *pipe = popen(command, "r");
    int count = -1;
    ck_assert(pipe && fscanf(pipe, "%d", &count) == 1);
    pclose(pipe);
    return count;
}

/* ---- Dying: these replace the C library's functions, and end the process at the n-th call. A file that is being
 * synced then loses its second half, as in a power cut. ---- */

static int die_at;                   /* 0: never */
static int rename_error, sync_error; /* 0: none; sync_error: for directories */
static ino_t unsynced[8];            /* files written to since their last fsync */
static void note_sync(int fd, bool synced) {
    struct stat about;
    int at = 0;
    if (die_at == 0 || fstat(fd, &about) || !S_ISREG(about.st_mode)) return;
    while (at < 7 && unsynced[at] != about.st_ino && (synced || unsynced[at])) at++;
    unsynced[at] = synced ? 0 : about.st_ino;
}
static void count_call(int fd) {
    if (die_at == 0 || --die_at > 0) return;
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    if (size > 0 && ftruncate(fd, size / 2)) size = 0; /* a directory: no content to lose */
    _exit(42);
}
ssize_t write(int fd, const void *data, size_t bytes) {
    count_call(-1);
    note_sync(fd, false);
    return syscall(SYS_write, fd, data, bytes);
}
int fsync(int fd) {
    count_call(fd);
    note_sync(fd, true);
    struct stat about;
    errno = sync_error;
    if (sync_error && !fstat(fd, &about) && S_ISDIR(about.st_mode)) return -1;
    return (int)syscall(SYS_fsync, fd);
}
int rename(const char *from, const char *to) {
    count_call(-1);
    errno = rename_error;
    if (rename_error) return -1;
    for (int i = 0; i < 7; i++)
        if (die_at && unsynced[i]) _exit(2); /* a power cut would leave empty files */
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
static int link_error; /* as on a file system without links */
int symlink(const char *to, const char *path) {
    errno = link_error;
    return link_error ? -1 : (int)syscall(SYS_symlinkat, to, AT_FDCWD, path);
}
int unlink(const char *path) {
    count_call(-1);
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
int unlinkat(int fd, const char *path, int flags) {
    count_call(-1);
    return (int)syscall(SYS_unlinkat, fd, path, flags);
}
int rmdir(const char *path) {
    count_call(-1);
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}
int mkdir(const char *path, mode_t mode) {
    count_call(-1);
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

/* Saves in a child process. Returns whether it died before the end. */
static bool save_and_die(const char *directory, bench *b, rm_state_point point, int n) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        rm_state_store store;
        die_at = n;
        remat_status failed = rm_state_store_open(directory, 1, 1, NULL, &store);
        if (!failed) failed = rm_state_save(&store, b->session, &b->options, point);
        _exit(failed ? 1 : 0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) != 2, "renamed before it was synced");
    ck_assert_msg(WEXITSTATUS(status) != 1, "saving failed without dying");
    return WEXITSTATUS(status) == 42;
}

/* ---- Saving and resuming ---- */

START_TEST(resumed_training_is_bit_identical) {
    static const char *const flags[] = {FLAGS, FLAGS "--optimizer=sgd --momentum=0.9 --dropout=0.3",
                                        FLAGS "--optimizer=sgd",
                                        FLAGS "--optimizer=adamw --model=gru --clip-grad-norm=0.1"};
    bench a, b;
    rm_state_store store;
    rm_state_point point;
    char state[RM_PATH_BYTES];
    bool found;
    double expected[6];
    open_bench(&a, flags[_i]);
    ck_ok(rm_state_store_open(in_scratch("deep/st"), 2, 0, NULL, &store));
    for (int i = 0; i < 5; i++) step(&a);
    save_ok(&store, &a);
    for (int i = 0; i < 6; i++) expected[i] = step(&a);
    open_bench(&b, flags[_i]);
    ck_ok(rm_state_find(in_scratch("deep/st"), state, &found));
    ck_assert(found);
    ck_ok(rm_state_read(state, RM_TRAIN, &b.options, &point));
    ck_assert(point.step == 5 && point.samples == 9);
    ck_ok(rm_state_restore(state, &point, true, b.session));
    ck_ok(rm_loader_seek(&b.loader, point.epoch, point.consumed));
    for (int i = 0; i < 6; i++) {
        double loss = step(&b);
        ck_assert_msg(!memcmp(&loss, &expected[i], sizeof loss), "step %d: %.9g, not %.9g", i, loss, expected[i]);
    }
    rm_state_store_close(&store);
    close_bench(&a);
    close_bench(&b);
}
END_TEST

START_TEST(newest_states_are_kept) {
    bench b;
    rm_state_store store;
    char state[RM_PATH_BYTES];
    bool found;
    const char *directory = in_scratch("st");
    open_bench(&b, FLAGS);
    ck_ok(rm_state_find(directory, state, &found));
    ck_assert(!found);
    ck_ok(rm_state_store_open(directory, 2, 0, NULL, &store));
    for (int i = 0; i < 4; i++) {
        step(&b);
        save_ok(&store, &b);
    }
    ck_assert_int_eq(count_entries(directory, "step-"), 2);
    ck_ok(rm_state_find(directory, state, &found));
    ck_assert(found && strstr(state, "step-00000004"));
    ck_ok(rm_state_find(in_scratch("st/step-00000003"), state, &found)); /* a single state by its name */
    ck_assert(found && strstr(state, "step-00000003"));
    unlink(in_scratch("st/step-00000004/optimizer.safetensors")); /* incomplete: an older state is not used silently */
    ck_ok(rm_state_find(directory, state, &found));
    ck_assert(found && strstr(state, "step-00000004"));
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

START_TEST(save_directories_are_locked) {
    bench b;
    rm_state_store store, other;
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    ck_fails(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &other), REMAT_IO, "another run");
    rm_state_store_close(&other);
    step(&b);
    save_ok(&store, &b);
    save_ok(&store, &b); /* the second save has nothing to do */
    rm_state_store_close(&store);
    ck_fails(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &other), REMAT_INVALID, "training state");
    rm_state_store_close(&other);
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 1, NULL, &other));
    rm_state_store_close(&other);
    make_file("plain", "x", 1);
    ck_fails(rm_state_store_open(in_scratch("plain/st"), 0, 0, NULL, &other), REMAT_IO, "--save");
    rm_state_store_close(&other);
    ck_fails(rm_state_store_open("/proc/st", 0, 0, NULL, &other), REMAT_IO, "--save");
    close_bench(&b);
}
END_TEST

/* Links planted at the place of a state: nothing is written, read as a state or removed through them. */
START_TEST(planted_links_are_not_followed) {
    bench b;
    rm_state_store store;
    rm_file_writer writer;
    open_bench(&b, FLAGS);
    step(&b);
    ck_ok(rm_state_store_open(in_scratch("victim"), 0, 0, NULL, &store));
    save_ok(&store, &b);
    rm_state_store_close(&store);
    ck_ok(rm_state_store_open(in_scratch("st"), 1, 0, NULL, &store));
    ck_assert_int_eq(symlink("../victim/step-00000001", in_scratch("st/step-00000001")), 0);
    ck_assert_int_eq(symlink("../victim/step-00000001", in_scratch("st/.tmp-step-00000001")), 0);
    save_ok(&store, &b);
    struct stat made;
    ck_assert(lstat(in_scratch("st/step-00000001"), &made) == 0 && S_ISDIR(made.st_mode));
    ck_assert_int_eq(symlink("../victim/step-00000001", in_scratch("st/step-00000000")), 0);
    step(&b);
    save_ok(&store, &b); /* older states are removed */
    ck_ok(rm_state_check(in_scratch("victim/step-00000001")));
    rm_state_store_close(&store);
    ck_assert_int_eq(symlink("victim/step-00000001/model.safetensors", in_scratch("link")), 0);
    ck_fails(rm_file_create(in_scratch("link"), &writer), REMAT_IO, "symbolic link");
    ck_ok(rm_state_check(in_scratch("victim/step-00000001")));
    close_bench(&b);
}
END_TEST

/* A path given by the user may be a device or a pipe, also through a link. If it has become something else meanwhile,
 * it is left unchanged. */
START_TEST(only_streams_are_written_in_place) {
    rm_file_writer writer;
    struct stat about;
    char read_back[4] = "";
    make_file("plain", "mine", 4);
    const char *pipe = in_scratch("pipe"), *link = in_scratch("link");
    ck_assert(!mkfifo(pipe, 0600) && !symlink("pipe", link));
    ck_fails(rm_file_create(pipe, &writer), REMAT_IO, "file");
    ck_fails(rm_file_create(link, &writer), REMAT_IO, "symbolic link");
    ck_fails(rm_file_open_stream(in_scratch("plain"), &writer), REMAT_IO, "file");
    ck_assert(!stat(in_scratch("plain"), &about) && about.st_size == 4);
    ck_fails(rm_file_open_stream(link, &writer), REMAT_IO, "reads");
    int reader = open(pipe, O_RDONLY | O_NONBLOCK);
    ck_ok(rm_file_open_stream(link, &writer));
    ck_ok(rm_file_write(&writer, "abc", 3));
    ck_ok(rm_file_finish(&writer));
    ck_assert(read(reader, read_back, 4) == 3 && !strcmp(read_back, "abc"));
    close(reader);
}
END_TEST

START_TEST(files_of_a_killed_run_are_removed) {
    rm_state_store store;
    mkdir(in_scratch("st"), 0777);
    mkdir(in_scratch("st/.tmp-step-00000007"), 0777);
    make_file("st/.tmp-step-00000007/model.safetensors", "half", 4);
    make_file("st/notes.txt", "mine", 4);
    ck_ok(rm_state_store_open(in_scratch("st"), 2, 0, NULL, &store));
    ck_assert_int_eq(count_entries(in_scratch("st"), "[.]tmp"), 0);
    ck_assert_int_eq(count_entries(in_scratch("st"), "notes"), 1);
    rm_state_store_close(&store);
}
END_TEST

/* Saving fails at every possible size of the disk; earlier states stay unchanged. */
START_TEST(full_disk_does_no_harm) {
    bench b;
    rm_state_store store;
    rm_state_point point;
    char state[RM_PATH_BYTES];
    bool found;
    signal(SIGXFSZ, SIG_IGN);
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 1, 0, NULL, &store));
    step(&b);
    save_ok(&store, &b);
    step(&b);
    struct stat largest;
    ck_assert_int_eq(stat(in_scratch("st/step-00000001/optimizer.safetensors"), &largest), 0);
    for (rlim_t limit = 0; limit < (rlim_t)largest.st_size; limit += 317) {
        struct rlimit old, small;
        getrlimit(RLIMIT_FSIZE, &old);
        small = (struct rlimit){limit, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
        remat_status status = rm_state_save(&store, b.session, &b.options, point_of(&b));
        setrlimit(RLIMIT_FSIZE, &old);
        ck_assert_int_eq(status, REMAT_INVALID);
        ck_says_all(remat_last_error(), "step 2|not saved");
        ck_assert_int_eq(count_entries(in_scratch("st"), "[.]tmp"), 0);
    }
    ck_ok(rm_state_find(in_scratch("st"), state, &found));
    ck_assert(found && strstr(state, "step-00000001"));
    ck_ok(rm_state_read(state, RM_TRAIN, &b.options, &point));
    ck_ok(rm_state_restore(state, &point, true, b.session));
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

static remat_status alone(void *context, remat_status status, double *values, int64_t count) {
    (void)context, (void)values, (void)count;
    return status;
}

/* Names need disk space, too. A full disk does not restart a job, but another error does, even after a full disk. */
START_TEST(full_directory_counts_as_full_disk) {
    static const struct {
        int *error, number;
        remat_status status;
    } cases[] = {
        {&rename_error, ENOSPC, REMAT_INVALID}, {&sync_error, EDQUOT, REMAT_INVALID}, {&rename_error, EIO, REMAT_IO}};
    bench b;
    rm_state_store store;
    rm_file_writer full;
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 1, 0, NULL, &store));
    step(&b);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        *cases[i].error = cases[i].number;
        remat_status status = rm_state_save(&store, b.session, &b.options, point_of(&b));
        *cases[i].error = 0;
        ck_assert_msg(status == cases[i].status, "%zu: %d: %s", i, status, remat_last_error());
        ck_assert(!strstr(remat_last_error(), "make room") == (status == REMAT_IO));
    }
    ck_ok(rm_file_open_stream("/dev/full", &full));
    ck_fails(rm_file_write(&full, "x", 1), REMAT_IO, "make room");
    rm_file_abandon(&full);
    store.ranks = (rm_state_ranks){
        .rank = 1, .size = 2, .replica = 1, .replicas = 2, .parts = 1, .shard_optimizer = true, .agree = alone};
    ck_fails(rm_state_save(&store, b.session, &b.options, point_of(&b)), REMAT_IO, "--save|hosts");
    store.ranks.size = 1;
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

/* The best state is kept. A link to it, if the file system has links, replaces an earlier one. */
START_TEST(best_state_is_kept_without_links) {
    static const int errors[] = {0, EPERM, EOPNOTSUPP, ENOSYS};
    bench b;
    rm_state_store store;
    struct stat about;
    open_bench(&b, FLAGS);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "st%d", i);
        const char *directory = in_scratch(name);
        ck_ok(rm_state_store_open(directory, 1, 0, NULL, &store));
        link_error = errors[i];
        step(&b);
        store.best = remat_step_count(b.session);
        save_ok(&store, &b);
        if (i == 1) link_error = 0; /* as if copied to another file system */
        for (int k = 0; k < 2; k++) step(&b), save_ok(&store, &b);
        ck_assert_int_eq(count_entries(directory, "step-"), 2);
        ck_assert_int_eq(count_entries(directory, "best$"), link_error == 0);
        rm_state_store_close(&store);
        link_error = 0;
    }
    ck_assert(!lstat(in_scratch("st1/best"), &about) && S_ISLNK(about.st_mode));
    close_bench(&b);
}
END_TEST

/* The next run that saves there leaves only complete states. */
static void check_all_whole(const char *directory, int n) {
    rm_state_store store;
    int64_t *steps, count;
    ck_ok(rm_state_store_open(directory, 1, 2, NULL, &store));
    rm_state_store_close(&store);
    ck_ok(rm_state_list(directory, &steps, &count));
    rm_free(steps);
    ck_assert_msg(count_entries(directory, "") == count, "something stays when it dies at call %d", n);
}

/* The program dies at the n-th call that changes the disk, for every n: there is always a complete state, old or
 * new. */
START_TEST(a_complete_state_survives_death_at_any_call) {
    bench b;
    rm_state_store store;
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("old"), 1, 0, NULL, &store));
    step(&b);
    save_ok(&store, &b);
    rm_state_store_close(&store);
    step(&b);
    rm_state_point second = point_of(&b);
    const char *directory = in_scratch("st");
    char command[512];
    snprintf(command, sizeof command, "rm -rf %1$s/st && cp -r %1$s/old %1$s/st", scratch());
    bool died = true, old_seen = false, new_seen = false;
    for (int n = 1; died; n++) {
        char state[RM_PATH_BYTES];
        rm_state_point point;
        bool found;
        ck_assert_int_eq(system(command), 0);
        died = save_and_die(directory, &b, second, n);
        ck_ok(rm_state_find(directory, state, &found));
        ck_assert_msg(found, "nothing is left when it dies at call %d", n);
        ck_ok(rm_state_read(state, RM_TRAIN, &b.options, &point));
        ck_ok(rm_state_restore(state, &point, true, b.session));
        ck_assert(point.step == 1 || point.step == 2);
        old_seen = old_seen || point.step == 1;
        new_seen = new_seen || (point.step == 2 && died);
        check_all_whole(directory, n);
        ck_assert_msg(n < 1000 && (died || point.step == 2), "it ends, with the new state");
    }
    ck_assert(old_seen && new_seen);
    close_bench(&b);
}
END_TEST

START_TEST(changed_bits_are_detected) {
    bench b;
    rm_state_store store;
    rm_state_point point = {0};
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 1, 0, NULL, &store));
    step(&b);
    save_ok(&store, &b);
    FILE *file = fopen(in_scratch("st/step-00000001/model.safetensors"), "r+b");
    fseek(file, -3, SEEK_END);
    fputc(0x55, file);
    fclose(file);
    ck_fails(rm_state_restore(in_scratch("st/step-00000001"), &point, true, b.session), REMAT_IO, "saved");
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

START_TEST(other_flags_are_refused) {
    bench b;
    rm_options other;
    rm_state_store store;
    rm_state_point point;
    open_bench(&b, FLAGS "--lr=0.5");
    ck_ok(rm_state_store_open(in_scratch("st"), 1, 0, NULL, &store));
    step(&b);
    save_ok(&store, &b);
    const char *state = in_scratch("st/step-00000001");
    parse(&other, "--hidden=6");
    ck_fails(rm_state_read(state, RM_TRAIN, &other, &point), REMAT_INVALID, "--hidden=6");
    rm_options_free(&other);
    parse(&other, "--seed=6");
    ck_fails(rm_state_read(state, RM_TRAIN, &other, &point), REMAT_INVALID, "--seed=6");
    rm_options_free(&other);
    parse(&other, "--batch=2 --steps=7");
    ck_ok(rm_state_read(state, RM_TRAIN, &other, &point));
    ck_assert(other.model.hidden == 5 && other.steps == 7 && other.rate.lr == 0.5 && !strcmp(other.task, "copy"));
    rm_options_free(&other);
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

START_TEST(damaged_json_is_refused) {
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "7",
        "{}",
        "{\"format\":1}",
        "{\"format\":3,\"step\":1,\"epoch\":0,\"position\":0,\"samples\":1,\"flags\":{}}",
        "{\"format\":1,\"step\":-1,\"epoch\":0,\"position\":0,\"samples\":1,\"flags\":{}}",
        "{\"format\":1,\"step\":1,\"epoch\":0,\"position\":0,\"samples\":1}",
        "{\"format\":1,\"step\":1,\"epoch\":0,\"position\":0,\"samples\":1,\"flags\":{\"hidden\":3}}",
        "{\"format\":1,\"step\":1,\"epoch\":0,\"position\":0,\"samples\":1,\"flags\":{\"nothing\":\"3\"}}",
        "{\"format\":1,\"step\":1,\"epoch\":0,\"position\":0,\"samples\":1,\"flags\":{\"batch\":\"2000000\"}}",
        "{\"format\":1,\"step\":1,\"epoch\":0,\"position\":0,\"samples\":1,\"flags\":{\"batch\":\"2\",\"data\":{"
        "\"hex\":\"7\"}}}",
        "{\"format\":1,\"step\":1,\"epoch\":0,\"position\":0,\"samples\":1,\"flags\":{\"batch\":\"2\",\"data\":{"
        "\"hex\":\"7400\"}}}",
        "{\"format\":1,\"step\":1,\"epoch\":0,\"position\":0,\"samples\":1,\"flags\":{\"batch\":\"2\",\"data\":{"
        "\"hex\":\"zz\"}}}",
        "{\"format\":1,\"step\":1.5,\"epoch\":0,\"position\":0,\"samples\":1,\"flags\":{}}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rm_options options;
        rm_state_point point;
        ck_ok(rm_options_defaults(&options));
        ck_assert_int_eq(rm_state_parse(bad[i], strlen(bad[i]), "x", RM_TRAIN, &options, &point), REMAT_IO);
        rm_options_free(&options);
    }
}
END_TEST

/* A run may be resumed in another precision, and the state remembers the old one. */
START_TEST(precision_is_remembered_and_may_change) {
    static const char *const flags[] = {"", ",\"precision\":\"tf32\"", ",\"precision\":\"tf32\""};
    static const char *const saved[] = {"fp32", "tf32", "tf32"}, *const now[] = {"fp32", "tf32", "bf16"};
    for (int i = 0; i < 3; i++) {
        char text[256];
        rm_options options;
        rm_state_point point;
        snprintf(text, sizeof text,
                 "{\"format\":1,\"step\":7,\"epoch\":2,\"position\":3,\"samples\":44,\"flags\":{\"batch\":\"5\"%s}}",
                 flags[i]);
        char *argv[] = {"--precision=bf16"};
        ck_ok(rm_options_parse(&options, RM_TRAIN, i == 2, argv));
        ck_ok(rm_state_parse(text, strlen(text), "x", RM_TRAIN, &options, &point));
        ck_assert_str_eq(point.precision, saved[i]);
        ck_assert_str_eq(options.session.precision, now[i]);
        rm_options_free(&options);
    }
}
END_TEST

/* Format 1 counted batches. */
START_TEST(states_of_the_first_format_are_read) {
    static const char text[] =
        "{\"format\":1,\"step\":7,\"epoch\":2,\"position\":3,\"samples\":44,\"flags\":{\"batch\":\"5\"}}";
    static const char *const bad[] = {
        "{\"format\":1,\"step\":7,\"epoch\":2,\"position\":3,\"samples\":44,\"flags\":{}}",
        "{\"format\":1,\"step\":7,\"epoch\":2,\"position\":3,\"samples\":44,\"flags\":{\"batch\":\"0\"}}",
        "{\"format\":1,\"step\":7,\"epoch\":2,\"position\":4611686018427387904,\"samples\":44,\"flags\":{\"batch\":"
        "\"5\"}}",
        "{\"format\":2,\"step\":7,\"epoch\":2,\"position\":3,\"samples\":44,\"flags\":{\"batch\":\"5\"}}",
        "{\"format\":2,\"step\":7,\"epoch\":2,\"consumed\":3,\"samples\":44,\"last_lr\":0.1,\"world_size\":0,\"zero\":"
        "0,"
        "\"shards\":0,\"flags\":{}}",
        "{\"format\":2,\"step\":7,\"epoch\":2,\"consumed\":-3,\"samples\":44,\"last_lr\":0.1,\"world_size\":1,\"zero\":"
        "0,"
        "\"shards\":0,\"flags\":{}}"};
    rm_options options;
    rm_state_point point;
    ck_ok(rm_options_defaults(&options));
    ck_ok(rm_state_parse(text, sizeof text - 1, "x", RM_TRAIN, &options, &point));
    ck_assert(point.step == 7 && point.epoch == 2 && point.consumed == 15 && point.samples == 44);
    ck_assert(point.world_size == 1 && point.zero == 0 && point.last_lr < 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_int_eq(rm_state_parse(bad[i], strlen(bad[i]), "x", RM_TRAIN, &options, &point), REMAT_IO);
    rm_options_free(&options);
}
END_TEST

/* ---- Restarted jobs ---- */

/* Sets the variables of a launcher, or none: "NAME=value NAME=value". */
static void launched(const char *line) {
    static const char *const names[] = {
        "REMAT_JOB_ID",        "TORCHELASTIC_RUN_ID",          "SLURM_JOB_ID",      "TORCHELASTIC_RESTART_COUNT",
        "SLURM_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "SLURM_CLUSTER_NAME"};
    char copy[512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        *strchr(word, '=') = 0;
        setenv(word, word + strlen(word) + 1, 1);
    }
}

static char note[RM_STATE_NOTE];

/* The state from which a job with these variables continues; "" for none. */
static const char *goes_on_from(const char *variables) {
    static char state[RM_PATH_BYTES];
    launched(variables);
    ck_ok(rm_state_after_restart(in_scratch("st"), state, note));
    return *state ? strrchr(state, '/') + 1 : "";
}

static void save_as(rm_state_store *store, bench *b, const char *variables) {
    launched(variables);
    step(b);
    save_ok(store, b);
}

/* A restart of a job is told apart from another job with the same name. */
START_TEST(jobs_continue_from_their_own_states) {
    bench b;
    rm_state_store store;
    open_bench(&b, FLAGS);
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT=1"), ""); /* no state was saved yet */
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    save_as(&store, &b, "REMAT_JOB_ID=a TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0"), "");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=1"),
                     "step-00000001");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT=12"), "step-00000001");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=b TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from("TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT=-1"), "");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT="), "");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a"), "");
    save_as(&store, &b, ""); /* newer, but of a run that is never restarted */
    ck_assert_str_eq(goes_on_from("TORCHELASTIC_RESTART_COUNT=1 SLURM_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from("TORCHELASTIC_RESTART_COUNT=1 SLURM_JOB_ID=78 SLURM_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT=1"), "");
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

/* Runs in a child process, which therefore has another agent than this process. */
static bool another_agent_goes_on(const char *variables) {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(*goes_on_from(variables) != 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define TORCHRUN "TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True "

START_TEST(torchrun_jobs_without_a_name_are_told_apart) {
    bench b;
    rm_state_store store;
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    save_as(&store, &b, TORCHRUN "TORCHELASTIC_RESTART_COUNT=0");
    ck_assert_str_eq(goes_on_from(TORCHRUN "TORCHELASTIC_RESTART_COUNT=2"), "step-00000001");
    ck_assert(!another_agent_goes_on(TORCHRUN "TORCHELASTIC_RESTART_COUNT=2"));
    ck_assert_str_eq(goes_on_from("TORCHELASTIC_RUN_ID=night TORCHELASTIC_RESTART_COUNT=2"), "");
    ck_assert_str_eq(goes_on_from(TORCHRUN "REMAT_JOB_ID=outer TORCHELASTIC_RESTART_COUNT=2"), "step-00000001");
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

#define SLURM "SLURM_CLUSTER_NAME=c SLURM_JOB_ID=77 "

/* Only states saved before Slurm requeued the job belong to it: another step of the same job may save there, too. */
START_TEST(requeued_slurm_jobs_continue) {
    bench b;
    rm_state_store store;
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    save_as(&store, &b, SLURM);
    ck_assert_str_eq(goes_on_from(SLURM), "");
    ck_assert_str_eq(goes_on_from(SLURM "SLURM_RESTART_COUNT=1"), "step-00000001");
    ck_assert_str_eq(goes_on_from(SLURM "SLURM_RESTART_COUNT=1 REMAT_JOB_ID=new TORCHELASTIC_RESTART_COUNT=0"),
                     "step-00000001");
    ck_assert_str_eq(goes_on_from("SLURM_CLUSTER_NAME=c SLURM_JOB_ID=78 SLURM_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from("SLURM_CLUSTER_NAME=d SLURM_JOB_ID=77 SLURM_RESTART_COUNT=1"), "");
    save_as(&store, &b, SLURM "SLURM_RESTART_COUNT=1");
    ck_assert_str_eq(goes_on_from(SLURM "SLURM_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from(SLURM "SLURM_RESTART_COUNT=2"), "step-00000002");
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

#define JOB "REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT=1"

static void spoil(const char *name, long at) {
    FILE *file = fopen(in_scratch(name), "r+b");
    ck_assert_ptr_nonnull(file);
    fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
    int byte = fgetc(file);
    fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
    fputc(byte ^ 1, file);
    ck_assert_int_eq(fclose(file), 0);
}

/* Newest first: a damaged header, a damaged state.json, a missing and a truncated file. Each state is skipped and
 * renamed. */
START_TEST(damaged_states_are_skipped) {
    bench b;
    rm_state_store store;
    rm_state_point point = {0};
    char state[RM_PATH_BYTES];
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    for (int i = 0; i < 5; i++) save_as(&store, &b, JOB);
    spoil("st/step-00000005/model.safetensors", 12);
    spoil("st/step-00000004/state.json", 4);
    unlink(in_scratch("st/step-00000003/optimizer.safetensors"));
    ck_assert_int_eq(truncate(in_scratch("st/step-00000002/optimizer.safetensors"), 100), 0);
    ck_fails(rm_state_after_restart(in_scratch("st"), state, note), REMAT_IO, "another run");
    ck_assert_int_eq(count_entries(in_scratch("st"), "step-"), 5);
    rm_state_store_close(&store);
    ck_assert_str_eq(goes_on_from(JOB), "step-00000001");
    ck_says_all(note, "step-00000005/model.safetensors|damaged-step-00000005|older");
    ck_assert_msg(!strchr(note, '\n'), "%s", note);
    ck_assert_int_eq(count_entries(in_scratch("st"), "step-"), 1);
    ck_assert_int_eq(count_entries(in_scratch("st"), "damaged-step-"), 4);
    ck_ok(rm_state_restore(in_scratch("st/step-00000001"), &point, true, b.session));
    ck_fails(rm_state_restore(in_scratch("st/damaged-step-00000005"), &point, true, b.session), REMAT_IO, "saved");
    ck_assert_str_eq(goes_on_from(JOB), "step-00000001");
    ck_assert_str_eq(note, "");
    spoil("st/step-00000001/model.safetensors", -1);
    ck_fails(rm_state_after_restart(in_scratch("st"), state, note), REMAT_IO, "training state");
    ck_assert_int_eq(count_entries(in_scratch("st"), "step-"), 1); /* no state to continue from: nothing changes */
    close_bench(&b);
}
END_TEST

/* Damaged states of another or an unknown run are not skipped, and stay in place. */
START_TEST(damaged_states_of_other_runs_are_not_skipped) {
    bench b;
    rm_state_store store;
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    save_as(&store, &b, JOB);
    save_as(&store, &b, "REMAT_JOB_ID=b");
    rm_state_store_close(&store);
    spoil("st/step-00000002/model.safetensors", -1);
    ck_assert_str_eq(goes_on_from(JOB), "");
    ck_assert_int_eq(count_entries(in_scratch("st"), "step-"), 2);
    ck_assert_str_eq(note, "");
    close_bench(&b);
}
END_TEST

/* ---- Weights of other programs ---- */

START_TEST(weights_with_other_names_are_read) {
    static const char *const names[][2] = {{"rnn.weight_hh_l0", "rnn.weight_hh_l0"},
                                           {"module.lstm.weight_ih_l1", "rnn.weight_ih_l1"},
                                           {"_orig_mod.module.model.gru.bias_hh_l0", "rnn.bias_hh_l0"},
                                           {"embed.weight", "embedding.weight"},
                                           {"encoder.weight", "embedding.weight"},
                                           {"fc.bias", "head.bias"},
                                           {"decoder.weight", "head.weight"},
                                           {"linear1.weight", "linear1.weight"},
                                           {"model", "model"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char ours[64];
        rm_weights_our_name(names[i][0], ours, sizeof ours);
        ck_assert_str_eq(ours, names[i][1]);
    }
}
END_TEST

/* A file with one array of halves, and its values. */
START_TEST(halves_are_read) {
    static const struct {
        const char *dtype;
        uint16_t half;
        float value;
    } cases[] = {{"F16", 0xc100, -2.5f}, {"BF16", 0xc020, -2.5f}, {"F16", 0x0001, 0x1p-24f}};
    rm_safetensors file;
    rm_file_writer writer;
    bench b;
    open_bench(&b, FLAGS);
    ck_ok(rm_weights_save(b.session, REMAT_PARAM, in_scratch("w.safetensors"), &writer));
    ck_ok(rm_safetensors_open(in_scratch("w.safetensors"), &file));
    for (size_t c = 0; c < 3; c++) {
        char header[4096] = "{";
        uint16_t data[4000];
        size_t n = 0;
        for (int64_t j = 0; j < file.count; j++) {
            const rm_st_array *a = &file.array[j];
            size_t count = (a->end - a->begin) / 4, at = strlen(header);
            at += (size_t)snprintf(header + at, sizeof header - at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld",
                                   j ? "," : "", a->name, cases[c].dtype, (long long)a->dim[0]);
            if (a->rank == 2) at += (size_t)snprintf(header + at, sizeof header - at, ",%lld", (long long)a->dim[1]);
            snprintf(header + at, sizeof header - at, "],\"data_offsets\":[%zu,%zu]}", 2 * n, 2 * (n + count));
            n += count;
        }
        strcat(header, "}");
        ck_assert_uint_lt(n, 4000);
        for (size_t i = 0; i < n; i++) data[i] = cases[c].half;
        uint64_t length = strlen(header);
        FILE *out = fopen(in_scratch("h.safetensors"), "w");
        ck_assert(out && fwrite(&length, 8, 1, out) == 1 && fputs(header, out) >= 0);
        ck_assert_uint_eq(fwrite(data, 2, n, out), n);
        fclose(out);
        float read[10 * 5];
        ck_ok(rm_weights_import(b.session, in_scratch("h.safetensors"), NULL));
        ck_ok(remat_read(b.session, REMAT_PARAM, 0, read, sizeof read));
        for (size_t i = 0; i < 50; i++) ck_assert(read[i] == cases[c].value);
        ck_fails(rm_weights_load(b.session, REMAT_PARAM, in_scratch("h.safetensors")), REMAT_INVALID, "F32");
    }
    rm_safetensors_free(&file);
    close_bench(&b);
}
END_TEST

static remat_session *with_running_statistics(void) {
    remat_graph *g;
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    const int64_t dim[] = {4, 3};
    ck_ok(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, dim);
    remat_value mean = remat_buffer(g, "norm.running_mean", 1, dim + 1, remat_init_zero());
    remat_value var = remat_buffer(g, "norm.running_var", 1, dim + 1, remat_init_constant(1));
    remat_value gain = remat_param(g, "norm.weight", 1, dim + 1, remat_init_uniform(1));
    remat_value y = remat_batch_norm(g, x, gain, REMAT_NONE, mean, var, 0.1, 1e-5, false);
    ck_ok(remat_session_create(g, remat_mse(g, y, x), &config, &s));
    remat_graph_free(g);
    return s;
}

/* Buffers are saved with the parameters, as in PyTorch's state_dict. */
START_TEST(buffers_are_saved_with_parameters) {
    const char *path = in_scratch("buffers.safetensors");
    remat_session *s = with_running_statistics(), *loaded = with_running_statistics(),
                  *copied = with_running_statistics();
    const float x[12] = {1, 2, 3, -4, 5, 6, 7, -8, 9, 1, 0, 2};
    float running[3], other[3];
    rm_file_writer writer;
    ck_ok(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    ck_ok(remat_gradients(s, NULL));
    ck_ok(rm_weights_save(s, REMAT_PARAM, path, &writer));
    ck_ok(rm_weights_load(loaded, REMAT_PARAM, path));
    ck_ok(rm_weights_copy(s, copied));
    for (int k = 0; k < 2; k++) {
        ck_ok(remat_read(s, REMAT_BUFFER, k, running, sizeof running));
        ck_assert(running[0] != k);
        ck_ok(remat_read(loaded, REMAT_BUFFER, k, other, sizeof other));
        ck_assert(!memcmp(running, other, sizeof running));
        ck_ok(remat_read(copied, REMAT_BUFFER, k, other, sizeof other));
        ck_assert(!memcmp(running, other, sizeof running));
    }
    remat_session_free(s), remat_session_free(loaded), remat_session_free(copied);
}
END_TEST

START_TEST(unsuitable_weights_change_nothing) {
    bench a, b;
    rm_file_writer writer;
    float before[10 * 5], after[10 * 5];
    open_bench(&a, FLAGS);
    const char *other[][2] = {{FLAGS "--model=gru", "'rnn."},
                              {FLAGS "--embed=7", "(10,5)"},
                              {FLAGS "--layers=3", "'rnn."},
                              {FLAGS "--layers=1", "'rnn."}};
    ck_ok(rm_weights_save(a.session, REMAT_PARAM, in_scratch("w.safetensors"), &writer));
    for (size_t i = 0; i < 4; i++) {
        open_bench(&b, other[i][0]);
        uint64_t bytes = i == 1 ? sizeof before / 5 * 7 : sizeof before;
        if (i != 1) ck_ok(remat_read(b.session, REMAT_PARAM, 0, before, bytes));
        ck_fails(rm_weights_import(b.session, in_scratch("w.safetensors"), NULL), REMAT_INVALID, other[i][1]);
        if (i != 1) ck_ok(remat_read(b.session, REMAT_PARAM, 0, after, bytes));
        if (i != 1) ck_assert(!memcmp(before, after, sizeof before));
        close_bench(&b);
    }
    ck_fails(rm_weights_import(a.session, "/nowhere.safetensors", NULL), REMAT_IO, "/nowhere.safetensors");
    ck_ok(rm_file_open_stream("/dev/full", &writer));
    ck_fails(rm_weights_write(a.session, REMAT_PARAM, &writer), REMAT_IO, "make room");
    close_bench(&a);
}
END_TEST

/* The last element of the last array of each kind is not finite: the earlier state stays, also with --keep=1. */
START_TEST(non_finite_values_are_not_saved) {
    static const struct {
        remat_kind kind;
        float value;
        const char *sentence;
    } spoilt[] = {{REMAT_PARAM, INFINITY, "step 2|not saved|head.bias|inf|element 8"},
                  {REMAT_OPTIMIZER, NAN, "not saved|head.bias.exp_avg_sq|nan|element 8"}};
    bench b = {0};
    rm_state_store store;
    char *dir = in_scratch("st");
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(dir, 1, 0, NULL, &store));
    step(&b);
    save_ok(&store, &b);
    step(&b);
    remat_array array;
    int64_t last = remat_count(b.session, spoilt[_i].kind) - 1;
    ck_ok(remat_array_info(b.session, spoilt[_i].kind, last, &array));
    ck_ok(remat_write_part(b.session, spoilt[_i].kind, last, array.bytes - sizeof(float), &spoilt[_i].value,
                           sizeof(float)));
    ck_fails(rm_state_save(&store, b.session, &b.options, point_of(&b)), REMAT_INTERNAL, spoilt[_i].sentence);
    ck_assert_int_eq(count_entries(dir, "step-"), 1);
    ck_assert_int_eq(count_entries(dir, "step-00000001"), 1);
    ck_assert_int_eq(count_entries(dir, ".tmp-"), 0);
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("state");
    tcase_add_loop_test(tests, resumed_training_is_bit_identical, 0, 4);
    tcase_add_test(tests, newest_states_are_kept);
    tcase_add_test(tests, save_directories_are_locked);
    tcase_add_test(tests, planted_links_are_not_followed);
    tcase_add_test(tests, only_streams_are_written_in_place);
    tcase_add_test(tests, best_state_is_kept_without_links);
    tcase_add_test(tests, files_of_a_killed_run_are_removed);
    tcase_add_test(tests, full_disk_does_no_harm);
    tcase_add_test(tests, full_directory_counts_as_full_disk);
    tcase_add_test(tests, a_complete_state_survives_death_at_any_call);
    tcase_add_test(tests, changed_bits_are_detected);
    tcase_add_test(tests, other_flags_are_refused);
    tcase_add_test(tests, damaged_json_is_refused);
    tcase_add_test(tests, precision_is_remembered_and_may_change);
    tcase_add_test(tests, states_of_the_first_format_are_read);
    tcase_add_test(tests, jobs_continue_from_their_own_states);
    tcase_add_test(tests, torchrun_jobs_without_a_name_are_told_apart);
    tcase_add_test(tests, requeued_slurm_jobs_continue);
    tcase_add_test(tests, damaged_states_are_skipped);
    tcase_add_test(tests, damaged_states_of_other_runs_are_not_skipped);
    tcase_add_test(tests, weights_with_other_names_are_read);
    tcase_add_test(tests, halves_are_read);
    tcase_add_test(tests, buffers_are_saved_with_parameters);
    tcase_add_test(tests, unsuitable_weights_change_nothing);
    tcase_add_loop_test(tests, non_finite_values_are_not_saved, 0, 2);
    return run_suite("train/state", tests);
}
