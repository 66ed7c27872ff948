/* hostlist.c: reads host lists without expanding them: finds a name by its number, like the digits of a mixed-radix
 * number. */
#include "dist/store/hostlist.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MOST_BRACKETS = 8, MOST_DIGITS = 9, MOST_HOSTS = 1000000 };

/* ---- One range --------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t first, last;
    int width; /* number of digits, for leading zeros */
} range;

static bool read_number(const char **at, int64_t *number, int *width) {
    *number = 0;
    for (*width = 0; isdigit((unsigned char)**at); (*at)++, (*width)++) {
        if (*width == MOST_DIGITS) return false;
        *number = *number * 10 + (**at - '0');
    }
    return *width > 0;
}

static bool read_range(const char **at, range *out) {
    int width;
    if (!read_number(at, &out->first, &out->width)) return false;
    out->last = out->first;
    if (**at != '-') return true;
    (*at)++;
    return read_number(at, &out->last, &width) && out->last >= out->first;
}

/* ---- One bracket, from '[' to ']' -------------------------------------------------------------------------------- */

/* Counts the values of a bracket, and writes value `index` unless index is -1. Returns false if it is not a bracket. */
static bool read_bracket(const char **at, int64_t index, int64_t *count, char *value, size_t bytes) {
    *count = 0;
    do {
        range r;
        (*at)++; /* '[' or ',' */
        if (!read_range(at, &r)) return false;
        int64_t n = r.last - r.first + 1;
        if (index >= *count && index < *count + n)
            snprintf(value, bytes, "%0*lld", r.width, (long long)(r.first + index - *count));
        *count += n;
    } while (**at == ',');
    if (**at != ']' || *count > MOST_HOSTS) return false;
    (*at)++;
    return true;
}

/* ---- One item of the list: text and brackets, up to ',' or the end ----------------------------------------------- */

static bool plain(char c) {
    return c > ' ' && c < 0x7f && c != ',' && c != '[' && c != ']'; /* isprint would depend on the locale */
}

/* The end of the item, the number of its hosts, and the number of values of each of its brackets. */
static bool measure(const char *item, const char **end, int64_t *hosts, int64_t *sizes, int *brackets) {
    const char *at = item;
    *hosts = 1;
    *brackets = 0;
    for (bool any = false;; any = true) {
        if (plain(*at)) {
            at++;
        } else if (*at == '[') {
            if (*brackets == MOST_BRACKETS || !read_bracket(&at, -1, &sizes[*brackets], NULL, 0)) return false;
            *hosts *= sizes[(*brackets)++];
            if (*hosts > MOST_HOSTS) return false;
        } else {
            *end = at;
            bool tail = any && *brackets > 0 && at[-1] != ']';
            return any && !tail && (*at == ',' || *at == 0);
        }
    }
}

/* Writes host `index` of the item. The last bracket varies fastest. */
static bool write_host(const char *item, const char *end, int64_t index, const int64_t *sizes, int brackets,
                       char name[RM_HOST_BYTES]) {
    size_t used = 0;
    int64_t below = 1, count;
    for (int b = 0; b < brackets; b++) below *= sizes[b];
    for (int b = 0; item < end;) {
        char value[MOST_DIGITS + 3] = {*item, 0};
        if (*item == '[') {
            below /= sizes[b];
            if (!read_bracket(&item, index / below % sizes[b++], &count, value, sizeof value)) return false;
        } else {
            item++;
        }
        size_t length = strlen(value);
        if (used + length >= RM_HOST_BYTES) return false;
        memcpy(name + used, value, length);
        used += length;
    }
    name[used] = 0;
    return true;
}

/* ---- The list ---------------------------------------------------------------------------------------------------- */

/* Walks the list; stops at host `index` and writes it to `name`. *count: number of hosts passed. */
static remat_status walk(const char *list, int64_t index, char *name, int64_t *count) {
    int64_t hosts, sizes[MOST_BRACKETS];
    int brackets;
    const char *end;
    *count = 0;
    for (const char *item = list;; item = end + 1) {
        REQUIRE(measure(item, &end, &hosts, sizes, &brackets), INVALID,
                "'%.300s' is not a list of hosts; the error is at '%.60s'", list, item);
        if (index >= *count && index < *count + hosts) {
            REQUIRE(write_host(item, end, index - *count, sizes, brackets, name), INVALID,
                    "a host in '%.300s' has a name that is too long", list);
            return REMAT_OK;
        }
        *count += hosts;
        REQUIRE(*count <= MOST_HOSTS, INVALID, "'%.300s' names more than a million hosts", list);
        if (!*end) break;
    }
    REQUIRE(index < 0, INVALID, "'%.300s' names %lld hosts, but number %lld was asked for", list, (long long)*count,
            (long long)index);
    return REMAT_OK;
}

/* Checks the whole list, including the part after the host that is asked for. */
remat_status rm_hostlist_at(const char *list, int64_t index, char name[RM_HOST_BYTES]) {
    int64_t count;
    REQUIRE(index >= 0, INVALID, "host number %lld", (long long)index);
    TRY(walk(list, -1, NULL, &count));
    return walk(list, index, name, &count);
}

remat_status rm_hostlist_count(const char *list, int64_t *count) { return walk(list, -1, NULL, count); }

/* ---- Tasks of nodes ---------------------------------------------------------------------------------------------- */

remat_status rm_tasks_on_node(const char *text, int64_t node, int64_t *tasks) {
    int64_t nodes = 0, times, number;
    int width;
    for (const char *at = text;; at++) {
        bool fine = read_number(&at, &number, &width);
        times = 1;
        if (fine && at[0] == '(' && at[1] == 'x') {
            at += 2;
            fine = read_number(&at, &times, &width) && *at == ')';
            if (fine) at++;
        }
        REQUIRE(fine && (*at == ',' || *at == 0), INVALID, "'%.100s' is not a count of tasks like 2(x3),1", text);
        if (node >= nodes && node < nodes + times) {
            *tasks = number;
            return REMAT_OK;
        }
        nodes += times;
        if (!*at) break;
    }
    FAIL(INVALID, "'%.100s' counts the tasks of %lld nodes, but this is node %lld", text, (long long)nodes,
         (long long)node);
}
