/* options_value.c: the value of one flag, from text and to text. See options_table.h. */
#include "train/flags/options_table.h"

#include "memory/host.h"
#include "train/file.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static remat_status bad(rm_option_place where, const rm_option *line, const char *value, const char *why) {
    FAIL(INVALID, "%s%s%s%.*s: %s", where.before, line->name, where.between, RM_OPTION_SHOWN, value, why);
}

static remat_status bad_range(rm_option_place where, const rm_option *line, const char *value) {
    char why[120];
    if (line->low == RM_TINY)
        snprintf(why, sizeof why, "must be more than 0 and at most %.10g", line->high);
    else
        snprintf(why, sizeof why, "must be from %.10g to %.10g", line->low, line->high);
    return bad(where, line, value, why);
}

/* Stores a whole number in a member of any integer type. */
static void put(const rm_options *o, const rm_option *line, int64_t number) {
    void *at = rm_option_member(o, line);
    switch (line->store) {
    case RM_STORED_BOOL:
        *(bool *)at = number != 0;
        break;
    case RM_STORED_INT:
        *(int *)at = (int)number;
        break;
    case RM_STORED_REAL:
        *(double *)at = (double)number;
        break;
    default: /* RM_STORED_INT64, RM_STORED_SIZE: the same representation below 2^63 */
        *(int64_t *)at = number;
    }
}

static int64_t whole(const rm_options *o, const rm_option *line) {
    const void *at = rm_option_member(o, line);
    switch (line->store) {
    case RM_STORED_BOOL:
        return *(const bool *)at;
    case RM_STORED_INT:
        return *(const int *)at;
    case RM_STORED_REAL:
        return (int64_t) * (const double *)at;
    default:
        return *(const int64_t *)at;
    }
}

static remat_status set_integer(rm_options *o, const rm_option *line, const char *value, rm_option_place where) {
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (isspace((unsigned char)*value) || end == value || *end)
        return bad(where, line, value, "is not a whole number such as 64");
    if (errno == ERANGE || !((double)number >= line->low && (double)number <= line->high))
        return bad_range(where, line, value);
    put(o, line, number);
    return REMAT_OK;
}

/* "K", or "K:S", where S divides K. */
static remat_status set_windows(rm_options *o, const rm_option *line, const char *value, rm_option_place where) {
    char *end;
    errno = 0;
    long long length = strtoll(value, &end, 10), step = length;
    bool good = isdigit((unsigned char)*value), stepped = good && *end == ':';
    if (stepped) good = isdigit((unsigned char)end[1]), step = strtoll(end + 1, &end, 10);
    if (!good || *end) return bad(where, line, value, "is neither a whole number such as 500 nor two such as 500:100");
    if (errno == ERANGE || (double)length > line->high) return bad_range(where, line, value);
    if (stepped && (step < 1 || step > length || length % step))
        return bad(where, line, value, "the second number must divide the first");
    *(rm_windows *)rm_option_member(o, line) = (rm_windows){length, step};
    return REMAT_OK;
}

/* strtod would accept 0x10 and "nan". "inf" needs no check here: it is out of every range. */
static bool is_decimal(const char *value) {
    const char *digits = value + (*value == '-' || *value == '+');
    bool hexadecimal = *digits == '0' && (digits[1] == 'x' || digits[1] == 'X');
    return !isspace((unsigned char)*value) && !hexadecimal;
}

static remat_status set_real(rm_options *o, const rm_option *line, const char *value, rm_option_place where) {
    char *end;
    double number = strtod(value, &end);
    if (!is_decimal(value) || end == value || *end || isnan(number))
        return bad(where, line, value, "is not a number such as 0.5 or 1e-3");
    if (!(number >= line->low && number <= line->high)) return bad_range(where, line, value);
    *(double *)rm_option_member(o, line) = number;
    return REMAT_OK;
}

/* A number with an optional unit, which may follow one space: K M G T (powers of 1000) or Ki Mi Gi Ti (powers of 1024), each
 * with or without a B. */
static remat_status set_size(rm_options *o, const rm_option *line, const char *value, rm_option_place where) {
    static const char letters[] = "KMGT";
    bool rate = !strcmp(line->value, "RATE");
    char *end;
    double number = strtod(value, &end);
    if (!is_decimal(value) || *value == '-' || end == value || !isfinite(number))
        return bad(where, line, value,
                   rate ? "is not a rate per second such as 60T or 3.3TB"
                        : "is not a size such as 4096, 64KiB, 1.5GiB or 2GB");
    end += *end == ' ' && end[1];
    const char *letter = *end ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    if (letter) {
        bool binary = *++end == 'i';
        end += binary;
        for (const char *l = letters; l <= letter; l++) number *= binary ? 1024 : 1000;
    }
    end += *end == 'B';
    if (*end)
        return bad(where, line, value,
                   rate ? "has an unknown unit; use K, M, G or T, optionally followed by B"
                        : "has an unknown unit; use B, KB, KiB, MB, MiB, GB, GiB, TB or TiB");
    if (!(number >= 1 && number <= 1e18)) return bad(where, line, value, "must be from 1 to 1e18");
    put(o, line, (int64_t)number);
    return REMAT_OK;
}

remat_status rm_options_replace(const char **member, const char *text) {
    char *copy = rm_strdup(text);
    REQUIRE(copy, MEMORY, "no memory for the value %.60s of a flag", text);
    rm_free((void *)*member);
    *member = copy;
    return REMAT_OK;
}

void rm_option_clear(rm_options *o, const rm_option *line) {
    const char **text = rm_option_member(o, line);
    if (!rm_option_is_text(line)) return;
    rm_free((void *)*text);
    *text = NULL;
}

/* Says what the value is by the first part of the help. */
static remat_status bad_empty(rm_option_place where, const rm_option *line) {
    char why[320];
    snprintf(why, sizeof why, "is empty: give %s (%.*s), or remove the flag", line->value,
             (int)strcspn(line->help, ";\n"), line->help);
    return bad(where, line, "", why);
}

static remat_status set_text(rm_options *o, const rm_option *line, const char *value, rm_option_place where) {
    if (!*value) return bad_empty(where, line);
    bool too_long = line->memory != RM_FORGOTTEN && strlen(value) >= RM_PATH_BYTES; /* a training state saves it */
    if (too_long) return bad(where, line, value, "is too long: the limit is 4095 bytes");
    return rm_options_replace(rm_option_member(o, line), value);
}

/* The index of `value` in "a|b|c"; -1: not found. */
static int find_choice(const char *choices, const char *value) {
    size_t length = strlen(value);
    int i = 0;
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL, i++)
        if (length == strcspn(at, "|") && !memcmp(at, value, length)) return i;
    return -1;
}

static remat_status set_choice(rm_options *o, const rm_option *line, const char *value, rm_option_place where) {
    char why[512];
    int choice = find_choice(line->choices, value);
    snprintf(why, sizeof why, "must be one of %s", line->choices ? line->choices : "");
    if (choice < 0) return bad(where, line, value, why);
    if (rm_option_is_text(line)) return set_text(o, line, value, where);
    put(o, line, choice);
    return REMAT_OK;
}

static void choice_text(const rm_option *line, int64_t number, char *text, size_t bytes) {
    const char *at = line->choices;
    for (; number > 0; number--) at = strchr(at, '|') + 1;
    snprintf(text, bytes, "%.*s", (int)strcspn(at, "|"), at);
}

static remat_status set_switch(rm_options *o, const rm_option *line, const char *value, rm_option_place where) {
    bool yes = !strcmp(value, "true") || !strcmp(value, "yes") || !strcmp(value, "1");
    bool no = !strcmp(value, "false") || !strcmp(value, "no") || !strcmp(value, "0");
    if (!yes && !no) return bad(where, line, value, "must be true or false");
    *(bool *)rm_option_member(o, line) = yes == (line->type == RM_OPTION_SWITCH);
    return REMAT_OK;
}

remat_status rm_option_set(rm_options *o, const rm_option *line, const char *value, rm_option_place where) {
    o->given[line - rm_option_table] = true;
    switch (line->type) {
    case RM_OPTION_SWITCH:
    case RM_OPTION_NO:
        return set_switch(o, line, value, where);
    case RM_OPTION_INTEGER:
        return set_integer(o, line, value, where);
    case RM_OPTION_REAL:
        return set_real(o, line, value, where);
    case RM_OPTION_SIZE:
        return set_size(o, line, value, where);
    case RM_OPTION_TEXT:
        return set_text(o, line, value, where);
    case RM_OPTION_CHOICE:
        return set_choice(o, line, value, where);
    case RM_OPTION_WINDOWS:
        return set_windows(o, line, value, where);
    }
    return REMAT_OK;
}

/* The shortest text that reads back as the same number: 0.1, not 0.10000000000000001. */
static void real_text(double number, char *text, size_t bytes) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, bytes, "%.*g", digits, number);
        if (strtod(text, NULL) == number) return;
    }
}

static void windows_text(rm_windows w, char *text, size_t bytes) {
    int n = snprintf(text, bytes, "%lld", (long long)w.length);
    if (w.step < w.length) snprintf(text + n, bytes - (size_t)n, ":%lld", (long long)w.step);
}

const char *rm_option_text(const rm_options *o, const rm_option *line, char *text, size_t bytes) {
    const void *at = rm_option_member(o, line);
    const char *words = rm_option_is_text(line) ? *(const char *const *)at : NULL;
    switch (line->type) {
    case RM_OPTION_SWITCH:
    case RM_OPTION_NO:
        snprintf(text, bytes, "%s", *(const bool *)at == (line->type == RM_OPTION_SWITCH) ? "true" : "false");
        break;
    case RM_OPTION_INTEGER:
        snprintf(text, bytes, "%lld", (long long)whole(o, line));
        break;
    case RM_OPTION_REAL:
        real_text(*(const double *)at, text, bytes);
        break;
    case RM_OPTION_SIZE:
        if (whole(o, line))
            snprintf(text, bytes, "%lld", (long long)whole(o, line));
        else
            *text = 0; /* not given, like a text */
        break;
    case RM_OPTION_CHOICE:
        if (!rm_option_is_text(line)) {
            choice_text(line, whole(o, line), text, bytes);
            break;
        } /* fall through */
    case RM_OPTION_TEXT:
        snprintf(text, bytes, "%s", words ? words : "");
        break;
    case RM_OPTION_WINDOWS:
        windows_text(*(const rm_windows *)at, text, bytes);
        break;
    }
    return text;
}
