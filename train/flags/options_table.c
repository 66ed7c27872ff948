/* options_table.c: the table of flags, and --help. A new flag is a line here and a member of rm_options. See options_table.h. */
#include "train/flags/options_table.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- The table -------------------------------------------------------------------------------------------------- */

#define LINE(NAME, TYPE, AT, COMMANDS, MEMORY, ...)                                                                    \
    {                                                                                                                  \
        .name = NAME, .type = TYPE, .offset = offsetof(rm_options, AT), .commands = COMMANDS, .memory = MEMORY,        \
        .store = _Generic(((rm_options *)0)->AT, bool                                                                  \
                          : RM_STORED_BOOL, int                                                                        \
                          : RM_STORED_INT, unsigned                                                                    \
                          : RM_STORED_INT, int64_t                                                                     \
                          : RM_STORED_INT64, uint64_t                                                                  \
                          : RM_STORED_SIZE, double                                                                     \
                          : RM_STORED_REAL, default                                                                    \
                          : RM_STORED_OTHER),                                                                          \
        __VA_ARGS__                                                                                                    \
    }
#define WEIGHTS (RM_TRAIN | RM_PLAN | RM_EVAL | RM_PREDICT | RM_SAMPLE)
#define RUN (RM_TRAIN | RM_PLAN | RM_EVAL | RM_PREDICT)
#define FIT (RM_TRAIN | RM_PLAN)
#define HUGE_COUNT 1e12

/* What follows the help is as in .needs = "optimizer=lars". */
#define INT(NAME, AT, COMMANDS, MEMORY, DEFAULT, LOW, HIGH, ...)                                                       \
    LINE(NAME, RM_OPTION_INTEGER, AT, COMMANDS, MEMORY, .default_text = DEFAULT, .low = LOW, .high = HIGH,             \
         .value = "N", .help = __VA_ARGS__)
#define NUM(NAME, AT, COMMANDS, MEMORY, DEFAULT, LOW, HIGH, ...)                                                       \
    LINE(NAME, RM_OPTION_REAL, AT, COMMANDS, MEMORY, .default_text = DEFAULT, .low = LOW, .high = HIGH, .value = "X",  \
         .help = __VA_ARGS__)
/* Bytes, as people write them: 4096, 64KiB, 1.5GiB, 2GB; or a rate of so many a second. */
#define BIG(NAME, AT, COMMANDS, MEMORY, VALUE, ...)                                                                    \
    LINE(NAME, RM_OPTION_SIZE, AT, COMMANDS, MEMORY, .value = VALUE, .help = __VA_ARGS__)
#define TXT(NAME, AT, COMMANDS, MEMORY, VALUE, ...)                                                                    \
    LINE(NAME, RM_OPTION_TEXT, AT, COMMANDS, MEMORY, .value = VALUE, .help = __VA_ARGS__)
/* A text that has a default, and is kept by training states. */
#define DEF(NAME, AT, COMMANDS, MEMORY, DEFAULT, VALUE, ...)                                                           \
    LINE(NAME, RM_OPTION_TEXT, AT, COMMANDS, MEMORY, .default_text = DEFAULT, .value = VALUE, .help = __VA_ARGS__)
/* A file that is read, and one that is written. */
#define IN(NAME, AT, COMMANDS, MEMORY, VALUE, ...)                                                                     \
    LINE(NAME, RM_OPTION_TEXT, AT, COMMANDS, MEMORY, .file = RM_FILE_READ, .value = VALUE, .help = __VA_ARGS__)
#define OUT(NAME, AT, COMMANDS, MEMORY, VALUE, ...)                                                                    \
    LINE(NAME, RM_OPTION_TEXT, AT, COMMANDS, MEMORY, .file = RM_FILE_WRITTEN, .value = VALUE, .help = __VA_ARGS__)
#define ONE(NAME, AT, COMMANDS, MEMORY, DEFAULT, CHOICES, ...)                                                         \
    LINE(NAME, RM_OPTION_CHOICE, AT, COMMANDS, MEMORY, .default_text = DEFAULT, .choices = CHOICES, .value = CHOICES,  \
         .help = __VA_ARGS__)
#define YES(NAME, AT, COMMANDS, MEMORY, ...)                                                                           \
    LINE(NAME, RM_OPTION_SWITCH, AT, COMMANDS, MEMORY, .bare = "true", .help = __VA_ARGS__)
#define NO(NAME, AT, COMMANDS, MEMORY, ...)                                                                            \
    LINE(NAME, RM_OPTION_NO, AT, COMMANDS, MEMORY, .bare = "true", .help = __VA_ARGS__)

/* "|lstm|gru" */
static const char models[] =
#define MODEL(NAME, FAMILY, TRAITS) "|" #NAME
#include "train/models/models.def"
#undef MODEL
    ;

/* "|none|segments" */
#define STRATEGY(name) "|" #name
static const char strategy_names[] =
#include "memory/strategies.def"
    ;
#undef STRATEGY

/* "|lm|classify" and "; lm: next byte of a text; classify: ..." */
#define TASK(name, help) "|" #name
static const char task_names[] =
#include "train/tasks/tasks.def"
    ;
#undef TASK
#define TASK(name, help) "; " #name ": " help
static const char task_help[] =
#include "train/tasks/tasks.def"
    ;
#undef TASK

/* clang-format off */
const rm_option rm_option_table[] = {
    ONE("model", model.name, WEIGHTS, RM_OF_MODEL, "lstm", models + 1,
        "recurrent layers, or a network for pictures; equations and names are PyTorch's, minGRU-pytorch's, Hugging Face's, torchvision's or milesial's"),
    INT("layers", model.layers, WEIGHTS, RM_OF_MODEL, "2", 1, 1000, "how many, one on top of the other; of seq2seq in the encoder and in the decoder",
        .needs = "model:layers", .needs_always = true),
    INT("hidden", model.hidden, WEIGHTS, RM_OF_MODEL, "256", 1, 1e6, "width of each layer",
        .needs = "model:hidden", .needs_always = true),
    INT("embed", model.embed, WEIGHTS, RM_OF_MODEL, "0", 0, 1e6, "width of the embedding; 0: as hidden",
        .needs = "task:embed; model:states"),
    INT("heads", model.heads, WEIGHTS, RM_OF_MODEL, "0", 0, 1e5, "gpt2: of attention; 0: one for every 64 of --hidden",
        .needs = "model:heads"),
    INT("positions", model.positions, WEIGHTS, RM_OF_MODEL, "0", 0, 1e9, "gpt2: timesteps that its table of positions is for; 0: as many as samples have",
        .needs = "model:positions"),
    YES("no-bias", model.no_bias, WEIGHTS, RM_OF_MODEL, "recurrent and linear layers without biases, PyTorch's bias=False",
        .needs = "model:no-bias"),
    YES("bidirectional", model.bidirectional, WEIGHTS, RM_OF_MODEL,
        "each layer runs in both directions of time, PyTorch's bidirectional=True; not for lm; of seq2seq the encoder's",
        .needs = "model:bidirectional"),
    YES("tie-embeddings", model.tie_embeddings, WEIGHTS, RM_OF_MODEL, "lm: head.weight is embedding.weight, as in gpt2; --embed is --hidden then",
        .needs = "model:tie-embeddings; task:tie-embeddings"),
    YES("no-tie", model.no_tie, WEIGHTS, RM_OF_MODEL, "gpt2: a head of its own, lm_head.weight, in place of the embedding; known from a file of weights",
        .needs = "model:no-tie"),
    INT("proj-size", model.projection, WEIGHTS, RM_OF_MODEL, "0", 0, 1e6, "lstm: h is projected to so many numbers, PyTorch's proj_size; 0: it is not",
        .needs = "model:proj-size"),
    INT("classes", data.classes, WEIGHTS, RM_OF_MODEL, "0", 0, 1e6, "outputs of classify and transcribe; 0: the largest label + 1",
        .needs = "task:classes"),
    NUM("dropout", model.dropout, FIT, RM_REMEMBERED, "0", 0, 0.999, "probability, after every layer but the last",
        .needs = "layers>1; model:dropout"),
    ONE("stem", model.small_stem, WEIGHTS, RM_OF_MODEL, "imagenet", "imagenet|cifar", "resnet: 7x7 with stride 2 and max_pool first; or, for small pictures, 3x3 with stride 1",
        .needs = "model:stem"),
    YES("sync-batchnorm", model.sync_batchnorm, FIT, RM_OF_RUN, "resnet, unet: batch norm's statistics are of all ranks' samples, PyTorch's SyncBatchNorm",
        .needs = "model:sync-batchnorm"),

    ONE("task", task, WEIGHTS, RM_OF_MODEL, "lm", task_names + 1, task_help + 2),
    IN("data", data.data, RUN, RM_REMEMBERED, "FILE", "lm: any text; classify, regress, transcribe: IDX images or .npy [N,T,F]; .gz too;\n"
        "                                 pictures: IDX, .npy [N,C,H,W], [N,H,W,C], [N,H,W], CIFAR-10's .bin, or a folder by class; seq2seq: a text, line by line",
        .needs = "task:data"),
    INT("vocab", data.vocab, WEIGHTS, RM_OF_MODEL, "0", 0, 1e9, "lm: --data holds tokens below N: .npy [tokens], or numbers of two bytes each,\n"
        "                                 four beyond 65536, lowest first; 0: a text, whose bytes are tokens",
        .needs = "task:vocab"),
    INT("document-end", data.document_end, RUN | RM_SAMPLE, RM_OF_RUN, "-1", -1, 1e9, "lm: the token (of a text: the byte) that ends a document; behind it states begin anew; -1: none",
        .needs = "task:document-end; model:states"),
    IN("tokenizer", data.tokenizer, WEIGHTS, RM_FORGOTTEN, "FILE", "lm, seq2seq: a tokenizer.json (byte-level BPE) that cuts the text into tokens, and decides --vocab; training states keep a copy",
        .needs = "task:tokenizer"),
    IN("lengths", data.lengths, RUN, RM_REMEMBERED, "FILE", "classify, regress, transcribe, .npy [N,T,F]: how many timesteps of each sample count, .npy [N]; padding behind them changes nothing",
        .needs = "task:lengths; model:states"),
    IN("labels", data.labels, FIT | RM_EVAL, RM_REMEMBERED, "FILE", "classify: IDX or .npy labels [N] or, for each timestep, [N,T]; regress: numbers [N], [N,V] or, for each timestep, [N,T,V];\n"
        "                                 transcribe: .npy [N,S], from 1 on, -1 fills up rows; seq2seq: a text, whose line N belongs to line N of --data",
        .needs = "task:labels"),
    ONE("generate", data.generate, RUN, RM_OF_RUN, "none", "none|copy|reverse|sort", "seq2seq, in place of --data: lines of letters, to be written again, backwards, or in order",
        .needs = "task:generate"),
    ONE("loss", model.loss, RUN, RM_OF_RUN, "mse", "mse|mae|huber|bce", "of numbers: squared, absolute (PyTorch's l1_loss), or Huber's with delta 1; of labels 0 and 1, of which several may be right: BCEWithLogitsLoss",
        .needs = "task:loss", .needs_always = true),
    TXT("class-weights", class_weights, FIT, RM_REMEMBERED, "LIST", "classify: what each class counts in the loss of training: 1,0.5,2 or a .npy file; evaluations report the plain loss",
        .needs = "task:class-weights"),
    INT("ignore-index", data.ignored, RUN, RM_OF_RUN, NULL, -1e9, 1e9, "classify: samples (or timesteps) with this label count nothing, in losses and accuracies",
        .needs = "task:ignore-index"),
    INT("values", data.values, WEIGHTS, RM_OF_MODEL, "0", 0, 1e6, "regress: numbers of an answer; 0: as the labels have",
        .needs = "task:values"),
    YES("every-step", data.every_step, WEIGHTS, RM_OF_MODEL, "classify, regress: an answer at each timestep, which labels [N,T] of classes and [N,T,V] of numbers say themselves; of regress's [N,T] one number",
        .needs = "task:every-step; model:states"),
    IN("eval-data", held_out.data, FIT, RM_REMEMBERED, "FILE", "data for --eval-every",
        .needs = "task:eval-data (the others generate theirs: --eval-every=N evaluates)"),
    IN("eval-labels", held_out.labels, FIT, RM_REMEMBERED, "FILE", "their labels",
        .needs = "task:eval-labels; eval-data"),
    IN("eval-lengths", held_out.lengths, FIT, RM_REMEMBERED, "FILE", "their lengths", .needs = "lengths; eval-data"),
    YES("rows", data.rows, RUN, RM_OF_MODEL, "classify: IDX images row by row, MNIST's in 28 timesteps of 28 features, not in 784 of one",
        .needs = "task:rows; model:sequences"),
    INT("image-size", data.image_size, RUN, RM_OF_RUN, "0", 0, 65536, "pictures: the shorter side becomes so long, and the middle is taken; 0: as they are",
        .needs = "model:pictures"),
    INT("channels", data.channels, RUN, RM_OF_RUN, "0", 0, 64, "of pictures: 1 or 3 from a folder [3]; of an array as it is",
        .needs = "model:pictures"),
    DEF("normalize", data.normalize, RUN, RM_OF_MODEL, "none", "MEAN:STD", "pictures: (value - MEAN) / STD, for all channels or each: 0.49:0.25,0.48:0.24,0.45:0.26",
        .needs = "model:pictures"),
    DEF("augment", data.augment, FIT, RM_OF_RUN, "none", "LIST", "pictures to train on: crop:PIXELS (of padding), flip, resized-crop; between commas",
        .needs = "model:whole-pictures"),
    INT("loader-threads", data.threads, RUN, RM_REMEMBERED, "0", 0, 1024, "pictures: threads that make the next batch ready while one is computed",
        .needs = "model:pictures"),
    YES("skip-broken", data.skip_broken, RUN, RM_OF_RUN, "a folder of pictures: leave out files that cannot be read, all looked at first; else they are refused",
        .needs = "model:pictures"),
    YES("allow-nan", data.allow_nan, RUN, RM_REMEMBERED, "classify, regress: a NaN in the data is let through, not refused",
        .needs = "task:allow-nan"),
    INT("seq-len", data.timesteps, RUN, RM_OF_RUN, "0", 0, 1e9, "timesteps of a sample; 0: lm 1000, adding 400, copy 120, s5 32, classify and regress all;\n"
        "                                 seq2seq: the most of a line and its end; generated 21, 0: as the longest lines",
        .needs = "model:sequences"),
    INT("batch", order.batch, RUN, RM_OF_RUN, "16", 1, 1e6, "samples of a step"),
    INT("samples", data.samples, RUN, RM_OF_RUN, "10000", 1, 1e8, "adding, copy, s5, --generate: how many are generated",
        .needs = "task:samples", .needs_always = true),
    INT("seed", data.seed, RUN | RM_SAMPLE, RM_OF_RUN, "0", 0, 9e15, "of parameters, dropout, order and generated data"),
    NO("no-shuffle", order.shuffle, FIT, RM_OF_RUN, "take the samples in the order of the file"),
    YES("bucket-by-length", order.by_length, FIT, RM_OF_RUN, "with --lengths, or of seq2seq: samples of like lengths in a batch, which takes no longer than its longest"),
    YES("pad", order.pad, FIT, RM_OF_RUN, "samples from an epoch's beginning fill up its end until all ranks have as many, as DistributedSampler does by default"),
    YES("stateful", order.stateful, FIT, RM_OF_RUN,
        "lm: states go on from batch to batch; each row reads its own stretch of the text, as after PyTorch's batchify",
        .needs = "task:stateful; model:states"),

    INT("steps", steps, FIT, RM_REMEMBERED, "100", 1, HUGE_COUNT, "updates, counted from the first run's start"),
    INT("epochs", epochs, FIT, RM_REMEMBERED, NULL, 1, HUGE_COUNT, "passes over the data, instead of --steps"),
    LINE("tbptt", RM_OPTION_WINDOWS, tbptt, FIT, RM_OF_RUN, .default_text = "0", .high = 1e9, .value = "K[:S]", .help =
        "truncated back-propagation: gradients end every K timesteps, states do not; with S: every S timesteps they reach back K; 0: exact",
        .needs = "model:states; task:tbptt"),
    ONE("optimizer", session.optimizer, FIT, RM_OF_RUN, "adam", "sgd|adam|adamw|rmsprop|adagrad|lars|lamb",
        "PyTorch's formulas; lars, lamb: docs/large_batch.md"),
    NUM("lr", rate.lr, FIT, RM_REMEMBERED, NULL, 0, 1e6, "learning rate [sgd 0.1, rmsprop and adagrad 0.01, lars 1, others 0.001]"),
    NUM("momentum", session.momentum, FIT, RM_OF_RUN, "0", 0, 0.9999999, "sgd, rmsprop, lars",
        .needs = "optimizer=sgd|rmsprop|lars"),
    YES("nesterov", session.nesterov, FIT, RM_REMEMBERED, "sgd, lars: Nesterov's momentum",
        .needs = "optimizer=sgd|lars; momentum>0"),
    NUM("beta1", session.beta1, FIT, RM_REMEMBERED, "0.9", 0, 0.9999999, "adam, adamw, lamb",
        .needs = "optimizer=adam|adamw|lamb", .needs_always = true),
    NUM("beta2", session.beta2, FIT, RM_REMEMBERED, "0.999", 0, 0.999999999, "adam, adamw, lamb",
        .needs = "optimizer=adam|adamw|lamb", .needs_always = true),
    NUM("alpha", session.alpha, FIT, RM_REMEMBERED, "0.99", 0, 0.999999999, "rmsprop",
        .needs = "optimizer=rmsprop", .needs_always = true),
    NUM("eps", session.epsilon, FIT, RM_REMEMBERED, "1e-8", RM_TINY, 1,
        "adam, adamw, rmsprop, lamb; adagrad 1e-10, and lars none, unless it is given",
        .needs = "optimizer=adam|adamw|rmsprop|adagrad|lars|lamb", .needs_always = true),
    NUM("weight-decay", session.weight_decay, FIT, RM_REMEMBERED, "0", 0, 1e6, "sgd, adam, rmsprop, adagrad, lars: added to the gradient; adamw, lamb: decoupled"),
    NUM("clip-grad-norm", session.clip_grad_norm, FIT, RM_REMEMBERED, "0", 0, 1e30, "largest global 2-norm; 0: no clipping"),
    NUM("clip-grad-value", session.clip_grad_value, FIT, RM_REMEMBERED, "0", 0, 1e30, "largest size of any element of a gradient; 0: no clipping",
        .needs = "optimizer=sgd|adam|adamw|rmsprop|adagrad (the others look at whole gradients: --clip-grad-norm)"),

    NUM("ema", ema, WEIGHTS, RM_OF_RUN, "0", 0, 0.9999999, "decay of a moving average of the weights, which is evaluated, and saved beside them; 0: none,\n"
        "                                 and, of eval, predict and sample: the weights as they were trained"),

    TXT("preset", preset, FIT, RM_FORGOTTEN, "NAME", "defaults for one global batch: mlperf-resnet-N with N = 1632, 3264, 4096, 8192,\n"
        "                                 13056, 32768, 49152, 58880, 65536 or 67840; `list` shows them"),
    ONE("scale-lr", rate.scale, FIT, RM_REMEMBERED, "none", "none|linear|sqrt", "--lr is for --base-batch; with the batch of all ranks it grows"),
    INT("base-batch", rate.base_batch, FIT, RM_REMEMBERED, "256", 1, 1e12, "... the batch that --lr is right for",
        .needs = "scale-lr=linear|sqrt", .needs_always = true),
    INT("warmup-steps", rate.warmup_steps, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "updates that the rate rises over: from --lr where it is scaled, else from 0"),
    NUM("warmup-epochs", warmup_epochs, FIT, RM_REMEMBERED, "0", 0, 1e6, "the same in passes over the data"),
    ONE("lr-schedule", rate.schedule, FIT, RM_REMEMBERED, "constant", "constant|step|linear|cosine|poly|restarts|one-cycle|plateau",
        "what follows the warm-up (docs/large_batch.md)"),
    TXT("milestones", milestones, FIT, RM_REMEMBERED, "LIST", "step: where the rate falls, after updates (300,600) or epochs (30e,60e)",
        .needs = "lr-schedule=step"),
    NUM("gamma", rate.gamma, FIT, RM_REMEMBERED, "0.1", RM_TINY, 1e6, "step: what it is multiplied by there; plateau: at each fall",
        .needs = "lr-schedule=step|plateau", .needs_always = true),
    NUM("end-lr", rate.end_lr, FIT, RM_REMEMBERED, "0", 0, 1e6, "linear, cosine, poly, restarts: where the rate ends; plateau: never below",
        .needs = "lr-schedule=linear|cosine|poly|restarts|plateau", .needs_always = true),
    INT("decay-steps", rate.decay_steps, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "... after so many updates, not counting the warm-up; 0: with the run; one-cycle: the same; restarts: the first cycle",
        .needs = "lr-schedule=linear|cosine|poly|restarts|one-cycle"),
    NUM("power", rate.power, FIT, RM_REMEMBERED, "2", RM_TINY, 1e3, "poly: the power",
        .needs = "lr-schedule=poly", .needs_always = true),
    INT("cycle-mult", rate.cycle_mult, FIT, RM_REMEMBERED, "1", 1, 1e6, "restarts: each cycle takes so many times as long as the one before",
        .needs = "lr-schedule=restarts"),
    NUM("pct-start", rate.pct_start, FIT, RM_REMEMBERED, "0.3", 0, 0.999999, "one-cycle: the share of it in which the rate rises to --lr",
        .needs = "lr-schedule=one-cycle", .needs_always = true),
    NUM("div-factor", rate.div_factor, FIT, RM_REMEMBERED, "25", 1, 1e12, "one-cycle: it begins at --lr by this",
        .needs = "lr-schedule=one-cycle", .needs_always = true),
    NUM("final-div-factor", rate.final_div_factor, FIT, RM_REMEMBERED, "1e4", 1, 1e12, "one-cycle: ... and ends at that by this",
        .needs = "lr-schedule=one-cycle", .needs_always = true),
    INT("patience", patience, FIT, RM_REMEMBERED, "10", 0, HUGE_COUNT, "plateau: evaluations without improvement that are put up with",
        .needs = "lr-schedule=plateau", .needs_always = true),
    NUM("threshold", threshold, FIT, RM_REMEMBERED, "1e-4", 0, 1, "plateau: an improvement is by this share of the best loss, or more",
        .needs = "lr-schedule=plateau", .needs_always = true),
    NUM("trust-coefficient", session.trust_coefficient, FIT, RM_REMEMBERED, "0.001", 0, 1e6, "lars: a step of this share of the weights' norm, times the rate",
        .needs = "optimizer=lars", .needs_always = true),
    YES("momentum-correction", session.momentum_correction, FIT, RM_REMEMBERED, "lars: scale the velocity when the rate changes",
        .needs = "optimizer=lars (whose velocity holds the learning rate); momentum>0"),
    YES("adapt-vectors", session.adapt_vectors, FIT, RM_REMEMBERED, "lars, lamb: scale biases and gains by their norms too",
        .needs = "optimizer=lars|lamb"),
    YES("decay-vectors", session.decay_vectors, FIT, RM_REMEMBERED, "lars, lamb: weight decay for biases and gains too",
        .needs = "optimizer=lars|lamb; weight-decay>0"),
    NUM("norm-limit", session.norm_limit, FIT, RM_REMEMBERED, "0", 0, 1e30, "lamb: a larger norm of weights counts as this much; 0: no limit",
        .needs = "optimizer=lamb"),
    TXT("train-only", session.train_only, FIT, RM_REMEMBERED, "NAMES", "train these parameters alone, e.g. head. or rnn.,head.bias: beginnings of names"),
    TXT("groups", session.groups, FIT, RM_REMEMBERED, "LIST", "parameters with a rate (a factor) or a weight decay of their own, by words in their names:\n"
        "                                 bias,norm:weight-decay=0;wte:lr=0.1 - the first that fits counts"),
    NUM("label-smoothing", model.label_smoothing, FIT, RM_REMEMBERED, "0", 0, 1,
        "share of the target that all classes get (PyTorch's); evaluations report the plain loss",
        .needs = "task:label-smoothing"),

    INT("checkpoint-segments", session.segments, FIT, RM_REMEMBERED, NULL, 1, HUGE_COUNT,
        "keep activations at N places only and recompute the rest: same losses, less memory"),
    ONE("checkpoint", session.strategy, FIT, RM_REMEMBERED, "none", strategy_names + 1,
        "none: keep everything; sqrt: choose N; lean: keep only h; optimal: the fastest that fits --memory-budget"),
    BIG("memory-budget", session.memory_budget, FIT, RM_REMEMBERED, "SIZE",
        "all bytes a step may use, e.g. 512MiB: takes the fastest plan that fits, or says the smallest that would"),
    ONE("recompute", session.recompute, FIT, RM_REMEMBERED, "auto", "auto|exact-only|off",
        "exact-only: only by running the same kernels again, no gates rebuilt from h; off: nothing is computed twice"),
    TXT("spill", session.spill_dir, FIT, RM_REMEMBERED, "DIR", "also move activations to a file in DIR, where that is faster than recomputing"),
    YES("verify-recompute", session.verify_recompute, FIT, RM_REMEMBERED, "compare a 64-bit hash of every recomputed boundary"),
    IN("calibration", session.calibration, FIT, RM_FORGOTTEN, "FILE",
        "where measured times are kept; 'off': measure nothing [optimal: ~/.cache/remat/calibration.txt; else off]"),
    INT("tile", session.tile, RUN, RM_OF_RUN, "0", 0, 1e9, "timesteps computed together; 0: by batch and device",
        .needs = "model:sequences"),
    INT("threads", session.threads, WEIGHTS, RM_REMEMBERED, "0", 0, 4096, "0: as many as this process may use, by affinity mask and container quota"),
    ONE("device", session.device, WEIGHTS, RM_FORGOTTEN, "cpu", "cpu|cuda|auto|null",
        "cuda: an NVIDIA GPU; auto: cuda where it works, else the CPU; null computes nothing and counts everything"),
    ONE("precision", session.precision, WEIGHTS, RM_REMEMBERED, "fp32", "fp32|tf32|bf16",
        "what products round their operands to: on a GPU; on a CPU with AVX512_BF16 bf16, in lstm, gru and rnn; sums and all else are fp32"),
    ONE("rnn-kernels", session.rnn_kernels, WEIGHTS, RM_REMEMBERED, "auto", "auto|remat|cudnn",
        "whose kernels run recurrent layers; cudnn: NVIDIA's, on a GPU, without the lean option; auto: remat's"),
    NO("no-fold", session.fold_embedding, WEIGHTS, RM_OF_RUN, "do not fold the embedding into the first layer's input weights"),

    TXT("devices", devices, RM_TRAIN, RM_FORGOTTEN, "LIST", "cpu:4 or 0,1,2,3: four ranks on this machine, on processors or on these GPUs"),
    TXT("init-method", init_method, RM_TRAIN, RM_FORGOTTEN, "URL", "where ranks meet: env://, tcp://HOST:PORT, file:///PATH [env://]"),
    INT("world-size", world_size, FIT, RM_FORGOTTEN, NULL, 1, 32767, "ranks in all [as the launcher says, else 1]"),
    INT("rank", rank, RM_TRAIN, RM_FORGOTTEN, NULL, 0, 32766, "which of them this is [as the launcher says]"),
    INT("local-rank", local_rank, RM_TRAIN, RM_FORGOTTEN, NULL, 0, 32766, "which of those on this machine"),
    ONE("dist-backend", dist_backend, RM_TRAIN, RM_FORGOTTEN, "auto", "auto|local|mpi|gloo|nccl",
        "auto: local where all ranks share a machine, else mpi under mpirun, else gloo"),
    INT("accumulate-steps", order.micro_steps, FIT, RM_REMEMBERED, "1", 1, 1e6,
        "batches whose gradients make one update; ranks talk after the last"),
    ONE("loss-mean", session.loss_mean, FIT, RM_REMEMBERED, "batch", "batch|parts",
        "where targets are left out or classes weighed: the mean over all that counts in the update's batch; or a mean in each of its parts (ranks, --accumulate-steps, shards), all of which weigh the same, as under PyTorch's DDP"),
    INT("deterministic-world", order.shards, FIT, RM_OF_RUN, "0", 0, 32768,
        "cut the batch of all ranks into N shards, 8 if not said: the same bits for any number of ranks", .bare = "8"),
    NUM("bucket-cap-mb", bucket_cap_mb, FIT, RM_REMEMBERED, "25", 0.001, 1e6, "MiB of gradients that travel together"),
    ONE("grad-compress", ddp.compress, FIT, RM_OF_RUN, "none", "none|fp16|bf16", "gradients travel in half the bytes"),
    INT("zero", ddp.shard_optimizer, FIT, RM_REMEMBERED, "0", 0, 1, "1: each rank keeps its share of the optimizer's state only (ZeRO-1)"),
    YES("fused-update", ddp.fused_update, FIT, RM_REMEMBERED, "update parameters bucket by bucket, as gradients arrive"),
    NUM("join-timeout", join_timeout, RM_TRAIN, RM_FORGOTTEN, "300", 1, 1e6, "seconds that ranks wait for one that does not come, or not on, while they join"),
    NUM("hang-timeout", hang_timeout, RM_TRAIN, RM_FORGOTTEN, "30", 2, 1e6, "seconds until a rank without a sign of life ends the job"),

    IN("save", save, RM_TRAIN, RM_FORGOTTEN, "DIR", "write training states here, and one at the end and at SIGUSR1"),
    INT("save-every", save_every, RM_TRAIN, RM_REMEMBERED, "100", 1, HUGE_COUNT, "steps between them",
        .needs = "save|resume", .needs_always = true),
    INT("keep", keep, RM_TRAIN, RM_REMEMBERED, "2", 0, 1e9, "how many of the newest to keep; 0: all",
        .needs = "save|resume", .needs_always = true),
    ONE("keep-best", keep_best, RM_TRAIN, RM_REMEMBERED, "none", "none|loss|accuracy", "save after the best evaluation of --eval-every, too, and keep it beside them: DIR/best",
        .needs = "save|resume; eval-every>0"),
    IN("resume", resume, WEIGHTS, RM_FORGOTTEN, "DIR",
        "continue from the newest training state in DIR, with its flags"),
    IN("init", init, RM_TRAIN | RM_EVAL | RM_PREDICT | RM_SAMPLE, RM_FORGOTTEN, "FILE", "start from the weights in a .safetensors file, which says which model it is"),
    ONE("init-head", init_head, RM_TRAIN, RM_FORGOTTEN, "file", "file|new", "new: of --init's weights all but those of the last layer, which are drawn: other classes",
        .needs = "init"),
    OUT("metrics", metrics, RM_TRAIN | RM_EVAL, RM_FORGOTTEN, "FILE", "one JSON object a line: plan, steps, end; -: on standard output"),
    YES("metrics-per-rank", metrics_per_rank, RM_TRAIN, RM_FORGOTTEN, "each rank N writes FILE.rankN instead",
        .needs = "metrics"),
    IN("tensorboard", tensorboard, RM_TRAIN, RM_FORGOTTEN, "DIR", "the same numbers as event files for TensorBoard"),
    OUT("out", out, RM_PREDICT, RM_FORGOTTEN, "FILE", "a row for each sample, as .npy (float32) or .csv [-: CSV on stdout]"),
    OUT("dump-grads", dump_grads, RM_TRAIN, RM_FORGOTTEN, "FILE", "gradients of the first step, before clipping, as .safetensors"),
    INT("eval-every", eval_every, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "steps between evaluations; 0: with --eval-data, at the end"),
    INT("early-stop", early_stop, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "stop after so many evaluations without a better loss; 0: never",
        .needs = "eval-every>0"),
    INT("log-every", log_every, RM_TRAIN, RM_FORGOTTEN, "0", 0, HUGE_COUNT, "steps between printed lines; 0: about twenty in all"),

    YES("json", json, RM_PLAN | RM_INFO | RM_EVAL, RM_FORGOTTEN, "one JSON object instead of text; of eval, with the confusion of classes"),
    YES("steps-text", steps_text, RM_PLAN, RM_FORGOTTEN, "the plan itself, one RUN, FREE, SAVE or LOAD a line"),
    YES("problem", problem, RM_PLAN, RM_FORGOTTEN, "what the strategy was given: stages, bytes, times"),
    YES("pareto", pareto, RM_PLAN, RM_FORGOTTEN, "memory against time, for every strategy; --json and --plot too"),
    OUT("plot", plot, FIT, RM_FORGOTTEN, "FILE", "bytes alive over a step, by kind, as .svg, .png or .html; train adds what it measured"),
    BIG("assume-memory", assume_memory, RM_PLAN, RM_FORGOTTEN, "SIZE", "--device=null: plan for a machine with so much", .needs = "device=null"),
    BIG("assume-flops", session.assume_flops, RM_PLAN, RM_FORGOTTEN, "RATE", "... so many operations a second, e.g. 60T", .needs = "device=null"),
    BIG("assume-bandwidth", session.assume_bandwidth, RM_PLAN, RM_FORGOTTEN, "RATE", "... so many bytes a second, e.g. 3.3TB", .needs = "device=null"),
    TXT("prompt", prompt, RM_SAMPLE, RM_FORGOTTEN, "TEXT", "what the text begins with [a line end]; of tokens without a tokenizer: numbers [0];\n"
        "                                 seq2seq: the line that is read [each line of the standard input]"),
    INT("length", length, RM_SAMPLE, RM_FORGOTTEN, "500", 1, 1e12, "bytes, or tokens, to write; seq2seq: at most"),
    NUM("temperature", temperature, RM_SAMPLE, RM_FORGOTTEN, "0.8", 0, 1e6, "0: always the likeliest; 1: as the model says",
        .needs = "task:temperature (for which tokens are drawn: --beam is for seq2seq)", .needs_always = true),
    INT("top-k", top_k, RM_SAMPLE, RM_FORGOTTEN, "0", 0, 1e6, "draw from the N likeliest alone; 0: from all",
        .needs = "task:top-k; temperature>0"),
    NUM("top-p", top_p, RM_SAMPLE, RM_FORGOTTEN, "1", RM_TINY, 1, "draw from the fewest that have probability X together; 1: from all",
        .needs = "task:top-p; temperature>0"),
    INT("beam", beam, RM_SAMPLE, RM_FORGOTTEN, "1", 1, 1000, "seq2seq: lines that are followed side by side; the one with the best mean log-probability is written",
        .needs = "task:beam"),
    YES("require-identical", require_identical, RM_REPORT, RM_FORGOTTEN, "exit 1 unless all losses agree to the last bit"),

    IN("config", config, WEIGHTS | RM_REPORT, RM_FORGOTTEN, "FILE", "`name = value` lines with these names; the command line wins"),
};
/* clang-format on */
enum { OPTIONS = sizeof rm_option_table / sizeof rm_option_table[0] };
const int rm_n_options = OPTIONS;

/* What --help puts above them: the flag that comes first, and the title. */
static const struct {
    const char *first, *title;
} groups[] = {{"model", "The model"},
              {"task", "The data"},
              {"steps", "Training"},
              {"preset", "Large batches (docs/large_batch.md)"},
              {"checkpoint-segments", "Memory"},
              {"tile", "The machine"},
              {"devices", "Many ranks (docs/distributed.md)"},
              {"save", "Files"},
              {"json", "Output"},
              {"prompt", "Sampling"},
              {"require-identical", "Comparing"},
              {"config", "Other"}};
enum { GROUPS = sizeof groups / sizeof groups[0] };
_Static_assert(OPTIONS <= RM_MAX_FLAGS, "raise RM_MAX_FLAGS");

static const struct {
    rm_command command;
    const char *name, *arguments, *doc;
} commands[] = {
    {RM_TRAIN, "train", "",
     "Trains a network, recurrent or for images, under a plan that is checked before the first step."},
    {RM_PLAN, "plan", "", "Prints the plan that `remat train` would run with the same flags. Runs nothing."},
    {RM_EVAL, "eval", "", "Computes the exact mean loss over a data set. Each sample counts once."},
    {RM_PREDICT, "predict", "",
     "Writes one row for each sample: the probabilities of its classes, or its values. Needs no labels."},
    {RM_SAMPLE, "sample", "",
     "Writes text with a trained lm model, or one line for each input line with a trained seq2seq model."},
    {RM_INFO, "info", "", "Prints version, devices, libraries, engines for ranks, threads and memory."},
    {RM_REPORT, "report", " FILE.jsonl...",
     "Prints a table of runs from their --metrics files, and whether their losses agree."},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

/* ---- Finding ---------------------------------------------------------------------------------------------------- */

const rm_option *rm_option_find(const char *name, size_t length) {
    for (int i = 0; i < OPTIONS; i++)
        if (strlen(rm_option_table[i].name) == length && !memcmp(rm_option_table[i].name, name, length))
            return &rm_option_table[i];
    return NULL;
}

const rm_option *rm_option_named(const char *name) {
    const rm_option *line = rm_option_find(name, strlen(name));
    assert(line);
    return line;
}

const char *rm_option_command(int bits) {
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].command & bits) return commands[i].name;
    return "";
}

const char *rm_option_group(const rm_option *line) {
    for (int g = 0; g < GROUPS; g++)
        if (!strcmp(groups[g].first, line->name)) return groups[g].title;
    return NULL;
}

/* ---- Help ------------------------------------------------------------------------------------------------------- */

/* "--zero=N  what it does [0]"; the equals sign in brackets where the flag may stand alone. */
static void print_flag(const rm_option *line, FILE *out) {
    char flag[256];
    bool optional = line->bare && !rm_option_is_switch(line);
    snprintf(flag, sizeof flag, "--%s%s%s%s%s", line->name, optional ? "[" : "", line->value ? "=" : "",
             line->value ? line->value : "", optional ? "]" : "");
    fprintf(out, strlen(flag) > 30 ? "  %s\n%33s%s" : "  %-30s %.0s%s", flag, "", line->help);
    fprintf(out, line->default_text ? " [%s]\n" : "\n", line->default_text);
}

/* One after the other, as a paragraph of lines that fit a terminal. */
static void print_names(int commands, int but_not, FILE *out) {
    int column = 0;
    for (int i = 0; i < OPTIONS; i++) {
        const rm_option *line = &rm_option_table[i];
        if (!(line->commands & commands) || line->commands & but_not) continue;
        int width = (int)strlen(line->name) + 3;
        if (column + width > 100) fputc('\n', out), column = 0;
        column += fprintf(out, column ? " --%s" : "  --%s", line->name);
    }
    fputc('\n', out);
}

/* Notes that apply to many flags. */
static void print_notes(rm_command command, FILE *out) {
    bool sizes = false;
    for (int i = 0; i < OPTIONS; i++)
        sizes = sizes || (rm_option_table[i].type == RM_OPTION_SIZE && rm_option_table[i].commands & command);
    fputs("\nIf a flag is given twice, the last one counts.\n", out);
    if (sizes)
        fputs("A SIZE or RATE is a number, optionally followed by K, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti\n"
              "(powers of 1024), and optionally by B: 4096, 64KiB, 1.5GiB, 2GB, 10M.\n",
              out);
}

void rm_options_help(rm_command command, FILE *out) {
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].command == command)
            fprintf(out, "remat %s%s [--flag=value ...]\n\n%s\n", commands[i].name, commands[i].arguments,
                    commands[i].doc);
    const char *title = "";
    for (int i = 0; i < OPTIONS; i++) {
        const rm_option *line = &rm_option_table[i];
        if (rm_option_group(line)) title = rm_option_group(line);
        if (!(line->commands & command)) continue;
        if (title) fprintf(out, "\n%s\n", title);
        title = NULL;
        print_flag(line, out);
    }
    print_notes(command, out);
    if (command != RM_PLAN) return;
    fputs("\nAlso accepted, so that the flags of `remat train` need no change; they have no effect here\n", out);
    print_names(RM_TRAIN, RM_PLAN, out);
}
