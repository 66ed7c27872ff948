/* problem_text.c: a problem as text, one fact per line, in this order:
 *
 *   problem 2                                       # the version of this form
 *   resident 4096 parameters                        # bytes, name
 *   tier save 2000 load 1500 latency 80 cost 9      # bytes/s, bytes/s, ns, ns per MiB; no line: no second tier
 *   stages 2
 *   states 1
 *   pieces 2
 *   piece 0 bytes 64
 *   piece 1 bytes 64
 *   stage 0 drop time 10 scratch 64                 # nanoseconds, bytes
 *   stage 0 keep all saved 512 forward time 12 scratch 64 backward time 30 scratch 128
 *   stage 1 ...
 *   state 0 of 0 pieces 1                           # state 0, made by stage 0, is the first piece
 *   dstate 0 pieces 1                               # the next piece; gradients without pieces have no line
 *   reads 1 states 0                                # empty lists have no line
 *   keeps 1 states 0
 *   adds 1 states 0
 *
 * All numbers ascend. A fact that is missing, repeated or out of order is an error. Main entries: rm_problem_write and
 * rm_problem_read. problem.c checks whether the numbers are consistent. */
#include "memory/problem.h"

#include <errno.h>
#include <string.h>

#include "memory/lexer.h"

#define VERSION 2

/* ---- Writing ------------------------------------------------------------------------------------ */

static void write_work(const char *before, rm_work work, FILE *file) {
    fprintf(file, "%s time %llu scratch %llu", before, (unsigned long long)work.time_ns,
            (unsigned long long)work.scratch_bytes);
}

static void write_stage(const rm_stage *stage, int64_t s, FILE *file) {
    fprintf(file, "stage %lld", (long long)s);
    write_work(" drop", stage->drop, file);
    for (int k = 0; k < stage->n_options; k++) {
        const rm_stage_option *option = &stage->option[k];
        fprintf(file, "\nstage %lld keep %s saved %llu", (long long)s, option->name,
                (unsigned long long)option->saved_bytes);
        write_work(" forward", option->forward, file);
        write_work(" backward", option->backward, file);
    }
    fputc('\n', file);
}

static void write_states(const rm_problem *problem, FILE *file) {
    int64_t maker = 0;
    for (int64_t i = 0; i < problem->n_states; i++) {
        while (problem->made[maker + 1] <= i) maker++;
        fprintf(file, "state %lld of %lld pieces %lld\n", (long long)i, (long long)maker,
                (long long)(problem->state[i + 1] - problem->state[i]));
    }
    for (int64_t i = 0; i < problem->n_states; i++)
        if (problem->dstate[i] < problem->dstate[i + 1])
            fprintf(file, "dstate %lld pieces %lld\n", (long long)i,
                    (long long)(problem->dstate[i + 1] - problem->dstate[i]));
}

static void write_lists(const rm_lists *lists, int64_t count, const char *name, FILE *file) {
    for (int64_t i = 0; i < count; i++) {
        if (lists->start[i] == lists->start[i + 1]) continue;
        fprintf(file, "%s %lld states", name, (long long)i);
        for (int64_t k = lists->start[i]; k < lists->start[i + 1]; k++) fprintf(file, " %d", (int)lists->item[k]);
        fputc('\n', file);
    }
}

remat_status rm_problem_write(const rm_problem *problem, FILE *file) {
    fprintf(file, "problem %d\n", VERSION);
    for (int i = 0; i < problem->n_resident; i++)
        fprintf(file, "resident %llu %s\n", (unsigned long long)problem->resident[i].bytes, problem->resident[i].name);
    const rm_tier *tier = &problem->tier;
    if (rm_tier_there(tier))
        fprintf(file, "tier save %llu load %llu latency %llu cost %llu host %llu\n",
                (unsigned long long)tier->save_bytes_per_s, (unsigned long long)tier->load_bytes_per_s,
                (unsigned long long)tier->latency_ns, (unsigned long long)tier->cost_ns_per_mib,
                (unsigned long long)tier->host_bytes);
    fprintf(file, "stages %lld\nstates %lld\npieces %lld\n", (long long)problem->n_stages, (long long)problem->n_states,
            (long long)problem->n_pieces);
    for (int64_t i = 0; i < problem->n_pieces; i++)
        fprintf(file, "piece %lld bytes %llu\n", (long long)i, (unsigned long long)problem->piece[i].bytes);
    for (int64_t s = 0; s < problem->n_stages; s++) write_stage(&problem->stage[s], s, file);
    write_states(problem, file);
    write_lists(&problem->reads, problem->n_stages, "reads", file);
    write_lists(&problem->keeps, problem->n_stages, "keeps", file);
    write_lists(&problem->adds, problem->n_stages, "adds", file);
    REQUIRE(!fflush(file) && !ferror(file), IO, "cannot write the problem: %s", strerror(errno));
    return REMAT_OK;
}

/* ---- Reading: first the counts, so that a short text cannot request much memory ------------------- */

typedef enum { READS, KEEPS, ADDS, LISTS } list_kind;
static const char *const list_words[] = {"reads", "keeps", "adds", NULL};

typedef struct {
    int64_t lines, items[LISTS]; /* upper limits of what the text can define */
} extent;

static extent measure(const char *text, size_t length) {
    extent extent = {0};
    for (rm_lexer lexer = rm_lexer_begin(text, length); rm_lexer_line(&lexer); extent.lines++) {
        int kind = rm_lexer_any(&lexer, list_words);
        if (kind < 0) continue;
        uint64_t number;
        if (!rm_lexer_number(&lexer, UINT64_MAX, &number) || !rm_lexer_is(&lexer, "states")) continue;
        while (rm_lexer_number(&lexer, UINT64_MAX, &number)) extent.items[kind]++;
    }
    return extent;
}

/* ---- Reading: line by line ------------------------------------------------------------------------ */

typedef struct {
    rm_problem *problem;
    rm_lexer lexer;
    extent extent;
    bool versioned;             /* the first line has been read */
    bool sized;                 /* "pieces" has been read and the arrays are allocated */
    int64_t n_stages, n_states; /* -1 before "stages" and "states" have been read */
    int64_t pieces_read;        /* number of pieces read, in order */
    int64_t stages_read;        /* the stage whose options are being read is stages_read - 1 */
    int64_t maker;              /* the stage that makes the state read last */
    int64_t states_read, dstates_read, lists_read[LISTS];
} reader;

static bool read_work(rm_lexer *lexer, rm_work *work) {
    return rm_lexer_is(lexer, "time") && rm_lexer_number(lexer, UINT64_MAX, &work->time_ns) &&
           rm_lexer_is(lexer, "scratch") && rm_lexer_number(lexer, UINT64_MAX, &work->scratch_bytes);
}

static bool read_version(reader *r) {
    uint64_t version;
    bool first = !r->versioned;
    r->versioned = true;
    return first && rm_lexer_number(&r->lexer, VERSION, &version) && version == VERSION;
}

static bool read_resident(reader *r) {
    rm_problem *problem = r->problem;
    int most = (int)(sizeof problem->resident / sizeof problem->resident[0]);
    if (r->sized || problem->n_resident == most) return false;
    rm_resident *resident = &problem->resident[problem->n_resident];
    if (!rm_lexer_number(&r->lexer, UINT64_MAX, &resident->bytes)) return false;
    if (!rm_lexer_rest(&r->lexer, resident->name, sizeof resident->name)) return false;
    r->lexer.at = r->lexer.stop;
    problem->n_resident++;
    return true;
}

static bool read_tier(reader *r) {
    rm_tier *tier = &r->problem->tier;
    if (r->sized || rm_tier_there(tier)) return false;
    return rm_lexer_is(&r->lexer, "save") && rm_lexer_number(&r->lexer, UINT64_MAX, &tier->save_bytes_per_s) &&
           rm_lexer_is(&r->lexer, "load") && rm_lexer_number(&r->lexer, UINT64_MAX, &tier->load_bytes_per_s) &&
           rm_lexer_is(&r->lexer, "latency") && rm_lexer_number(&r->lexer, UINT64_MAX, &tier->latency_ns) &&
           rm_lexer_is(&r->lexer, "cost") && rm_lexer_number(&r->lexer, UINT64_MAX, &tier->cost_ns_per_mib) &&
           rm_lexer_is(&r->lexer, "host") && rm_lexer_number(&r->lexer, UINT64_MAX, &tier->host_bytes) &&
           rm_tier_there(tier);
}

static bool read_count(reader *r, int64_t *count) {
    return *count < 0 && rm_lexer_index(&r->lexer, r->extent.lines, count);
}

/* Reads the last count, after which the arrays can be allocated. Sets *status only if out of memory. */
static bool read_pieces(reader *r, remat_status *status) {
    int64_t n_pieces;
    if (r->sized || r->n_stages < 0 || r->n_states < 0 || !rm_lexer_index(&r->lexer, r->extent.lines, &n_pieces))
        return false;
    rm_problem head = *r->problem;
    const int64_t *items = r->extent.items;
    *status = rm_problem_alloc(r->problem, (rm_extent){.stages = r->n_stages,
                                                       .states = r->n_states,
                                                       .pieces = n_pieces,
                                                       .reads = items[READS],
                                                       .keeps = items[KEEPS],
                                                       .adds = items[ADDS]});
    r->problem->n_resident = head.n_resident;
    r->problem->tier = head.tier;
    memcpy(r->problem->resident, head.resident, sizeof head.resident);
    r->sized = !*status;
    return true;
}

static bool read_piece(reader *r) {
    int64_t id;
    if (!r->sized || !rm_lexer_index(&r->lexer, r->problem->n_pieces, &id) || id != r->pieces_read) return false;
    r->pieces_read++;
    return rm_lexer_is(&r->lexer, "bytes") && rm_lexer_number(&r->lexer, UINT64_MAX, &r->problem->piece[id].bytes);
}

static bool read_option(reader *r, rm_stage *stage) {
    if (stage->n_options == RM_MAX_OPTIONS) return false;
    rm_stage_option *option = &stage->option[stage->n_options++];
    int name = rm_lexer_any(&r->lexer, rm_option_names);
    if (name < 0) return false;
    option->name = rm_option_names[name];
    return rm_lexer_is(&r->lexer, "saved") && rm_lexer_number(&r->lexer, UINT64_MAX, &option->saved_bytes) &&
           rm_lexer_is(&r->lexer, "forward") && read_work(&r->lexer, &option->forward) &&
           rm_lexer_is(&r->lexer, "backward") && read_work(&r->lexer, &option->backward);
}

static bool read_stage(reader *r) {
    int64_t s;
    if (!r->sized || !rm_lexer_index(&r->lexer, r->problem->n_stages, &s)) return false;
    if (rm_lexer_is(&r->lexer, "keep")) return s == r->stages_read - 1 && read_option(r, &r->problem->stage[s]);
    return s == r->stages_read++ && rm_lexer_is(&r->lexer, "drop") && read_work(&r->lexer, &r->problem->stage[s].drop);
}

/* Records that stages up to the maker have made the states read so far. */
static void pass_makers(reader *r, int64_t maker) {
    while (r->maker < maker) r->problem->made[++r->maker] = r->states_read;
}

static bool read_state(reader *r) {
    int64_t i, maker, n;
    rm_problem *p = r->problem;
    if (!r->sized || !rm_lexer_index(&r->lexer, p->n_states, &i) || i != r->states_read) return false;
    if (!rm_lexer_is(&r->lexer, "of") || !rm_lexer_index(&r->lexer, p->n_stages, &maker) || maker < r->maker)
        return false;
    if (!rm_lexer_is(&r->lexer, "pieces") || !rm_lexer_index(&r->lexer, p->n_pieces - p->state[i] + 1, &n))
        return false;
    pass_makers(r, maker);
    p->state[i + 1] = p->state[i] + n;
    r->states_read++;
    return true;
}

/* Gradients begin where the states end. */
static void pass_dstates(reader *r, int64_t i) {
    rm_problem *p = r->problem;
    if (r->dstates_read == 0) p->dstate[0] = p->state[p->n_states];
    for (; r->dstates_read < i; r->dstates_read++) p->dstate[r->dstates_read + 1] = p->dstate[r->dstates_read];
}

static bool read_dstate(reader *r) {
    int64_t i, n;
    rm_problem *p = r->problem;
    if (!r->sized || r->states_read < p->n_states) return false;
    if (!rm_lexer_index(&r->lexer, p->n_states, &i) || i < r->dstates_read || !rm_lexer_is(&r->lexer, "pieces"))
        return false;
    pass_dstates(r, i);
    if (!rm_lexer_index(&r->lexer, p->n_pieces - p->dstate[i] + 1, &n) || n == 0) return false;
    p->dstate[i + 1] = p->dstate[i] + n;
    r->dstates_read = i + 1;
    return true;
}

static rm_lists *lists_of(rm_problem *problem, list_kind kind) {
    return kind == READS ? &problem->reads : kind == KEEPS ? &problem->keeps : &problem->adds;
}

/* Lists i .. of a kind begin where the last list read ends; start[i+1] is set as list i is passed. */
static bool read_list(reader *r, list_kind kind) {
    int64_t i, id;
    if (!r->sized || !rm_lexer_index(&r->lexer, r->problem->n_stages, &i)) return false;
    rm_lists *lists = lists_of(r->problem, kind);
    if (i < r->lists_read[kind] || !rm_lexer_is(&r->lexer, "states")) return false;
    while (r->lists_read[kind] < i) {
        int64_t empty = r->lists_read[kind]++;
        lists->start[empty + 1] = lists->start[empty];
    }
    int64_t end = lists->start[i];
    while (rm_lexer_index(&r->lexer, r->problem->n_states, &id)) lists->item[end++] = (int32_t)id;
    lists->start[i + 1] = end;
    r->lists_read[kind] = i + 1;
    return end > lists->start[i];
}

static void end_lists(reader *r) {
    pass_makers(r, r->problem->n_stages);
    pass_dstates(r, r->problem->n_states);
    for (list_kind kind = READS; kind < LISTS; kind++) {
        rm_lists *lists = lists_of(r->problem, kind);
        for (int64_t i = r->lists_read[kind]; i < r->problem->n_stages; i++) lists->start[i + 1] = lists->start[i];
    }
}

static remat_status read_fact(reader *r) {
    static const char *const facts[] = {"problem", "resident", "stages", "pieces", "piece", "stage",
                                        "tier",    "states",   "state",  "dstate", NULL};
    remat_status status = REMAT_OK;
    bool understood;
    rm_lexer line = r->lexer;
    int list = rm_lexer_any(&r->lexer, list_words), fact = list < 0 ? rm_lexer_any(&r->lexer, facts) : -1;
    if (fact != 0 && !r->versioned)
        understood = false;
    else if (list >= 0)
        understood = read_list(r, (list_kind)list);
    else
        switch (fact) {
        case 0:
            understood = read_version(r);
            break;
        case 1:
            understood = read_resident(r);
            break;
        case 2:
            understood = read_count(r, &r->n_stages);
            break;
        case 3:
            understood = read_pieces(r, &status);
            break;
        case 4:
            understood = read_piece(r);
            break;
        case 5:
            understood = read_stage(r);
            break;
        case 6:
            understood = read_tier(r);
            break;
        case 7:
            understood = read_count(r, &r->n_states);
            break;
        case 8:
            understood = read_state(r);
            break;
        case 9:
            understood = read_dstate(r);
            break;
        default:
            understood = false;
        }
    if (status || (understood && rm_lexer_done(&r->lexer))) return status;
    char text[80], rest[80];
    rm_lexer_rest(&line, text, sizeof text);
    rm_lexer_rest(&r->lexer, rest, sizeof rest);
    FAIL(INVALID,
         "line %lld of the problem ('%s') is not understood from '%s' on: a wrong word, a number that is too large, or "
         "a fact that is repeated or out of order",
         (long long)line.line, text, rest);
}

static remat_status finish(reader *r) {
    REQUIRE(r->sized, INVALID, "the problem's text ends before 'stages', 'states' and 'pieces'");
    REQUIRE(r->pieces_read == r->problem->n_pieces, INVALID, "the problem declares %lld pieces but describes %lld",
            (long long)r->problem->n_pieces, (long long)r->pieces_read);
    REQUIRE(r->stages_read == r->problem->n_stages, INVALID, "the problem declares %lld stages but describes %lld",
            (long long)r->problem->n_stages, (long long)r->stages_read);
    REQUIRE(r->states_read == r->problem->n_states, INVALID, "the problem declares %lld states but describes %lld",
            (long long)r->problem->n_states, (long long)r->states_read);
    end_lists(r);
    return rm_problem_check(r->problem);
}

remat_status rm_problem_read(rm_problem *problem, const char *text, size_t length) {
    *problem = (rm_problem){0};
    reader r = {.problem = problem,
                .lexer = rm_lexer_begin(text, length),
                .extent = measure(text, length),
                .n_stages = -1,
                .n_states = -1};
    remat_status status = REMAT_OK;
    while (!status && rm_lexer_line(&r.lexer)) status = read_fact(&r);
    if (!status) status = finish(&r);
    if (status) rm_problem_free(problem);
    return status;
}
