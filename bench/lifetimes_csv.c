/* lifetimes_csv.c: see lifetimes_csv.h. Only numbers are copied; every field is read once. */
#include "bench/lifetimes_csv.h"

#include "memory/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_COLUMNS 64
#define MOST_TIME ((uint64_t)1 << 62)
#define MOST_BYTES ((uint64_t)1 << 60)
#define SHOWN 40 /* characters of a bad field */

typedef struct {
    const char *at;
    size_t length;
} field;

enum { ID, LOWER, UPPER, SIZE, N_WANTED };
static const char *const wanted[N_WANTED] = {"id", "lower", "upper", "size"};

typedef struct {
    const char *name, *next, *end;
    int64_t line;
    int column[N_WANTED]; /* the position of each column */
    int n_columns;
    uint64_t total;
    int64_t capacity;
    rm_lifetimes_csv *out;
} reader;

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static field trimmed(const char *at, const char *end) {
    while (at < end && is_blank(*at)) at++;
    while (end > at && is_blank(end[-1])) end--;
    return (field){at, (size_t)(end - at)};
}

static bool is(field f, const char *word) { return f.length == strlen(word) && !memcmp(f.at, word, f.length); }

/* A field as shown in messages: shortened, with printable characters only. */
static const char *shown(field f, char text[SHOWN + 4]) {
    size_t n = f.length < SHOWN ? f.length : SHOWN;
    for (size_t i = 0; i < n; i++) text[i] = f.at[i] >= ' ' && f.at[i] < 127 ? f.at[i] : '?';
    strcpy(text + n, f.length > n ? "..." : "");
    return text;
}

/* ---- Lines and fields --------------------------------------------------------------------------- */

/* The next line that is not blank, without its line end. Returns false if there is none. */
static bool next_line(reader *r, field *line) {
    while (r->next < r->end) {
        const char *stop = memchr(r->next, '\n', (size_t)(r->end - r->next));
        if (!stop) stop = r->end;
        *line = trimmed(r->next, stop);
        r->next = stop < r->end ? stop + 1 : stop;
        r->line++;
        if (line->length) return true;
    }
    return false;
}

/* Splits a line into at most MOST_COLUMNS fields; returns their number. */
static int split(field line, field *out) {
    const char *at = line.at, *end = line.at + line.length;
    int n = 0;
    for (;; n++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        if (n < MOST_COLUMNS) out[n] = trimmed(at, comma ? comma : end);
        if (!comma) return n + 1;
        at = comma + 1;
    }
}

static remat_status number(const reader *r, const char *column, field f, uint64_t limit, uint64_t *out) {
    char text[SHOWN + 4];
    *out = 0;
    for (size_t i = 0; i < f.length; i++) {
        REQUIRE(f.at[i] >= '0' && f.at[i] <= '9', INVALID,
                "%s, line %lld: %s is '%s'; it must be a whole number from 0", r->name, (long long)r->line, column,
                shown(f, text));
        uint64_t digit = (uint64_t)(f.at[i] - '0');
        REQUIRE(*out <= (limit - digit) / 10, INVALID, "%s, line %lld: %s is %s; it must be at most %llu", r->name,
                (long long)r->line, column, shown(f, text), (unsigned long long)limit);
        *out = *out * 10 + digit;
    }
    REQUIRE(f.length, INVALID, "%s, line %lld: %s is empty; it must be a whole number from 0", r->name,
            (long long)r->line, column);
    return REMAT_OK;
}

/* ---- The header --------------------------------------------------------------------------------- */

static void note_unused(rm_lifetimes_csv *out, field f) {
    char text[SHOWN + 4];
    size_t used = strlen(out->unused);
    shown(f, text);
    if (used + strlen(text) + 3 > sizeof out->unused) return;
    snprintf(out->unused + used, sizeof out->unused - used, "%s%s", used ? ", " : "", text);
}

static remat_status read_header(reader *r) {
    field line, part[MOST_COLUMNS];
    REQUIRE(next_line(r, &line), INVALID, "%s is empty; its first line must name the columns id, lower, upper and size",
            r->name);
    r->n_columns = split(line, part);
    REQUIRE(r->n_columns <= MOST_COLUMNS, INVALID, "%s, line %lld: %d columns are more than the %d that can be read",
            r->name, (long long)r->line, r->n_columns, MOST_COLUMNS);
    for (int w = 0; w < N_WANTED; w++) r->column[w] = -1;
    for (int c = 0; c < r->n_columns; c++) {
        int w = 0;
        while (w < N_WANTED && !is(part[c], wanted[w])) w++;
        if (w == N_WANTED) {
            note_unused(r->out, part[c]);
            continue;
        }
        REQUIRE(r->column[w] < 0, INVALID, "%s, line %lld: two columns are called %s", r->name, (long long)r->line,
                wanted[w]);
        r->column[w] = c;
    }
    for (int w = 0; w < N_WANTED; w++)
        REQUIRE(r->column[w] >= 0, INVALID,
                "%s, line %lld: no column is called %s; the first line must name id, lower, upper and size", r->name,
                (long long)r->line, wanted[w]);
    return REMAT_OK;
}

/* ---- Rows --------------------------------------------------------------------------------------- */

static remat_status read_row(reader *r, field line, rm_lifetimes_row *row) {
    field part[MOST_COLUMNS];
    int n = split(line, part);
    REQUIRE(n == r->n_columns, INVALID, "%s, line %lld: %d fields where the header names %d columns", r->name,
            (long long)r->line, n, r->n_columns);
    uint64_t lower, upper;
    TRY(number(r, "lower", part[r->column[LOWER]], MOST_TIME - 1, &lower));
    TRY(number(r, "upper", part[r->column[UPPER]], MOST_TIME - 1, &upper));
    TRY(number(r, "size", part[r->column[SIZE]], MOST_BYTES - 1, &row->size));
    REQUIRE(
        lower < upper, INVALID,
        "%s, line %lld: upper is %llu and lower %llu; a buffer lives in lower <= step < upper, so upper is the larger",
        r->name, (long long)r->line, (unsigned long long)upper, (unsigned long long)lower);
    r->total += row->size;
    REQUIRE(r->total < MOST_BYTES, INVALID, "%s, line %lld: up to here the sizes add up to more than 2^60", r->name,
            (long long)r->line);
    field id = part[r->column[ID]];
    REQUIRE(id.length < INT32_MAX, INVALID, "%s, line %lld: the id is too long", r->name, (long long)r->line);
    row->line = r->line;
    row->id = id.at;
    row->id_length = (int32_t)id.length;
    row->lower = (int64_t)lower;
    row->upper = (int64_t)upper;
    return REMAT_OK;
}

static remat_status grow(reader *r) {
    REQUIRE(rm_grow(&r->out->row, &r->capacity, r->out->count + 1, sizeof *r->out->row), MEMORY,
            "no memory for the buffers of %s, of which there are more than %lld", r->name, (long long)r->out->count);
    return REMAT_OK;
}

/* ---- Duplicate ids ------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b) {
    const rm_lifetimes_row *x = *(const rm_lifetimes_row *const *)a, *y = *(const rm_lifetimes_row *const *)b;
    int32_t length = x->id_length < y->id_length ? x->id_length : y->id_length;
    int order = memcmp(x->id, y->id, (size_t)length);
    if (!order) order = (x->id_length > y->id_length) - (x->id_length < y->id_length);
    return order ? order : (x->line > y->line) - (x->line < y->line);
}

static bool same_id(const rm_lifetimes_row *x, const rm_lifetimes_row *y) {
    return x->id_length == y->id_length && !memcmp(x->id, y->id, (size_t)x->id_length);
}

/* Offsets are reported by id, so ids must be unique. Of several pairs, the error names the one that ends first. */
static remat_status ids_differ(const reader *r) {
    int64_t count = r->out->count;
    const rm_lifetimes_row **sorted = rm_malloc((size_t)(count + 1) * sizeof *sorted), *first = NULL, *again = NULL;
    REQUIRE(sorted, MEMORY, "no memory for the %lld ids of %s", (long long)count, r->name);
    for (int64_t i = 0; i < count; i++) sorted[i] = &r->out->row[i];
    qsort(sorted, (size_t)count, sizeof *sorted, by_id);
    for (int64_t i = 1; i < count; i++)
        if (same_id(sorted[i - 1], sorted[i]) && (!again || sorted[i]->line < again->line))
            first = sorted[i - 1], again = sorted[i];
    rm_free(sorted);
    char text[SHOWN + 4];
    REQUIRE(!again, INVALID, "%s: lines %lld and %lld have the same id '%s'; give every buffer its own", r->name,
            (long long)first->line, (long long)again->line, shown((field){again->id, (size_t)again->id_length}, text));
    return REMAT_OK;
}

static remat_status read_all(reader *r) {
    TRY(read_header(r));
    for (field line; next_line(r, &line); r->out->count++) {
        TRY(grow(r));
        TRY(read_row(r, line, &r->out->row[r->out->count]));
    }
    REQUIRE(r->out->count < INT32_MAX, INVALID, "%s: more than 2^31 buffers", r->name);
    return ids_differ(r);
}

remat_status rm_lifetimes_csv_parse(const char *text, size_t length, const char *name, rm_lifetimes_csv *out) {
    *out = (rm_lifetimes_csv){0};
    reader r = {.name = name, .next = text, .end = text + length, .out = out};
    if (length >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) r.next += 3; /* a byte order mark: spreadsheets write one */
    remat_status status = read_all(&r);
    if (status) rm_lifetimes_csv_free(out);
    return status;
}

void rm_lifetimes_csv_free(rm_lifetimes_csv *csv) {
    rm_free(csv->row);
    *csv = (rm_lifetimes_csv){0};
}
