/* neutral.c: see neutral.h. */
#include "engine/neutral.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static locale_t neutral;
static void create(void) {
    neutral = newlocale(LC_ALL_MASK, "C", (locale_t)0);
} /* the C library's own: nothing to free */

locale_t rm_neutral_begin(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, create);
    return uselocale(neutral);
}

void rm_neutral_end(locale_t before) { uselocale(before); }

int rm_vsnprintf(char *text, size_t bytes, const char *format, va_list arguments) {
    locale_t before = rm_neutral_begin();
    int length = vsnprintf(text, bytes, format, arguments);
    rm_neutral_end(before);
    return length;
}

int rm_snprintf(char *text, size_t bytes, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = rm_vsnprintf(text, bytes, format, arguments);
    va_end(arguments);
    return length;
}

double rm_strtod(const char *text, char **end) {
    locale_t before = rm_neutral_begin();
    double number = strtod(text, end);
    rm_neutral_end(before);
    return number;
}
