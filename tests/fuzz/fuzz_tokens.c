/* fuzz_tokens.c: any bytes as a file of tokens (.npy, numbers or text), packed or plain. The first byte of an input
 * selects the vocabulary, the second the length of a sample. Accepted data must be readable to the end, every returned
 * token must be in the vocabulary, and targets must equal the inputs one timestep later. */
#define _GNU_SOURCE
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "train/tasks/task.h"
#include "train/data/dataset.h"

static const int64_t vocabularies[] = {0, 1, 2, 256, 300, 65536, 65537, 100000, 1000000000};
enum { VOCABULARIES = sizeof vocabularies / sizeof vocabularies[0], LONGEST = 16, BUDGET = 1 << 20 };

static const struct {
    uint8_t vocabulary, timesteps; /* as stored in an input: an index, and T - 1 */
    const char *header;            /* of .npy; NULL: none */
    size_t data_bytes;
} files[] = {
    {0, 3, NULL, 40},
    {3, 1, NULL, 20},
    {6, 2, NULL, 36},
    {4, 2, "{'descr': '<u2', 'fortran_order': False, 'shape': (9,), }  \n", 18},
    {8, 0, "{'descr': '>i8', 'fortran_order': False, 'shape': (5,), }  \n", 40},
    {5, 4, "{'descr': '|u1', 'fortran_order': True, 'shape': (21,), }  \n", 21},
};
enum { SEEDS = sizeof files / sizeof files[0] };

/* With tokens 0 and 1, in every byte order. */
const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    static uint8_t bytes[SEEDS][256];
    static fuzz_seed seeds[SEEDS];
    for (int i = 0; i < SEEDS; i++) {
        uint8_t *at = bytes[i];
        *at++ = files[i].vocabulary;
        *at++ = files[i].timesteps;
        size_t length = files[i].header ? strlen(files[i].header) : 0;
        if (length) {
            memcpy(at, "\x93NUMPY\1\0", 8);
            at[8] = (uint8_t)length;
            memcpy(at + 10, files[i].header, length);
            at += 10 + length;
        }
        seeds[i] = (fuzz_seed){bytes[i], (size_t)(at - bytes[i]) + files[i].data_bytes};
    }
    *count = SEEDS;
    return seeds;
}

static void require(bool fact, const char *what) {
    if (fact) return;
    fprintf(stderr, "%s: %s\n", what, remat_last_error());
    abort();
}

/* A file without a name: it has a path in /proc as long as it is open. */
static int make_file(const uint8_t *data, size_t size, char path[64]) {
    int fd = memfd_create("tokens", 0);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size, "a file in memory");
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void check_sample(const rm_dataset *dataset, const int32_t *x, const int32_t *y) {
    int64_t T = dataset->shape.timesteps;
    for (int64_t t = 0; t < T; t++) {
        require(x[t] >= 0 && x[t] < dataset->shape.vocabulary, "an input");
        require(y[t] >= 0 && y[t] < dataset->shape.classes, "a target");
        require(!t || x[t] == y[t - 1], "an input is the target before it");
    }
}

static void read_all(rm_dataset *dataset) {
    int32_t x[LONGEST], y[LONGEST];
    uint32_t crc32;
    require(dataset->count > 0, "samples");
    for (int64_t i = 0; i < dataset->count; i++) {
        remat_status status = rm_dataset_fill(dataset, i, 0, 1, x, y);
        require(!status || status == REMAT_INVALID, "what was accepted is there");
        if (!status) check_sample(dataset, x, y);
    }
    require(!rm_dataset_checksum(dataset, &crc32), "a checksum");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    rm_dataset *dataset;
    if (size < 2) return 0;
    int fd = make_file(data + 2, size - 2, path);
    rm_data_source source = {.data = path,
                             .vocab = vocabularies[data[0] % VOCABULARIES],
                             .timesteps = 1 + data[1] % LONGEST,
                             .budget = BUDGET};
    remat_status status = rm_task_open("lm", &source, &dataset);
    require(!status || *remat_last_error(), "a sentence");
    if (!status) read_all(dataset);
    rm_dataset_close(dataset);
    close(fd);
    return 0;
}
