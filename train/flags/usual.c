/* usual.c: see usual.h. */
#include "train/flags/usual.h"

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
