/* expect.h: what every test of the device on the fake CUDA expects at its end, and of its error messages. */
#ifndef FAKE_CUDA_EXPECT_H
#define FAKE_CUDA_EXPECT_H

#include <check.h>
#include <string.h>

#include "engine/status.h"
#include "tests/engine/fake_cuda/fake.h"
#include "tests/says.h"

static inline void expect_clean(const char *what) {
    ck_assert_msg(!fake_cuda_violation(), "%s: %s", what, fake_cuda_violation());
    ck_assert_msg(fake_cuda_live() == 0, "%s: %lld objects were not released", what, (long long)fake_cuda_live());
}

/* The error message is one line with these words. */
static inline void expect_sentence(const char *part) {
    const char *sentence = remat_last_error();
    ck_assert_msg(sentence && strlen(sentence) > 20 && !strchr(sentence, '\n') && says_all(sentence, part),
                  "\"%s\" lacks \"%s\"", sentence, part);
}

#endif
