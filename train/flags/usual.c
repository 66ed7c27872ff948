/* usual.c: see usual.h. */
#include "train/flags/usual.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const rm_usual usual[] = {
    {"sgd", 0.1, 1e-8, 0.99},   {"rmsprop", 0.01, 1e-8, 0.99}, {"adagrad", 0.01, 1e-10, 0.99},
    {"adadelta", 1, 1e-6, 0.9}, {"lars", 1, 0, 0.99}, /* avoids a division by 0 */
    {NULL, 1e-3, 1e-8, 0.99},
};

const rm_usual *rm_usual_of(const char *optimizer) {
    const rm_usual *u = usual;
    while (u->optimizer && strcmp(u->optimizer, optimizer)) u++;
    return u;
}

static const struct {
    const char *flag;
    size_t at;
} flags[] = {
    {"lr", offsetof(rm_usual, lr)}, {"eps", offsetof(rm_usual, epsilon)}, {"alpha", offsetof(rm_usual, alpha)}};

static double value(const rm_usual *of, size_t at) { return *(const double *)((const char *)of + at); }

const char *rm_usual_text(const char *flag, char text[RM_USUAL_BYTES]) {
    const rm_usual *others = rm_usual_of("");
    *text = 0;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (strcmp(flags[i].flag, flag)) continue;
        int n = snprintf(text, RM_USUAL_BYTES, "%g", value(others, flags[i].at));
        const char *before = "; ";
        for (const rm_usual *u = usual; u < others; u++) {
            double here = value(u, flags[i].at);
            if (here == value(others, flags[i].at)) continue;
            n += snprintf(text + n, RM_USUAL_BYTES - (size_t)n, "%s%s %g", before, u->optimizer, here);
            before = ", ";
        }
    }
    return text;
}
