/* options_check.c: refuses flags that cannot be combined, flags that lack another flag, and flags without effect. options_value.c
 * checks single values; setup.c and presets.c check flags against the data and the number of ranks.
 * Main entries: rm_options_check_said, rm_options_check; see options.h. */
#include "train/flags/condition.h"

#include "train/file.h"
#include "train/flags/presets.h"
#include "train/run/setup.h"
#include "train/tasks/task.h"

#include <stdio.h>
#include <string.h>

static bool is(const char *value, const char *other) { return !strcmp(value, other); }

static bool said(const rm_options *o, const char *name) { return o->said[rm_option_named(name) - rm_option_table]; }

/* ---- Flags without effect ---------------------------------------------------------------------------------------- */

/* The table says when a flag has an effect. Flags about ranks (such as --zero, --bucket-cap-mb and --grad-compress) have no condition,
 * because a script may run on any number of ranks, including one; nor do flags that forbid something (--no-fold, --recompute=exact-only). */
static remat_status has_no_effect(const rm_options *o, const rm_option *line, const rm_condition *c) {
    char flag[120], with[120], needs[RM_REMEDY_BYTES];
    const bool other = c->line == c->last; /* the flag has another value than it needs */
    rm_option_now(o, line, flag);
    rm_option_now(o, c->line, with);
    rm_condition_remedy(c, needs);
    FAIL(INVALID, "%s has no effect %s %s%s: it needs %s%s%s", flag, other ? "with" : "without", other ? with : "--",
         other ? "" : c->line->name, needs, *c->why ? ", " : "", c->why);
}

static bool asks_for_something(const rm_options *o, const rm_option *line) {
    char text[RM_PATH_BYTES];
    const char *off = rm_option_is_switch(line) ? "false" : line->default_text;
    if (!o->said[line - rm_option_table]) return false;
    return line->needs_always || !off || !is(rm_option_text(o, line, text, sizeof text), off);
}

/* --optimizer=adam on the command line may leave `momentum` in the config file without effect: that is no error. */
static bool is_overruled(const rm_options *o, const rm_option *line, const rm_condition *c) {
    if (!c->last) return false;
    int64_t other = c->last - rm_option_table;
    return o->said[other] && !o->in_file[other] && o->in_file[line - rm_option_table];
}

static remat_status check_effect(const rm_options *o, const rm_option *line) {
    rm_condition c;
    for (const char *at = line->needs; rm_condition_next(&at, &c);)
        if (!is_overruled(o, line, &c) && !rm_condition_holds(o, &c)) return has_no_effect(o, line, &c);
    return REMAT_OK;
}

/* A config file may serve several commands, so flags of other commands are not checked. */
static remat_status check_effects(const rm_options *o, rm_command command) {
    int commands = command == RM_PLAN ? RM_PLAN | RM_TRAIN : (int)command;
    for (const rm_option *line = rm_option_table; line < rm_option_table + rm_n_options; line++)
        if (line->needs && line->commands & commands && asks_for_something(o, line)) TRY(check_effect(o, line));
    return REMAT_OK;
}

/* ---- Flags that contradict each other ------------------------------------------------------------------------------ */

/* Both conditions must not hold at once. Defaults that nobody gave contradict nothing. */
static const struct {
    const char *one, *other, *why;
} exclusive[] = {
    {"bidirectional", "tbptt|stateful", "states are carried forwards, and the reverse direction begins at the end"},
    {"task=seq2seq", "dropout-in|dropout-out|init-range", "a seq2seq model has dropout only between its layers"},
    {"tie-embeddings", "init-head=new", "the head is the embedding"},
    {"recompute=off", "checkpoint-segments>1", "segments are recomputed"},
    {"recompute=off", "checkpoint=sqrt|lean", "both strategies recompute activations"},
    {"recompute=exact-only", "checkpoint=lean", "it rebuilds gates from h"},
    {"assume-memory", "memory-budget", "the budget is the memory of the assumed machine"},
    {"deterministic-world", "accumulate-steps>1", "the first cuts --batch into shards, the second adds batches to it"},
    {"deterministic-world", "grad-compress",
     "gradients are rounded before they are sent, so bits would depend on the number of ranks"},
    {"deterministic-world", "model:sync-batchnorm",
     "each rank has its own running statistics, so bits would depend on the number of ranks; with --sync-batchnorm "
     "ranks "
     "agree except for rounding"},
    {"deterministic-world", "tbptt|stateful",
     "states are carried from one micro step to the next, but shards are computed in another order"},
    {"fused-update", "clip-grad-norm", "parameters are updated before the norm of all gradients is known"},
    {"clip-grad-norm", "clip-grad-value", NULL},
    {"tbptt", "lengths", "a sample may end within a window"},
    {"eval-data", "eval-split", "each names the data for evaluations"},
    {"stateful", "sampler=random", "each row of the batch reads its own part of the text, in order"},
    {"stateful", "pad", "each row of the batch reads its own part of the text"},
    {"pipeline", "dump-grads", "no rank has all gradients"},
    {"metrics-per-rank", "metrics=-", "standard output is one file"},
    {"autotune=bits|any", "device=null", "there is no time to measure where nothing is computed"},
    {"loss:values", "task:class-weights", "its answers are classes, and those of --task=regress are numbers"},
};

/* If the first condition holds, the second must hold too. Defaults that nobody gave make no demands. */
static const struct {
    const char *where, *need;
} demands[] = {
    {"loss:shares", "task:values"},
    {"loss:pixels", "model:pixels"},
    {"checkpoint=segments", "checkpoint-segments"},
    {"lr-schedule=step", "milestones (updates such as 300,600 or epochs such as 30e,60e)"},
    {"lr-schedule=plateau", "eval-every>0"},
};

static bool is_unasked_default(const rm_options *o, const rm_option *line) {
    char text[RM_PATH_BYTES];
    return !o->said[line - rm_option_table] && line->default_text &&
           is(rm_option_text(o, line, text, sizeof text), line->default_text);
}

static remat_status check_exclusive(const rm_options *o) {
    char first[120], second[120];
    for (size_t i = 0; i < sizeof exclusive / sizeof *exclusive; i++) {
        const char *one = exclusive[i].one, *other = exclusive[i].other, *why = exclusive[i].why;
        rm_condition a, b;
        bool both = rm_condition_next(&one, &a) && rm_condition_holds(o, &a) && rm_condition_next(&other, &b) &&
                    rm_condition_holds(o, &b);
        if (!both || is_unasked_default(o, a.line)) continue;
        rm_option_now(o, rm_condition_cause(o, &a), first);
        rm_option_now(o, rm_condition_cause(o, &b), second);
        FAIL(INVALID, "%s and %s cannot be combined%s%s: remove one of the two", first, second, why ? ", because " : "",
             why ? why : "");
    }
    return REMAT_OK;
}

static remat_status check_demands(const rm_options *o) {
    char with[120], needs[RM_REMEDY_BYTES];
    for (size_t i = 0; i < sizeof demands / sizeof *demands; i++) {
        const char *where = demands[i].where, *need = demands[i].need;
        rm_condition a, b;
        bool missing = rm_condition_next(&where, &a) && rm_condition_holds(o, &a) && rm_condition_next(&need, &b) &&
                       !rm_condition_holds(o, &b);
        if (!missing || is_unasked_default(o, a.line)) continue;
        rm_option_now(o, a.line, with);
        rm_condition_remedy(&b, needs);
        FAIL(INVALID, "%s needs %s%s%s", with, needs, *b.why ? ", " : "", b.why);
    }
    return REMAT_OK;
}

/* Only `optimal` plans spill; --pareto shows the plans of all strategies. */
static remat_status check_spill(const rm_options *o) {
    bool limited = o->session.memory_budget || o->assume_memory, named = rm_options_given(o, "checkpoint");
    bool optimal = !o->session.segments && (is(o->session.strategy, "optimal") || (limited && !named));
    REQUIRE(
        !said(o, "spill") || optimal || o->pareto, INVALID,
        "--spill has no effect with --checkpoint%s%s: it needs --memory-budget=SIZE with --checkpoint=optimal, which "
        "is what a budget means by itself",
        o->session.segments ? "-segments" : "=", o->session.segments ? "" : o->session.strategy);
    return REMAT_OK;
}

/* Without recompute there is nothing to verify. A budget without --checkpoint means `optimal`. */
static remat_status check_verify(const rm_options *o) {
    bool limited = o->session.memory_budget || o->assume_memory, named = rm_options_given(o, "checkpoint");
    bool keeps_all = !o->session.segments && is(o->session.strategy, "none") && (named || !limited);
    REQUIRE(!said(o, "verify-recompute") || !o->session.verify_recompute || !keeps_all || o->pareto, INVALID,
            "--verify-recompute has no effect with --checkpoint=none, which computes nothing twice: it needs "
            "--checkpoint=sqrt, lean or optimal, --checkpoint-segments=N or --memory-budget=SIZE");
    return REMAT_OK;
}

/* Shards are added up as a tree. rm_setup_world checks them against the number of ranks. */
static remat_status check_shards(const rm_options *o) {
    int64_t shards = o->order.shards;
    REQUIRE(!(shards & (shards - 1)), INVALID,
            "--deterministic-world=%lld: shards are added up as a tree; use a power of two, such as 8",
            (long long)shards);
    return REMAT_OK;
}

/* The null device has no results to save or evaluate. `plan` takes the flags of any run. --resume implies --save. */
static remat_status check_null(const rm_options *o, rm_command command) {
    const char *flag = o->save && !said(o, "save")      ? "resume"
                       : o->save                        ? "save"
                       : o->dump_grads                  ? "dump-grads"
                       : o->held_out.data               ? "eval-data"
                       : !is(o->held_out.split, "none") ? "eval-split"
                       : o->eval_every                  ? "eval-every"
                                                        : NULL;
    if (!is(o->session.device, "null")) return REMAT_OK;
    REQUIRE(command != RM_EVAL, INVALID,
            "--device=null does not compute anything, so there is no loss to report: use --device=cpu");
    REQUIRE(command != RM_TRAIN || !flag, INVALID,
            "--device=null does not compute anything, so --%s has no results to use: remove it, or use --device=cpu",
            flag);
    return REMAT_OK;
}

/* Overlapping windows read timesteps before their own. */
static remat_status check_windows(const rm_options *o) {
    const rm_windows w = o->tbptt;
    const char *other = rm_task_uses(rm_task_find(o->task), "values") ? "task=regress"
                        : o->order.stateful                           ? "stateful"
                                                                      : NULL;
    REQUIRE(w.step == w.length || !other, INVALID,
            "--tbptt=%lld:%lld makes windows overlap, which --%s does not allow: give --tbptt one number",
            (long long)w.length, (long long)w.step, other);
    return REMAT_OK;
}

/* A preset's learning rate fits its optimizer only: rates of lars are thousands of times those of adam. */
static remat_status check_preset(const rm_options *o) {
    rm_preset preset;
    const char *optimizer = "", *lr = "";
    if (!o->preset || is(o->preset, "list")) return REMAT_OK;
    TRY(rm_preset_find(o->preset, &preset));
    for (int i = 0; i < RM_PRESET_VALUES; i++) {
        if (is(preset.value[i].flag, "optimizer")) optimizer = preset.value[i].value;
        if (is(preset.value[i].flag, "lr")) lr = preset.value[i].value;
    }
    REQUIRE(is(o->session.optimizer, optimizer) || said(o, "lr"), INVALID,
            "--preset=%s has a learning rate of %s, for --optimizer=%s: with --optimizer=%s give --lr=X", preset.name,
            lr, optimizer, o->session.optimizer);
    return REMAT_OK;
}

/* Pairs are read from files or generated. --generate may come from a training state, so only flags that were said count. */
static remat_status check_pairs(const rm_options *o) {
    if (!rm_task_find(o->task)->pairs) return REMAT_OK;
    REQUIRE(!(said(o, "samples") && o->data.data), INVALID,
            "--samples has no effect with --data: it needs --generate=copy, reverse or sort");
    REQUIRE(!said(o, "generate") || is(o->data.generate, "none") || !o->data.tokenizer, INVALID,
            "--tokenizer has no effect with --generate, which makes single letters: remove one of the two");
    return REMAT_OK;
}

/* ---- All of it ----------------------------------------------------------------------------------------------------- */

/* At most one flag of each pair may be given. */
static const char *const said_once[][2] = {{"steps", "epochs"},       {"warmup-steps", "warmup-epochs"},
                                           {"resume", "init"},        {"data", "generate"},
                                           {"json", "steps-text"},    {"json", "problem"},
                                           {"steps-text", "problem"}, {"pareto", "steps-text"},
                                           {"pareto", "problem"},     {"devices", "rank"},
                                           {"devices", "world-size"}};

remat_status rm_options_check_said(const rm_options *o) {
    bool restarts = o->save && o->resume && rm_path_same(o->save, o->resume); /* a script that is run again unchanged */
    for (size_t i = 0; i < sizeof said_once / sizeof *said_once; i++) {
        const char *one = said_once[i][0], *other = said_once[i][1];
        bool both = said(o, one) && said(o, other) && !(restarts && is(one, "resume"));
        REQUIRE(!both, INVALID, "--%s and --%s cannot be combined: remove one of the two", one, other);
    }
    REQUIRE(!(said(o, "checkpoint-segments") && said(o, "checkpoint") && !is(o->session.strategy, "segments")), INVALID,
            "--checkpoint-segments and --checkpoint=%s cannot be combined: remove one of the two", o->session.strategy);
    bool read = o->resume ? !restarts : o->init && is(o->init_head, "file");
    REQUIRE(!said(o, "init-range") || !read, INVALID,
            "--init-range has no effect with --%s, which reads the weights: remove --init-range",
            o->resume ? "resume" : "init");
    remat_pipeline pipeline;
    return rm_setup_pipeline(o, &pipeline);
}

/* Whether the name starts with one of the prefixes, "head.,rnn.". */
static bool has_prefix(const char *name, const char *prefixes) {
    for (const char *at = prefixes; *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        if (length && !strncmp(name, at, length)) return true;
        at += length;
    }
    return false;
}

/* Whether the name contains one of the words before the colons, "head,emb:lr=0;rnn:lr=2". */
static bool group_names(const char *groups, const char *name) {
    char word[64];
    for (const char *at = groups; *at; at += strcspn(at, ";"), at += *at == ';')
        for (bool more = true; more; at += more) {
            at += strspn(at, " ");
            size_t length = strcspn(at, ",:;");
            more = at[length] == ',';
            snprintf(word, sizeof word, "%.*s", (int)length, at);
            at += length;
            while (length && length < sizeof word && word[length - 1] == ' ') word[--length] = 0;
            if (length && length < sizeof word && strstr(name, word)) return true;
        }
    return false;
}

static remat_status check_tied_groups(const rm_options *o) {
    if (!o->model.tie_embeddings || !said(o, "groups")) return REMAT_OK;
    REQUIRE(
        !group_names(o->session.groups, "head.weight") || group_names(o->session.groups, "embedding.weight"), INVALID,
        "--groups=%s: with --tie-embeddings the head's weight is embedding.weight, so the group would contain only the "
        "head's bias: add embedding, or name head.bias",
        o->session.groups);
    return REMAT_OK;
}

static remat_status check_tied_head(const rm_options *o) {
    TRY(check_tied_groups(o));
    if (!o->model.tie_embeddings || !o->session.train_only) return REMAT_OK;
    REQUIRE(!has_prefix("head.weight", o->session.train_only) || has_prefix("embedding.weight", o->session.train_only),
            INVALID,
            "--train-only=%s: with --tie-embeddings the head's weight is embedding.weight, so only the head's bias "
            "would be "
            "trained: add embedding., or name head.bias",
            o->session.train_only);
    return REMAT_OK;
}

remat_status rm_options_check(const rm_options *o, rm_command command) {
    const rm_task *task = rm_task_find(o->task);
    REQUIRE(!o->model.bidirectional || !task->next_token, INVALID,
            "--bidirectional cannot be used with --task=%s, because the reverse direction would see the token to be "
            "predicted: remove one of the two",
            o->task);
    bool answers = rm_task_uses(task, "values") && rm_model_is(o->model.name, "vectors");
    REQUIRE(task->images || answers || !rm_model_is(o->model.name, "images"), INVALID,
            "--model=%s classifies images, but --task=%s has none: give --task=classify, or remove --task",
            o->model.name, o->task);
    REQUIRE(!rm_task_uses(task, "classes") || o->data.classes != 1 || command != RM_TRAIN, INVALID,
            "--classes=1: with one class there is nothing to learn; give the number of classes, 2 or more");
    REQUIRE(!o->data.lengths || !o->held_out.data || o->held_out.lengths, INVALID,
            "--lengths gives the lengths of the samples of --data; those of --eval-data are missing: add "
            "--eval-lengths=FILE");
    TRY(check_exclusive(o));
    TRY(check_demands(o));
    TRY(check_tied_head(o));
    TRY(check_verify(o));
    TRY(check_spill(o));
    TRY(check_shards(o));
    TRY(check_windows(o));
    TRY(check_pairs(o));
    TRY(check_preset(o));
    TRY(check_null(o, command));
    TRY(check_effects(o, command));
    return rm_option_check_files(o, command);
}
