/* status.c: the last error's message, one buffer per thread; and remat_text_free, for texts that open_memstream allocated. */
#include "engine/neutral.h"
#include "engine/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char sentence[sizeof(rm_reason)];

const char *remat_last_error(void) { return sentence; }

void remat_text_free(char *text) { free(text); }

const char *remat_status_text(remat_status status) {
    switch (status) {
#define STATUS_TEXT(name, text)                                                                                        \
    case REMAT_##name:                                                                                                 \
        return text;
        REMAT_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "an unknown status";
}

/* Length in bytes of the printable character that starts here; 0: none. */
static int character(const unsigned char *c) {
    if (c[0] < 0x80) return c[0] >= ' ' && c[0] != 0x7f;
    int bytes = c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : c[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < bytes; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    bool longer_than_needed = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
    bool half_of_a_pair = c[0] == 0xed && c[1] >= 0xa0, past_the_last = c[0] == 0xf4 && c[1] >= 0x90;
    if (longer_than_needed || half_of_a_pair || past_the_last) return 0;
    return bytes == 2 && c[0] == 0xc2 && c[1] < 0xa0 ? 0 : bytes; /* U+0080 to U+009F are control characters */
}

char *rm_printable(char *text) {
    for (char *c = text; *c;) {
        int bytes = character((unsigned char *)c);
        if (!bytes) *c = '?';
        c += bytes ? bytes : 1;
    }
    return text;
}

/* ---- Names of members --------------------------------------------------------------------------------------------- */

static const char *(*name_of_member)(const char *member);

void rm_set_member_names(const char *(*name)(const char *member)) { name_of_member = name; }
const char *rm_member_name(const char *member) { return name_of_member ? name_of_member(member) : member; }

/* Length of the "{NAME}" that begins here; 0: there is none. */
static size_t mark_length(const char *at) {
    size_t n = *at == '{' ? strspn(at + 1, "abcdefghijklmnopqrstuvwxyz_") : 0;
    return n && at[1 + n] == '}' ? n + 2 : 0;
}

/* The format with its members named; cut where it is too long. Names have no %. */
static const char *name_members(const char *format, char *out, size_t bytes) {
    size_t at = 0;
    while (*format && at + 1 < bytes) {
        size_t mark = mark_length(format);
        char member[64];
        if (!mark || mark > sizeof member) {
            out[at++] = *format++;
            continue;
        }
        snprintf(member, sizeof member, "%.*s", (int)mark - 2, format + 1);
        at += (size_t)snprintf(out + at, bytes - at, "%s", rm_member_name(member));
        format += mark;
    }
    out[at < bytes ? at : bytes - 1] = 0;
    return out;
}

/* ---- Failing ------------------------------------------------------------------------------------------------------- */

remat_status rm_fail(remat_status status, const char *format, ...) {
    char text[sizeof sentence], named[sizeof sentence]; /* temporaries: an argument may be the old sentence */
    va_list arguments;
    va_start(arguments, format);
    rm_vsnprintf(text, sizeof text, name_members(format, named, sizeof named), arguments);
    va_end(arguments);
    memcpy(sentence, rm_printable(text), sizeof sentence);
    return status;
}

rm_reason rm_reason_kept(void) {
    rm_reason reason;
    memcpy(reason.text, sentence, sizeof sentence);
    return reason;
}

remat_status rm_reason_again(remat_status status, const rm_reason *reason) {
    memcpy(sentence, reason->text, sizeof sentence);
    return status;
}

remat_status rm_fail_needing(const char *function, const char *what) {
    return rm_fail(REMAT_INVALID, "%s needs %s, but was given NULL", function, what);
}

remat_status rm_fail_in(remat_status status, const char *format, ...) {
    char prefix[256], text[sizeof sentence], named[sizeof prefix];
    va_list arguments;
    va_start(arguments, format);
    rm_vsnprintf(prefix, sizeof prefix, name_members(format, named, sizeof named), arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "%s: %.700s", prefix, sentence);
    memcpy(sentence, rm_printable(text), sizeof sentence);
    return status;
}
