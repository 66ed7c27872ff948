/* cpu/slstm.c: slstm in vectors of units; ops/recurrent/slstm.c has the definition. The products of a head are those of
 * an LSTM of its width, with the same packed weights (view.h). Compiled once per instruction set. */
#include "ops/cpu/view.h"
#include "ops/recurrent/slstm.h"

enum { I, F, Z, O, GATES };
enum { STATE_Y, STATE_C, STATE_N, STATE_M };

RM_INLINE rm_vec pick(rm_ivec mask, rm_vec a, rm_vec b) { return (rm_vec)((mask & (rm_ivec)a) | (~mask & (rm_ivec)b)); }

typedef struct {
    rm_vec i, f, z, o, slope; /* i' and f', tanh z, sigmoid(o); sigmoid(-f) */
} gates;
typedef struct {
    rm_vec c, n, m;
} state;

/* n of 0 is a state before any timestep. */
RM_INLINE gates activate(const rm_vec *raw, const state *before, rm_vec *m) {
    rm_vec kept =
        pick((rm_ivec)(before->n == rm_splat(0)), rm_splat(-__builtin_inff()), before->m - rm_vec_softplus(-raw[F]));
    *m = rm_most(raw[I], kept);
    return (gates){rm_vec_exp_nonpositive(raw[I] - *m), rm_vec_exp_nonpositive(kept - *m), rm_vec_tanh(raw[Z]),
                   rm_vec_sigmoid(raw[O]), rm_vec_sigmoid(-raw[F])};
}

RM_INLINE state next_state(const gates *a, const state *before, rm_vec m) {
    return (state){rm_fma(a->f, before->c, a->i * a->z), rm_most(rm_splat(1), rm_fma(a->f, before->n, a->i)), m};
}

RM_INLINE bool starts(const rm_slstm_job *job, int64_t row) { return job->reset && job->reset[row] > 0; }

/* One block of a head: its first unit within the head and in H, and its lanes that are units. */
typedef struct {
    int64_t block, unit;
    int n;
} place;
RM_INLINE place place_of(const rm_slstm_job *job, int64_t head, int64_t block) {
    return (place){block, head * job->width + block * LANES, lanes_of(block, job->width)};
}

/* c->sum[r] = the pre-activations of rows row.. of x; `y`: row r of the previous timestep, y_row apart; NULL: zeros. */
static void add_up(const rm_slstm_job *job, int64_t head, place p, int64_t row, int64_t count, const float *y,
                   bool checks_resets, chunk *c) {
    int64_t wide = job->heads * job->width;
    packing at = packing_of(RM_CELL_lstm, true, 0, job->width);
    const float *w = job->packed + head * job->packed_floats + at.hh + p.block * steps_of(job->width) * GATES * LANES;
    for (int64_t r = 0; r < count; r++)
        for (int g = 0; g < GATES; g++) {
            rm_vec sum = rm_load_n(job->x + (row + r) * GATES * wide + g * wide + p.unit, p.n);
            if (job->bias) sum += rm_load_n(job->bias + g * wide + p.unit, p.n);
            rm_store(c->sum[r][g], sum);
        }
    for (int64_t r = 0, end; y && r < count; r = end + 1) {
        for (end = r; end < count && !(checks_resets && starts(job, row + end));) end++;
        rm_product q = {y + r * wide, wide, 1, w, GATES * LANES, c->sum[r][0], WIDTH_MAX * LANES, LANES, 0};
        if (end > r) rm_multiply(q, end - r, GATES, job->width);
    }
}

RM_INLINE state load_state(float *const *from, int64_t at, int n, bool zero) {
    if (zero) return (state){rm_splat(0), rm_splat(0), rm_splat(0)};
    return (state){rm_load_n(from[STATE_C] + at, n), rm_load_n(from[STATE_N] + at, n),
                   rm_load_n(from[STATE_M] + at, n)};
}
RM_INLINE void store_state(float *const *to, int64_t at, const state *s, int n) {
    rm_store_n(to[STATE_C] + at, s->c, n), rm_store_n(to[STATE_N] + at, s->n, n), rm_store_n(to[STATE_M] + at, s->m, n);
}

/* The head's part of rows from.. of states (B,H). */
static void copy_rows(const rm_slstm_job *job, int64_t head, int64_t from, int64_t count, const float *source,
                      float *to) {
    int64_t wide = job->heads * job->width, at = from * wide + head * job->width;
    for (int64_t b = 0; b < count; b++, at += wide)
        if (source)
            memcpy(to + at, source + at, (size_t)job->width * sizeof *to);
        else
            memset(to + at, 0, (size_t)job->width * sizeof *to);
}

static void forward(const rm_slstm_job *job, int64_t head, int64_t from, int64_t count) {
    int64_t wide = job->heads * job->width, state_size = job->batch * wide;
    const float *y = job->in[STATE_Y];
    chunk c;
    for (int k = STATE_C; k <= STATE_M; k++) copy_rows(job, head, from, count, job->in[k], job->out[k]);
    for (int64_t t = 0; t < job->tau; t++) {
        const float *rows = y ? y + from * wide + head * job->width : NULL;
        float *next = job->y + t * state_size;
        for (int64_t block = 0; block * LANES < job->width; block++) {
            place p = place_of(job, head, block);
            add_up(job, head, p, t * job->batch + from, count, rows, true, &c);
            for (int64_t r = 0; r < count; r++) {
                int64_t at = (from + r) * wide + p.unit;
                rm_vec m, raw[GATES];
                for (int g = 0; g < GATES; g++) raw[g] = rm_load(c.sum[r][g]);
                state before = load_state(job->out, at, p.n, starts(job, t * job->batch + from + r));
                gates a = activate(raw, &before, &m);
                state s = next_state(&a, &before, m);
                store_state(job->out, at, &s, p.n);
                rm_store_n(next + at, a.o * s.c * rm_reciprocal(s.n), p.n);
            }
        }
        y = next;
    }
    copy_rows(job, head, from, count, job->y + (job->tau - 1) * state_size, job->out[STATE_Y]);
}

static void sums(const rm_slstm_job *job, int64_t head, int64_t from, int64_t count) {
    int64_t wide = job->heads * job->width;
    chunk c;
    for (int64_t block = 0; block * LANES < job->width; block++) {
        place p = place_of(job, head, block);
        add_up(job, head, p, from, count, job->before + from * wide + head * job->width, false, &c);
        for (int64_t r = 0; r < count; r++)
            for (int g = 0; g < GATES; g++)
                rm_store_n(job->gates + (from + r) * GATES * wide + g * wide + p.unit, rm_load(c.sum[r][g]), p.n);
    }
}

/* The states of all timesteps again, from the pre-activations. */
static void replay(const rm_slstm_job *job, int64_t row, int64_t b, place p) {
    int64_t wide = job->heads * job->width, at = b * wide + p.unit, kept = row * wide + p.unit;
    float *gate = job->gates + row * GATES * wide + p.unit;
    bool first = row < job->batch;
    state before = {rm_splat(0), rm_splat(0), rm_splat(0)};
    rm_vec m, raw[GATES];
    if (!starts(job, row)) {
        const float *c = first ? job->in[STATE_C] : job->c - job->batch * wide;
        const float *n = first ? job->in[STATE_N] : job->n - job->batch * wide;
        if (c) before.c = rm_load_n(c + kept, p.n);
        if (n) before.n = rm_load_n(n + kept, p.n);
        before.m = rm_load_n(job->m + at, p.n);
    }
    for (int g = 0; g < GATES; g++) raw[g] = rm_load_n(gate + g * wide, p.n);
    gates a = activate(raw, &before, &m);
    state s = next_state(&a, &before, m);
    rm_store_n(gate + I * wide, a.i, p.n), rm_store_n(gate + F * wide, a.f, p.n);
    rm_store_n(gate + Z * wide, a.z, p.n), rm_store_n(gate + O * wide, a.o, p.n);
    rm_store_n(job->slope + kept, a.slope, p.n);
    rm_store_n(job->c + kept, s.c, p.n), rm_store_n(job->n + kept, s.n, p.n), rm_store_n(job->m + at, m, p.n);
}

/* Comments quote the forward lines. */
static void unit_back(const rm_slstm_job *job, int64_t row, int64_t b, place p) {
    int64_t wide = job->heads * job->width, at = b * wide + p.unit, kept = row * wide + p.unit;
    float *gate = job->gates + row * GATES * wide + p.unit;
    rm_vec i = rm_load_n(gate + I * wide, p.n), f = rm_load_n(gate + F * wide, p.n);
    rm_vec z = rm_load_n(gate + Z * wide, p.n), o = rm_load_n(gate + O * wide, p.n);
    rm_vec c = rm_load_n(job->c + kept, p.n),
           over_n = rm_reciprocal(rm_most(rm_splat(1), rm_load_n(job->n + kept, p.n)));
    rm_vec c_before = rm_splat(0), n_before = rm_splat(0), one = rm_splat(1), zero = rm_splat(0);
    const float *c_from = row < job->batch ? job->in[STATE_C] : job->c - job->batch * wide;
    const float *n_from = row < job->batch ? job->in[STATE_N] : job->n - job->batch * wide;
    if (!starts(job, row) && c_from) c_before = rm_load_n(c_from + kept, p.n);
    if (!starts(job, row) && n_from) n_before = rm_load_n(n_from + kept, p.n);
    rm_vec dy = rm_load_n(job->dy + kept, p.n) + rm_load_n(job->carry[STATE_Y] + at, p.n), ratio = c * over_n;
    rm_vec dc = rm_fma(dy * o, over_n, rm_load_n(job->carry[STATE_C] + at, p.n)); /* y = o c / n */
    rm_vec dn = rm_load_n(job->carry[STATE_N] + at, p.n) - dy * o * over_n * ratio;
    dn = pick((rm_ivec)(rm_fma(f, n_before, i) >= one), dn, zero);                       /* n = max(f n + i, 1) */
    rm_vec by_i = rm_fma(dc, z, dn) * i, by_f = rm_fma(dc, c_before, dn * n_before) * f; /* c = f c + i z */
    rm_vec dm = rm_load_n(job->carry[STATE_M] + at, p.n) - by_i - by_f; /* i = e^(i - m), f = e^(m' + log f - m) */
    rm_ivec by_input = (rm_ivec)(i == one);                             /* m = max(i, m' + log f) */
    rm_vec dkept = by_f + pick(by_input, zero, dm);
    rm_store_n(gate + I * wide, by_i + pick(by_input, dm, zero), p.n);
    rm_store_n(gate + F * wide, dkept * rm_load_n(job->slope + kept, p.n), p.n);
    rm_store_n(gate + Z * wide, dc * i * rm_fma(-z, z, one), p.n);
    rm_store_n(gate + O * wide, dy * ratio * o * (one - o), p.n);
    bool cut = starts(job, row);
    rm_store_n(job->carry[STATE_C] + at, cut ? zero : dc * f, p.n);
    rm_store_n(job->carry[STATE_N] + at, cut ? zero : dn * f, p.n);
    rm_store_n(job->carry[STATE_M] + at, cut ? zero : dkept, p.n);
}

/* carry of y = dgates w_hh, of rows that do not start anew. */
static void pass_down(const rm_slstm_job *job, int64_t head, int64_t row, int64_t from, int64_t count) {
    int64_t wide = job->heads * job->width, blocks = ceil_div(job->width, LANES), depth = GATES * job->width;
    packing at = packing_of(RM_CELL_lstm, true, 0, job->width);
    const float *panels = job->packed + head * job->packed_floats + at.hh_back;
    chunk c;
    for (int64_t block = 0; block < blocks; block += WIDTH_MAX) {
        group g = group_at(panels, depth, block, blocks, blocks);
        memset(&c, 0, sizeof c.sum[0] * (size_t)count);
        for (int gate = 0; gate < GATES; gate++) {
            const float *dgates = job->gates + row * GATES * wide + gate * wide + head * job->width;
            rm_product q = {dgates,
                            GATES * wide,
                            1,
                            g.w + gate * job->width * g.w_step,
                            g.w_step,
                            c.sum[0][0],
                            WIDTH_MAX * LANES,
                            LANES,
                            0};
            rm_multiply(q, count, g.width, job->width);
        }
        for (int64_t r = 0; r < count; r++)
            for (int i = 0; i < g.width; i++) {
                place p = place_of(job, head, block + i);
                rm_vec dy = starts(job, row + r) ? rm_splat(0) : rm_load(c.sum[r][i]);
                rm_store_n(job->carry[STATE_Y] + (from + r) * wide + p.unit, dy, p.n);
            }
    }
}

static void backward(const rm_slstm_job *job, int64_t head, int64_t from, int64_t count) {
    for (int k = STATE_Y; k <= STATE_M; k++) copy_rows(job, head, from, count, job->dout[k], job->carry[k]);
    copy_rows(job, head, from, count, job->in[STATE_M], job->m);
    for (int64_t t = 0; t < job->tau; t++)
        for (int64_t block = 0; block * LANES < job->width; block++)
            for (int64_t b = from; b < from + count; b++)
                replay(job, t * job->batch + b, b, place_of(job, head, block));
    for (int64_t t = job->tau - 1; t >= 0; t--) {
        for (int64_t block = 0; block * LANES < job->width; block++)
            for (int64_t b = from; b < from + count; b++)
                unit_back(job, t * job->batch + b, b, place_of(job, head, block));
        pass_down(job, head, t * job->batch + from, from, count);
    }
}

const rm_slstm_rows rm_cell_slstm = {forward, sums, backward};
