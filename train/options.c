/* options.c: the table of flags and the one parser that reads it. See options.h. */
#include "train/options.h"

#include "memory/host.h"
#include "train/file.h"
#include "train/presets.h"
#include "train/schedule.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- The table -------------------------------------------------------------------------------------------------- */

typedef enum { SWITCH, INTEGER, REAL, SIZE, TEXT, CHOICE } option_type;

typedef struct {
    const char *name;
    option_type type;
    size_t offset; /* in rm_options: bool, int64_t, double, char *, char * */
    int commands;
    rm_option_memory memory;
    const char *default_text; /* NULL: none */
    double low, high;         /* of numbers, inclusive */
    const char *choices;      /* of CHOICE: "a|b|c" */
    const char *value, *help; /* as --help prints them */
    const char *bare;         /* the value of the flag without one; NULL: it needs one */
} option;

#define AT(member) offsetof(rm_options, member)
#define MODEL (RM_TRAIN | RM_PLAN | RM_EVAL | RM_SAMPLE)
#define RUN (RM_TRAIN | RM_PLAN | RM_EVAL)
#define FIT (RM_TRAIN | RM_PLAN)
#define HUGE_COUNT 1e12
#define TINY 1e-300 /* "more than 0" */

#define INT(name, member, commands, memory, def, low, high, help)                                                      \
    { name, INTEGER, AT(member), commands, memory, def, low, high, NULL, "N", help, NULL }
#define NUM(name, member, commands, memory, def, low, high, help)                                                      \
    { name, REAL, AT(member), commands, memory, def, low, high, NULL, "X", help, NULL }
/* Bytes, as people write them: 4096, 64KiB, 1.5GiB, 2GB; or a rate of so many a second. */
#define BIG(name, member, commands, memory, value, help)                                                               \
    { name, SIZE, AT(member), commands, memory, NULL, 0, 0, NULL, value, help, NULL }
#define TXT(name, member, commands, memory, value, help)                                                               \
    { name, TEXT, AT(member), commands, memory, NULL, 0, 0, NULL, value, help, NULL }
#define ONE(name, member, commands, memory, def, choices, help)                                                        \
    { name, CHOICE, AT(member), commands, memory, def, 0, 0, choices, choices, help, NULL }
#define YES(name, member, commands, memory, help)                                                                      \
    { name, SWITCH, AT(member), commands, memory, NULL, 0, 0, NULL, NULL, help, "true" }

/* A number that need not be said. */
#define MAY(name, member, commands, memory, bare, low, high, help)                                                     \
    { name, INTEGER, AT(member), commands, memory, "0", low, high, NULL, "N", help, bare }

/* clang-format off */
static const option table[] = {
    ONE("model", model, MODEL, RM_OF_MODEL, "lstm", "lstm|gru|rnn", "recurrent layer; equations and names are PyTorch's"),
    INT("layers", layers, MODEL, RM_OF_MODEL, "2", 1, 1000, "how many, one on top of the other"),
    INT("hidden", hidden, MODEL, RM_OF_MODEL, "256", 1, 1e6, "width of each layer"),
    INT("embed", embed, MODEL, RM_OF_MODEL, "0", 0, 1e6, "width of the embedding; 0: as hidden"),
    INT("classes", classes, MODEL, RM_OF_MODEL, "0", 0, 1e6, "outputs of classify; 0: the largest label + 1"),
    NUM("dropout", dropout, FIT, RM_REMEMBERED, "0", 0, 0.999, "probability, after every layer but the last"),

    ONE("task", task, MODEL, RM_OF_MODEL, "lm", "lm|classify|adding|copy",
        "lm: next byte of a text; classify: images or .npy; adding, copy: generated long-memory problems"),
    TXT("data", data, RUN, RM_REMEMBERED, "FILE", "lm: any file; classify: IDX images (.gz too) or .npy [N,T,F]"),
    TXT("labels", labels, RUN, RM_REMEMBERED, "FILE", "classify: IDX or .npy labels [N]"),
    TXT("eval-data", eval_data, FIT, RM_REMEMBERED, "FILE", "data for --eval-every"),
    TXT("eval-labels", eval_labels, FIT, RM_REMEMBERED, "FILE", "their labels"),
    INT("seq-len", seq_len, RUN, RM_OF_RUN, "0", 0, 1e9, "timesteps of a sample; 0: lm 1000, adding 400, copy 120, classify all"),
    INT("batch", batch, RUN, RM_OF_RUN, "16", 1, 1e6, "samples of a step"),
    INT("samples", samples, RUN, RM_OF_RUN, "10000", 1, 1e8, "adding, copy: how many are generated"),
    INT("seed", seed, RUN | RM_SAMPLE, RM_OF_RUN, "0", 0, 9e15, "of parameters, dropout, order and generated data"),
    YES("no-shuffle", no_shuffle, FIT, RM_OF_RUN, "take the samples in the order of the file"),
    YES("pad", pad, FIT, RM_OF_RUN, "samples from an epoch's beginning fill up its end, as DistributedSampler does by default"),

    INT("steps", steps, FIT, RM_REMEMBERED, "100", 1, HUGE_COUNT, "updates, counted from the first run's start"),
    INT("epochs", epochs, FIT, RM_REMEMBERED, NULL, 1, HUGE_COUNT, "passes over the data, instead of --steps"),
    ONE("optimizer", optimizer, FIT, RM_OF_RUN, "adam", "sgd|adam|adamw|lars|lamb", "PyTorch's formulas; lars, lamb: docs/large_batch.md"),
    NUM("lr", lr, FIT, RM_REMEMBERED, NULL, 0, 1e6, "learning rate [sgd 0.1, lars 1, others 0.001]"),
    NUM("momentum", momentum, FIT, RM_OF_RUN, "0", 0, 0.9999999, "sgd, lars"),
    YES("nesterov", nesterov, FIT, RM_REMEMBERED, "sgd, lars: Nesterov's momentum"),
    NUM("beta1", beta1, FIT, RM_REMEMBERED, "0.9", 0, 0.9999999, "adam, adamw, lamb"),
    NUM("beta2", beta2, FIT, RM_REMEMBERED, "0.999", 0, 0.999999999, "adam, adamw, lamb"),
    NUM("eps", eps, FIT, RM_REMEMBERED, "1e-8", TINY, 1, "adam, adamw, lamb; lars has none unless it is given"),
    NUM("weight-decay", weight_decay, FIT, RM_REMEMBERED, "0", 0, 1e6, "sgd, adam, lars: added to the gradient; adamw, lamb: decoupled"),
    NUM("clip-grad-norm", clip_grad_norm, FIT, RM_REMEMBERED, "0", 0, 1e30, "largest global 2-norm; 0: no clipping"),

    TXT("preset", preset, FIT, RM_FORGOTTEN, "NAME", "defaults for one global batch: mlperf-resnet-N with N = 1632, 3264, 4096, 8192,\n"
        "                                 13056, 32768, 49152, 58880, 65536 or 67840; `list` shows them"),
    ONE("scale-lr", scale_lr, FIT, RM_REMEMBERED, "none", "none|linear|sqrt", "--lr is for --base-batch; with the batch of all ranks it grows"),
    INT("base-batch", base_batch, FIT, RM_REMEMBERED, "256", 1, 1e12, "... the batch that --lr is right for"),
    INT("warmup-steps", warmup_steps, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "updates that the rate rises over: from --lr where it is scaled, else from 0"),
    NUM("warmup-epochs", warmup_epochs, FIT, RM_REMEMBERED, "0", 0, 1e6, "the same in passes over the data"),
    ONE("lr-schedule", lr_schedule, FIT, RM_REMEMBERED, "constant", "constant|step|linear|cosine|poly", "what follows the warm-up"),
    TXT("milestones", milestones, FIT, RM_REMEMBERED, "LIST", "step: where the rate falls, after updates (300,600) or epochs (30e,60e)"),
    NUM("gamma", gamma, FIT, RM_REMEMBERED, "0.1", TINY, 1e6, "step: what it is multiplied by there"),
    NUM("end-lr", end_lr, FIT, RM_REMEMBERED, "0", 0, 1e6, "linear, cosine, poly: where the rate ends"),
    INT("decay-steps", decay_steps, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "... after so many updates, not counting the warm-up; 0: with the run"),
    NUM("power", power, FIT, RM_REMEMBERED, "2", TINY, 1e3, "poly: the power"),
    NUM("trust-coefficient", trust_coefficient, FIT, RM_REMEMBERED, "0.001", 0, 1e6, "lars: a step of this share of the weights' norm, times the rate"),
    YES("momentum-correction", momentum_correction, FIT, RM_REMEMBERED, "lars: scale the velocity when the rate changes"),
    YES("adapt-vectors", adapt_vectors, FIT, RM_REMEMBERED, "lars, lamb: scale biases and gains by their norms too"),
    YES("decay-vectors", decay_vectors, FIT, RM_REMEMBERED, "lars, lamb: weight decay for biases and gains too"),
    NUM("norm-limit", norm_limit, FIT, RM_REMEMBERED, "0", 0, 1e30, "lamb: a larger norm of weights counts as this much; 0: no limit"),
    TXT("train-only", train_only, FIT, RM_REMEMBERED, "NAMES", "train these parameters alone, e.g. head. or rnn.,head.bias: beginnings of names"),
    NUM("label-smoothing", label_smoothing, FIT, RM_REMEMBERED, "0", 0, 1,
        "share of the target that all classes get (PyTorch's); evaluations report the plain loss"),

    INT("checkpoint-segments", checkpoint_segments, FIT, RM_REMEMBERED, NULL, 1, HUGE_COUNT,
        "keep activations at N places only and recompute the rest: same losses, less memory"),
    ONE("checkpoint", checkpoint, FIT, RM_REMEMBERED, "none", "none|segments|sqrt|lean|optimal",
        "none: keep everything; sqrt: choose N; lean: keep only h; optimal: the fastest that fits --memory-budget"),
    BIG("memory-budget", memory_budget, FIT, RM_REMEMBERED, "SIZE",
        "all bytes a step may use, e.g. 512MiB: takes the fastest plan that fits, or says the smallest that would"),
    ONE("recompute", recompute, FIT, RM_REMEMBERED, "auto", "auto|exact-only|off",
        "exact-only: only by running the same kernels again, no gates rebuilt from h; off: nothing is computed twice"),
    TXT("spill", spill, FIT, RM_REMEMBERED, "DIR", "also move activations to a file in DIR, where that is faster than recomputing"),
    YES("verify-recompute", verify_recompute, FIT, RM_REMEMBERED, "compare a 64-bit hash of every recomputed boundary"),
    TXT("calibration", calibration, FIT, RM_FORGOTTEN, "FILE",
        "where measured times are kept; 'off': measure nothing [optimal: ~/.cache/remat/calibration.txt; else off]"),
    INT("tile", tile, RUN, RM_OF_RUN, "0", 0, 1e9, "timesteps computed together; 0: from the shapes"),
    INT("threads", threads, MODEL, RM_REMEMBERED, "0", 0, 4096, "0: all that this process may use"),
    ONE("device", device, MODEL, RM_FORGOTTEN, "cpu", "cpu|null", "null computes nothing and counts everything"),
    YES("no-fold", no_fold, MODEL, RM_OF_RUN, "do not fold the embedding into the first layer's input weights"),

    TXT("devices", devices, RM_TRAIN, RM_FORGOTTEN, "LIST", "cpu:4: four ranks on this machine, started here"),
    TXT("init-method", init_method, RM_TRAIN, RM_FORGOTTEN, "URL", "where ranks meet: env://, tcp://HOST:PORT, file:///PATH [env://]"),
    INT("world-size", world_size, FIT, RM_FORGOTTEN, NULL, 1, 32767, "ranks in all [as the launcher says, else 1]"),
    INT("rank", rank, RM_TRAIN, RM_FORGOTTEN, NULL, 0, 32766, "which of them this is [as the launcher says]"),
    INT("local-rank", local_rank, RM_TRAIN, RM_FORGOTTEN, NULL, 0, 32766, "which of those on this machine"),
    ONE("dist-backend", dist_backend, RM_TRAIN, RM_FORGOTTEN, "auto", "auto|local|mpi|gloo|nccl",
        "auto: local where all ranks share a machine, else mpi under mpirun, else gloo"),
    INT("accumulate-steps", accumulate_steps, FIT, RM_REMEMBERED, "1", 1, 1e6,
        "batches whose gradients make one update; ranks talk after the last"),
    MAY("deterministic-world", deterministic_world, FIT, RM_OF_RUN, "8", 0, 32768,
        "cut the batch of all ranks into N shards, 8 if not said: the same bits for any number of ranks"),
    NUM("bucket-cap-mb", bucket_cap_mb, FIT, RM_REMEMBERED, "25", 0.001, 1e6, "MiB of gradients that travel together"),
    ONE("grad-compress", grad_compress, FIT, RM_OF_RUN, "none", "none|fp16|bf16", "gradients travel in half the bytes"),
    INT("zero", zero, FIT, RM_REMEMBERED, "0", 0, 1, "1: each rank keeps its share of the optimizer's state only (ZeRO-1)"),
    YES("fused-update", fused_update, FIT, RM_REMEMBERED, "update parameters bucket by bucket, as gradients arrive"),
    NUM("hang-timeout", hang_timeout, RM_TRAIN, RM_FORGOTTEN, "30", 2, 1e6, "seconds until a rank without a sign of life ends the job"),

    TXT("save", save, RM_TRAIN, RM_FORGOTTEN, "DIR", "write training states here, and one at the end"),
    INT("save-every", save_every, RM_TRAIN, RM_REMEMBERED, "100", 1, HUGE_COUNT, "steps between them"),
    INT("keep", keep, RM_TRAIN, RM_REMEMBERED, "2", 0, 1e9, "how many of the newest to keep; 0: all"),
    TXT("resume", resume, RM_TRAIN | RM_EVAL | RM_SAMPLE, RM_FORGOTTEN, "DIR",
        "continue from the newest training state in DIR, with its flags"),
    TXT("init", init, RM_TRAIN | RM_EVAL | RM_SAMPLE, RM_FORGOTTEN, "FILE", "start from the weights in a .safetensors file"),
    TXT("metrics", metrics, RM_TRAIN | RM_EVAL, RM_FORGOTTEN, "FILE", "one JSON object a line: plan, steps, end"),
    YES("metrics-per-rank", metrics_per_rank, RM_TRAIN, RM_FORGOTTEN, "each rank N writes FILE.rankN instead"),
    TXT("dump-grads", dump_grads, RM_TRAIN, RM_FORGOTTEN, "FILE", "gradients of the first step, before clipping, as .safetensors"),
    INT("eval-every", eval_every, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "steps between evaluations; 0: with --eval-data, at the end"),
    INT("log-every", log_every, RM_TRAIN, RM_FORGOTTEN, "0", 0, HUGE_COUNT, "steps between printed lines; 0: about twenty in all"),

    YES("json", json, RM_PLAN | RM_INFO, RM_FORGOTTEN, "one JSON object instead of text"),
    YES("steps-text", steps_text, RM_PLAN, RM_FORGOTTEN, "the plan itself, one RUN or FREE a line"),
    YES("problem", problem, RM_PLAN, RM_FORGOTTEN, "what the strategy was given: stages, bytes, times"),
    YES("pareto", pareto, RM_PLAN, RM_FORGOTTEN, "memory against time, for every strategy; --json and --plot too"),
    TXT("plot", plot, FIT, RM_FORGOTTEN, "FILE", "bytes alive over a step, by kind, as .svg, .png or .html; train adds what it measured"),
    BIG("assume-memory", assume_memory, RM_PLAN, RM_FORGOTTEN, "SIZE", "--device=null: plan for a machine with so much"),
    BIG("assume-flops", assume_flops, RM_PLAN, RM_FORGOTTEN, "RATE", "... so many operations a second, e.g. 60T"),
    BIG("assume-bandwidth", assume_bandwidth, RM_PLAN, RM_FORGOTTEN, "RATE", "... so many bytes a second, e.g. 3.3TB"),
    BIG("capacity", capacity, RM_PLACE, RM_FORGOTTEN, "SIZE", "stop at the first placement that fits; exit 1 when none is found"),
    NUM("time-limit", time_limit, RM_PLACE, RM_FORGOTTEN, "60", 0, 1e6, "seconds to search for a smaller block"),
    TXT("prompt", prompt, RM_SAMPLE, RM_FORGOTTEN, "TEXT", "what the text begins with [a line end]"),
    INT("length", length, RM_SAMPLE, RM_FORGOTTEN, "500", 1, 1e12, "bytes to write"),
    NUM("temperature", temperature, RM_SAMPLE, RM_FORGOTTEN, "0.8", 0, 1e6, "0: always the likeliest byte; 1: as the model says"),
    YES("require-identical", require_identical, RM_REPORT, RM_FORGOTTEN, "exit 1 unless all losses agree to the last bit"),

    TXT("config", config, MODEL | RM_REPORT, RM_FORGOTTEN, "FILE", "`name = value` lines with these names; the command line wins"),
};
/* clang-format on */
enum { OPTIONS = sizeof table / sizeof table[0] };

/* What --help puts above them: the flag that comes first, and the title. */
static const struct {
    const char *first, *title;
} groups[] = {{"model", "The model"},  {"task", "The data"},
              {"steps", "Training"},   {"preset", "Large batches (docs/large_batch.md)"},
              {"checkpoint-segments", "Memory"},
              {"tile", "The machine"}, {"devices", "Many ranks (docs/distributed.md)"},
              {"save", "Files"},       {"json", "What is shown"},
              {"capacity", "Placing"}, {"prompt", "Writing"},
              {"config", "Besides"}};
enum { GROUPS = sizeof groups / sizeof groups[0] };
_Static_assert(OPTIONS <= RM_MAX_FLAGS, "raise RM_MAX_FLAGS");

static const struct {
    rm_command command;
    const char *name, *arguments, *doc;
} commands[] = {
    {RM_TRAIN, "train", "", "Trains a recurrent network, inside a plan that is checked before the first step."},
    {RM_PLAN, "plan", "", "Prints the plan that `remat train` with the same flags would run, and runs nothing."},
    {RM_EVAL, "eval", "", "The exact mean loss over a data set, each sample once."},
    {RM_SAMPLE, "sample", "", "Writes text with a trained lm model."},
    {RM_INFO, "info", "", "Version, devices, libraries, threads and memory."},
    {RM_PLACE, "place", " FILE.csv",
     "Packs buffers with known lifetimes into the smallest block: FILE has the columns id,lower,upper,size."},
    {RM_REPORT, "report", " FILE.jsonl...",
     "A table of runs from their --metrics files, and whether their losses agree."},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void *member(const rm_options *o, const option *line) { return (char *)o + line->offset; }

static const option *find(const char *name, size_t length) {
    for (int i = 0; i < OPTIONS; i++)
        if (strlen(table[i].name) == length && !memcmp(table[i].name, name, length)) return &table[i];
    return NULL;
}

/* ---- Values ----------------------------------------------------------------------------------------------------- */

/* Where a value was written, for the sentence: "--hidden=12x" or "runs.conf:3: hidden = 12x". */
typedef struct {
    const char *before, *between; /* "--" and "=", or "FILE:3: " and " = " */
} place;

#define MAX_SHOWN 60
static remat_status bad(place where, const option *line, const char *value, const char *why) {
    FAIL(INVALID, "%s%s%s%.*s: %s", where.before, line->name, where.between, MAX_SHOWN, value, why);
}

static remat_status bad_range(place where, const option *line, const char *value) {
    char why[120];
    if (line->low == TINY)
        snprintf(why, sizeof why, "must be more than 0 and at most %.10g", line->high);
    else
        snprintf(why, sizeof why, "must be from %.10g to %.10g", line->low, line->high);
    return bad(where, line, value, why);
}

static remat_status set_integer(rm_options *o, const option *line, const char *value, place where) {
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (isspace((unsigned char)*value) || end == value || *end) return bad(where, line, value, "is not a whole number");
    if (errno == ERANGE || !((double)number >= line->low && (double)number <= line->high))
        return bad_range(where, line, value);
    *(int64_t *)member(o, line) = number;
    return REMAT_OK;
}

static remat_status set_real(rm_options *o, const option *line, const char *value, place where) {
    char *end;
    double number = strtod(value, &end);
    if (isspace((unsigned char)*value) || end == value || *end || isnan(number))
        return bad(where, line, value, "is not a number");
    if (!(number >= line->low && number <= line->high)) return bad_range(where, line, value);
    *(double *)member(o, line) = number;
    return REMAT_OK;
}

/* A number and a unit: none, K M G T (powers of 1000), Ki Mi Gi Ti (of 1024), each with or without a B. */
static remat_status set_size(rm_options *o, const option *line, const char *value, place where) {
    static const char letters[] = "KMGT";
    bool rate = !strcmp(line->value, "RATE");
    char *end;
    double number = strtod(value, &end);
    if (isspace((unsigned char)*value) || *value == '-' || end == value || !isfinite(number))
        return bad(where, line, value,
                   rate ? "is not a rate, so much a second, such as 60T or 3.3TB"
                        : "is not a size such as 4096, 64KiB, 1.5GiB or 2GB");
    const char *letter = *end ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    if (letter) {
        bool binary = *++end == 'i';
        end += binary;
        for (const char *l = letters; l <= letter; l++) number *= binary ? 1024 : 1000;
    }
    end += *end == 'B';
    if (*end)
        return bad(where, line, value,
                   rate ? "has a unit that is not known; use K, M, G or T, with or without a B behind it"
                        : "has a unit that is not known; use B, KB, KiB, MB, MiB, GB, GiB, TB or TiB");
    if (!(number >= 1 && number <= 1e18)) return bad(where, line, value, "must be from 1 to 1e18");
    *(uint64_t *)member(o, line) = (uint64_t)number;
    return REMAT_OK;
}

static remat_status set_text(rm_options *o, const option *line, const char *value, place where) {
    char why[64];
    snprintf(why, sizeof why, "is empty: a %s is wanted", line->value ? line->value : "value");
    if (!*value) return bad(where, line, value, why);
    char *copy = rm_strdup(value);
    REQUIRE(copy, MEMORY, "no memory for the value of --%s", line->name);
    char **text = member(o, line);
    rm_free(*text);
    *text = copy;
    return REMAT_OK;
}

static bool is_choice(const char *choices, const char *value) {
    size_t length = strlen(value);
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (length == strcspn(at, "|") && !memcmp(at, value, length)) return true;
    return false;
}

static remat_status set_choice(rm_options *o, const option *line, const char *value, place where) {
    char why[120];
    snprintf(why, sizeof why, "must be one of %s", line->choices);
    return is_choice(line->choices, value) ? set_text(o, line, value, where) : bad(where, line, value, why);
}

static remat_status set_switch(rm_options *o, const option *line, const char *value, place where) {
    bool yes = !strcmp(value, "true") || !strcmp(value, "yes") || !strcmp(value, "1");
    bool no = !strcmp(value, "false") || !strcmp(value, "no") || !strcmp(value, "0");
    if (!yes && !no) return bad(where, line, value, "must be true or false");
    *(bool *)member(o, line) = yes;
    return REMAT_OK;
}

static remat_status set(rm_options *o, const option *line, const char *value, place where) {
    o->given[line - table] = true;
    switch (line->type) {
    case SWITCH:
        return set_switch(o, line, value, where);
    case INTEGER:
        return set_integer(o, line, value, where);
    case REAL:
        return set_real(o, line, value, where);
    case SIZE:
        return set_size(o, line, value, where);
    case TEXT:
        return set_text(o, line, value, where);
    case CHOICE:
        return set_choice(o, line, value, where);
    }
    return REMAT_OK;
}

/* ---- Names ------------------------------------------------------------------------------------------------------ */

/* Levenshtein's distance, of names of at most 31 characters. */
static int distance(const char *a, size_t n, const char *b, size_t m) {
    int row[33];
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int gap = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            row[j] = change < gap ? change : gap;
        }
    }
    return row[m];
}

static const char *nearest(const char *name, size_t length, int for_commands) {
    const char *best = NULL;
    int best_distance = 4;
    for (int i = 0; i < OPTIONS && length <= 31; i++) {
        int d = distance(name, length, table[i].name, strlen(table[i].name));
        if (d < best_distance && (table[i].commands & for_commands) && d < (int)length) {
            best = table[i].name;
            best_distance = d;
        }
    }
    return best;
}

static remat_status unknown(const char *before, const char *name, size_t length, int for_commands) {
    const char *near = nearest(name, length, for_commands);
    int shown = length < MAX_SHOWN ? (int)length : MAX_SHOWN;
    if (near) FAIL(INVALID, "%s%.*s is not a flag; did you mean --%s?", before, shown, name, near);
    FAIL(INVALID, "%s%.*s is not a flag; --help lists them", before, shown, name);
}

static const char *command_name(int bits) {
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].command & bits) return commands[i].name;
    return "";
}

/* ---- The config file -------------------------------------------------------------------------------------------- */

/* Cuts spaces off both ends; returns the new length. */
static size_t trim(const char **text, size_t length) {
    while (length && isspace((unsigned char)**text)) (*text)++, length--;
    while (length && isspace((unsigned char)(*text)[length - 1])) length--;
    return length;
}

static remat_status parse_line(rm_options *o, const char *text, size_t length, const char *before) {
    const char *comment = memchr(text, '#', length);
    if (comment) length = (size_t)(comment - text);
    if (!(length = trim(&text, length))) return REMAT_OK;
    const char *equals = memchr(text, '=', length);
    REQUIRE(equals, INVALID, "%swrite `name = value`", before);
    const char *name = text, *value = equals + 1;
    size_t name_length = trim(&name, (size_t)(equals - text)),
           value_length = trim(&value, length - (size_t)(value - text));
    if (name_length > 2 && !memcmp(name, "--", 2)) name += 2, name_length -= 2;
    const option *line = find(name, name_length);
    if (!line) return unknown(before, name, name_length, ~0);
    REQUIRE(strcmp(line->name, "config"), INVALID, "%sa config file cannot name another", before);
    char *copy = rm_malloc(value_length + 1);
    REQUIRE(copy, MEMORY, "%sno memory for %zu bytes", before, value_length + 1);
    memcpy(copy, value, value_length);
    copy[value_length] = 0;
    remat_status status = set(o, line, copy, (place){before, " = "});
    rm_free(copy);
    return status;
}

remat_status rm_options_parse_config(rm_options *o, const char *text, size_t size, const char *file) {
    REQUIRE(!memchr(text, 0, size), INVALID, "%s is not a text file: it should hold `name = value` lines", file);
    int number = 1;
    for (size_t start = 0; start < size; number++) {
        char before[300];
        const char *end = memchr(text + start, '\n', size - start);
        size_t length = end ? (size_t)(end - text) - start : size - start;
        snprintf(before, sizeof before, "%.250s:%d: ", file, number);
        TRY(parse_line(o, text + start, length, before));
        start += length + 1;
    }
    return REMAT_OK;
}

static remat_status read_config(rm_options *o, const char *path) {
    uint8_t *text;
    size_t size;
    TRY(rm_file_read(path, 1 << 20, &text, &size));
    remat_status status = rm_options_parse_config(o, (const char *)text, size, path);
    rm_free(text);
    return status;
}

/* ---- The command line ------------------------------------------------------------------------------------------- */

/* `plan` takes any line of `train`, so that one may be put in place of the other; what says nothing about the plan is
 * checked like the rest, and has no effect. */
static bool takes(rm_command command, const option *line) {
    return line->commands & (command == RM_PLAN ? RM_PLAN | RM_TRAIN : command);
}

/* One flag at argv[*i]; steps over its value when that is the next argument. */
static remat_status parse_flag(rm_options *o, rm_command command, int argc, char **argv, int *i) {
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const option *line = find(name, length);
    if (!line) return unknown("--", name, length, command);
    REQUIRE(takes(command, line), INVALID, "--%s is not a flag of `remat %s`; it belongs to `remat %s`", line->name,
            command_name(command), command_name(line->commands));
    const char *value = equals ? equals + 1 : NULL;
    if (!value) value = line->bare;
    if (!value && *i + 1 < argc && strncmp(argv[*i + 1], "--", 2)) value = argv[++*i];
    REQUIRE(value, INVALID, "--%s needs a value: --%s=%s", line->name, line->name, line->value);
    return set(o, line, value, (place){"--", "="});
}

static remat_status parse_arguments(rm_options *o, rm_command command, int argc, char **argv) {
    o->argument = argv; /* what is not a flag is moved to the front */
    o->n_arguments = 0;
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            o->help = true;
        } else if (!strncmp(argv[i], "--", 2)) {
            TRY(parse_flag(o, command, argc, argv, &i));
        } else {
            REQUIRE(command == RM_REPORT || command == RM_PLACE, INVALID,
                    "'%.*s' is not a flag: flags are written --name=value", MAX_SHOWN, argv[i]);
            o->argument[o->n_arguments++] = argv[i];
        }
    }
    return REMAT_OK;
}

/* The last --config of a command line, without looking at anything else. */
static const char *find_config(int argc, char **argv) {
    const char *path = NULL;
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "--config=", 9)) path = argv[i] + 9;
        if (!strcmp(argv[i], "--config") && i + 1 < argc) path = argv[i + 1];
    }
    return path;
}

remat_status rm_options_defaults(rm_options *o) {
    *o = (rm_options){.lr = -1, .world_size = -1, .rank = -1, .local_rank = -1};
    for (int i = 0; i < OPTIONS; i++)
        if (table[i].default_text) TRY(set(o, &table[i], table[i].default_text, (place){"--", "="}));
    memset(o->given, 0, sizeof o->given);
    return REMAT_OK;
}

/* Flags of which a run has one or the other: what is given nearer replaces what was saved, or stands in a file. */
static const char *rival(const char *name) {
    static const char *const pairs[][2] = {
        {"steps", "epochs"}, {"checkpoint", "checkpoint-segments"}, {"warmup-steps", "warmup-epochs"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int j = 0; j < 2; j++)
            if (!strcmp(name, pairs[i][j])) return pairs[i][1 - j];
    return NULL;
}

/* Back to the default; a rival without one is an integer, and 0 means not given. */
static remat_status reset(rm_options *o, const option *line) {
    if (line->default_text) return set(o, line, line->default_text, (place){"--", "="});
    *(int64_t *)member(o, line) = 0;
    return REMAT_OK;
}

/* What the command line gives replaces its rival in a config file: --epochs=1 against `steps = 4`. o->given says what the
 * command line gave; afterwards, what either gave. */
static remat_status command_line_wins(rm_options *o, const bool *in_file) {
    bool on_line[OPTIONS];
    memcpy(on_line, o->given, sizeof on_line);
    for (int i = 0; i < OPTIONS; i++) {
        if (!in_file[i] || on_line[i]) continue;
        const char *other = rival(table[i].name);
        bool replaced = other && on_line[find(other, strlen(other)) - table];
        bool agrees = !strcmp(table[i].name, "checkpoint-segments") && !strcmp(o->checkpoint, "segments");
        if (replaced && !agrees) TRY(reset(o, &table[i]));
        o->given[i] = !replaced || agrees;
    }
    return REMAT_OK;
}

/* Ways of using memory that contradict each other. */
static remat_status check_memory(const rm_options *o) {
    bool recomputes = o->checkpoint_segments > 1 || !strcmp(o->checkpoint, "sqrt"),
         lean = !strcmp(o->checkpoint, "lean");
    REQUIRE(strcmp(o->recompute, "off") || !(recomputes || lean), INVALID,
            "--recompute=off forbids what --checkpoint%s%s does: give one of the two",
            recomputes && o->checkpoint_segments ? "-segments" : "=",
            recomputes && o->checkpoint_segments ? "" : o->checkpoint);
    REQUIRE(strcmp(o->recompute, "exact-only") || !lean, INVALID,
            "--recompute=exact-only forbids what --checkpoint=lean does, rebuilding from h: give one of the two");
    bool assumes = o->assume_memory || o->assume_flops || o->assume_bandwidth;
    REQUIRE(!assumes || !strcmp(o->device, "null"), INVALID,
            "--assume-memory, --assume-flops and --assume-bandwidth describe a machine that is not this one: they need "
            "--device=null");
    REQUIRE(!(o->assume_memory && o->memory_budget), INVALID,
            "--assume-memory is the memory budget of the machine assumed; it and --memory-budget exclude each other");
    REQUIRE(!(o->pareto && (o->steps_text || o->problem)), INVALID,
            "--pareto shows many plans; --steps-text and --problem belong to one: leave one out");
    return REMAT_OK;
}

/* What can be said before it is known how many ranks there are; rm_setup_world says the rest. */
static remat_status check_ranks(const rm_options *o) {
    int64_t shards = o->deterministic_world;
    REQUIRE(
        !(shards & (shards - 1)), INVALID,
        "--deterministic-world=%lld: shards are added up as a tree, so their number must be a power of two, such as 8",
        (long long)shards);
    REQUIRE(!(shards && o->accumulate_steps > 1), INVALID,
            "--deterministic-world and --accumulate-steps exclude each other: the first cuts --batch into shards, the "
            "second "
            "adds batches to it");
    REQUIRE(!(shards && strcmp(o->grad_compress, "none")), INVALID,
            "--grad-compress=%s rounds what ranks send, so the bits would depend on their number: leave it out, or "
            "--deterministic-world",
            o->grad_compress);
    REQUIRE(!(o->fused_update && o->clip_grad_norm > 0), INVALID,
            "--fused-update updates before all gradients are there, and --clip-grad-norm needs the norm of all: give "
            "one of "
            "the two");
    REQUIRE(!(o->metrics_per_rank && !o->metrics), INVALID, "--metrics-per-rank needs a name: --metrics=FILE");
    REQUIRE(
        !(o->devices && (o->rank >= 0 || o->world_size >= 0)), INVALID,
        "--devices starts the ranks itself; --world-size and --rank belong to a rank that somebody else started: give "
        "the one or the others");
    return REMAT_OK;
}

static remat_status check_together(const rm_options *o, rm_command command) {
    bool n = rm_options_given(o, "checkpoint-segments"), policy = rm_options_given(o, "checkpoint");
    REQUIRE(!(n && policy && strcmp(o->checkpoint, "segments")), INVALID,
            "--checkpoint-segments and --checkpoint=%s exclude each other: give one", o->checkpoint);
    REQUIRE(n || strcmp(o->checkpoint, "segments"), INVALID,
            "--checkpoint=segments needs their number: say --checkpoint-segments=N");
    TRY(check_memory(o));
    TRY(check_ranks(o));
    if (!o->resume) TRY(rm_schedule_check_flags(o)); /* what is not said here may stand in the training state */
    REQUIRE(!(rm_options_given(o, "steps") && rm_options_given(o, "epochs")), INVALID,
            "--steps and --epochs exclude each other: give one");
    REQUIRE(!(rm_options_given(o, "nesterov") && o->nesterov && o->momentum == 0), INVALID,
            "--nesterov needs --momentum=X with X above 0");
    REQUIRE(!(o->resume && o->init), INVALID, "--resume and --init exclude each other: give one");
    REQUIRE(!(command == RM_TRAIN && !o->save && rm_options_given(o, "save-every") && !o->resume), INVALID,
            "--save-every needs a place: --save=DIR");
    return REMAT_OK;
}

/* Defaults under what was given: values that were not, nor their rivals. `preset` marks them. */
static remat_status apply_preset(rm_options *o, bool *set_by_preset) {
    rm_preset preset;
    memset(set_by_preset, 0, OPTIONS * sizeof *set_by_preset);
    if (!o->preset || !strcmp(o->preset, "list")) return REMAT_OK;
    TRY(rm_preset_find(o->preset, &preset));
    for (int i = 0; i < RM_PRESET_VALUES; i++) {
        const rm_preset_value *value = &preset.value[i];
        const option *line = find(value->flag, strlen(value->flag));
        const char *other = rival(value->flag);
        if (o->given[line - table] || (other && rm_options_given(o, other))) continue;
        TRY(set(o, line, value->value, (place){"--", "="}));
        o->given[line - table] = false;
        set_by_preset[line - table] = true;
    }
    return REMAT_OK;
}

remat_status rm_options_parse(rm_options *o, rm_command command, int argc, char **argv) {
    TRY(rm_options_defaults(o));
    const char *config = find_config(argc, argv);
    bool in_file[OPTIONS];
    if (config) TRY(read_config(o, config));
    memcpy(in_file, o->given, sizeof in_file);
    memset(o->given, 0, sizeof o->given);
    TRY(parse_arguments(o, command, argc, argv));
    TRY(command_line_wins(o, in_file));
    bool set_by_preset[OPTIONS];
    TRY(apply_preset(o, set_by_preset));
    if (!o->help) TRY(check_together(o, command));
    for (int i = 0; i < OPTIONS; i++) o->given[i] |= set_by_preset[i];
    return REMAT_OK;
}

void rm_options_free(rm_options *o) {
    for (int i = 0; i < OPTIONS; i++)
        if (table[i].type == TEXT || table[i].type == CHOICE) {
            char **text = member(o, &table[i]);
            rm_free(*text);
            *text = NULL;
        }
}

/* ---- Reading the table ------------------------------------------------------------------------------------------ */

int rm_options_count(void) { return OPTIONS; }
const char *rm_options_name(int index) { return table[index].name; }
rm_option_memory rm_options_memory(int index) { return table[index].memory; }

bool rm_options_given(const rm_options *o, const char *name) {
    const option *line = find(name, strlen(name));
    assert(line);
    return o->given[line - table];
}

void rm_options_mark(rm_options *o, const char *name, bool given) {
    const option *line = find(name, strlen(name));
    assert(line);
    o->given[line - table] = given;
}

const char *rm_options_text(const rm_options *o, int index, char *text, size_t bytes) {
    const option *line = &table[index];
    const void *at = member(o, line);
    switch (line->type) {
    case SWITCH:
        snprintf(text, bytes, "%s", *(const bool *)at ? "true" : "false");
        break;
    case INTEGER:
        snprintf(text, bytes, "%lld", (long long)*(const int64_t *)at);
        break;
    case REAL:
        snprintf(text, bytes, "%.17g", *(const double *)at);
        break;
    case SIZE:
        if (*(const uint64_t *)at)
            snprintf(text, bytes, "%llu", (unsigned long long)*(const uint64_t *)at);
        else
            *text = 0; /* not given, like a text */
        break;
    case TEXT:
    case CHOICE:
        snprintf(text, bytes, "%s", *(char *const *)at ? *(char *const *)at : "");
        break;
    }
    return text;
}

/* Same value, whatever the spelling: 1e-3 is 0.001. */
static remat_status must_agree(const rm_options *o, const option *line, const char *saved, const char *source) {
    char now[RM_PATH_BYTES];
    rm_options_text(o, (int)(line - table), now, sizeof now);
    REQUIRE(!strcmp(now, saved), INVALID,
            "--%s=%.60s does not agree with the training state in %s, which has %s=%.60s: leave the flag out, or start "
            "afresh",
            line->name, now, source, line->name, saved);
    return REMAT_OK;
}

remat_status rm_options_adopt(rm_options *o, rm_command command, const char *name, const char *saved,
                              const char *source) {
    const option *line = find(name, strlen(name));
    REQUIRE(line && line->memory != RM_FORGOTTEN, IO, "%s names a flag that this version does not keep: %.60s", source,
            name);
    bool training = command == RM_TRAIN;
    if (!(line->commands & command) || (line->memory == RM_REMEMBERED && !training)) return REMAT_OK;
    if (rival(name) && rm_options_given(o, rival(name))) return REMAT_OK;
    if (!o->given[line - table]) return set(o, line, saved, (place){source, ": "});
    bool binding = line->memory == RM_OF_MODEL || (line->memory == RM_OF_RUN && training);
    return binding ? must_agree(o, line, saved, source) : REMAT_OK;
}

/* "--zero=N  what it does [0]"; the equals sign in brackets where the flag may stand alone. */
static void print_flag(const option *line, FILE *out) {
    char flag[64];
    bool optional = line->bare && line->type != SWITCH;
    snprintf(flag, sizeof flag, "--%s%s%s%s%s", line->name, optional ? "[" : "", line->value ? "=" : "",
             line->value ? line->value : "", optional ? "]" : "");
    fprintf(out, strlen(flag) > 30 ? "  %s\n%33s%s" : "  %-30s %.0s%s", flag, "", line->help);
    fprintf(out, line->default_text ? " [%s]\n" : "\n", line->default_text);
}

void rm_options_help(rm_command command, FILE *out) {
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].command == command)
            fprintf(out, "remat %s%s [--flag=value ...]\n\n%s\n\n", commands[i].name, commands[i].arguments,
                    commands[i].doc);
    const char *title = NULL;
    for (int i = 0; i < OPTIONS; i++) {
        const option *line = &table[i];
        for (int g = 0; g < GROUPS; g++)
            if (!strcmp(groups[g].first, line->name)) title = groups[g].title;
        if (!(line->commands & command)) continue;
        if (title && i) fputc('\n', out);
        if (title) fprintf(out, "%s\n", title);
        title = NULL;
        print_flag(line, out);
    }
}
