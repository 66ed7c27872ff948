/* calibrate.c: see calibrate.h. Chooses what to measure, the keys of times, and where times go. measure.c measures,
 * calibration_cache.c stores. */
#include "engine/abi.h"
#include "engine/times/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/times/calibration_cache.h"
#include "engine/times/contention.h"
#include "engine/hash.h"
#include "engine/times/measure.h"
#include "memory/host.h"

/* ---- Keys of programs ---------------------------------------------------------------------------------------- */

static uint64_t hash_text(const char *text, uint64_t seed) { return rm_hash(text, strlen(text), seed); }
static uint64_t hash_number(int64_t number, uint64_t seed) { return rm_hash(&number, sizeof number, seed); }

/* The processor's name from /proc/cpuinfo, or "". */
static void processor(char *name, size_t size) {
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];
    *name = 0;
    while (file && !*name && fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10)) snprintf(name, size, "%s", line);
    if (file) fclose(file);
}

/* Sleeping threads respond later than spinning ones, so OpenMP's wait policy is part of the machine. */
static uint64_t hash_machine(const remat_session *s) {
    char name[256];
    remat_build_info build = rm_build_info_of_this();
    const char *policy = getenv("OMP_WAIT_POLICY");
    processor(name, sizeof name);
    uint64_t hash = hash_text(name, 1);
    hash = hash_text(build.version, hash);
    hash = hash_text(build.compiler, hash);
    hash = hash_text(build.instruction_set, hash);
    hash = hash_text(build.gemm_library, hash);
    hash = hash_text(s->api->name, hash);
    hash = hash_text(rm_precision_names[s->precision], hash);
    if (s->api->identity) hash = hash_number((int64_t)s->api->identity(s->device), hash);
    hash = hash_text(policy ? policy : "", hash);
    hash = hash_number(sysconf(_SC_NPROCESSORS_ONLN), hash);
    return hash_number(s->threads, hash);
}

static uint64_t hash_desc(const remat_desc *desc, uint64_t hash) {
    hash = hash_number(desc->dtype, hash_number(desc->rank, hash));
    for (int i = 0; i < desc->rank; i++) hash = hash_number(desc->dim[i], hash);
    return hash;
}

/* The call, which operands it has, and roughly where they are; not their addresses. */
static uint64_t hash_instruction(const rm_chain *chain, const rm_instruction *item, int64_t tau, uint64_t hash) {
    hash = hash_number(item->what, hash_number(item->count, hash));
    for (int i = 0; i < RM_OPERANDS; i++) hash = hash_number(item->operand[i].space, hash);
    if (item->node < 0) return hash;
    const rm_node *node = &chain->graph->node[item->node];
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(chain->graph, node, tau, x, &y, state);
    hash = hash_text(node->op->name, hash);
    if (node->attr) hash = rm_hash(node->attr, node->attr_bytes, hash);
    for (int i = 0; i < node->op->n_in; i++) hash = hash_desc(&x[i], hash);
    return hash_desc(&y, hash);
}

static uint64_t key_of(const rm_chain *chain, const rm_program *program, int64_t tau, uint64_t hash) {
    for (int32_t n = 0; n < program->n; n++)
        if (!program->item[n].once) {
            rm_instruction instruction = rm_program_at(program, n);
            hash = hash_instruction(chain, &instruction, tau, hash);
        }
    return hash ? hash : 1;
}

static uint64_t key_of_fixed(const remat_session *s, uint64_t hash) {
    hash = hash_text(s->optimizer ? s->optimizer->name : "no optimizer", hash);
    hash = hash_number(s->optimizer ? s->optimizer->states_used(&s->update) : 0, hash);
    for (int32_t v = 1; v < s->graph->n_values; v++)
        if (s->graph->value[v].origin == RM_VALUE_PARAM) hash = hash_desc(&s->graph->value[v].desc, hash);
    if (s->chain.at.buckets.parts > 1) hash = hash_number(s->chain.at.buckets.parts, hash); /* a part of the updates */
    return key_of(&s->chain, &s->chain.epilogue, 0, key_of(&s->chain, &s->chain.prologue, 0, hash));
}

/* How much moving slows the computation, for these programs on this disk. */
static uint64_t key_of_beside(const remat_session *s, uint64_t hash, const char *directory) {
    struct stat about = {0};
    if (!directory || stat(directory, &about)) return 0;
    const rm_stage_kind *kind = rm_stage_kind_of(&s->chain, 0);
    hash = hash_number((int64_t)about.st_ino, hash_number((int64_t)about.st_dev, hash));
    hash = key_of(&s->chain, &kind->option[0].forward, kind->tau, hash);
    return key_of(&s->chain, &kind->option[0].backward, kind->tau, hash);
}

/* ---- The programs of a stage kind ---------------------------------------------------------------------------------- */

enum { MOST_PROGRAMS = 1 + 2 * RM_MAX_OPTIONS, ALL_OPTIONS = (1 << RM_MAX_OPTIONS) - 1 };

typedef struct {
    rm_program *program;
    const char *option, *direction; /* for the note */
    uint64_t key, *time_ns;         /* time_ns: of this program in a stage's times */
} entry;

/* The programs of kind c, and where their times are in *times. */
static int list_programs(const remat_session *s, uint64_t machine, int32_t c, rm_stage_times *times, entry *out) {
    rm_stage_kind *kind = &s->chain.kind[c];
    int n = 0;
    out[n++] = (entry){&kind->drop, "drop", "forward", 0, &times->drop};
    for (int k = 0; k < kind->n_options; k++) {
        out[n++] = (entry){&kind->option[k].forward, kind->option[k].name, "forward", 0, &times->forward[k]};
        out[n++] = (entry){&kind->option[k].backward, kind->option[k].name, "backward", 0, &times->backward[k]};
    }
    for (int i = 0; i < n; i++) out[i].key = key_of(&s->chain, out[i].program, kind->tau, machine);
    return n;
}

static void write_note(const remat_session *s, int32_t c, const entry *e, char *note, size_t size) {
    const rm_stage_kind *kind = &s->chain.kind[c];
    int at = snprintf(note, size, "%s %s, tau %lld, batch %lld:", e->direction, e->option, (long long)kind->tau,
                      (long long)s->chain.batch);
    for (int32_t i = 0; i < kind->n_nodes && at < (int)size; i++) {
        int32_t n = s->chain.order[kind->first_node + i];
        const rm_node *node = &s->graph->node[n];
        if (!rm_runs_on(&s->chain, n, s->chain.rank)) continue;
        at += snprintf(note + at, size - (size_t)at, " %s", node->op->name);
    }
}

static int32_t kind_of(const rm_chain *chain, int64_t stage) {
    return (int32_t)(rm_stage_kind_of(chain, stage) - chain->kind);
}

/* ---- Which stages are measured -------------------------------------------------------------------------------- */

typedef struct {
    rm_measured_window *item;
    int64_t count, capacity;
} windows;

/* Along time: the last stage of a sweep and eight before it, without the first, whose state is all zeros. The first is included only
 * if full tiles did not fit beside the last stage. By depth: as many neighbours as fit, so that every weight matrix has left the
 * nearest cache for as long as it does in a step. */
static rm_measured_window window_at(const rm_chain *chain, int64_t stage) {
    const rm_sweep *sweep = rm_stage_sweep(chain, stage);
    int64_t most = chain->timed ? 9 : RM_WINDOW_MOST, first = stage, end;
    if (chain->timed && sweep->head != sweep->inner && stage == sweep->first) {
        end = stage + 1;
    } else if (chain->timed) {
        int64_t last = sweep->first + sweep->count - 1;
        end = stage == last ? last + 1 : last;
        first = end - most > sweep->first + 1 ? end - most : sweep->first + (end - sweep->first > 2);
    } else {
        end = stage + most < chain->n_stages ? stage + most : chain->n_stages;
    }
    return (rm_measured_window){.first = first, .count = end - first, .options = ALL_OPTIONS};
}

/* The forward without keeping, and both directions of these options. */
static bool is_covered(const remat_session *s, uint64_t machine, int64_t stage, uint32_t options,
                       const rm_times *covered) {
    rm_stage_times times;
    entry e[MOST_PROGRAMS];
    int n = list_programs(s, machine, kind_of(&s->chain, stage), &times, e);
    for (int i = 0; i < n; i++)
        if ((i == 0 || (options >> (i - 1) / 2 & 1)) && !rm_times_find(covered, e[i].key)) return false;
    return true;
}

static remat_status cover(const remat_session *s, uint64_t machine, const rm_measured_window *window,
                          rm_times *covered) {
    for (int64_t stage = window->first; stage < window->first + window->count; stage++) {
        rm_stage_times times;
        entry e[MOST_PROGRAMS];
        int n = list_programs(s, machine, kind_of(&s->chain, stage), &times, e);
        for (int i = 0; i < n; i++) TRY(rm_times_put(covered, e[i].key, 1, ""));
    }
    return REMAT_OK;
}

static remat_status choose(const remat_session *s, uint64_t machine, const rm_measure_config *config, rm_times *covered,
                           windows *out) {
    const rm_chain *chain = &s->chain;
    for (int64_t i = 0; i < 3 * (int64_t)chain->n_sweeps; i++) { /* the last stage, the first two */
        const rm_sweep *sweep = &chain->sweep[i / 3];
        if (i % 3 >= sweep->count) continue;
        int64_t stage = i % 3 ? sweep->first + i % 3 - 1 : sweep->first + sweep->count - 1;
        rm_measured_window window = window_at(chain, stage);
        if (!rm_window_fit(config, &window) || is_covered(s, machine, stage, window.options, covered)) continue;
        REQUIRE(rm_grow(&out->item, &out->capacity, out->count + 1, sizeof *out->item), MEMORY,
                "out of memory for the stages to measure");
        out->item[out->count++] = window;
        TRY(cover(s, machine, &window, covered));
    }
    return REMAT_OK;
}

/* ---- Measuring ------------------------------------------------------------------------------------------------ */

/* The sum of the times of one key over the stages of a window. */
typedef struct {
    uint64_t key, sum, n;
    char note[RM_TIME_NOTE];
} tally;

static int add_up(const remat_session *s, uint64_t machine, const rm_measured_window *window, rm_stage_times *times,
                  tally *tallies) {
    int n_tallies = 0;
    for (int64_t i = 0; i < window->count; i++) {
        entry e[MOST_PROGRAMS];
        int32_t c = kind_of(&s->chain, window->first + i);
        int n = list_programs(s, machine, c, &times[i], e);
        for (int k = 0; k < n; k++) {
            int at = 0;
            while (at < n_tallies && tallies[at].key != e[k].key) at++;
            if (at == n_tallies) write_note(s, c, &e[k], tallies[n_tallies++].note, RM_TIME_NOTE);
            tallies[at].key = e[k].key;
            tallies[at].sum += *e[k].time_ns;
            tallies[at].n += *e[k].time_ns > 0;
        }
    }
    return n_tallies;
}

static remat_status put_window(const remat_session *s, uint64_t machine, const rm_measured_window *window,
                               rm_stage_times *times, rm_times *known) {
    tally *tallies = rm_calloc(RM_WINDOW_MOST * MOST_PROGRAMS, sizeof *tallies);
    REQUIRE(tallies, MEMORY, "out of memory for the measured times");
    int n = add_up(s, machine, window, times, tallies);
    remat_status status = REMAT_OK;
    for (int i = 0; i < n && !status; i++)
        if (tallies[i].n) status = rm_times_put(known, tallies[i].key, tallies[i].sum / tallies[i].n, tallies[i].note);
    rm_free(tallies);
    return status;
}

/* The guessed time, used to divide the measuring time among windows. */
static double guessed_pass(const rm_chain *chain, const rm_measured_window *window) {
    double sum = 1;
    for (int64_t i = 0; i < window->count; i++) {
        const rm_stage_kind *kind = rm_stage_kind_of(chain, window->first + i);
        sum += (double)kind->drop.time_ns;
        for (int k = 0; k < kind->n_options; k++)
            if (window->options >> k & 1)
                sum += (double)kind->option[k].forward.time_ns + (double)kind->option[k].backward.time_ns;
    }
    return sum;
}

static remat_status measure_all(const remat_session *s, uint64_t machine, const rm_measure_config *config,
                                const windows *w, rm_times *known) {
    rm_measure *measure = NULL;
    uint64_t fixed = 0;
    double pass = 0;
    for (int64_t i = 0; i < w->count; i++) pass += guessed_pass(&s->chain, &w->item[i]);
    remat_status status = rm_measure_create(config, w->item, w->count, &measure);
    for (int64_t i = 0; i < w->count && !status; i++) {
        rm_stage_times times[RM_WINDOW_MOST];
        double share = 0.9 * config->seconds * guessed_pass(&s->chain, &w->item[i]) / pass;
        status = rm_measure_window(measure, &w->item[i], share, times);
        if (!status) status = put_window(s, machine, &w->item[i], times, known);
    }
    if (!status) status = rm_measure_fixed(measure, 0.1 * config->seconds, &fixed);
    if (!status) status = rm_times_put(known, key_of_fixed(s, machine), fixed, "beside the plan");
    rm_measure_free(measure);
    return status;
}

/* Uses a block of its own and a tenth of the time, and stages from the middle of a plan. */
static remat_status measure_beside(const remat_session *s, uint64_t key, const rm_measure_config *config,
                                   rm_times *known) {
    const rm_chain *chain = &s->chain;
    rm_measured_window window = window_at(chain, chain->timed && chain->n_stages > 1 ? 0 : chain->n_stages - 1);
    rm_measure *measure = NULL;
    uint64_t cost = 0;
    if (!rm_window_fit(config, &window)) return REMAT_OK;
    remat_status status = rm_measure_create(config, &window, 1, &measure);
    if (!status)
        status =
            rm_measure_beside(measure, &window, s->runner.tier, &chain->problem.tier, 0.1 * config->seconds, &cost);
    if (!status && cost) status = rm_times_put(known, key, cost, "slowdown of computation by moving one MiB");
    rm_measure_free(measure);
    return status;
}

/* ---- Into the problem ----------------------------------------------------------------------------------------- */

/* Scales programs that were not measured like the measured ones of their kind. */
static void apply_to_kind(const remat_session *s, uint64_t machine, int32_t c, const rm_times *known) {
    rm_stage_times times;
    entry e[MOST_PROGRAMS];
    double guessed = 0, measured = 0;
    int n = list_programs(s, machine, c, &times, e);
    for (int i = 0; i < n; i++) {
        const rm_time_entry *found = rm_times_find(known, e[i].key);
        guessed += found ? (double)e[i].program->time_ns : 0;
        measured += found ? (double)found->time_ns : 0;
    }
    for (int i = 0; i < n; i++) {
        const rm_time_entry *found = rm_times_find(known, e[i].key);
        if (found)
            e[i].program->time_ns = found->time_ns;
        else if (guessed > 0)
            e[i].program->time_ns = (uint64_t)((double)e[i].program->time_ns * measured / guessed);
    }
}

static void apply(remat_session *s, uint64_t machine, uint64_t beside, const rm_times *known) {
    for (int32_t c = 0; c < s->chain.n_kinds; c++) apply_to_kind(s, machine, c, known);
    const rm_time_entry *fixed = rm_times_find(known, key_of_fixed(s, machine));
    if (fixed) s->fixed_ns = fixed->time_ns + rm_chain_once_ns(&s->chain); /* once results: guessed */
    const rm_time_entry *cost = rm_times_find(known, beside);
    if (cost && rm_tier_there(&s->chain.problem.tier)) s->chain.problem.tier.cost_ns_per_mib = cost->time_ns;
    s->measured_times = true;
    rm_chain_take_times(&s->chain);
}

static bool is_complete(const remat_session *s, uint64_t machine, const rm_times *known) {
    bool complete = rm_times_find(known, key_of_fixed(s, machine)) != NULL;
    for (int64_t stage = 0; complete && stage < s->chain.n_stages; stage++) {
        const rm_sweep *sweep = rm_stage_sweep(&s->chain, stage);
        if (stage > sweep->first + 1) stage = sweep->first + sweep->count - 1;
        complete = is_covered(s, machine, stage, ALL_OPTIONS, known);
    }
    return complete;
}

/* ---- Main entries --------------------------------------------------------------------------------------------- */

remat_status rm_session_calibrate_from_file(remat_session *s, const remat_config *config, bool *complete) {
    uint64_t machine = hash_machine(s), beside = key_of_beside(s, machine, config->spill_dir);
    rm_times known = {0};
    *complete = false;
    if (!*config->calibration) return REMAT_OK;
    remat_status status = rm_times_read(&known, config->calibration);
    *complete = !status && is_complete(s, machine, &known) && (!beside || rm_times_find(&known, beside));
    if (*complete) apply(s, machine, beside, &known);
    rm_times_free(&known);
    return status;
}

/* Contention matters only to the wall clock. A single thread uses its processor time (measure.c), and a GPU has timers. */
static bool is_waited_for(const remat_session *s) { return s->threads > 1 && s->api->kernels == REMAT_ON_CPU; }

static remat_status calibrate(remat_session *s, const remat_config *wanted, const rm_measure_config *config,
                              rm_times *known, rm_times *covered, windows *w) {
    uint64_t machine = hash_machine(s), beside = key_of_beside(s, machine, wanted->spill_dir);
    const char *path = wanted->calibration;
    rm_contention begin = rm_contention_begin();
    if (*path) TRY(rm_times_read(known, path));
    for (int64_t i = 0; i < known->count; i++) TRY(rm_times_put(covered, known->item[i].key, 1, ""));
    TRY(choose(s, machine, config, covered, w));
    bool fixed = rm_times_find(known, key_of_fixed(s, machine)) != NULL;
    if (config->block_bytes > s->chain.at.bytes && (w->count || !fixed)) TRY(measure_all(s, machine, config, w, known));
    if (beside && s->runner.tier && !rm_times_find(known, beside)) TRY(measure_beside(s, beside, config, known));
    s->measured_busy = is_waited_for(s) && rm_contention_end(&begin, s->threads);
    /* The file is a convenience: without it the next session measures again. Times of a busy machine are not stored. */
    if (*path && !s->measured_busy) (void)rm_times_write(known, path);
    apply(s, machine, beside, known);
    return REMAT_OK;
}

/* Programs are measured on memory that stands in for the program's own, whose contents they would overwrite. */
static remat_status make_room(const rm_chain *chain, char **room) {
    for (int32_t i = 0; i < chain->at.n_external; i++) {
        uint64_t bytes = chain->at.external[i].bytes;
        room[i] = rm_calloc((size_t)bytes + 1, 1);
        REQUIRE(room[i], MEMORY, "out of memory for measuring external arrays (%llu bytes)", (unsigned long long)bytes);
    }
    return REMAT_OK;
}

remat_status rm_session_calibrate(remat_session *s, const remat_config *wanted, uint64_t block_bytes, double seconds) {
    rm_measure_config config = {.api = s->api,
                                .device = s->device,
                                .chain = &s->chain,
                                .optimizer = s->optimizer,
                                .update = &s->update,
                                .optimizer_states = s->optimizer ? s->optimizer->states_used(&s->update) : 0,
                                .threads = s->threads,
                                .block_bytes = block_bytes,
                                .seconds = seconds};
    rm_times known = {0}, covered = {0};
    windows w = {0};
    char **room = rm_calloc((size_t)s->chain.at.n_external + 1, sizeof *room);
    REQUIRE(room, MEMORY, "out of memory for external arrays");
    config.external = room;
    remat_status status = make_room(&s->chain, room);
    if (!status) status = calibrate(s, wanted, &config, &known, &covered, &w);
    for (int32_t i = 0; i < s->chain.at.n_external; i++) rm_free(room[i]);
    rm_free(room);
    rm_times_free(&known);
    rm_times_free(&covered);
    rm_free(w.item);
    return status;
}
