/* status.c: the last error's sentence, one buffer per thread; and the end of texts that were handed out, which are the C
 * library's, as its streams in memory make them. */
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

/* Bytes of the printable character that begins here; 0: there is none. */
static int character(const unsigned char *c) {
    if (c[0] < 0x80) return c[0] >= ' ' && c[0] != 0x7f;
    int bytes = c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : c[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < bytes; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    bool longer_than_needed = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
    bool half_of_a_pair = c[0] == 0xed && c[1] >= 0xa0, past_the_last = c[0] == 0xf4 && c[1] >= 0x90;
    if (longer_than_needed || half_of_a_pair || past_the_last) return 0;
    return bytes == 2 && c[0] == 0xc2 && c[1] < 0xa0 ? 0 : bytes; /* U+0080 to U+009F are orders too */
}

char *rm_printable(char *text) {
    for (char *c = text; *c;) {
        int bytes = character((unsigned char *)c);
        if (!bytes) *c = '?';
        c += bytes ? bytes : 1;
    }
    return text;
}

remat_status rm_fail(remat_status status, const char *format, ...) {
    char text[sizeof sentence]; /* a temporary: an argument may be the old sentence */
    va_list arguments;
    va_start(arguments, format);
    rm_vsnprintf(text, sizeof text, format, arguments);
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
    const char *sized = strstr(function, "_sized");
    int length = (int)(sized ? sized - function : (ptrdiff_t)strlen(function));
    return rm_fail(REMAT_INVALID, "%.*s needs %s, and was given NULL", length, function, what);
}

remat_status rm_fail_in(remat_status status, const char *format, ...) {
    char prefix[256], text[sizeof sentence];
    va_list arguments;
    va_start(arguments, format);
    rm_vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "%s: %.700s", prefix, sentence);
    memcpy(sentence, rm_printable(text), sizeof sentence);
    return status;
}
