/* options_check.c: flags that do not go together: that exclude each other, that need each other, and that nothing would read.
 * Values by themselves are judged where they are read (options_value.c); what depends on the data or on the number of ranks,
 * where those are known (setup.c, presets.c). Main entries: rm_options_check_said, rm_options_check; see options.h. */
#include "train/flags/options_table.h"

#include "train/file.h"
#include "train/flags/presets.h"
#include "train/tasks/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const char *value, const char *other) { return !strcmp(value, other); }

static bool said(const rm_options *o, const char *name) { return o->said[rm_option_named(name) - rm_option_table]; }

/* ---- Flags that nothing would read ------------------------------------------------------------------------------- */

/* A flag has an effect where another has one of certain values:
 *
 *   "a|b|c"   one of these
 *   ">N"      a number above N
 *   BY_TASK   the tasks that use the flag (rm_task.flags)
 *   NULL      any: it is there; `other` may then name several flags, of which one does
 *
 * A flag may have several lines, of which all must hold. It may always say `off`, the value at which it asks for nothing.
 *
 * Not here: flags about ranks (--zero, --bucket-cap-mb, --grad-compress and the like), because one script is run on any
 * number of ranks, one included; and flags that forbid something (--no-fold, --recompute=exact-only) which would not
 * happen anyhow. */
typedef struct {
    const char *flag, *off; /* off NULL: there is no such value */
    const char *other, *values;
    const char *because; /* appended to the sentence; NULL: nothing */
} rule;

#define BY_TASK "?"
#define RECURRENT "lstm|gru|rnn|mingru|minlstm"
#define SEQUENCES RECURRENT "|gpt2"
#define RESNETS "resnet18|resnet34|resnet50"
#define NORMED RESNETS "|unet" /* by batch norm */
#define WHOLE_PICTURES "mlp|cnn|" RESNETS
#define PICTURES WHOLE_PICTURES "|unet"

static const rule rules[] = {
    {"dropout", "0", "layers", ">1", "dropout is between layers"},
    {"embed", "0", "task", BY_TASK, "whose inputs are symbols"},
    {"classes", "0", "task", BY_TASK, NULL},
    {"data", NULL, "task", BY_TASK, "the others generate theirs"},
    {"labels", NULL, "task", BY_TASK, NULL},
    {"eval-data", NULL, "task", BY_TASK, "the others generate theirs: --eval-every=N evaluates"},
    {"eval-labels", NULL, "task", BY_TASK, NULL},
    {"eval-labels", NULL, "eval-data", NULL, NULL},
    {"lengths", NULL, "task", BY_TASK, NULL},
    {"lengths", NULL, "model", RECURRENT, "which read timestep by timestep"},
    {"eval-lengths", NULL, "lengths", NULL, NULL},
    {"eval-lengths", NULL, "eval-data", NULL, NULL},
    {"document-end", "-1", "task", BY_TASK, NULL},
    {"document-end", "-1", "model", RECURRENT, "whose states can begin anew"},
    {"rows", "false", "task", BY_TASK, NULL},
    {"samples", NULL, "task", BY_TASK, "which generate them"},
    {"generate", "none", "task", BY_TASK, NULL},
    {"loss", NULL, "task", BY_TASK, "whose answers are numbers"},
    {"class-weights", NULL, "task", BY_TASK, NULL},
    {"ignore-index", NULL, "task", BY_TASK, NULL},
    {"allow-nan", "false", "task", BY_TASK, NULL},
    {"values", "0", "task", BY_TASK, NULL},
    {"every-step", "false", "task", BY_TASK, NULL},
    {"every-step", "false", "model", RECURRENT, "which read timestep by timestep"},
    {"image-size", "0", "model", PICTURES, NULL},
    {"channels", "0", "model", PICTURES, NULL},
    {"normalize", "none", "model", PICTURES, NULL},
    {"augment", "none", "model", WHOLE_PICTURES, "whose labels it leaves right"},
    {"loader-threads", "0", "model", PICTURES, NULL},
    {"skip-broken", "false", "model", PICTURES, NULL},
    {"rows", "false", "model", SEQUENCES, "which read pictures as sequences"},
    {"seq-len", "0", "model", SEQUENCES, NULL},
    {"tile", "0", "model", SEQUENCES, "which have timesteps"},
    {"embed", "0", "model", RECURRENT, NULL},
    {"heads", "0", "model", "gpt2", NULL},
    {"positions", "0", "model", "gpt2", NULL},
    {"no-bias", "false", "model", "lstm|gru|rnn", NULL},
    {"bidirectional", "false", "model", "lstm|gru|rnn", NULL},
    {"tie-embeddings", "false", "model", "lstm|gru|rnn", NULL},
    {"tie-embeddings", "false", "task", BY_TASK, "whose outputs are the symbols that it reads"},
    {"no-tie", "false", "model", "gpt2", NULL},
    {"proj-size", "0", "model", "lstm", NULL},
    {"layers", NULL, "model", SEQUENCES "|mlp|unet", NULL},
    {"hidden", NULL, "model", SEQUENCES "|mlp|unet", NULL},
    {"dropout", "0", "model", SEQUENCES "|mlp|cnn", NULL},
    {"stem", "imagenet", "model", RESNETS, NULL},
    {"sync-batchnorm", "false", "model", NORMED, "which have batch norm"},
    {"init-head", "file", "init", NULL, NULL},
    {"vocab", "0", "task", BY_TASK, NULL},
    {"tokenizer", NULL, "task", BY_TASK, NULL},
    {"stateful", "false", "task", BY_TASK, "whose samples go on where others end"},
    {"stateful", "false", "model", RECURRENT, "which have states"},
    {"tbptt", "0", "model", RECURRENT, "which have states"},
    {"tbptt", "0", "task", BY_TASK, "whose targets are at every timestep"},

    {"momentum", "0", "optimizer", "sgd|rmsprop|lars", NULL},
    {"nesterov", "false", "optimizer", "sgd|lars", NULL},
    {"nesterov", "false", "momentum", ">0", NULL},
    {"beta1", NULL, "optimizer", "adam|adamw|lamb", NULL},
    {"beta2", NULL, "optimizer", "adam|adamw|lamb", NULL},
    {"alpha", NULL, "optimizer", "rmsprop", NULL},
    {"eps", NULL, "optimizer", "adam|adamw|rmsprop|adagrad|lars|lamb", NULL},
    {"clip-grad-value", "0", "optimizer", "sgd|adam|adamw|rmsprop|adagrad",
     "the others look at whole gradients: --clip-grad-norm"},
    {"trust-coefficient", NULL, "optimizer", "lars", NULL},
    {"momentum-correction", "false", "optimizer", "lars",
     "whose velocity holds the learning rate; that of sgd does not, and is right as it is"},
    {"momentum-correction", "false", "momentum", ">0", NULL},
    {"adapt-vectors", "false", "optimizer", "lars|lamb", NULL},
    {"decay-vectors", "false", "optimizer", "lars|lamb", NULL},
    {"decay-vectors", "false", "weight-decay", ">0", NULL},
    {"norm-limit", "0", "optimizer", "lamb", NULL},
    {"label-smoothing", "0", "task", BY_TASK, "tasks with classes"},

    {"base-batch", NULL, "scale-lr", "linear|sqrt", NULL},
    {"milestones", NULL, "lr-schedule", "step", NULL},
    {"gamma", NULL, "lr-schedule", "step|plateau", NULL},
    {"end-lr", NULL, "lr-schedule", "linear|cosine|poly|restarts|plateau", NULL},
    {"decay-steps", "0", "lr-schedule", "linear|cosine|poly|restarts|one-cycle", NULL},
    {"cycle-mult", "1", "lr-schedule", "restarts", NULL},
    {"pct-start", NULL, "lr-schedule", "one-cycle", NULL},
    {"div-factor", NULL, "lr-schedule", "one-cycle", NULL},
    {"final-div-factor", NULL, "lr-schedule", "one-cycle", NULL},
    {"patience", NULL, "lr-schedule", "plateau", NULL},
    {"threshold", NULL, "lr-schedule", "plateau", NULL},
    {"early-stop", "0", "eval-every", ">0", "whose losses it looks at"},
    {"power", NULL, "lr-schedule", "poly", NULL},

    {"temperature", NULL, "task", BY_TASK, "for which tokens are drawn: --beam is for seq2seq"},
    {"top-k", "0", "task", BY_TASK, NULL},
    {"top-p", "1", "task", BY_TASK, NULL},
    {"beam", "1", "task", BY_TASK, NULL},
    {"top-k", "0", "temperature", ">0", NULL},
    {"top-p", "1", "temperature", ">0", NULL},

    {"metrics-per-rank", "false", "metrics", NULL, NULL},
    {"save-every", NULL, "save|resume", NULL, NULL},
    {"keep", NULL, "save|resume", NULL, NULL},
    {"keep-best", "none", "save|resume", NULL, NULL},
    {"keep-best", "none", "eval-every", ">0", "among whose evaluations it is"},
};

/* The word at *at of "a|b|c", and steps to the next; false when there is none. */
static bool next_word(const char **at, char word[32]) {
    size_t length = strcspn(*at, "|");
    if (!length) return false;
    snprintf(word, 32, "%.*s", (int)length, *at);
    *at += length + ((*at)[length] == '|');
    return true;
}

static const char *text_of(const rm_options *o, const char *name, char text[RM_PATH_BYTES]) {
    return rm_option_text(o, rm_option_named(name), text, RM_PATH_BYTES);
}

static bool holds(const rm_options *o, const rule *r) {
    char text[RM_PATH_BYTES], word[32];
    const char *at = r->values ? r->values : r->other;
    if (r->values && is(r->values, BY_TASK)) return rm_task_uses(rm_task_find(o->task), r->flag);
    if (r->values && *r->values == '>') return strtod(text_of(o, r->other, text), NULL) > strtod(r->values + 1, NULL);
    while (next_word(&at, word))
        if (r->values ? is(text_of(o, r->other, text), word) : *text_of(o, word, text)) return true;
    return false;
}

/* "sgd, adam or lars" */
static void list_words(const char *words, char *list, size_t bytes) {
    char word[32];
    size_t n = 0;
    *list = 0;
    for (const char *at = words; n < bytes && next_word(&at, word);)
        n += (size_t)snprintf(list + n, bytes - n, "%s%s", !n ? "" : *at ? ", " : " or ", word);
}

static remat_status has_no_effect(const rm_options *o, const rule *r) {
    char now[RM_PATH_BYTES], list[160], tasks[160], word[32], with[160], needs[240];
    const char *first = r->other;
    next_word(&first, word);
    if (!r->values) {
        snprintf(with, sizeof with, "without --%s", word);
        snprintf(needs, sizeof needs, "--%s=%s", word, rm_option_named(word)->value);
    } else {
        snprintf(with, sizeof with, "with --%s=%.60s", word, text_of(o, word, now));
        list_words(is(r->values, BY_TASK) ? rm_tasks_using(r->flag, tasks, sizeof tasks) : r->values, list,
                   sizeof list);
        if (*r->values == '>')
            snprintf(needs, sizeof needs, "--%s above %s", word, r->values + 1);
        else
            snprintf(needs, sizeof needs, "--%s=%s", word, list);
    }
    FAIL(INVALID, "--%s has no effect %s: it needs %s%s%s", r->flag, with, needs, r->because ? ", " : "",
         r->because ? r->because : "");
}

static bool asks_for_something(const rm_options *o, const rule *r) {
    char text[RM_PATH_BYTES];
    return said(o, r->flag) && !(r->off && is(text_of(o, r->flag, text), r->off));
}

/* A file's --momentum beside a command line's --optimizer=adam: the line wins, and what it leaves idle in the file is let be. */
static bool is_overruled(const rm_options *o, const rule *r) {
    const rm_option *other = r->values ? rm_option_named(r->other) : NULL;
    bool on_line = other && o->said[other - rm_option_table] && !o->in_file[other - rm_option_table];
    return on_line && o->in_file[rm_option_named(r->flag) - rm_option_table];
}

/* A config file may serve several commands: what this one does not take is not its business. */
static remat_status check_effects(const rm_options *o, rm_command command) {
    int commands = command == RM_PLAN ? RM_PLAN | RM_TRAIN : (int)command;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        bool taken = rm_option_named(rules[i].flag)->commands & commands, overruled = is_overruled(o, &rules[i]);
        bool wants = taken && !overruled && asks_for_something(o, &rules[i]);
        if (wants && !holds(o, &rules[i])) return has_no_effect(o, &rules[i]);
    }
    return REMAT_OK;
}

static bool is_among(const char *value, const char *words) {
    char word[32];
    while (next_word(&words, word))
        if (is(value, word)) return true;
    return false;
}

bool rm_options_pictures(const rm_options *o) { return is_among(o->model.name, PICTURES); }

/* ---- Flags that contradict each other ------------------------------------------------------------------------------ */

/* Plans of the other strategies keep what they keep in memory; --pareto shows plans of all. */
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

/* What keeps everything has nothing to compare. A budget without --checkpoint is `optimal`. */
static remat_status check_verify(const rm_options *o) {
    bool limited = o->session.memory_budget || o->assume_memory, named = rm_options_given(o, "checkpoint");
    bool keeps_all = !o->session.segments && is(o->session.strategy, "none") && (named || !limited);
    REQUIRE(!said(o, "verify-recompute") || !o->session.verify_recompute || !keeps_all || o->pareto, INVALID,
            "--verify-recompute has no effect with --checkpoint=none, which computes nothing twice: it needs "
            "--checkpoint=sqrt, lean or optimal, --checkpoint-segments=N or --memory-budget=SIZE");
    return REMAT_OK;
}

/* Ways of using memory. */
static remat_status check_memory(const rm_options *o) {
    bool recomputes = o->session.segments > 1 || is(o->session.strategy, "sqrt"),
         lean = is(o->session.strategy, "lean");
    REQUIRE(o->session.segments || !is(o->session.strategy, "segments"), INVALID,
            "--checkpoint=segments needs their number: say --checkpoint-segments=N");
    REQUIRE(!is(o->session.recompute, "off") || !(recomputes || lean), INVALID,
            "--recompute=off forbids what --checkpoint%s%s does: give one of the two",
            recomputes && o->session.segments ? "-segments" : "=",
            recomputes && o->session.segments ? "" : o->session.strategy);
    REQUIRE(!is(o->session.recompute, "exact-only") || !lean, INVALID,
            "--recompute=exact-only forbids what --checkpoint=lean does, rebuilding from h: give one of the two");
    bool assumes = o->assume_memory || o->session.assume_flops || o->session.assume_bandwidth;
    REQUIRE(!assumes || is(o->session.device, "null"), INVALID,
            "--assume-memory, --assume-flops and --assume-bandwidth describe a machine that is not this one: they need "
            "--device=null");
    REQUIRE(!(o->assume_memory && o->session.memory_budget), INVALID,
            "--assume-memory is the memory budget of the machine assumed; it and --memory-budget exclude each other");
    TRY(check_verify(o));
    return check_spill(o);
}

/* What can be said before it is known how many ranks there are; rm_setup_world says the rest. */
static remat_status check_ranks(const rm_options *o) {
    int64_t shards = o->order.shards;
    char word[32];
    REQUIRE(
        !(shards & (shards - 1)), INVALID,
        "--deterministic-world=%lld: shards are added up as a tree, so their number must be a power of two, such as 8",
        (long long)shards);
    REQUIRE(!(shards && o->order.micro_steps > 1), INVALID,
            "--deterministic-world and --accumulate-steps exclude each other: the first cuts --batch into shards, the "
            "second adds batches to it");
    REQUIRE(!(shards && o->ddp.compress), INVALID,
            "--grad-compress=%s rounds what ranks send, so the bits would depend on their number: leave it out, or "
            "--deterministic-world",
            rm_options_text_of(o, "grad-compress", word, sizeof word));
    REQUIRE(!(shards && is_among(o->model.name, NORMED)), INVALID,
            "--deterministic-world has the same bits for any number of ranks, and the running statistics of --model=%s "
            "are each "
            "rank's own: leave one of the two out (--sync-batchnorm makes ranks agree to rounding)",
            o->model.name);
    REQUIRE(!(o->ddp.fused_update && o->session.clip_grad_norm > 0), INVALID,
            "--fused-update updates before all gradients are there, and --clip-grad-norm needs the norm of all: give "
            "one of the two");
    return REMAT_OK;
}

/* What would be written or found is nothing that was computed. `plan` takes the flags of any run. --resume saves by itself. */
static remat_status check_null(const rm_options *o, rm_command command) {
    const char *flag = o->save && !said(o, "save") ? "resume"
                       : o->save                   ? "save"
                       : o->dump_grads             ? "dump-grads"
                       : o->held_out.data          ? "eval-data"
                       : o->eval_every             ? "eval-every"
                                                   : NULL;
    if (!is(o->session.device, "null")) return REMAT_OK;
    REQUIRE(command != RM_EVAL, INVALID, "--device=null computes nothing, so it has no loss to tell: use cpu");
    REQUIRE(command != RM_TRAIN || !flag, INVALID,
            "--device=null computes nothing, and --%s is about what was computed: leave it out, or use --device=cpu",
            flag);
    return REMAT_OK;
}

static remat_status check_clipping(const rm_options *o) {
    REQUIRE(!(o->session.clip_grad_value > 0 && o->session.clip_grad_norm > 0), INVALID,
            "--clip-grad-norm and --clip-grad-value exclude each other: give one");
    return REMAT_OK;
}

/* Carried states go forwards in time, and in one order. */
static remat_status check_states(const rm_options *o) {
    const char *flag = o->tbptt.length ? "tbptt" : "stateful";
    bool overlap = o->tbptt.step < o->tbptt.length;
    if (!o->tbptt.length && !o->order.stateful) return REMAT_OK;
    REQUIRE(!overlap || !rm_task_uses(rm_task_find(o->task), "values"), INVALID,
            "--tbptt=%lld:%lld counts targets of a window's last timesteps alone, and those of --task=%s all count: "
            "give --tbptt one number",
            (long long)o->tbptt.length, (long long)o->tbptt.step, o->task);
    REQUIRE(!o->tbptt.length || !o->data.lengths, INVALID,
            "--tbptt=%lld cuts samples into windows of one length, and those of --lengths end within one: leave one of "
            "the two out",
            (long long)o->tbptt.length);
    REQUIRE(!overlap || !o->order.stateful, INVALID,
            "--tbptt=%lld:%lld has windows that would begin in the batch before, and --stateful has left that behind: "
            "leave --stateful out, or give --tbptt one number",
            (long long)o->tbptt.length, (long long)o->tbptt.step);
    REQUIRE(!o->model.bidirectional, INVALID,
            "--%s carries states forwards, and --bidirectional has layers that begin at the end: leave one of the two "
            "out",
            flag);
    REQUIRE(!o->order.shards, INVALID,
            "--%s carries states from one micro step to the next, and --deterministic-world makes them in another "
            "order: leave one of the two out",
            flag);
    REQUIRE(!(o->order.stateful && o->order.pad), INVALID,
            "--stateful gives each row a stretch of the text, which --pad could not fill up: leave one of the two out");
    return REMAT_OK;
}

/* A preset's rate goes with its optimizer: lars' rates are thousands of times those of adam. */
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
            "--preset=%s has a learning rate of %s, for --optimizer=%s: with --optimizer=%s say which, --lr=X",
            preset.name, lr, optimizer, o->session.optimizer);
    return REMAT_OK;
}

/* Pairs are read or made; what makes them may have been said long ago, and a state remembers it. */
static remat_status check_pairs(const rm_options *o) {
    if (!rm_task_find(o->task)->pairs) return REMAT_OK;
    REQUIRE(!(said(o, "samples") && o->data.data), INVALID,
            "--samples has no effect with --data: it needs --generate=copy, reverse or sort");
    REQUIRE(!said(o, "generate") || is(o->data.generate, "none") || !o->data.tokenizer, INVALID,
            "--tokenizer cuts texts into tokens, and --generate makes letters: leave one of them out");
    return REMAT_OK;
}

/* ---- All of it ----------------------------------------------------------------------------------------------------- */

static remat_status exclude(const rm_options *o, const char *one, const char *other) {
    REQUIRE(!(said(o, one) && said(o, other)), INVALID, "--%s and --%s exclude each other: give one", one, other);
    return REMAT_OK;
}

remat_status rm_options_check_said(const rm_options *o) {
    TRY(exclude(o, "steps", "epochs"));
    TRY(exclude(o, "warmup-steps", "warmup-epochs"));
    bool restarts =
        o->save && o->resume && rm_path_same(o->save, o->resume); /* a script that says the same every time */
    if (!restarts) TRY(exclude(o, "resume", "init"));
    TRY(exclude(o, "data", "generate"));
    TRY(exclude(o, "json", "steps-text"));
    TRY(exclude(o, "json", "problem"));
    TRY(exclude(o, "steps-text", "problem"));
    REQUIRE(!(said(o, "checkpoint-segments") && said(o, "checkpoint") && !is(o->session.strategy, "segments")), INVALID,
            "--checkpoint-segments and --checkpoint=%s exclude each other: give one", o->session.strategy);
    REQUIRE(!(o->pareto && (o->steps_text || o->problem)), INVALID,
            "--pareto shows many plans; --steps-text and --problem belong to one: leave one out");
    REQUIRE(
        !(o->devices && (said(o, "rank") || said(o, "world-size"))), INVALID,
        "--devices starts the ranks itself; --world-size and --rank belong to a rank that somebody else started: give "
        "the one or the others");
    return REMAT_OK;
}

/* Does one of these beginnings, "head.,rnn.", begin the name? */
static bool begins_one(const char *name, const char *beginnings) {
    for (const char *at = beginnings; *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        if (length && !strncmp(name, at, length)) return true;
        at += length;
    }
    return false;
}

/* Does one of the words before the colons, "head,emb:lr=0;rnn:lr=2", occur in the name? */
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
    REQUIRE(!group_names(o->session.groups, "head.weight") || group_names(o->session.groups, "embedding.weight"),
            INVALID,
            "--groups=%s: the head's weight is embedding.weight here, so of the head its bias alone would be in the "
            "group: add embedding, or say head.bias",
            o->session.groups);
    return REMAT_OK;
}

static remat_status check_tied_head(const rm_options *o) {
    TRY(check_tied_groups(o));
    if (!o->model.tie_embeddings || !o->session.train_only) return REMAT_OK;
    REQUIRE(!begins_one("head.weight", o->session.train_only) || begins_one("embedding.weight", o->session.train_only),
            INVALID,
            "--train-only=%s: the head's weight is embedding.weight here, so of the head its bias alone would be "
            "trained: add embedding., or say head.bias",
            o->session.train_only);
    return REMAT_OK;
}

remat_status rm_options_check(const rm_options *o, rm_command command) {
    const rm_task *task = rm_task_find(o->task);
    REQUIRE(!o->model.bidirectional || !task->next_token, INVALID,
            "--bidirectional reads what comes next, and --task=%s is to predict it: leave one of them out", o->task);
    REQUIRE(task->pictures || !rm_options_pictures(o), INVALID,
            "--model=%s tells what pictures show, and --task=%s has none: say --task=classify, or leave it out",
            o->model.name, o->task);
    REQUIRE(strcmp(o->model.loss, "bce") || rm_task_uses(task, "values"), INVALID,
            "--loss=bce is for labels 0 and 1, which --task=regress reads");
    REQUIRE(!rm_task_uses(task, "classes") || o->data.classes != 1 || command != RM_TRAIN, INVALID,
            "--classes=1: with one class there is nothing to learn; say how many there are, 2 or more");
    REQUIRE(!o->order.by_length || o->data.lengths || task->pairs, INVALID,
            "--bucket-by-length is for samples of different lengths: add --lengths=FILE");
    REQUIRE(!o->data.lengths || !o->held_out.data || o->held_out.lengths, INVALID,
            "--lengths says how long the samples of --data are, and nothing says it of --eval-data: add "
            "--eval-lengths=FILE");
    REQUIRE(!o->model.tie_embeddings || !o->init_head || !is(o->init_head, "new"), INVALID,
            "--init-head=new draws the head, which --tie-embeddings makes the embedding: leave one of them out");
    REQUIRE(!is(o->keep_best, "accuracy") || task->accuracy, INVALID,
            "--keep-best=accuracy: --task=%s has none; say --keep-best=loss", o->task);
    TRY(check_tied_head(o));
    TRY(check_memory(o));
    TRY(check_ranks(o));
    TRY(check_states(o));
    TRY(check_clipping(o));
    TRY(check_pairs(o));
    REQUIRE(o->rate.schedule != RM_LR_STEP || o->milestones, INVALID,
            "--lr-schedule=step needs to know where: say --milestones=300,600 (updates) or 30e,60e (epochs)");
    REQUIRE(o->rate.schedule != RM_LR_PLATEAU || o->eval_every, INVALID,
            "--lr-schedule=plateau goes by evaluations: say how often there are any, --eval-every=N");
    TRY(check_preset(o));
    TRY(check_null(o, command));
    REQUIRE(!o->metrics_per_rank || !o->metrics || !is(o->metrics, "-"), INVALID,
            "--metrics=- is standard output, and --metrics-per-rank needs the name of a file");
    TRY(check_effects(o, command));
    return rm_option_check_files(o, command);
}
