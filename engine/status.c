/* status.c: the last error's sentence, one buffer per thread. */
#include "engine/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char sentence[1024];

const char *remat_last_error(void) { return sentence; }

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

remat_status rm_fail(remat_status status, const char *format, ...) {
    char text[sizeof sentence]; /* a temporary: an argument may be the old sentence */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(sentence, text, sizeof sentence);
    return status;
}

remat_status rm_fail_in(remat_status status, const char *format, ...) {
    char prefix[256], text[sizeof sentence];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "%s: %.700s", prefix, sentence);
    memcpy(sentence, text, sizeof sentence);
    return status;
}
