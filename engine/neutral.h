/* neutral.h: prints and reads numbers independently of the program's locale: "0.5", where printf and strtod under a German locale use
 * "0,5". Ranks compare such texts, and files and flags contain them. */
#ifndef RM_NEUTRAL_H
#define RM_NEUTRAL_H

#include <locale.h>
#include <stdarg.h>
#include <stddef.h>

/* Between begin and end this thread uses the locale "C". Allocates nothing. */
locale_t rm_neutral_begin(void);
void rm_neutral_end(locale_t before);

int rm_snprintf(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
int rm_vsnprintf(char *text, size_t bytes, const char *format, va_list arguments) __attribute__((format(printf, 3, 0)));
double rm_strtod(const char *text, char **end);

#endif
