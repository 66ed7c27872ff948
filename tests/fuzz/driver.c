/* driver.c: a small main for fuzz_*.c that works without a fuzzer: it feeds LLVMFuzzerTestOneInput with seeds that are
 * cut, joined and damaged by a fixed random sequence, for a given number of seconds. Under clang's -fsanitize=fuzzer
 * the same files run with libFuzzer instead, which also uses coverage.
 *
 *   fuzz_problem [seconds, default 2] [first seed number, default 0]
 *
 * A crash prints what is needed to repeat it. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

/* For fuzz files without seeds. */
__attribute__((weak)) const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    *count = 0;
    return NULL;
}

enum { LARGEST = 1 << 14 };

static uint64_t state;
static volatile uint64_t round_number;

static uint64_t roll(void) { /* splitmix64 */
    uint64_t x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
static size_t below(size_t n) { return n ? (size_t)(roll() % n) : 0; }

static size_t start_from_seed(uint8_t *data) {
    size_t count = 0;
    const fuzz_seed *seeds = rm_fuzz_seeds(&count);
    if (count == 0 || roll() % 32 == 0) {
        size_t size = below(200);
        for (size_t i = 0; i < size; i++) data[i] = (uint8_t)roll();
        return size;
    }
    const fuzz_seed *seed = &seeds[below(count)];
    size_t size = seed->size < LARGEST ? seed->size : LARGEST;
    memcpy(data, seed->bytes, size);
    return size;
}

/* Removes a piece, or inserts a copy of a piece at another place. */
static size_t cut_and_paste(uint8_t *data, size_t size) {
    size_t from = below(size), length = below(size - from < 64 ? size - from : 64) + 1, to = below(size);
    if (from + length > size) return size;
    if (roll() % 2 || size + length > LARGEST) {
        memmove(data + from, data + from + length, size - from - length);
        return size - length;
    }
    uint8_t piece[65];
    memcpy(piece, data + from, length);
    memmove(data + to + length, data + to, size - to);
    memcpy(data + to, piece, length);
    return size + length;
}

/* Inserts a number at or just past a limit, where parsers break. */
static void plant_number(uint8_t *data, size_t size) {
    static const uint64_t limits[] = {0, 1, 127, 255, 65535, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX, 1ull << 60};
    uint64_t number = limits[below(sizeof limits / sizeof limits[0])] + roll() % 3 - 1;
    char text[32];
    if (roll() % 2) { /* as decimal digits */
        size_t length = (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)number);
        if (length < size) memcpy(data + below(size - length), text, length);
    } else {
        size_t length = 1u << roll() % 4;
        if (length < size) memcpy(data + below(size - length), &number, length);
    }
}

static size_t damage(uint8_t *data, size_t size) {
    for (size_t n = roll() % 6; n > 0 && size > 0; n--) switch (roll() % 6) {
        case 0:
            data[below(size)] ^= (uint8_t)(1u << roll() % 8);
            break;
        case 1:
            data[below(size)] = (uint8_t)roll();
            break;
        case 2:
            size = cut_and_paste(data, size);
            break;
        case 3:
            size = below(size) + 1;
            break;
        case 4:
            plant_number(data, size);
            break;
        default:
            data[below(size)] = (uint8_t) " \n#0123456789-"[roll() % 14];
            break;
        }
    return size;
}

static void on_crash(int number) {
    char text[120];
    int length = snprintf(text, sizeof text, "crash in round %llu; repeat it with: 1 %llu\n",
                          (unsigned long long)round_number, (unsigned long long)round_number);
    if (length > 0 && write(STDERR_FILENO, text, (size_t)length) < 0) { /* a failed write cannot be reported anywhere */
    }
    signal(number, SIG_DFL);
    raise(number);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 2, end = now() + seconds;
    round_number = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    signal(SIGSEGV, on_crash);
    signal(SIGABRT, on_crash);
    uint64_t first = round_number;
    for (; now() < end; round_number++) {
        state = round_number; /* each round is independent, so its number is enough to repeat it */
        uint8_t data[LARGEST];
        size_t size = damage(data, start_from_seed(data));
        /* A block of its own, so that a sanitizer detects a read past its end */
        uint8_t *exact = malloc(size ? size : 1);
        if (!exact) return 1;
        memcpy(exact, data, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    printf("%llu inputs in %.1f s\n", (unsigned long long)(round_number - first), seconds);
    return 0;
}
