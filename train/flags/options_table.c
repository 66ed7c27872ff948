/* options_table.c: the table of flags, and --help. A new flag is a line here and a member of rm_options. See options_table.h. */
#include "train/flags/condition.h"
#include "train/flags/usual.h"
#include "train/report/terminal.h"

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

/* More members may follow the help: .needs = "optimizer:momentum". */
#define INT(NAME, AT, COMMANDS, MEMORY, DEFAULT, LOW, HIGH, ...)                                                       \
    LINE(NAME, RM_OPTION_INTEGER, AT, COMMANDS, MEMORY, .default_text = DEFAULT, .low = LOW, .high = HIGH,             \
         .value = "N", .help = __VA_ARGS__)
#define NUM(NAME, AT, COMMANDS, MEMORY, DEFAULT, LOW, HIGH, ...)                                                       \
    LINE(NAME, RM_OPTION_REAL, AT, COMMANDS, MEMORY, .default_text = DEFAULT, .low = LOW, .high = HIGH, .value = "X",  \
         .help = __VA_ARGS__)
/* Bytes with a unit: 4096, 64KiB, 1.5GiB, 2GB; or a rate per second. */
#define BIG(NAME, AT, COMMANDS, MEMORY, VALUE, ...)                                                                    \
    LINE(NAME, RM_OPTION_SIZE, AT, COMMANDS, MEMORY, .value = VALUE, .help = __VA_ARGS__)
#define TXT(NAME, AT, COMMANDS, MEMORY, VALUE, ...)                                                                    \
    LINE(NAME, RM_OPTION_TEXT, AT, COMMANDS, MEMORY, .value = VALUE, .help = __VA_ARGS__)
/* A text with a default, saved in training states. */
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

/* "|sgd|adam" */
#define OPTIMIZER(name) "|" #name
static const char optimizer_names[] =
#include "ops/optimizers/optimizers.def"
    ;
#undef OPTIMIZER

/* "|constant|step" */
#define SCHEDULE(ENUM, NAME, SETTINGS) "|" NAME
static const char schedule_names[] =
#include "dist/large_batch/schedules.def"
    ;
#undef SCHEDULE

/* "|loss|accuracy" and "none|loss|accuracy" */
#define SCORE(ENUM, NAME, TEXT, SHARE, GROWS) "|" NAME
static const char score_names[] =
#include "train/report/scores.def"
    ;
static const char keep_best_names[] = "none"
#include "train/report/scores.def"
    ;
#undef SCORE

/* "|mse|mae" */
#define LOSS(NAME, FUNCTION, PADDED, TRAITS) "|" NAME
static const char loss_names[] =
#include "train/models/losses.def"
    ;
#undef LOSS

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
        "network; equations and parameter names are those of PyTorch, minGRU-pytorch, Hugging Face, torchvision or milesial"),
    INT("layers", model.layers, WEIGHTS, RM_OF_MODEL, "2", 1, 1000, "number of stacked layers; for seq2seq in the encoder and in the decoder",
        .needs = "model:layers", .needs_always = true),
    INT("hidden", model.hidden, WEIGHTS, RM_OF_MODEL, "256", 1, 1e6, "width of each layer",
        .needs = "model:hidden", .needs_always = true),
    INT("embed", model.embed, WEIGHTS, RM_OF_MODEL, "0", 0, 1e6, "width of the embedding; 0 means --hidden",
        .needs = "task:embed; model:states"),
    INT("heads", model.heads, WEIGHTS, RM_OF_MODEL, "0", 0, 1e5, "heads of attention, of keys (gdn) or of cells; 0 means one (mamba2: two) for every 64 of --hidden, rounded up",
        .needs = "model:heads"),
    INT("state-size", model.state_size, WEIGHTS, RM_OF_MODEL, "0", 0, 1e6, "states of a channel (mamba) or of a head (mamba2); 0 means 16 or 128",
        .needs = "model:state-size"),
    INT("n-groups", model.n_groups, WEIGHTS, RM_OF_MODEL, "1", 1, 1e5, "groups of heads that share B and C (mamba2)",
        .needs = "model:n-groups"),
    INT("positions", model.positions, WEIGHTS, RM_OF_MODEL, "0", 0, 1e9, "timesteps in the table of position embeddings; 0 means the length of samples",
        .needs = "model:positions"),
    YES("no-bias", model.no_bias, WEIGHTS, RM_OF_MODEL, "omit the biases of recurrent and linear layers and of layer norms (PyTorch's bias=False)",
        .needs = "model:no-bias"),
    YES("bidirectional", model.bidirectional, WEIGHTS, RM_OF_MODEL,
        "run each layer in both directions of time (PyTorch's bidirectional=True); not for lm; for seq2seq in the encoder",
        .needs = "model:bidirectional"),
    YES("tie-embeddings", model.tie_embeddings, WEIGHTS, RM_OF_MODEL, "use embedding.weight also as head.weight; --embed is then --hidden",
        .needs = "model:tie-embeddings; task:tie-embeddings"),
    YES("no-tie", model.no_tie, WEIGHTS, RM_OF_MODEL, "give the head a weight of its own, lm_head.weight, instead of the embedding; --init detects it",
        .needs = "model:no-tie"),
    DEF("slstm-at", model.slstm_at, WEIGHTS, RM_OF_MODEL, "all", "LIST", "sLSTM blocks (xlstm's slstm_at): numbers from 0, such as 1,3; all; or none. The others are mLSTM blocks; --init detects it",
        .needs = "model:slstm-at"),
    DEF("attention-at", model.attention_at, WEIGHTS, RM_OF_MODEL, "third", "LIST", "attention blocks (recurrentgemma): numbers from 0, such as 2,5; third, every third block; or none. The others are RG-LRU blocks; --init detects it",
        .needs = "model:attention-at"),
    INT("attention-window", model.attention_window, WEIGHTS, RM_OF_MODEL, "2048", 2, 1e9, "timesteps that attention sees (recurrentgemma)",
        .needs = "model:attention-window"),
    INT("kv-heads", model.kv_heads, WEIGHTS, RM_OF_MODEL, "1", 1, 1e5, "heads of keys and values (recurrentgemma); --init detects it",
        .needs = "model:kv-heads"),
    INT("proj-size", model.projection, WEIGHTS, RM_OF_MODEL, "0", 0, 1e6, "width of the projection of h (PyTorch's proj_size); 0: no projection",
        .needs = "model:proj-size"),
    INT("classes", data.classes, WEIGHTS, RM_OF_MODEL, "0", 0, 1e6, "number of classes; 0 means the largest label + 1",
        .needs = "task:classes"),
    NUM("dropout", model.dropout, FIT, RM_REMEMBERED, "0", 0, 0.999, "dropout probability after every layer except the last",
        .needs = "layers>1; model:dropout"),
    NUM("dropout-in", model.dropout_in, FIT, RM_REMEMBERED, "0", 0, 0.999, "dropout probability of the embedding, or of the inputs",
        .needs = "model:dropout-in"),
    NUM("dropout-out", model.dropout_out, FIT, RM_REMEMBERED, "0", 0, 0.999, "dropout probability of the head's input",
        .needs = "model:dropout-out"),
    NUM("init-range", model.init_range, RM_TRAIN, RM_REMEMBERED, "0", 0, 1e3, "initial embedding and head weights from U(-X,X) and a head bias of 0, as in PyTorch's word_language_model; 0: PyTorch's defaults",
        .needs = "model:init-range"),
    ONE("stem", model.small_stem, WEIGHTS, RM_OF_MODEL, "imagenet", "imagenet|cifar", "first layers: a 7x7 convolution with stride 2 and max_pool, or, for small images, a 3x3 convolution with stride 1",
        .needs = "model:stem"),
    ONE("up", model.transposed, WEIGHTS, RM_OF_MODEL, "bilinear", "bilinear|transposed", "how to double the size of planes: bilinear interpolation, or transposed convolutions (milesial's bilinear=False)",
        .needs = "model:up"),
    YES("no-conv", model.no_conv, WEIGHTS, RM_OF_MODEL, "omit the convolutions (minGRU-pytorch's enable_conv=False); --init detects it",
        .needs = "model:no-conv"),
    YES("allow-neg-eigval", model.allow_neg_eigval, WEIGHTS, RM_OF_MODEL, "scale writes by 2 sigmoid(b) instead of sigmoid(b), so that transitions may have negative eigenvalues (gdn; flash-linear-attention's allow_neg_eigval)",
        .needs = "model:allow-neg-eigval"),
    YES("sync-batchnorm", model.sync_batchnorm, FIT, RM_OF_RUN, "compute batch-norm statistics over all ranks (PyTorch's SyncBatchNorm)",
        .needs = "model:sync-batchnorm"),

    ONE("task", task, WEIGHTS, RM_OF_MODEL, "lm", task_names + 1, task_help + 2),
    IN("data", data.data, RUN, RM_REMEMBERED, "FILE", "lm: a text; classify, regress, transcribe: IDX images or .npy [N,T,F]; all may be .gz; "
        "image models: IDX, .npy [N,C,H,W], [N,H,W,C] or [N,H,W], CIFAR-10's .bin, or a folder for each class; seq2seq: a text of lines",
        .needs = "task:data"),
    INT("vocab", data.vocab, WEIGHTS, RM_OF_MODEL, "0", 0, 1e9, "--data contains tokens below N: .npy [tokens], or little-endian numbers of two bytes, "
        "or of four above 65536; 0: a text, whose bytes are the tokens",
        .needs = "task:vocab"),
    INT("document-end", data.document_end, RUN | RM_SAMPLE, RM_OF_RUN, "-1", -1, 1e9, "token (in a text: byte) that ends a document and resets states; -1: none",
        .needs = "task:document-end; model:states"),
    IN("tokenizer", data.tokenizer, WEIGHTS, RM_FORGOTTEN, "words|chars|FILE", "tokens of the text, which set --vocab: words or characters of --data, or a file: tokenizer.json (byte-level BPE) or a vocabulary with one token a line; training states keep a copy",
        .needs = "task:tokenizer"),
    IN("lengths", data.lengths, RUN, RM_REMEMBERED, "FILE", "length of each sample of .npy [N,T,F], as .npy [N]; later timesteps are padding",
        .needs = "task:lengths; model:states"),
    IN("labels", data.labels, FIT | RM_EVAL, RM_REMEMBERED, "FILE", "classify: IDX or .npy, [N] or, for each timestep, [N,T]; regress: numbers [N], [N,V] or, for each timestep, [N,T,V]; "
        "unet: .npy [N,H,W], or a folder of masks; transcribe: .npy [N,S], labels from 1, padded with -1; seq2seq: a text whose line N translates line N of --data",
        .needs = "task:labels"),
    ONE("generate", data.generate, RUN, RM_OF_RUN, "none", "none|copy|reverse|sort", "generated pairs instead of --data: copy, reverse or sort a line of letters",
        .needs = "task:generate"),
    ONE("loss", model.loss, RUN, RM_OF_RUN, "mse", loss_names + 1, "loss of numbers: mean squared error, mean absolute error (PyTorch's l1_loss), Huber with delta 1, or BCEWithLogitsLoss for labels 0 and 1; "
        "of pixels: cross entropy plus the Dice loss, averaged over classes and images (dice), or of all classes together as in milesial's (joint-dice)",
        .needs = "task:loss", .needs_always = true),
    TXT("class-weights", class_weights, FIT, RM_REMEMBERED, "LIST", "weight of each class in the training loss: 1,0.5,2 or a .npy file; evaluations are not weighted",
        .needs = "task:class-weights"),
    INT("ignore-index", data.ignored, RUN, RM_OF_RUN, NULL, -1e9, 1e9, "label of samples or timesteps that losses and accuracies ignore",
        .needs = "task:ignore-index"),
    INT("values", data.values, WEIGHTS, RM_OF_MODEL, "0", 0, 1e6, "numbers to predict for each sample or timestep; 0 means as many as the labels have",
        .needs = "task:values"),
    YES("every-step", data.every_step, WEIGHTS, RM_OF_MODEL, "predict at each timestep. Class labels [N,T] and numbers [N,T,V] imply this flag; with it, numbers [N,T] are one for each timestep",
        .needs = "task:every-step; model:states"),
    IN("eval-data", held_out.data, FIT, RM_REMEMBERED, "FILE", "data for evaluations",
        .needs = "task:eval-data (the others generate theirs: --eval-every=N evaluates)"),
    DEF("eval-split", held_out.split, FIT, RM_OF_RUN, "none", "X[:random]", "share of --data to hold out for evaluations, instead of --eval-data: 0.1 for the last tenth of the samples, 0.1:random for a tenth drawn by --seed",
        .needs = "task:eval-data (the others generate theirs: --eval-every=N evaluates); data"),
    IN("eval-labels", held_out.labels, FIT, RM_REMEMBERED, "FILE", "labels of --eval-data",
        .needs = "task:eval-labels; eval-data"),
    IN("eval-lengths", held_out.lengths, FIT, RM_REMEMBERED, "FILE", "lengths of --eval-data", .needs = "lengths; eval-data"),
    YES("rows", data.rows, RUN, RM_OF_MODEL, "read IDX images row by row: MNIST as 28 timesteps of 28 features instead of 784 of one",
        .needs = "task:rows; model:sequences"),
    INT("image-size", data.image_size, RUN, RM_OF_RUN, "0", 0, 65536, "resize the shorter side of images to this, and crop the center; 0: no resizing",
        .needs = "model:images"),
    INT("resize", data.resize, RUN, RM_OF_RUN, "0", 0, 65536, "resize the shorter side of images to this before the crop to --image-size, e.g. 256 for 224; 0 means --image-size",
        .needs = "model:whole-images; image-size>0"),
    INT("channels", data.channels, RUN, RM_OF_RUN, "0", 0, 64, "image channels; 0 means 3 for a folder (which may also have 1), and the number in the file for an array",
        .needs = "model:images"),
    DEF("normalize", data.normalize, RUN, RM_OF_MODEL, "none", "MEAN:STD", "normalization (value - MEAN) / STD of images or sequences, for all channels (features) or for each: 0.49:0.25,0.48:0.24,0.45:0.26",
        .needs = "task:normalize"),
    DEF("augment", data.augment, FIT, RM_OF_RUN, "none", "LIST", "augmentation of training images, comma-separated: crop:PADDING, flip, resized-crop",
        .needs = "model:whole-images"),
    INT("loader-threads", data.threads, RUN, RM_REMEMBERED, "0", 0, 1024, "threads that prepare the next image batch in the background",
        .needs = "model:images"),
    YES("skip-broken", data.skip_broken, RUN, RM_OF_RUN, "skip image files of a folder that cannot be read, after checking all; without it they are an error",
        .needs = "model:images"),
    YES("allow-nan", data.allow_nan, RUN, RM_REMEMBERED, "accept NaN in the data",
        .needs = "task:allow-nan"),
    INT("seq-len", data.timesteps, RUN, RM_OF_RUN, "0", 0, 1e9, "timesteps of a sample; 0 means lm 1000, adding 400, copy 120, s5 32, classify and regress all; "
        "seq2seq: longest line including its end; 0 means the longest in the data, or 21 for generated lines",
        .needs = "model:sequences"),
    INT("batch", order.batch, RUN, RM_OF_RUN, "16", 1, 1e6, "samples in a batch, for each rank"),
    INT("samples", data.samples, RUN, RM_OF_RUN, "10000", 1, 1e8, "number of generated samples (seq2seq: with --generate)",
        .needs = "task:samples", .needs_always = true),
    INT("seed", data.seed, RUN | RM_SAMPLE, RM_OF_RUN, "0", 0, 9e15, "random seed for initial weights, dropout, shuffling and generated data"),
    NO("no-shuffle", order.shuffle, FIT, RM_OF_RUN, "read the samples in the order of the file"),
    ONE("sampler", data.random_windows, FIT, RM_OF_RUN, "epoch", "epoch|random", "windows of the text; epoch: each once per epoch; random: the same number at random positions, as in nanoGPT",
        .needs = "task:sampler"),
    YES("bucket-by-length", order.by_length, FIT, RM_OF_RUN, "batch samples of similar lengths (with --lengths, or seq2seq); a batch takes the time of its longest sample",
        .needs = "lengths|task:bucket-by-length"),
    YES("pad", order.pad, FIT, RM_OF_RUN, "repeat samples from the start of the epoch so that all ranks get the same number, as DistributedSampler does by default"),
    YES("stateful", order.stateful, FIT, RM_OF_RUN,
        "carry states from batch to batch; each batch row reads its own part of the text, as with PyTorch's batchify",
        .needs = "task:stateful; model:states"),

    INT("steps", steps, FIT, RM_REMEMBERED, "100", 1, HUGE_COUNT, "number of updates, counted from the start of the first run"),
    INT("epochs", epochs, FIT, RM_REMEMBERED, NULL, 1, HUGE_COUNT, "number of passes over the data, instead of --steps"),
    LINE("tbptt", RM_OPTION_WINDOWS, tbptt, FIT, RM_OF_RUN, .default_text = "0", .high = 1e9, .value = "K[:S]", .help =
        "truncated back-propagation: cut gradients, not states, every K timesteps; with S, reach back K timesteps every S; 0: exact",
        .needs = "model:states; task:tbptt"),
    ONE("optimizer", session.optimizer, FIT, RM_OF_RUN, "adam", optimizer_names + 1,
        "optimizer, by PyTorch's formulas; lars and lamb: docs/large_batch.md"),
    NUM("lr", rate.lr, FIT, RM_REMEMBERED, NULL, 0, 1e6, "learning rate"),
    NUM("momentum", session.momentum, FIT, RM_OF_RUN, "0", 0, 0.9999999, "momentum",
        .needs = "optimizer:momentum"),
    YES("nesterov", session.nesterov, FIT, RM_REMEMBERED, "Nesterov momentum",
        .needs = "optimizer:nesterov; momentum>0"),
    NUM("beta1", session.beta1, FIT, RM_REMEMBERED, "0.9", 0, 0.9999999, "decay of the mean gradient",
        .needs = "optimizer:beta1", .needs_always = true),
    NUM("beta2", session.beta2, FIT, RM_REMEMBERED, "0.999", 0, 0.999999999, "decay of the mean squared gradient",
        .needs = "optimizer:beta2", .needs_always = true),
    NUM("alpha", session.alpha, FIT, RM_REMEMBERED, "0.99", 0, 0.999999999, "decay of the mean squared gradient; PyTorch's rho of adadelta",
        .needs = "optimizer:alpha", .needs_always = true),
    NUM("eps", session.epsilon, FIT, RM_REMEMBERED, "1e-8", RM_TINY, 1,
        "term added to the denominator",
        .needs = "optimizer:epsilon", .needs_always = true),
    NUM("weight-decay", session.weight_decay, FIT, RM_REMEMBERED, "0", 0, 1e6, "weight decay, added to the gradient (sgd, adam, rmsprop, adagrad, lars) or decoupled (adamw, lamb)"),
    NUM("clip-grad-norm", session.clip_grad_norm, FIT, RM_REMEMBERED, "0", 0, 1e30, "clip gradients to this global 2-norm; 0: no clipping"),
    NUM("clip-grad-value", session.clip_grad_value, FIT, RM_REMEMBERED, "0", 0, 1e30, "clip each element of a gradient to this absolute value; 0: no clipping",
        .needs = "optimizer:clip_grad_value (the others look at whole gradients: --clip-grad-norm)"),

    NUM("ema", ema, WEIGHTS, RM_OF_RUN, "0", 0, 0.9999999, "decay of a moving average of the weights, which evaluations use and states include; 0: no average; "
        "eval, predict, sample: 0 uses the trained weights instead of the average"),

    TXT("preset", preset, FIT, RM_FORGOTTEN, "NAME", "defaults for one global batch: mlperf-resnet-N with N = 1632, 3264, 4096, 8192, "
        "13056, 32768, 49152, 58880, 65536 or 67840; `list` shows them"),
    ONE("scale-lr", rate.scale, FIT, RM_REMEMBERED, "none", "none|linear|sqrt", "scale --lr by the global batch size relative to --base-batch"),
    INT("base-batch", rate.base_batch, FIT, RM_REMEMBERED, "256", 1, 1e12, "global batch size for which --lr was chosen",
        .needs = "scale-lr=linear|sqrt", .needs_always = true),
    INT("warmup-steps", rate.warmup_steps, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "updates of linear warm-up, from --lr with --scale-lr, otherwise from 0"),
    NUM("warmup-epochs", warmup_epochs, FIT, RM_REMEMBERED, "0", 0, 1e6, "length of the warm-up in passes over the data"),
    ONE("lr-schedule", rate.schedule, FIT, RM_REMEMBERED, "constant", schedule_names + 1,
        "learning rate after the warm-up (docs/large_batch.md)"),
    ONE("lr-step", lr_by_epoch, FIT, RM_REMEMBERED, "update", "update|epoch", "when a warm-up or a schedule changes the rate: at every update or once an epoch, as if PyTorch's scheduler.step() were called then",
        .needs = "warmup-steps|warmup-epochs|lr-schedule:moves"),
    TXT("milestones", milestones, FIT, RM_REMEMBERED, "LIST", "updates (300,600) or epochs (30e,60e) after which the rate drops",
        .needs = "lr-schedule:milestones"),
    NUM("gamma", rate.gamma, FIT, RM_REMEMBERED, "0.1", RM_TINY, 1e6, "factor of each drop of the rate",
        .needs = "lr-schedule:gamma", .needs_always = true),
    NUM("end-lr", rate.end_lr, FIT, RM_REMEMBERED, "0", 0, 1e6, "final or lowest learning rate",
        .needs = "lr-schedule:end_lr", .needs_always = true),
    INT("decay-steps", rate.decay_steps, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "updates from the end of the warm-up to the final rate, in the first cycle (restarts), or between drops (exponential); 0 means until the run ends",
        .needs = "lr-schedule:decay_steps"),
    NUM("power", rate.power, FIT, RM_REMEMBERED, "2", RM_TINY, 1e3, "exponent of the decay",
        .needs = "lr-schedule:power", .needs_always = true),
    INT("cycle-mult", rate.cycle_mult, FIT, RM_REMEMBERED, "1", 1, 1e6, "length of each cycle relative to the one before",
        .needs = "lr-schedule:cycle_mult"),
    NUM("pct-start", rate.pct_start, FIT, RM_REMEMBERED, "0.3", 0, 0.999999, "fraction of the cycle in which the rate rises to --lr",
        .needs = "lr-schedule:pct_start", .needs_always = true),
    NUM("div-factor", rate.div_factor, FIT, RM_REMEMBERED, "25", 1, 1e12, "--lr divided by the initial rate",
        .needs = "lr-schedule:div_factor", .needs_always = true),
    NUM("final-div-factor", rate.final_div_factor, FIT, RM_REMEMBERED, "1e4", 1, 1e12, "initial rate divided by the final rate",
        .needs = "lr-schedule:final_div_factor", .needs_always = true),
    INT("patience", patience, FIT, RM_REMEMBERED, "10", 0, HUGE_COUNT, "evaluations without improvement to tolerate",
        .needs = "lr-schedule:patience", .needs_always = true),
    NUM("threshold", threshold, FIT, RM_REMEMBERED, "1e-4", 0, 1, "smallest improvement that counts, relative to the best loss",
        .needs = "lr-schedule:threshold", .needs_always = true),
    NUM("trust-coefficient", session.trust_coefficient, FIT, RM_REMEMBERED, "0.001", 0, 1e6, "size of a step relative to the norm of the weights, before the learning rate",
        .needs = "optimizer:trust_coefficient", .needs_always = true),
    YES("momentum-correction", session.momentum_correction, FIT, RM_REMEMBERED, "scale the velocity when the learning rate changes",
        .needs = "optimizer:momentum_correction (whose velocity holds the learning rate); momentum>0"),
    YES("adapt-vectors", session.adapt_vectors, FIT, RM_REMEMBERED, "also scale the steps of biases and gains by their norms",
        .needs = "optimizer:adapt_vectors"),
    YES("decay-vectors", session.decay_vectors, FIT, RM_REMEMBERED, "also apply weight decay to biases and gains",
        .needs = "optimizer:decay_vectors; weight-decay>0"),
    NUM("norm-limit", session.norm_limit, FIT, RM_REMEMBERED, "0", 0, 1e30, "upper limit on the norm of weights in the step's scale; 0: no limit",
        .needs = "optimizer:norm_limit"),
    TXT("train-only", session.train_only, FIT, RM_REMEMBERED, "NAMES", "train only the parameters whose names start with one of these, e.g. head. or rnn.,head.bias"),
    TXT("groups", session.groups, FIT, RM_REMEMBERED, "LIST", "learning-rate factors and weight decays for parameters with these words in their names: "
        "bias,norm:weight-decay=0;wte:lr=0.1; the first match counts"),
    NUM("label-smoothing", model.label_smoothing, FIT, RM_REMEMBERED, "0", 0, 1,
        "fraction of the target spread over all classes (PyTorch's label_smoothing); evaluations do not use it",
        .needs = "task:label-smoothing"),

    INT("checkpoint-segments", session.segments, FIT, RM_REMEMBERED, NULL, 1, HUGE_COUNT,
        "number of segments: keep activations only between segments and recompute the rest; losses are bit-identical"),
    ONE("checkpoint", session.strategy, FIT, RM_REMEMBERED, "none", strategy_names + 1,
        "none: keep everything; segments: see --checkpoint-segments; sqrt: choose the number of segments; lean: keep only h; optimal: the fastest plan that fits --memory-budget"),
    BIG("memory-budget", session.memory_budget, FIT, RM_REMEMBERED, "SIZE",
        "bytes that a step may use, e.g. 512MiB. Selects the fastest plan that fits; if none fits, the message names the smallest possible budget"),
    ONE("recompute", session.recompute, FIT, RM_REMEMBERED, "auto", "auto|exact-only|off",
        "exact-only: recompute only by running the same kernels again, without rebuilding gates from h; off: never recompute"),
    TXT("spill", session.spill_dir, FIT, RM_REMEMBERED, "DIR", "folder of a spill file, to which activations are moved where that is faster than recomputing"),
    YES("verify-recompute", session.verify_recompute, FIT, RM_REMEMBERED, "compare recomputed and reloaded states with a 64-bit hash of the originals; a difference ends the run"),
    IN("calibration", session.calibration, FIT, RM_FORGOTTEN, "FILE",
        "file of measured times; 'off': do not measure [with optimal ~/.cache/remat/calibration.txt, otherwise off]"),
    INT("tile", session.tile, RUN, RM_OF_RUN, "0", 0, 1e9, "timesteps computed together; 0 means chosen by batch and device",
        .needs = "model:sequences"),
    ONE("autotune", autotune, RM_TRAIN, RM_FORGOTTEN, "off", "off|bits|any", "measure steps before training, and choose settings that were not given; bits: --bucket-cap-mb and the cut of --pipeline, without changing bits; any: also --tile and --threads",
        .bare = "bits"),
    INT("threads", session.threads, WEIGHTS, RM_REMEMBERED, "0", 0, 4096, "number of threads; 0 means as many as affinity mask and container quota allow"),
    ONE("device", session.device, WEIGHTS, RM_FORGOTTEN, "cpu", "cpu|cuda|auto|null",
        "cuda: an NVIDIA GPU; auto: cuda if it works, otherwise cpu; null: compute nothing, count bytes"),
    ONE("precision", session.precision, WEIGHTS, RM_REMEMBERED, "fp32", "fp32|tf32|bf16",
        "precision of the operands of matrix products. tf32: on a GPU; bf16: on a GPU, and for lstm, gru and rnn on a CPU with AVX512_BF16. All else is fp32"),
    ONE("rnn-kernels", session.rnn_kernels, WEIGHTS, RM_REMEMBERED, "auto", "auto|remat|cudnn",
        "kernels of recurrent layers; cudnn: NVIDIA's, on a GPU, without the lean option; auto: remat's"),
    NO("no-fold", session.fold_embedding, WEIGHTS, RM_OF_RUN, "do not fold the embedding into the first layer's input weights"),

    TXT("devices", devices, RM_TRAIN, RM_FORGOTTEN, "LIST", "ranks to start on this machine: cpu:4 for four on its processors, 0,1,2,3 for one on each of these GPUs"),
    TXT("init-method", init_method, RM_TRAIN, RM_FORGOTTEN, "URL", "rendezvous of the ranks: env://, tcp://HOST:PORT or file:///PATH [env://]"),
    INT("world-size", world_size, FIT, RM_FORGOTTEN, NULL, 1, 32767, "number of ranks [from the launcher, otherwise 1]"),
    INT("rank", rank, RM_TRAIN, RM_FORGOTTEN, NULL, 0, 32766, "number of this rank [from the launcher]"),
    INT("local-rank", local_rank, RM_TRAIN, RM_FORGOTTEN, NULL, 0, 32766, "number of this rank on its machine [from the launcher]"),
    ONE("dist-backend", dist_backend, RM_TRAIN, RM_FORGOTTEN, "auto", "auto|local|mpi|gloo|nccl",
        "communication library; auto: local if all ranks share a machine, otherwise mpi under mpirun, otherwise gloo"),
    TXT("pipeline", pipeline, FIT, RM_FORGOTTEN, "P[:CUT]",
        "divide the layers among P ranks. CUT: for each rank after the first, the parameter with which its layers start, such as rnn.weight_ih_l1 [1; cut by predicted time]"),
    INT("accumulate-steps", order.micro_steps, FIT, RM_REMEMBERED, "1", 1, 1e6,
        "batches whose gradients are added up for one update; ranks communicate after the last"),
    ONE("loss-mean", session.loss_mean, FIT, RM_REMEMBERED, "batch", "batch|parts",
        "averaging of losses with ignored targets or class weights; batch: one mean over the batch of an update; parts: the mean of the means of its parts (ranks, --accumulate-steps, shards), as with PyTorch's DDP"),
    INT("deterministic-world", order.shards, FIT, RM_OF_RUN, "0", 0, 32768,
        "split the global batch into N shards (8 without N), so that the bits are the same for any number of ranks; 0: off", .bare = "8"),
    NUM("bucket-cap-mb", bucket_cap_mb, FIT, RM_REMEMBERED, "25", 0.001, 1e6, "MiB of gradients that are reduced together"),
    ONE("grad-compress", ddp.compress, FIT, RM_OF_RUN, "none", "none|fp16|bf16", "16-bit format in which gradients are sent, for half the traffic"),
    INT("zero", ddp.shard_optimizer, FIT, RM_REMEMBERED, "0", 0, 1, "1: each rank keeps only its share of the optimizer state (ZeRO-1)"),
    YES("fused-update", ddp.fused_update, FIT, RM_REMEMBERED, "update parameters bucket by bucket, as gradients arrive"),
    NUM("join-timeout", join_timeout, RM_TRAIN, RM_FORGOTTEN, "300", 1, 1e6, "seconds that ranks wait for a missing rank while they join"),
    NUM("hang-timeout", hang_timeout, RM_TRAIN, RM_FORGOTTEN, "30", 2, 1e6, "seconds without a heartbeat after which a rank ends the job"),

    IN("save", save, RM_TRAIN, RM_FORGOTTEN, "DIR", "folder for training states, which are saved at intervals, at the end and at SIGUSR1"),
    INT("save-every", save_every, RM_TRAIN, RM_REMEMBERED, "100", 1, HUGE_COUNT, "steps between training states",
        .needs = "save|resume", .needs_always = true),
    INT("keep", keep, RM_TRAIN, RM_REMEMBERED, "2", 0, 1e9, "number of newest training states to keep; 0: all",
        .needs = "save|resume", .needs_always = true),
    ONE("keep-best", keep_best, RM_TRAIN, RM_REMEMBERED, "none", keep_best_names, "also keep the training state with the best --eval-every by this metric, as DIR/best",
        .needs = "save|resume; eval-every>0"),
    IN("resume", resume, WEIGHTS | RM_EXPORT, RM_FORGOTTEN, "DIR",
        "training state, or a folder whose newest one is used; flags that are not given are those of the state, but for ranks and files to write"),
    ONE("resume-batch", resume_batch, FIT, RM_FORGOTTEN, "global", "global|rank", "batch size to keep on another number of ranks than the state's; global: that of an update; rank: each rank's --batch",
        .needs = "resume|save"),
    IN("init", init, RM_TRAIN | RM_EVAL | RM_PREDICT | RM_SAMPLE | RM_EXPORT, RM_FORGOTTEN, "FILE", ".safetensors file of weights to start from; it also selects the model"),
    ONE("init-head", init_head, RM_TRAIN, RM_FORGOTTEN, "file", "file|new", "new: draw the weights of the last layer instead of reading them from --init, for other classes",
        .needs = "init"),
    OUT("metrics", metrics, RM_TRAIN | RM_EVAL, RM_FORGOTTEN, "FILE", "file of metrics, one JSON object a line; -: standard output"),
    YES("metrics-per-rank", metrics_per_rank, RM_TRAIN, RM_FORGOTTEN, "write the metrics of each rank N to FILE.rankN",
        .needs = "metrics"),
    OUT("timeline", timeline, RM_TRAIN, RM_FORGOTTEN, "FILE", "Chrome trace (JSON, for ui.perfetto.dev) of stages, buckets, messages, waits and transfers of all ranks: the first 16 steps, fewer and fewer later ones, and the last two"),
    IN("tensorboard", tensorboard, RM_TRAIN, RM_FORGOTTEN, "DIR", "folder for the metrics as TensorBoard event files"),
    OUT("out", out, RM_PREDICT | RM_EXPORT, RM_FORGOTTEN, "FILE", "predict: file of predictions, one row for each sample, as .npy (float32) or .csv [-: CSV on standard output]; "
        "export: .safetensors file of weights"),
    ONE("names", names, RM_EXPORT, RM_FORGOTTEN, "huggingface", "huggingface|nanogpt", "names and layout of the exported weights; huggingface: those of training states; nanogpt: gpt2's as in nanoGPT's checkpoints"),
    OUT("dump-grads", dump_grads, RM_TRAIN, RM_FORGOTTEN, "FILE", ".safetensors file for the gradients of the first step, before clipping"),
    INT("eval-every", eval_every, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "steps between evaluations; 0 means only at the end, with --eval-data or --eval-split"),
    INT("early-stop", early_stop, FIT, RM_REMEMBERED, "0", 0, HUGE_COUNT, "number of evaluations without a better --metric after which training stops; 0: never",
        .needs = "eval-every>0"),
    ONE("metric", metric, FIT, RM_OF_RUN, "loss", score_names + 1, "metric of evaluations for --early-stop and --lr-schedule=plateau",
        .needs = "eval-every>0; early-stop|lr-schedule=plateau"),
    INT("log-every", log_every, RM_TRAIN, RM_FORGOTTEN, "0", 0, HUGE_COUNT, "steps between printed lines; 0 means about twenty lines in total"),

    YES("json", json, RM_PLAN | RM_INFO | RM_EVAL, RM_FORGOTTEN, "print one JSON object instead of text; for eval, it includes the confusion matrix"),
    YES("steps-text", steps_text, RM_PLAN, RM_FORGOTTEN, "print the plan's program, one RUN, FREE, SAVE or LOAD a line"),
    YES("problem", problem, RM_PLAN, RM_FORGOTTEN, "print the strategy's input: stages, bytes, times"),
    YES("pareto", pareto, RM_PLAN, RM_FORGOTTEN, "print memory against time for every strategy; also with --json or --plot"),
    OUT("plot", plot, FIT, RM_FORGOTTEN, "FILE", ".svg, .png or .html file for a plot of the bytes alive over a step, by kind; train draws measured bytes, too"),
    BIG("assume-memory", assume_memory, RM_PLAN, RM_FORGOTTEN, "SIZE", "memory of the machine to plan for (--device=null)", .needs = "device=null"),
    BIG("assume-flops", session.assume_flops, RM_PLAN, RM_FORGOTTEN, "RATE", "operations per second of the machine to plan for, e.g. 60T", .needs = "device=null"),
    BIG("assume-bandwidth", session.assume_bandwidth, RM_PLAN, RM_FORGOTTEN, "RATE", "memory bandwidth of the machine to plan for, in bytes per second, e.g. 3.3TB", .needs = "device=null"),
    TXT("prompt", prompt, RM_SAMPLE, RM_FORGOTTEN, "TEXT", "start of the text [a newline], or, for tokens without a tokenizer, numbers [0]; "
        "seq2seq: the line to translate [each line of standard input]"),
    INT("length", length, RM_SAMPLE, RM_FORGOTTEN, "500", 1, 1e12, "bytes or tokens to write; seq2seq: upper limit"),
    NUM("temperature", temperature, RM_SAMPLE, RM_FORGOTTEN, "0.8", 0, 1e6, "sampling temperature; 0: always the most likely token, 1: the model's distribution",
        .needs = "task:temperature (for which tokens are drawn: --beam is for seq2seq)", .needs_always = true),
    INT("top-k", top_k, RM_SAMPLE, RM_FORGOTTEN, "0", 0, 1e6, "sample from the N most likely tokens; 0: from all",
        .needs = "task:top-k; temperature>0"),
    NUM("top-p", top_p, RM_SAMPLE, RM_FORGOTTEN, "1", RM_TINY, 1, "sample from the smallest set of tokens with total probability X; 1: from all",
        .needs = "task:top-p; temperature>0"),
    INT("beam", beam, RM_SAMPLE, RM_FORGOTTEN, "1", 1, 1000, "beam width; writes the line with the best mean log-probability",
        .needs = "task:beam"),
    YES("require-identical", require_identical, RM_REPORT, RM_FORGOTTEN, "exit with status 1 unless all losses are bit-identical"),

    IN("config", config, WEIGHTS | RM_REPORT, RM_FORGOTTEN, "FILE", "file of `name = value` lines with these flags; the command line takes precedence"),
};
/* clang-format on */
enum { OPTIONS = sizeof rm_option_table / sizeof rm_option_table[0] };
const int rm_n_options = OPTIONS;

/* The groups of --help: the first flag, and the title. */
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
    {RM_EXPORT, "export", "",
     "Writes the weights of a training state, or of a .safetensors file, with the names and layout of another program."},
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

const char *rm_option_about(const rm_option *line, char text[RM_ABOUT_BYTES]) {
    char readers[RM_READERS_BYTES], others[RM_USUAL_BYTES];
    const char *usual = rm_usual_text(line->name, others), *standard = *usual ? usual : line->default_text;
    snprintf(text, RM_ABOUT_BYTES, standard ? "%s%s [%s]" : "%s%s", line->help, rm_condition_readers(line, readers),
             standard);
    return text;
}

/* "--zero=N  what it does [0]"; "[=N]" if the value is optional. */
static void print_flag(const rm_option *line, FILE *out) {
    char flag[256], about[RM_ABOUT_BYTES];
    bool optional = line->bare && !rm_option_is_switch(line);
    snprintf(flag, sizeof flag, "--%s%s%s%s%s", line->name, optional ? "[" : "", line->value ? "=" : "",
             line->value ? line->value : "", optional ? "]" : "");
    rm_terminal_flag(out, flag, rm_option_about(line, about));
}

/* The names as a paragraph that fits a terminal. */
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
