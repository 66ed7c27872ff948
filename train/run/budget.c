/* budget.c: see budget.h. */
#include "train/run/budget.h"

#include "engine/abi.h"
#include "memory/check.h"
#include "train/data/batch.h"
#include "train/data/by_length.h"
#include "train/run/setup.h"
#include "train/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

uint64_t rm_budget_given(const rm_options *o) {
    return o->session.memory_budget ? o->session.memory_budget : o->assume_memory;
}

/* ---- What the program holds ------------------------------------------------------------------------------------- */

/* The buffers of messages to a pipeline's other ranks. */
static uint64_t message_bytes(const rm_options *o) {
    return (uint64_t)(rm_setup_parts(o) - 1) * (RM_MESSAGE_ROOM + 4096);
}

uint64_t rm_budget_data_bytes(const rm_options *o, const rm_data_shape *shape, const rm_dataset *dataset) {
    int64_t rows = rm_setup_rows(o);
    int64_t batches = o->data.threads && shape->channels ? 2 : 1; /* the next one is prepared in advance */
    uint64_t answers = (uint64_t)(rows * rm_data_answers(shape));
    uint64_t logits = shape->every_step ? 0 : 4 * (uint64_t)shape->classes * answers;     /* for training accuracy */
    if (rm_setup_parts(o) > 1) logits += 4 * answers * (uint64_t)rm_setup_micro_steps(o); /* targets, for the same */
    uint64_t order = 4 * (uint64_t)(dataset ? dataset->count : 0) + 4 * (uint64_t)rows +
                     (o->order.by_length ? sizeof(rm_by_length) : 0);
    return rm_data_batch_bytes(shape, rows, batches) + logits + message_bytes(o) + order +
           (dataset ? dataset->held_bytes : 0);
}

/* "--memory-budget=20MiB", as the user may have typed it: in the largest unit that needs at most two decimals. */
static const char *given_text(const rm_options *o, char text[64]) {
    static const struct {
        uint64_t bytes;
        const char *name;
    } units[] = {{UINT64_C(1) << 40, "TiB"},
                 {UINT64_C(1000000000000), "TB"},
                 {1 << 30, "GiB"},
                 {1000000000, "GB"},
                 {1 << 20, "MiB"},
                 {1000000, "MB"},
                 {1 << 10, "KiB"},
                 {1000, "KB"},
                 {1, ""}};
    uint64_t bytes = rm_budget_given(o);
    int u = 0;
    while (bytes < units[u].bytes || bytes % units[u].bytes * 100 % units[u].bytes) u++;
    snprintf(text, 64, "--%s=%.15g%s", o->session.memory_budget ? "memory-budget" : "assume-memory",
             (double)bytes / (double)units[u].bytes, units[u].name);
    return text;
}

/* What of the program's own bytes no other flag makes smaller. */
static const char *messages_text(const rm_options *o, char text[64]) {
    const unsigned long long bytes = message_bytes(o);
    *text = 0;
    if (bytes) snprintf(text, 64, " (%llu for messages of --pipeline)", bytes);
    return text;
}

remat_status rm_budget_apply(const rm_options *o, uint64_t held, remat_config *config) {
    char given[64], messages[64];
    uint64_t budget = rm_budget_given(o);
    config->memory_budget = budget > held ? budget - held : 0;
    REQUIRE(!budget || budget > held, INFEASIBLE,
            "%s is too small: the program's own data and batches take %llu bytes%s", given_text(o, given),
            (unsigned long long)held, messages_text(o, messages));
    return REMAT_OK;
}

/* ---- Advice ----------------------------------------------------------------------------------------------------- */

/* Limits per kind of change, about a tenth of a second. They count work instead of time, so that the advice is the same
 * on every machine. The first smaller tile, the smallest batch and the shortest sequence are always planned. */
#define MOST_PLANNED 8000         /* layers of tiles */
#define MOST_JUDGED 8000000       /* steps of plans */
#define MOST_JUDGED_TILES 3000000 /* steps of plans with smaller tiles, where placing takes longer */
#define MOST_HALVINGS 6           /* a smaller share of the batch or sequence would be a different task */

typedef struct {
    const rm_model_spec *spec;
    const rm_dataset *dataset;
    uint64_t other_bytes;
    int64_t tile;  /* timesteps per tile in the plan that did not fit */
    bool resuming; /* shapes cannot change */
    const remat_ranks *ranks;
    uint64_t least;        /* smallest budget for the given flags; 0: unknown */
    int64_t planned;       /* layers of tiles planned for the current kind of change */
    uint64_t judged, last; /* steps of plans judged for the current kind of change, and in its last try */
    bool ended;            /* a limit ended the search */
    char text[160];        /* the flags that fit, and the bytes they need */
} search;

/* Plans with these flags. INFEASIBLE is a normal result; *out is NULL unless OK. */
static remat_status plan_with(const search *s, const rm_options *o, bool limited, remat_session **out) {
    rm_model model = {0};
    rm_model_spec spec = *s->spec;
    remat_config config = rm_setup_training_config(o);
    *out = NULL;
    spec.data.timesteps = o->data.timesteps;
    spec.window = o->tbptt.length;
    config.plan_only = true;
    config.ranks = s->ranks;
    config.calibration = NULL; /* only bytes matter, not times */
    remat_status status = rm_setup_world(o);
    if (limited && !status)
        status = rm_budget_apply(o, rm_budget_data_bytes(o, &spec.data, s->dataset) + s->other_bytes, &config);
    if (!status) status = rm_model_build(&spec, rm_setup_rows(o), true, &model);
    if (!status) status = rm_setup_session(&model, &config, out);
    rm_model_free(&model);
    return status;
}

/* Two decimals, rounded up: the size must suffice when given as a budget. */
static const char *size_text(uint64_t bytes, char text[RM_TEXT]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int u = 0;
    for (; value >= 1024 && u < 4; u++) value /= 1024;
    snprintf(text, RM_TEXT, u ? "%.2f %s" : "%.0f %s", u ? ceil(value * 100) / 100 : value, unit[u]);
    return text;
}

static uint64_t held_bytes(const search *s, const rm_options *o) {
    rm_data_shape shape = s->spec->data;
    shape.timesteps = o->data.timesteps;
    return rm_budget_data_bytes(o, &shape, s->dataset) + s->other_bytes;
}

/* The smallest --memory-budget that works with these flags, found by planning with a tiny budget; 0: unknown. */
static uint64_t least_budget(const search *s, const rm_options *with) {
    remat_session *session;
    rm_options o = *with;
    o.assume_memory = 0;
    o.session.memory_budget = held_bytes(s, with) + 1;
    remat_status status = plan_with(s, &o, true, &session);
    remat_session_free(session);
    return status == REMAT_INFEASIBLE ? held_bytes(s, with) + remat_smallest_budget() : 0;
}

/* Whether these flags fit; if so, records them and their bytes in s->text. */
static bool fits(search *s, const rm_options *o, const char *changes) {
    char bytes[RM_TEXT];
    int64_t tile = o->session.tile ? o->session.tile : s->tile;
    uint64_t judged = rm_judged_steps(), needs = least_budget(s, o);
    s->planned += o->model.layers * (o->data.timesteps / (tile ? tile : 1) + 1);
    s->last = rm_judged_steps() - judged;
    s->judged += s->last;
    if (!needs || needs > rm_budget_given(o)) return false;
    snprintf(s->text, sizeof s->text, "%s would fit (needs %s)", changes, size_text(needs, bytes));
    return true;
}

/* A number that may be reduced. */
typedef struct {
    const char *before, *name; /* other changed flags, "" or "--recompute=auto "; the number's flag */
    int64_t from;
} number;

static rm_options halved(const rm_options *base, const number *of, int halvings) {
    rm_options o = *base;
    int64_t n = of->from >> halvings;
    if (!strcmp(of->name, "tile")) o.session.tile = n;
    if (!strcmp(of->name, "batch")) o.order.batch = n;
    if (!strcmp(of->name, "seq-len")) o.data.timesteps = n;
    if (!strcmp(of->name, "tbptt") && o.tbptt.step == o.tbptt.length) o.tbptt.step = n;
    if (!strcmp(of->name, "tbptt")) o.tbptt.length = n;
    return o;
}

static bool fits_halved(search *s, const rm_options *base, const number *of, int halvings) {
    char changes[96], step[24] = "";
    rm_options o = halved(base, of, halvings);
    if (!strcmp(of->name, "tbptt") && o.tbptt.step < o.tbptt.length)
        snprintf(step, sizeof step, ":%lld", (long long)o.tbptt.step);
    snprintf(changes, sizeof changes, "%s--%s=%lld%s", of->before, of->name, (long long)(of->from >> halvings), step);
    return fits(s, &o, changes);
}

/* The batch must be divisible into the shards of --deterministic-world, and samples into windows. */
static bool can_be_halved(const rm_options *base, const number *of, int halvings) {
    rm_options o = halved(base, of, halvings);
    return !rm_setup_world(&o) && rm_setup_windows_fit(&o);
}

static int most_halvings(int64_t from) {
    int n = 0;
    while (n < MOST_HALVINGS && from >> (n + 1) >= 1) n++;
    return n;
}

static void begin_kind(search *s) {
    s->planned = 0;
    s->judged = s->last = 0;
}

/* Whether the limits allow another try of about `steps` steps. */
static bool may_try(const search *s, uint64_t steps, uint64_t most_judged) {
    return s->planned < MOST_PLANNED && s->judged + steps <= most_judged;
}

/* Starts with the largest tile: smaller tiles need fewer bytes only until the plan's tables dominate, and planning time
 * doubles with each halving. */
static bool halve_tile(search *s, const rm_options *base, const char *before) {
    const number tile = {before, "tile", s->tile};
    int most = most_halvings(s->tile), n = 1;
    begin_kind(s);
    for (; n <= most && may_try(s, 2 * s->last, MOST_JUDGED_TILES); n++)
        if (fits_halved(s, base, &tile, n)) return true;
    s->ended = s->ended || n <= most;
    return false;
}

/* Fewer or shorter samples always need less memory, so this bisects for the largest number that fits. s->text keeps the
 * last one that did. */
static bool halve(search *s, const rm_options *base, const char *before, const char *name, int64_t from) {
    const number of = {before, name, from};
    int fitting = most_halvings(from), not_fitting = 0;
    begin_kind(s);
    while (fitting && !can_be_halved(base, &of, fitting)) fitting--;
    if (!fitting || !fits_halved(s, base, &of, fitting)) return false;
    while (fitting - not_fitting > 1 && may_try(s, s->last, MOST_JUDGED)) {
        int between = (fitting + not_fitting) / 2;
        if (fits_halved(s, base, &of, between))
            fitting = between;
        else
            not_fitting = between;
    }
    return true;
}

/* On a GPU, which spills to host memory and ignores the directory, by itself: only there are its libraries' workspaces known.
 * Otherwise on the null device, which supports a second tier and opens no file: the bytes are the same. */
static bool spill_would_fit(search *s, const rm_options *base) {
    rm_options o = *base;
    if (strcmp(o.session.device, "cuda")) o.session.device = "null";
    o.session.spill_dir = ".";
    return fits(s, &o, "--spill=DIR");
}

static rm_options with_optimal(const rm_options *base) {
    rm_options o = *base;
    o.session.strategy = "optimal";
    o.session.segments = 0;
    return o;
}

/* A change of flags that lets the planner recompute more. */
typedef struct {
    const char *changes;
    rm_options options; /* shallow copies: texts are borrowed, and nothing is freed */
} way;

/* Lists the ways, smallest change first; returns their number. */
static int list_ways(const rm_options *o, way ways[3]) {
    int n = 0;
    bool off = strcmp(o->session.recompute, "auto"), named = strcmp(rm_setup_training_config(o).strategy, "optimal");
    rm_options freer = *o;
    freer.session.recompute = "auto";
    if (off) ways[n++] = (way){"--recompute=auto", freer};
    if (named) ways[n++] = (way){"--checkpoint=optimal", with_optimal(o)};
    if (off && named) ways[n++] = (way){"--recompute=auto --checkpoint=optimal", with_optimal(&freer)};
    return n;
}

/* Tries smaller numbers, first with the other flags unchanged, then with the last way, if there is one. */
static bool find_smaller(search *s, const rm_options *o, const way *freest) {
    char before[64] = "";
    const rm_options *other = freest ? &freest->options : NULL;
    if (freest) snprintf(before, sizeof before, "%s ", freest->changes);
    const char *time = o->tbptt.length ? "tbptt" : "seq-len"; /* determines the number of activations */
    int64_t timesteps = o->tbptt.length ? o->tbptt.length : o->data.timesteps;
    return halve_tile(s, o, "") || (other && halve_tile(s, other, before)) ||
           halve(s, o, "", "batch", o->order.batch) || (other && halve(s, other, before, "batch", o->order.batch)) ||
           halve(s, o, "", time, timesteps) || (other && halve(s, other, before, time, timesteps));
}

static bool find_change(search *s, const rm_options *o) {
    way ways[3];
    int n = list_ways(o, ways);
    for (int i = 0; i < n; i++)
        if (fits(s, &ways[i].options, ways[i].changes)) return true;
    if (!o->session.spill_dir && spill_would_fit(s, o)) return true;
    return !s->resuming && find_smaller(s, o, n ? &ways[n - 1] : NULL);
}

/* The tile, which depends on shapes but not on the strategy; 0: no plan exists. */
static int64_t find_tile(const search *s, const rm_options *o) {
    remat_session *session;
    rm_options plain = *o;
    plain.session.strategy = "none";
    plain.session.segments = 0;
    plain.session.memory_budget = plain.assume_memory = 0;
    int64_t tile = plan_with(s, &plain, false, &session) ? 0 : rm_plan_summary_of(session).tile;
    remat_session_free(session);
    return tile;
}

static void say_least(const search *s, const rm_options *base) {
    char messages[64];
    if (s->least)
        fprintf(stderr, "  --%s=%llu is the least that fits, including %llu for the program's data and batches%s\n",
                base->session.memory_budget ? "memory-budget" : "assume-memory", (unsigned long long)s->least,
                (unsigned long long)held_bytes(s, base), messages_text(base, messages));
}

/* The engine's message is about the session's share of the budget; this rewrites it for the budget that the user
 * gave. */
static void say_refusal(search *s, const rm_options *base, const char *command) {
    static const char engines[] = "a memory budget of ", reason[] = " is too small: ";
    char given[64];
    const char *sentence = remat_last_error(), *why = strstr(sentence, reason);
    uint64_t held = held_bytes(s, base), budget = rm_budget_given(base);
    bool from_engine = why && !strncmp(sentence, engines, strlen(engines));
    s->least = from_engine ? held + remat_smallest_budget() : 0;
    if (!from_engine)
        fprintf(stderr, "remat %s: %s\n", command, sentence);
    else
        fprintf(stderr, "remat %s: %s%sthe program's data and batches take %llu bytes of it, which leaves %llu; %s\n",
                command, given_text(base, given), reason, (unsigned long long)held, (unsigned long long)(budget - held),
                why + strlen(reason));
}

/* Prints the error first, because the search for advice takes a moment. */
remat_status rm_budget_advise(const rm_options *o, const rm_model_spec *spec, const rm_dataset *dataset,
                              const rm_budget_advice *about) {
    search s = {.spec = spec,
                .dataset = dataset,
                .other_bytes = about->other_bytes,
                .resuming = about->resuming,
                .ranks = about->ranks};
    rm_options base = *o;
    fflush(stdout);
    base.data.timesteps = spec->data.timesteps;
    say_refusal(&s, &base, about->command);
    if (!s.least) s.least = least_budget(&s, &base);
    say_least(&s, &base);
    s.tile = find_tile(&s, &base);
    if (find_change(&s, &base))
        fprintf(stderr, "  %s\n", s.text);
    else if (about->resuming)
        fprintf(stderr, "  no other flag that a resumed run may change would fit: give a larger budget\n");
    else if (spec->data.channels)
        fprintf(stderr,
                "  no --batch down to 1/%d would fit: give a smaller --image-size or --model, or a larger budget\n",
                1 << MOST_HALVINGS);
    else
        fprintf(
            stderr,
            "  no --batch or --seq-len down to 1/%d would fit, nor a smaller --tile%s: reduce --hidden or --layers, or "
            "give a larger budget\n",
            1 << MOST_HALVINGS, s.ended ? " (not all were tried)" : "");
    return rm_fail(REMAT_INFEASIBLE, "%s", "");
}
