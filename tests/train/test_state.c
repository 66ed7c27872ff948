/* test_state.c: a training state is restored bit for bit; a failed save does no harm; unsuitable states are refused.
 * test_resume.c kills runs at any moment. */
#include "train/state/state_directory.h"
#include "memory/host.h"
#include "tests/train/state_runs.h"

#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- Dying: these replace the C library's functions, and end the process at the n-th call. A file that is being
 * synced then loses its second half, as in a power cut. ---- */

static int die_at; /* 0: never */

static int rename_error, sync_error; /* 0: none; sync_error: for directories */

static ino_t unsynced[8]; /* files written to since their last fsync */

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
    tcase_add_loop_test(tests, non_finite_values_are_not_saved, 0, 2);
    return run_suite("train/state", tests);
}
