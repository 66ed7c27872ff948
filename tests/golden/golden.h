/* golden.h: reads a golden file (tests/golden/make.py describes the format). An unreadable file fails the test. Main
 * entries: golden_open, golden_find. */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN_MAX 480

typedef struct {
    char name[96], dtype[4];
    int rank;
    int64_t dim[5], count;
    void *data; /* count elements: double for f64, float for f32, int32_t for i32 */
} golden_array;

typedef struct {
    golden_array array[GOLDEN_MAX];
    int count;
} golden;

/* Parses "name f32 2 11 4" into *a. False: the empty line that ends the list. */
static inline bool golden_line(FILE *file, golden_array *a) {
    char line[256];
    ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    if (line[0] == '\n') return false;
    int used = 0;
    ck_assert_int_eq(sscanf(line, "%95s %3s %d%n", a->name, a->dtype, &a->rank, &used), 3);
    char *rest = line + used;
    a->count = 1;
    for (int i = 0; i < a->rank; i++) {
        a->dim[i] = strtoll(rest, &rest, 10);
        a->count *= a->dim[i];
    }
    return true;
}

/* The file tests/golden/NAME.golden. */
static inline golden *golden_open(const char *name) {
    char path[512], first[32];
    snprintf(path, sizeof path, "%s/tests/golden/%s.golden", RM_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    golden *g = calloc(1, sizeof *g);
    ck_assert_ptr_nonnull(fgets(first, sizeof first, file));
    ck_assert_str_eq(first, "remat golden 1\n");
    while (golden_line(file, &g->array[g->count])) ck_assert_int_lt(++g->count, GOLDEN_MAX);
    for (int i = 0; i < g->count; i++) {
        golden_array *a = &g->array[i];
        size_t size = strcmp(a->dtype, "f64") ? 4 : 8;
        a->data = malloc(a->count * size);
        ck_assert_uint_eq(fread(a->data, size, a->count, file), a->count);
    }
    ck_assert_int_eq(fgetc(file), EOF);
    fclose(file);
    return g;
}

/* The array "FOLDER/NAME", or "FOLDER" if name is NULL. */
static inline const golden_array *golden_find(const golden *g, const char *folder, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "%s%s%s", folder, name ? "/" : "", name ? name : "");
    for (int i = 0; i < g->count; i++)
        if (!strcmp(g->array[i].name, full)) return &g->array[i];
    ck_abort_msg("the golden file has no %s", full);
    return NULL;
}

static inline void golden_close(golden *g) {
    for (int i = 0; i < g->count; i++) free(g->array[i].data);
    free(g);
}

/* Compares with an array of doubles; the limit is in units of 2^-24 of its largest element. */
static inline void golden_compare(const golden_array *expected, const float *got, double limit) {
    double largest = 0;
    for (int64_t i = 0; i < expected->count; i++) largest = fmax(largest, fabs(((double *)expected->data)[i]));
    for (int64_t i = 0; i < expected->count; i++) {
        double want = ((double *)expected->data)[i], units = fabs((double)got[i] - want) / (0x1p-24 * largest);
        ck_assert_msg(units <= limit, "%s[%d] is %.9g, the reference says %.9g: %.1f units", expected->name, (int)i,
                      (double)got[i], want, units);
    }
}

#endif
