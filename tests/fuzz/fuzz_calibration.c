/* fuzz_calibration.c: any bytes as a file of measured times. Accepted entries are within their limits and read back
 * unchanged from their own text. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/times/calibration_cache.h"

static const char good[] = "remat calibration 1\n"
                           "7c0c5ff6dd7e8a01 183250 forward drop, tau 128, batch 4: lstm\n"
                           "00000000000000ff 1 \n"
                           "ffffffffffffffff 99999999999999 a\n"
                           "1 2\n"
                           "7c0c5ff6dd7e8a01 4 the same key again\n"
                           "0 5 no key\nzz 5 no number\n3 18446744073709551616 too large\n4 0 no time\n"
                           "5 100000000000001 too long\n6 7 cut o";

const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    static const fuzz_seed seeds[] = {{good, sizeof good - 1}};
    *count = 1;
    return seeds;
}

static void require(bool fact) {
    if (!fact) abort();
}

static void is_within_limits(const rm_times *times) {
    require(times->count <= RM_TIMES_MOST && times->count <= times->capacity);
    for (int64_t i = 0; i < times->count; i++) {
        const rm_time_entry *entry = &times->item[i];
        require(entry->key && entry->time_ns && entry->time_ns <= RM_TIME_MOST_NS);
        require(memchr(entry->note, 0, sizeof entry->note) != NULL);
        for (const char *c = entry->note; *c; c++) require(*c >= ' ' && *c <= '~');
        require(rm_times_find(times, entry->key) == entry);
    }
}

static void reads_back(const rm_times *times) {
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    rm_times_print(times, file);
    fclose(file);
    rm_times again = {0};
    require(rm_times_parse(&again, text, length) == REMAT_OK && again.count == times->count);
    for (int64_t i = 0; i < again.count; i++)
        require(again.item[i].key == times->item[i].key && again.item[i].time_ns == times->item[i].time_ns &&
                !strcmp(again.item[i].note, times->item[i].note));
    rm_times_free(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_times times = {0};
    require(rm_times_parse(&times, (const char *)data, size) == REMAT_OK);
    is_within_limits(&times);
    reads_back(&times);
    rm_times_free(&times);
    return 0;
}
