/* command_place.c: `remat place FILE.csv`: packs buffers with known lifetimes into the smallest block (memory/pack.h), has
 * the placement judged by a second opinion that shares nothing with it (rm_placement_check_aligned), and prints it: the
 * table with offsets on stdout, one line about it on stderr. Any sizes will do: nothing is aligned. */
#include "train/commands/commands.h"

#include "memory/host.h"
#include "memory/pack.h"
#include "memory/place.h"
#include "train/file.h"
#include "train/commands/lifetimes_csv.h"
#include "train/text.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TEXT ((uint64_t)1 << 32) /* bytes of a file */

typedef struct {
    uint8_t *text;
    size_t text_bytes;
    const char *name;
    rm_lifetimes_csv csv;
    int32_t *row;       /* of item i: items are in order of time, and those without bytes are left out */
    rm_pack_item *item; /* n, for the solver */
    int64_t n;
    rm_packing packing;
    rm_pack_outcome outcome;
    double deadline_s, seconds;
} placer;

static volatile sig_atomic_t caught;
static void remember(int signal) { caught = signal; }

/* The first Ctrl-C ends the search, and the best so far is printed; a second one ends the program at once. */
static void catch_signals(void) {
    struct sigaction action = {.sa_handler = remember, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static bool time_is_over(void *context) {
    const placer *p = context;
    return caught || rm_now_s() >= p->deadline_s;
}

/* ---- Reading ------------------------------------------------------------------------------------ */

static remat_status read_stdin(placer *p) {
    int64_t capacity = 0;
    size_t got = 1;
    while (got > 0) {
        REQUIRE(p->text_bytes < MOST_TEXT && rm_grow(&p->text, &capacity, (int64_t)p->text_bytes + 65536, 1), MEMORY,
                "no memory for more than %zu bytes of standard input", p->text_bytes);
        got = fread(p->text + p->text_bytes, 1, (size_t)capacity - p->text_bytes, stdin);
        p->text_bytes += got;
    }
    REQUIRE(!ferror(stdin), IO, "cannot read standard input: %s", strerror(errno));
    return REMAT_OK;
}

static remat_status read_table(placer *p, const rm_options *options) {
    REQUIRE(
        options->n_arguments == 1, INVALID,
        "%d files were given: name one table of buffers with the columns id,lower,upper,size, or - for standard input",
        options->n_arguments);
    bool piped = !strcmp(options->argument[0], "-") || !strcmp(options->argument[0], "/dev/stdin");
    p->name = piped ? "standard input" : options->argument[0];
    if (piped)
        TRY(read_stdin(p));
    else
        TRY(rm_file_read(p->name, MOST_TEXT, &p->text, &p->text_bytes));
    TRY(rm_lifetimes_csv_parse((const char *)p->text, p->text_bytes, p->name, &p->csv));
    if (*p->csv.unused) fprintf(stderr, "remat place: columns that are not used: %s\n", p->csv.unused);
    return REMAT_OK;
}

typedef struct {
    int64_t lower;
    int32_t row;
} start;

static int by_time(const void *a, const void *b) {
    const start *x = a, *y = b;
    if (x->lower != y->lower) return x->lower < y->lower ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static remat_status make_items(placer *p) {
    size_t count = (size_t)p->csv.count;
    start *order = rm_malloc(count * sizeof *order);
    p->row = rm_malloc(count * sizeof *p->row);
    p->item = rm_malloc(count * sizeof *p->item);
    bool ok = order && p->row && p->item;
    for (int32_t i = 0; ok && i < p->csv.count; i++)
        if (p->csv.row[i].size > 0) order[p->n++] = (start){p->csv.row[i].lower, i};
    if (ok) qsort(order, (size_t)p->n, sizeof *order, by_time);
    for (int64_t i = 0; i < p->n; i++) {
        const rm_lifetimes_row *row = &p->csv.row[order[i].row];
        p->row[i] = order[i].row;
        p->item[i] = (rm_pack_item){row->lower, row->upper - 1, row->size};
    }
    rm_free(order);
    REQUIRE(ok, MEMORY, "no memory for the %zu buffers of %s", count, p->name);
    return REMAT_OK;
}

/* ---- Placing ------------------------------------------------------------------------------------ */

static remat_status judge(const placer *p, uint64_t capacity) {
    rm_lifetimes lifetimes = {.item = rm_calloc((size_t)p->n, sizeof *lifetimes.item), .count = p->n};
    REQUIRE(lifetimes.item, MEMORY, "no memory to check the placement of %s", p->name);
    for (int64_t i = 0; i < p->n; i++) { /* from the table, not from the solver's items */
        const rm_lifetimes_row *row = &p->csv.row[p->row[i]];
        lifetimes.item[i] = (rm_lifetime){.first = row->lower, .last = row->upper - 1, .bytes = row->size};
    }
    rm_placement placement = {.offset = p->packing.offset, .bytes = capacity};
    remat_status status = rm_placement_check_aligned(&lifetimes, &placement, 1);
    rm_lifetimes_free(&lifetimes);
    return status;
}

static remat_status not_found(const placer *p, uint64_t capacity) {
    unsigned long long want = capacity, floor = p->packing.floor_bytes, best = p->packing.bytes;
    REQUIRE(floor <= want, INFEASIBLE, "%s cannot be placed in %llu bytes: %llu are alive at once", p->name, want,
            floor);
    REQUIRE(
        p->outcome != RM_PACK_IMPOSSIBLE, INFEASIBLE,
        "%s cannot be placed in %llu bytes, although only %llu are alive at once: all possibilities were ruled out in "
        "%.2f s; the smallest block found has %llu bytes",
        p->name, want, floor, p->seconds, best);
    FAIL(INFEASIBLE,
         "no placement of %s in %llu bytes was found in %.2f s, nor a proof that there is none; the smallest block "
         "found has "
         "%llu bytes, and at least %llu are needed: give it a longer --time-limit or a larger --capacity",
         p->name, want, p->seconds, best, floor);
}

static remat_status place(placer *p, const rm_options *options) {
    double begin = rm_now_s();
    p->deadline_s = begin + options->time_limit;
    catch_signals();
    rm_pack_limit limit = {.work = RM_PACK_ENDLESS, .stop = time_is_over, .context = p};
    p->outcome = rm_pack_smallest(p->item, p->n, &(rm_pack_request){.capacity = options->capacity, .limit = &limit},
                                  &p->packing);
    p->seconds = rm_now_s() - begin;
    REQUIRE(p->outcome != RM_PACK_NO_MEMORY, MEMORY, "no memory to place the %lld buffers of %s", (long long)p->n,
            p->name);
    TRY(judge(p, p->packing.bytes));
    if (options->capacity && p->packing.bytes > options->capacity) return not_found(p, options->capacity);
    return REMAT_OK;
}

/* ---- Printing ----------------------------------------------------------------------------------- */

static remat_status print_offsets(const placer *p) {
    uint64_t *offset = rm_calloc((size_t)p->csv.count, sizeof *offset); /* by row; without bytes: 0 */
    REQUIRE(offset, MEMORY, "no memory to print the offsets of %s", p->name);
    for (int64_t i = 0; i < p->n; i++) offset[p->row[i]] = p->packing.offset[i];
    puts("id,lower,upper,size,offset");
    for (int64_t i = 0; i < p->csv.count; i++) {
        const rm_lifetimes_row *row = &p->csv.row[i];
        printf("%.*s,%lld,%lld,%llu,%llu\n", (int)row->id_length, row->id, (long long)row->lower, (long long)row->upper,
               (unsigned long long)row->size, (unsigned long long)offset[i]);
    }
    rm_free(offset);
    return rm_file_flush_output();
}

static void print_summary(const placer *p) {
    uint64_t bytes = p->packing.bytes, floor = p->packing.floor_bytes;
    fprintf(stderr, "peak %llu, lower bound %llu, ratio %.4f, seconds %.3f: ", (unsigned long long)bytes,
            (unsigned long long)floor, floor ? (double)bytes / (double)floor : 1, p->seconds);
    if (bytes == floor)
        fputs("the smallest there is, the bytes alive at once\n", stderr);
    else if (bytes == p->packing.proved_bytes)
        fputs("the smallest there is, proved by search\n", stderr);
    else
        fputs(caught ? "stopped by a signal; a smaller one may exist\n" : "a smaller one may exist\n", stderr);
}

remat_status rm_command_place(rm_options *options, int *exit_status) {
    placer p = {0};
    remat_status status = read_table(&p, options);
    if (!status) status = make_items(&p);
    if (!status) status = place(&p, options);
    if (!status) status = print_offsets(&p);
    if (!status) {
        print_summary(&p);
        if (caught) *exit_status = 128 + (int)caught;
    }
    if (status == REMAT_INFEASIBLE) { /* an answer, not a mistake: 1, where main would say 2 */
        fprintf(stderr, "remat place: %s\n", remat_last_error());
        *exit_status = caught ? 128 + (int)caught : 1;
        status = REMAT_OK;
    }
    rm_free(p.packing.offset);
    rm_free(p.item);
    rm_free(p.row);
    rm_lifetimes_csv_free(&p.csv);
    rm_free(p.text);
    return status;
}
