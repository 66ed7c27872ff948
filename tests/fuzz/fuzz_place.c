/* fuzz_place.c: any bytes as a table of buffers (bench/lifetimes_csv.h). An accepted small table is packed, and the placement
 * check must accept the result. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "memory/host.h"
#include "memory/pack.h"
#include "memory/place.h"
#include "bench/lifetimes_csv.h"

static const char plain[] = "id,lower,upper,size\n0,0,3,4\n1,1,5,2\n2,2,9,7\n3,4,6,4\n4,5,9,2\n";
static const char odd[] = "size,x,upper,lower,id\r\n64,,10,0,a\r\n\r\n128,,20,5,b b\r\n 7 ,q,21,20,\r\n0,,9,1,c\r\n";
static const fuzz_seed seeds[] = {{plain, sizeof plain - 1}, {odd, sizeof odd - 1}};

const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    *count = 2;
    return seeds;
}

static int by_first(const void *a, const void *b) {
    const rm_lifetime *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static void pack(const rm_lifetimes_csv *csv) {
    rm_lifetime item[64];
    rm_pack_item packed[64];
    int64_t n = 0;
    for (int64_t i = 0; i < csv->count; i++) {
        const rm_lifetimes_row *row = &csv->row[i];
        if (row->lower < 0 || row->lower >= row->upper) abort();
        if (row->size > 0) item[n++] = (rm_lifetime){.first = row->lower, .last = row->upper - 1, .bytes = row->size};
    }
    qsort(item, (size_t)n, sizeof *item, by_first);
    for (int64_t i = 0; i < n; i++) packed[i] = (rm_pack_item){item[i].first, item[i].last, item[i].bytes};
    rm_packing packing;
    rm_pack_limit limit = {.work = 1000000};
    if (rm_pack_smallest(packed, n, &(rm_pack_request){.limit = &limit}, &packing) == RM_PACK_NO_MEMORY) abort();
    rm_lifetimes lifetimes = {item, n, n};
    if (rm_placement_check_aligned(&lifetimes, &(rm_placement){.offset = packing.offset, .bytes = packing.bytes}, 1))
        abort();
    if (packing.bytes < packing.floor_bytes) abort();
    rm_free(packing.offset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_lifetimes_csv csv;
    if (rm_lifetimes_csv_parse((const char *)data, size, "input", &csv)) return 0;
    if (csv.count <= 64) pack(&csv);
    rm_lifetimes_csv_free(&csv);
    return 0;
}
