/* test_store_file.c: the store in a file: its size, what readers see, and files that belong to others. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "tests/dist/stores.h"

/* A file left behind by a killed job is reused; one in use is not. */
START_TEST(leftover_files_are_distinguished_from_used_ones) {
    const char *path = meeting_place();
    rm_kv *store, *second;
    rm_kv_config config = {.path = path, .size = 1};
    pid_t pid = fork();
    if (pid == 0) {
        need_ok(rm_kv_open(&config, &store));
        need_ok(rm_kv_set(store, "old", "", 0));
        raise(SIGKILL);
    }
    ck_assert_int_eq(end_of(pid), 128 + SIGKILL);
    ck_ok(rm_kv_open(&config, &store));
    uint32_t bytes;
    ck_fails(rm_kv_get(store, "old", NULL, 0, &bytes, -1), MISSING, "no 'old'");
    ck_fails(rm_kv_open(&config, &second), IO, "in use");
    rm_kv_close(store);
}
END_TEST

static int64_t size_of(const char *path) {
    struct stat info;
    ck_assert_msg(!stat(path, &info), "%s is not there", path);
    return info.st_size;
}

/* Ranks that send heartbeats for days. */
START_TEST(repeated_values_do_not_grow_the_file) {
    const char *path = meeting_place();
    rm_kv *store, *other;
    char text[4000], back[4000];
    uint32_t bytes = 0;
    int64_t sum;
    ck_ok(rm_kv_open(&(rm_kv_config){.path = path, .rank = 0, .size = 2}, &store));
    ck_ok(rm_kv_open(&(rm_kv_config){.path = path, .rank = 1, .size = 2}, &other));
    for (int i = 0; i < 20000; i++) {
        snprintf(text, sizeof text, "%d rank 0 on node7 (process 4711)", i);
        ck_ok(rm_kv_set(store, "alive/0", text, (uint32_t)strlen(text)));
        ck_ok(rm_kv_add(i % 2 ? store : other, "count", 1, &sum));
        if (i % 100) continue;
        ck_ok(rm_kv_get(other, "alive/0", back, sizeof back, &bytes, -1));
        ck_assert(bytes == strlen(text) && !memcmp(back, text, bytes));
    }
    ck_assert_int_eq(sum, 20000);
    ck_assert_int_lt(size_of(path), 2000);
    for (uint32_t n = 1; n <= sizeof text; n++) { /* a value that grows */
        memset(text, (int)n, n);
        ck_ok(rm_kv_set(other, "grows", text, n));
    }
    ck_ok(rm_kv_get(store, "grows", back, sizeof back, &bytes, -1));
    ck_assert(bytes == sizeof text && !memcmp(back, text, bytes));
    ck_assert_int_lt(size_of(path), 2000 + 5 * (int64_t)sizeof text);
    rm_kv_close(other);
    rm_kv_close(store);
}
END_TEST

START_TEST(reading_writes_nothing) {
    const char *path = meeting_place();
    struct stat before, after;
    rm_kv *store;
    int64_t sum;
    uint32_t bytes;
    ck_ok(rm_kv_open(&(rm_kv_config){.path = path, .size = 1}, &store));
    ck_ok(rm_kv_add(store, "count", 3, &sum));
    ck_assert(!stat(path, &before));
    nap_ms(20);
    ck_ok(rm_kv_add(store, "count", 0, &sum));
    ck_assert_int_eq(sum, 3);
    ck_ok(rm_kv_add(store, "never", 0, &sum));
    ck_assert_int_eq(sum, 0);
    ck_fails(rm_kv_get(store, "never", NULL, 0, &bytes, -1), MISSING, "never");
    ck_ok(rm_kv_wait(store, "count", -1));
    ck_assert(!stat(path, &after));
    ck_assert(before.st_size == after.st_size && !memcmp(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim));
    rm_kv_close(store);
}
END_TEST

/* A value that is read is one that was written, even while it is overwritten. */
START_TEST(values_are_read_whole) {
    const char *path = meeting_place();
    static char text[30000], back[30000];
    rm_kv *store;
    pid_t pid = fork();
    if (!pid) {
        need_ok(rm_kv_open(&(rm_kv_config){.path = path, .rank = 1, .size = 2}, &store));
        for (int i = 0; rm_kv_wait(store, "enough", -1); i++) {
            uint32_t n = (uint32_t)sizeof text - (uint32_t)(i % 7 * 1000);
            memset(text, 'a' + i % 7, n);
            need_ok(rm_kv_set(store, "text", text, n));
        }
        rm_kv_close(store);
        _exit(0);
    }
    ck_ok(rm_kv_open(&(rm_kv_config){.path = path, .rank = 0, .size = 2}, &store));
    ck_ok(rm_kv_wait(store, "text", 20000));
    for (int i = 0; i < 5000; i++) {
        uint32_t bytes;
        ck_ok(rm_kv_get(store, "text", back, sizeof back, &bytes, -1));
        ck_assert_uint_eq(bytes, sizeof back - (uint32_t)(back[0] - 'a') * 1000);
        ck_assert(!memcmp(back, back + 1, bytes - 1)); /* all letters are equal */
    }
    ck_ok(rm_kv_set(store, "enough", "", 0));
    ck_assert_int_eq(end_of(pid), 0);
    rm_kv_close(store);
}
END_TEST

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    ck_assert(file && fputs(text, file) >= 0 && !fclose(file));
}
static void need_text(const char *path, const char *text) {
    char back[100] = "";
    FILE *file = fopen(path, "r");
    ck_assert_msg(file, "%s is gone", path);
    ck_assert(fread(back, 1, sizeof back - 1, file) == strlen(text) && !strcmp(back, text));
    fclose(file);
}

/* A file of another program at that path is not touched: before, during and after. */
START_TEST(other_programs_files_are_not_touched) {
    static const char thesis[] = "Chapter 1. It was a dark and stormy night, and the loss did not go down.\n";
    const char *path = meeting_place();
    rm_kv *store;
    rm_kv_config config = {.path = path, .size = 2, .timeout_ms = 2000};
    write_text(path, thesis);
    for (config.rank = 0; config.rank < 2; config.rank++) {
        ck_fails(rm_kv_open(&config, &store), INVALID, "is not a store of Remat");
        need_text(path, thesis);
    }
    config.rank = 0;
    ck_assert(!unlink(path) && !mkdir(path, 0700));
    ck_fails(rm_kv_open(&config, &store), INVALID, "is not a store");
    ck_assert(!rmdir(path) && !symlink("/nowhere/at/all", path));
    ck_fails(rm_kv_open(&config, &store), INVALID, "is not a store");
    ck_assert(!unlink(path));
    write_text(path, ""); /* as mktemp creates them */
    ck_ok(rm_kv_open(&config, &store));
    ck_assert(!unlink(path));
    write_text(path, thesis);
    rm_kv_close(store);
    need_text(path, thesis);
}
END_TEST

/* Jobs that start at the same time at one path, where an earlier job left its file: one gets it. */
START_TEST(one_of_many_jobs_gets_the_file) {
    enum { JOBS = 6 };
    for (int round = 0; round < 15; round++) {
        const char *path = meeting_place();
        int winners = 0, gate[2], done[2];
        pid_t pid[JOBS], left = fork();
        rm_kv *store;
        char byte;
        if (!left) {
            need_ok(rm_kv_open(&(rm_kv_config){.path = path, .size = 1, .secret = "old"}, &store));
            raise(SIGKILL);
        }
        ck_assert_int_eq(end_of(left), 128 + SIGKILL);
        ck_assert(!pipe(gate) && !pipe(done));
        for (int j = 0; j < JOBS; j++) {
            if ((pid[j] = fork())) continue;
            close(gate[1]);
            if (read(gate[0], &byte, 1) != 0) _exit(9);
            remat_status status = rm_kv_open(&(rm_kv_config){.path = path, .size = 1}, &store);
            need(!status || (status == REMAT_IO && strstr(remat_last_error(), "in use")), "%s", remat_last_error());
            if (write(done[1], status ? "-" : "+", 1) != 1) _exit(9);
            if (status) _exit(1);
            close(done[1]);
            pause(); /* until all have tried */
        }
        close(gate[0]);
        close(gate[1]);
        for (int j = 0; j < JOBS; j++) {
            ck_assert(read(done[0], &byte, 1) == 1);
            winners += byte == '+';
        }
        for (int j = 0; j < JOBS; j++) {
            kill(pid[j], SIGKILL); /* a job that got nothing may be leaving just now */
            end_of(pid[j]);
        }
        close(done[0]);
        close(done[1]);
        ck_assert_int_eq(winners, 1);
    }
}
END_TEST

static rm_kv *ends_first; /* rank 0's, if another rank is about to look whether it is there */

/* Also for the library. */
int fcntl(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (command == F_OFD_GETLK && ends_first) {
        rm_kv *store = ends_first;
        ends_first = NULL;
        ck_ok(rm_kv_set(store, "last", "words", 5));
        rm_kv_close(store);
    }
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

/* Rank 0 sets a key and ends while rank 1 waits for the key: whenever rank 1 looks, it is not told that rank 0 is gone. */
START_TEST(last_words_of_rank_0_are_heard) {
    const char *path = meeting_place();
    rm_kv *first, *store;
    char words[8];
    uint32_t bytes;
    ck_ok(rm_kv_open(&(rm_kv_config){.path = path, .rank = 0, .size = 2}, &first));
    ck_ok(rm_kv_open(&(rm_kv_config){.path = path, .rank = 1, .size = 2}, &store));
    ends_first = first;
    ck_ok(rm_kv_get(store, "last", words, sizeof words, &bytes, 20000));
    ck_assert(!ends_first && bytes == 5);
    ck_fails(rm_kv_get(store, "never", words, sizeof words, &bytes, 20000), PEER, "rank 0 is gone");
    rm_kv_close(store);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("files");
    tcase_add_test(cases, leftover_files_are_distinguished_from_used_ones);
    tcase_add_test(cases, repeated_values_do_not_grow_the_file);
    tcase_add_test(cases, reading_writes_nothing);
    tcase_add_test(cases, values_are_read_whole);
    tcase_add_test(cases, other_programs_files_are_not_touched);
    tcase_add_test(cases, one_of_many_jobs_gets_the_file);
    tcase_add_test(cases, last_words_of_rank_0_are_heard);
    tcase_set_timeout(cases, 300);
    return run_cases("dist/store_file", cases);
}
