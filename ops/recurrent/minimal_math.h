/* minimal_math.h: the mathematics of one unit of min_gru and min_lstm (Feng et al. 2024), shared by their definitions
 * in C and their CUDA kernels; ops/cpu/minimal.c computes the same in vectors. Gates depend only on x, so a unit is
 *
 *   h' = keep h + take g(candidate),  keep + take = 1,  g(x) = x + 1/2 for x >= 0, else sigmoid(x)
 *
 * g is the paper's. It keeps h above 0, so models trained in log space (minGRU-pytorch) compute the same functions
 * here. */
#ifndef RM_MINIMAL_MATH_H
#define RM_MINIMAL_MATH_H

#include "ops/elementwise/activation.h"

typedef struct {
    real keep, take;
    real candidate, slope; /* g(x), g'(x) */
    real turn[2];          /* derivatives of `take` by the gates' pre-activations */
} rm_min_gates;

RM_HD real rm_min_candidate(real x) { return x >= 0 ? x + (real)0.5 : rm_sigmoid(x); }
RM_HD real rm_min_slope(real x, real g) { return x >= 0 ? 1 : g * (1 - g); }

/* take = z = sigmoid(gate) */
RM_HD rm_min_gates rm_min_gru_gates(real candidate, real gate) {
    rm_min_gates a;
    a.take = rm_sigmoid(gate), a.keep = rm_sigmoid(-gate);
    a.candidate = rm_min_candidate(candidate), a.slope = rm_min_slope(candidate, a.candidate);
    a.turn[0] = a.take * a.keep, a.turn[1] = 0;
    return a;
}

/* keep = f / (f + i), take = i / (f + i), f and i the sigmoids of the gates: numerator and denominator are
 * multiplied by exp(m), m = min(f_gate, i_gate, 0), so that the terms are at most 1 and their sum is at least 1. */
RM_HD rm_min_gates rm_min_lstm_gates(real candidate, real f_gate, real i_gate) {
    rm_min_gates a;
    real least = f_gate < i_gate ? f_gate : i_gate, m = least < 0 ? least : 0;
    real one = real_exp(m), over_f = real_exp(m - f_gate), over_i = real_exp(m - i_gate);
    real f = one + over_i, i = one + over_f, r = 1 / (f + i);
    a.keep = f * r, a.take = i * r;
    a.candidate = rm_min_candidate(candidate), a.slope = rm_min_slope(candidate, a.candidate);
    a.turn[0] = -a.keep * over_f * r, a.turn[1] = a.take * over_i * r;
    return a;
}

#endif
