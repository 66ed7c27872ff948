/* fuzz_optimizer_shards.c: any bytes as one or two files of optimizer shards (the first two bytes give the length of
 * the first). Accepted shards must cover every element of every array exactly once. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "memory/host.h"
#include "train/state/optimizer_shards.h"

enum { A = 6, B = 4 };
static const remat_array arrays[2] = {{.name = "a", .rank = 2, .dim = {2, 3}}, {.name = "b", .rank = 1, .dim = {B}}};

/* ---- Seeds ---- */

static uint8_t bytes[3][512];
static fuzz_seed seeds[3];

static size_t put_file(uint8_t *to, const char *header, size_t data) {
    size_t length = strlen(header);
    memset(to, 0, 8 + length + data);
    to[0] = (uint8_t)length;
    memcpy(to + 8, header, length);
    return 8 + length + data;
}

static void put_seed(int i, const char *first, size_t first_data, const char *second, size_t second_data) {
    size_t size = put_file(bytes[i] + 2, first, first_data);
    bytes[i][0] = (uint8_t)size;
    bytes[i][1] = (uint8_t)(size >> 8);
    if (second) size += put_file(bytes[i] + 2 + size, second, second_data);
    seeds[i] = (fuzz_seed){bytes[i], size + 2};
}

const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    put_seed(0,
             "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
             "\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[24,40]}}",
             40, NULL, 0);
    put_seed(1, "{\"a[0:6]\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}", 24,
             "{\"b[0:4]\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16);
    put_seed(2,
             "{\"a[0:1]\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
             "\"b[3:4]\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
             8,
             "{\"b[0:3]\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
             "\"a[1:6]\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[12,32]}}",
             32);
    *count = 3;
    return seeds;
}

/* ---- */

static void check_cover(const rm_shard *piece, int64_t n, const rm_safetensors *file) {
    int seen[2][A] = {{0}};
    for (int64_t k = 0; k < n; k++) {
        const rm_st_array *theirs = &file[piece[k].file].array[piece[k].entry];
        if (theirs->end - theirs->begin != 4 * (uint64_t)piece[k].count) abort();
        for (int64_t i = 0; i < piece[k].count; i++) seen[piece[k].array][piece[k].first + i]++;
    }
    for (int i = 0; i < A; i++)
        if (seen[0][i] != 1 || seen[1][i] != (i < B)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_safetensors file[2] = {{.fd = -1}, {.fd = -1}};
    rm_shard *pieces = NULL;
    int64_t n = 0;
    if (size < 2) return 0;
    size_t first = (size_t)(data[0] | data[1] << 8), files = 1;
    if (first > size - 2) first = size - 2;
    remat_status status = rm_safetensors_parse(data + 2, first, "first", &file[0]);
    if (!status && first < size - 2) {
        status = rm_safetensors_parse(data + 2 + first, size - 2 - first, "second", &file[1]);
        files = 2;
    }
    if (!status) status = rm_optimizer_shards_match(arrays, 2, file, (int64_t)files, &pieces, &n);
    if (!status) check_cover(pieces, n, file);
    if (status && !*remat_last_error()) abort();
    rm_free(pieces);
    rm_safetensors_free(&file[0]);
    rm_safetensors_free(&file[1]);
    return 0;
}
