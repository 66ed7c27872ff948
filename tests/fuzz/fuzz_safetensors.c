/* fuzz_safetensors.c: any bytes as a safetensors file. Accepted arrays must lie inside the file, cover it without
 * holes, and have sizes that follow from their shapes. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "train/state/safetensors.h"

static const char *const headers[] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[12],\"data_offsets\":[0,24]},"
    "\"n\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[24,24]}}   ",
    "{\"x\":{\"dtype\":\"U8\",\"shape\":[4,5],\"data_offsets\":[4,24]},"
    "\"y\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
};
enum { SEEDS = sizeof headers / sizeof headers[0], DATA = 24 };

/* length | header | 24 bytes */
const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    static uint8_t bytes[SEEDS][512];
    static fuzz_seed seeds[SEEDS];
    for (int i = 0; i < SEEDS; i++) {
        rm_safetensors file;
        uint64_t length = strlen(headers[i]);
        memcpy(bytes[i], &length, 8);
        memcpy(bytes[i] + 8, headers[i], length);
        seeds[i] = (fuzz_seed){bytes[i], 8 + length + DATA};
        if (rm_safetensors_parse(bytes[i], seeds[i].size, "seed", &file)) abort();
        rm_safetensors_free(&file);
    }
    *count = SEEDS;
    return seeds;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_safetensors file;
    remat_status status = rm_safetensors_parse(data, size, "input", &file);
    if (status && (status != REMAT_IO || !*remat_last_error())) abort();
    uint64_t at = 0;
    for (int64_t i = 0; !status && i < file.count; i++) {
        const rm_st_array *array = &file.array[i];
        if (array->begin != at || array->end < array->begin || array->rank > RM_ST_MAX_RANK) abort();
        if (rm_safetensors_find(&file, array->name) != array) abort();
        at = array->end;
    }
    if (!status && file.data_start + at != size) abort();
    rm_safetensors_free(&file);
    return 0;
}
