/* neutral.h: numbers as text, whatever the locale of the program that calls the library: "0.5", where printf and strtod of a program that
 * has set a German one would write and want "0,5". Ranks compare such texts, and files and flags have them. */
#ifndef RM_NEUTRAL_H
#define RM_NEUTRAL_H

#include <locale.h>
#include <stdarg.h>
#include <stddef.h>

/* Between the two this thread's functions of the C library are in the locale "C". Never an allocation. */
locale_t rm_neutral_begin(void);
void rm_neutral_end(locale_t before);

int rm_snprintf(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
int rm_vsnprintf(char *text, size_t bytes, const char *format, va_list arguments) __attribute__((format(printf, 3, 0)));
double rm_strtod(const char *text, char **end);

#endif
