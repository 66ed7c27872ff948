/* test_options.c: flags, config files, and the flags that a saved run keeps. */
#include "train/flags/options_table.h"

#include "tests/train/train_test.h"

static rm_options o;

/* Parses a command line, split at spaces. */
static remat_status parse(rm_command command, const char *line) {
    static char copy[1024];
    static char *argv[32];
    int argc = 0;
    rm_options_free(&o);
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    return rm_options_parse(&o, command, argc, argv);
}

START_TEST(defaults_train) {
    ck_ok(parse(RM_TRAIN, "--data=x"));
    ck_assert_str_eq(o.model.name, "lstm");
    ck_assert_str_eq(o.task, "lm");
    ck_assert_str_eq(o.data.data, "x");
    ck_assert(o.model.layers == 2 && o.model.hidden == 256 && o.order.batch == 16 && o.steps == 100 && o.rate.lr < 0);
    ck_assert(o.session.beta2 == 0.999 && o.session.epsilon == 1e-8 && o.session.segments == 0);
    ck_assert(!rm_options_given(&o, "hidden") && rm_options_given(&o, "data"));
    rm_options_free(&o);
}
END_TEST

START_TEST(both_spellings_of_a_value_are_accepted) {
    ck_ok(parse(RM_TRAIN, "--hidden=12 --layers 3 --lr 1e-2 --no-shuffle --model gru --no-fold=false --seed 7"));
    ck_assert(o.model.hidden == 12 && o.model.layers == 3 && o.rate.lr == 0.01 && !o.order.shuffle &&
              o.session.fold_embedding && o.data.seed == 7);
    ck_assert_str_eq(o.model.name, "gru");
    rm_options_free(&o);
}
END_TEST

/* So a script can append flags. */
START_TEST(last_value_of_a_flag_counts) {
    ck_ok(parse(RM_TRAIN, "--data=x --hidden=12 --hidden=7"));
    ck_assert_int_eq(o.model.hidden, 7);
    rm_options_free(&o);
}
END_TEST

/* A flag with an optional value does not take the next word as its value. */
START_TEST(optional_values_are_parsed) {
    ck_ok(parse(RM_TRAIN, "--data=x"));
    ck_assert(o.order.shards == 0 && o.world_size == -1 && o.rank == -1 && o.order.micro_steps == 1);
    ck_ok(parse(RM_TRAIN, "--deterministic-world --batch 4"));
    ck_assert(o.order.shards == 8 && o.order.batch == 4);
    ck_ok(parse(RM_TRAIN, "--deterministic-world=2 --zero 1"));
    ck_assert(o.order.shards == 2 && o.ddp.shard_optimizer == 1);
    ck_fails(parse(RM_TRAIN, "--deterministic-world 2"), REMAT_INVALID, "flag");
    rm_options_free(&o);
}
END_TEST

/* Units are powers of 1000 and of 1024. */
START_TEST(sizes_have_units) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"4096", 4096},          {"4096B", 4096},          {"64KiB", 65536},        {"64ki", 65536},
                 {"2GB", 2000000000},     {"2G", 2000000000},       {"1.5GiB", 1610612736},  {"1e6", 1000000},
                 {"1.5 GiB", 1610612736}, {"3.3TB", 3300000000000}, {"1TiB", 1099511627776}, {"0.5MiB", 524288}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char line[64];
        snprintf(line, sizeof line, "--memory-budget=%s", sizes[i].text);
        rm_options_free(&o);
        ck_ok(rm_options_parse(&o, RM_TRAIN, 1, (char *[]){line})); /* parse would split at a space */
        ck_assert_uint_eq(o.session.memory_budget, sizes[i].bytes);
    }
    rm_options_free(&o);
}
END_TEST

/* Wrong command lines, and the words that the message must contain. */
static const struct {
    rm_command command;
    const char *line, *part;
} wrong[] = {
    {RM_TRAIN, "--hidden=12x", "whole number"},
    {RM_TRAIN, "--hidden=", "whole number"},
    {RM_TRAIN, "--hidden", "--hidden|value"},
    {RM_TRAIN, "--hidden --layers=2", "--hidden|value"},
    {RM_TRAIN, "--hidden=0", "--hidden|1"},
    {RM_TRAIN, "--hidden=-4", "--hidden|1"},
    {RM_TRAIN, "--hidden=99999999999999999999", "--hidden|1"},
    {RM_TRAIN, "--batch=1e3", "whole number"},
    {RM_TRAIN, "--lr=nan", "nan|number"},
    {RM_TRAIN, "--lr=inf", "--lr|0"},
    {RM_TRAIN, "--lr=-1", "--lr|0"},
    {RM_TRAIN, "--lr=1e-3s", "1e-3s|number"},
    {RM_TRAIN, "--lr=0x10", "0x10|number|0.5"},
    {RM_TRAIN, "--hidden=0x10", "whole number"},
    {RM_TRAIN, "--memory-budget=0x10", "size"},
    {RM_TRAIN, "--eps=0", "--eps|0"},
    {RM_TRAIN, "--dropout=1", "--dropout|0"},
    {RM_TRAIN, "--seed=-1", "--seed|0"},
    {RM_TRAIN, "--memory-budget=", "size"},
    {RM_TRAIN, "--memory-budget=-1", "size"},
    {RM_TRAIN, "--memory-budget=nan", "size"},
    {RM_TRAIN, "--memory-budget=0", "1e18"},
    {RM_TRAIN, "--memory-budget=1e18K", "1e18"},
    {RM_TRAIN, "--memory-budget=64Mb", "unit"},
    {RM_TRAIN, "--memory-budget=64MiBs", "unit"},
    {RM_PLAN, "--assume-flops=60T", "--device=null"},
    {RM_TRAIN, "--model=transformer", "lstm|gru|rnn"},
    {RM_TRAIN, "--model=lst", "lstm|gru|rnn"},
    {RM_TRAIN, "--model=lstm|gru", "lstm|gru|rnn"},
    {RM_TRAIN, "--hiden=3", "--hiden|--hidden"},
    {RM_TRAIN, "--bacth=3", "--bacth|--batch"},
    {RM_TRAIN, "--zzzzzzzzz=3", "--help"},
    {RM_TRAIN, "--batch-size=3", "--batch-size is|--batch?"},
    {RM_TRAIN, "--batch_size=3", "--batch_size is|--batch?"},
    {RM_TRAIN, "--learning-rate=3", "--lr?"},
    {RM_TRAIN, "--wd=3", "--weight-decay?"},
    {RM_TRAIN, "--num-layers=3", "--layers?"},
    {RM_TRAIN, "--bptt=35", "--seq-len|--stateful"},
    {RM_TRAIN, "--num-workers=3", "--loader-threads?"},
    {RM_TRAIN, "--per_device_train_batch_size=3", "--batch?"},
    {RM_EVAL, "--wd=3", "--wd is|--help"},
    {RM_TRAIN, "-np 4", "-np is|--devices"},
    {RM_TRAIN, "-j 4", "-j is|--loader-threads"},
    {RM_TRAIN, "--", "--help"},
    {RM_TRAIN, "hello", "--name=value"},
    {RM_TRAIN, "-x", "--name=value"},
    {RM_TRAIN, "--length=3", "remat sample"},
    {RM_INFO, "--hidden=3", "remat info"},
    {RM_TRAIN, "--no-shuffle=perhaps", "true|false"},
    {RM_TRAIN, "--steps=3 --epochs=2", "--steps|--epochs"},
    {RM_TRAIN, "--checkpoint=sqrt --checkpoint-segments=4", "--checkpoint=sqrt|--checkpoint-segments"},
    {RM_TRAIN, "--checkpoint=segments", "--checkpoint-segments=N"},
    {RM_TRAIN, "--checkpoint-segments=0", "--checkpoint-segments|1"},
    {RM_TRAIN, "--nesterov --optimizer=sgd", "--momentum"},
    {RM_TRAIN, "--init=a --resume=b", "--init|--resume"},
    {RM_TRAIN, "--save-every=3", "--save=DIR"},
    {RM_TRAIN, "--data=", "--data|empty"},
    {RM_TRAIN, "--model=xlstm --slstm-at=", "--slstm-at|empty|numbers from 0, such as 1,3"},
    {RM_TRAIN, "--eval-split=", "--eval-split|empty|share of --data"},
    {RM_SAMPLE, "--prompt=", "--prompt|empty|start of the text"},
    {RM_TRAIN, "--autotune --device=null", "--autotune|--device=null"},
    {RM_TRAIN, "--world-size=0", "--world-size|1"},
    {RM_TRAIN, "--rank=-1", "--rank|0"},
    {RM_TRAIN, "--dist-backend=tcp", "auto|local|mpi|gloo|nccl"},
    {RM_TRAIN, "--zero=2", "--zero|0|1"},
    {RM_TRAIN, "--deterministic-world=6", "power of two|8"},
    {RM_TRAIN, "--deterministic-world --accumulate-steps=2", "--deterministic-world|--accumulate-steps"},
    {RM_TRAIN, "--deterministic-world --grad-compress=fp16", "--grad-compress"},
    {RM_TRAIN, "--fused-update --clip-grad-norm=1", "--fused-update|--clip-grad-norm"},
    {RM_TRAIN, "--metrics-per-rank", "--metrics=FILE"},
    {RM_TRAIN, "--devices=cpu:2 --rank=0", "--devices|--rank"},
    {RM_TRAIN, "--hang-timeout=1", "--hang-timeout|2"},
    {RM_EVAL, "--rank=0", "remat train"},
    {RM_PLAN, "--json --steps-text", "--json|--steps-text"},
    {RM_PLAN, "--spill=d", "--spill|--checkpoint=none|--memory-budget=SIZE"},
    {RM_TRAIN, "--verify-recompute", "--verify-recompute|--checkpoint=none"},
    {RM_PLAN, "--verify-recompute --checkpoint=none --memory-budget=1GiB", "--verify-recompute"},
    {RM_PLAN, "--spill=d --memory-budget=1GiB --checkpoint-segments=4", "--spill|--checkpoint-segments"},
    {RM_TRAIN, "--preset=mlperf-resnet-4096 --optimizer=sgd", "--optimizer=lars|--optimizer=sgd|--lr=X"},
};
enum { WRONG = sizeof wrong / sizeof wrong[0] };

START_TEST(invalid_command_lines_are_refused) {
    ck_fails(parse(wrong[_i].command, wrong[_i].line), REMAT_INVALID, wrong[_i].part);
    rm_options_free(&o);
}
END_TEST

/* In whole, however long the list. */
START_TEST(refusals_name_every_choice) {
    int tried = 0;
    for (int i = 0; i < rm_n_options; i++) {
        const rm_option *line = &rm_option_table[i];
        char text[128];
        if (!line->choices || !(line->commands & RM_TRAIN)) continue;
        snprintf(text, sizeof text, "--%s=no-such", line->name);
        ck_fails(parse(RM_TRAIN, text), REMAT_INVALID, line->choices);
        rm_options_free(&o);
        tried++;
    }
    ck_assert_int_gt(tried, 5);
}
END_TEST

/* A hint names a flag that there is. */
START_TEST(other_names_lead_to_flags) {
    static const char *const ours[] = {
#define NAME(THEIRS, OURS) OURS,
#define LAUNCH(THEIRS, OURS)
#define OF_LAUNCH(OURS)
#include "train/flags/other_names.def"
#undef NAME
#undef LAUNCH
#undef OF_LAUNCH
    };
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        ck_assert_msg(rm_option_find(ours[i], strcspn(ours[i], "=,")) != NULL, "%s", ours[i]);
}
END_TEST

/* Flags without effect, and what they need. */
static const struct {
    const char *line, *sentence;
} idle[] = {
    {"--momentum=0.9", "--momentum|--optimizer=adam|--optimizer=sgd, rmsprop or lars"},
    {"--optimizer=adamw --nesterov", "--nesterov|--optimizer=adamw|--optimizer=sgd or lars"},
    {"--optimizer=lars --nesterov", "--nesterov|--momentum=0"},
    {"--optimizer=sgd --beta1=0.8", "--beta1|--optimizer=sgd|--optimizer=adam, adamw or lamb"},
    {"--optimizer=lars --beta2=0.9", "--beta2|--optimizer=lars"},
    {"--optimizer=sgd --eps=1e-6", "--optimizer=adam, adamw, rmsprop, adagrad, adadelta, lars or lamb"},
    {"--trust-coefficient=0.01", "--trust-coefficient|--optimizer=adam|--optimizer=lars"},
    {"--optimizer=sgd --momentum=0.9 --momentum-correction", "--optimizer=lars"},
    {"--optimizer=lars --momentum-correction", "--momentum-correction|--momentum"},
    {"--adapt-vectors", "--optimizer=lars or lamb"},
    {"--optimizer=sgd --weight-decay=0.1 --decay-vectors", "--optimizer=lars or lamb"},
    {"--optimizer=lamb --decay-vectors", "--decay-vectors|--weight-decay=0"},
    {"--optimizer=lars --norm-limit=10", "--optimizer=lamb"},
    {"--lr-schedule=cosine --power=3", "--power|--lr-schedule=cosine|--lr-schedule=poly"},
    {"--milestones=3,6", "--milestones|--lr-schedule=constant|--lr-schedule=step"},
    {"--gamma=0.5 --lr-schedule=poly", "--lr-schedule=step"},
    {"--end-lr=0", "--lr-schedule=linear, cosine, poly, restarts or "},
    {"--decay-steps=9", "--lr-schedule=linear, cosine, poly, restarts"},
    {"--base-batch=32", "--base-batch|--scale-lr=none|--scale-lr=linear or sqrt"},
    {"--task=adding --label-smoothing=0.1", "--task=lm, classify, copy, s5 or seq2seq"},
    {"--layers=1 --dropout=0.1", "--dropout|--layers=1"},
    {"--task=adding --embed=8", "--task=lm, copy, s5 or seq2seq"},
    {"--classes=3", "--classes|--task=lm|--task=classify"},
    {"--task=copy --data=x", "--data|--task=copy|--task=lm, classify, regress, transcribe or seq2seq"},
    {"--data=x --labels=y", "--task=classify"},
    {"--task=adding --eval-data=x", "--eval-every=N"},
    {"--task=classify --eval-labels=y", "--eval-labels|--eval-data=FILE"},
    {"--data=x --samples=50", "--task=adding, copy, s5 or seq2seq"},
    {"--lr-step=epoch", "--lr-step|--lr-schedule"},
    {"--model=gpt2 --dropout-in=0.1", "--dropout-in|--model=gpt2|lstm, gru, rnn or rnn_relu"},
    {"--model=mingru --init-range=0.1", "--init-range|lstm, gru, rnn or rnn_relu"},
    {"--init=w.safetensors --init-range=0.1", "--init-range|--init|no effect"},
    {"--resume=st --init-range=0.1", "--init-range|--resume|no effect"},
    {"--task=copy --sampler=random", "--sampler|--task=lm"},
    {"--metrics-per-rank", "--metrics-per-rank|--metrics=FILE"},
    {"--save-every=3", "--save-every|--save=DIR"},
    {"--resume-batch=rank", "--resume-batch|--resume=DIR"},
    {"--keep=3", "--save=DIR"},
};
enum { IDLE = sizeof idle / sizeof idle[0] };

START_TEST(flags_without_effect_are_refused) {
    ck_fails(parse(RM_TRAIN, idle[_i].line), REMAT_INVALID, idle[_i].sentence);
    ck_fails(parse(RM_PLAN, idle[_i].line), REMAT_INVALID, idle[_i].sentence);
    rm_options_free(&o);
}
END_TEST

/* A flag may have a value that means "off". A preset may set flags of its own optimizer that this run's does not read.
 * Flags about ranks are accepted for any number of ranks. */
START_TEST(flags_that_are_off_are_accepted) {
    static const char *const lines[] = {
        "--momentum=0 --dropout=0 --layers=1 --label-smoothing=0 --task=adding",
        "--nesterov=false --momentum-correction=no --decay-vectors=0 --norm-limit=0 --decay-steps=0",
        "--preset=mlperf-resnet-4096 --optimizer=adam --lr=0.001",
        "--preset=mlperf-resnet-4096 --lr-schedule=cosine --momentum=0",
        "--preset=mlperf-resnet-4096 --lr-schedule=constant",
        "--zero=1 --bucket-cap-mb=1 --grad-compress=fp16 --hang-timeout=60 --fused-update --dist-backend=local",
        "--optimizer=lars --momentum=0.9 --nesterov --momentum-correction --eps=1e-6 --trust-coefficient=0.02",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) ck_ok(parse(RM_TRAIN, lines[i]));
    ck_ok(parse(RM_PLAN, "--pareto --spill=d"));
    ck_ok(parse(RM_PLAN, "--verify-recompute --memory-budget=1GiB"));
    ck_ok(parse(RM_TRAIN, "--verify-recompute --checkpoint-segments=2"));
    ck_ok(parse(RM_TRAIN, "--verify-recompute=false"));
    ck_ok(parse(RM_PLAN, "--spill=d --memory-budget=1GiB"));
    rm_options_free(&o);
}
END_TEST

/* With --resume these flags are checked only after the state was read. Flags of the state itself are never refused. */
START_TEST(resumed_command_line_is_checked_with_its_state) {
    ck_ok(parse(RM_TRAIN, "--resume=d --momentum=0.9 --power=3"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "optimizer", "sgd", "s"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "lr-schedule", "poly", "s"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "beta1", "0.8", "s"));
    ck_ok(rm_options_check(&o, RM_TRAIN));
    ck_ok(parse(RM_TRAIN, "--resume=d --momentum=0.9"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "optimizer", "adam", "s"));
    ck_fails(rm_options_check(&o, RM_TRAIN), REMAT_INVALID, "--momentum|--optimizer=adam");
    ck_ok(parse(RM_TRAIN, "--resume=d --clip-grad-norm=1"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "fused-update", "true", "s"));
    ck_fails(rm_options_check(&o, RM_TRAIN), REMAT_INVALID, "--fused-update");
    ck_ok(parse(RM_TRAIN, "--resume=d --checkpoint=lean"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "recompute", "off", "s"));
    ck_fails(rm_options_check(&o, RM_TRAIN), REMAT_INVALID, "--recompute=off");
    ck_ok(parse(RM_TRAIN, "--resume=d --accumulate-steps=2"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "deterministic-world", "8", "s"));
    ck_fails(rm_options_check(&o, RM_TRAIN), REMAT_INVALID, "--");
    rm_options_free(&o);
}
END_TEST

static remat_status parse_config(const char *text) {
    rm_options_free(&o);
    ck_ok(rm_options_defaults(&o));
    return rm_options_parse_config(&o, text, strlen(text), "run.conf");
}

/* Texts that a training state could not store completely are refused. */
START_TEST(long_texts_are_refused) {
    static char line[5000] = "milestones = ";
    for (int i = 0; i < 1400; i++) strcat(line, "70,");
    ck_fails(parse_config(line), REMAT_INVALID, "4095 bytes");
    line[13 + 4095] = 0;
    ck_ok(parse_config(line));
    rm_options_free(&o);
}
END_TEST

START_TEST(config_files_are_parsed) {
    ck_ok(parse_config("# a run\n\n  hidden = 128   # wide\r\nmodel=gru\nno-shuffle = true\n--layers = 4\nlength = 9\n"
                       "data = my text.txt\nlr=0.5"));
    ck_assert(o.model.hidden == 128 && !o.order.shuffle && o.model.layers == 4 && o.length == 9 && o.rate.lr == 0.5);
    ck_assert_str_eq(o.model.name, "gru");
    ck_assert_str_eq(o.data.data, "my text.txt");
    ck_fails(parse_config("hidden = 1\nhiden = 2\n"), REMAT_INVALID, "run.conf:2|hiden");
    ck_ok(parse_config("\xef\xbb\xbfhidden = 3\n"));
    ck_assert_int_eq(o.model.hidden, 3);
    ck_fails(parse_config("hidden = 1\nlayers = 2\n--hidden = 1\n"), REMAT_INVALID, "run.conf:3|hidden|second");
    ck_fails(parse_config("hidden 1\n"), REMAT_INVALID, "run.conf:1|name = value");
    ck_fails(parse_config("\n\nhidden = x"), REMAT_INVALID, "run.conf:3|hidden = x|whole number");
    ck_ok(parse_config("data = book#2.txt\nsave = run#2 # the second\n\t# layers = 9\nlabels =#y#\nprompt = a #b\n"));
    ck_assert_str_eq(o.data.data, "book#2.txt");
    ck_assert_str_eq(o.save, "run#2");
    ck_assert_str_eq(o.data.labels, "#y#");
    ck_assert_str_eq(o.prompt, "a");
    ck_ok(parse_config(
        "data = \"a #1 's.txt \"  # quoted\nsave='\"run\" # 2'\nprompt = \" \"\nhidden = '8'\r\nlabels = it's"));
    ck_assert_str_eq(o.data.data, "a #1 's.txt ");
    ck_assert_str_eq(o.save, "\"run\" # 2");
    ck_assert_str_eq(o.prompt, " ");
    ck_assert_int_eq(o.model.hidden, 8);
    ck_assert_str_eq(o.data.labels, "it's");
    ck_fails(parse_config("\ndata = \"a.txt\n"), REMAT_INVALID, "run.conf:2|quote");
    ck_fails(parse_config("data = 'a'.txt"), REMAT_INVALID, "run.conf:1|.txt|quoted");
    ck_fails(parse_config("data # = a"), REMAT_INVALID, "run.conf:1|name = value");
    ck_fails(parse_config("config = other"), REMAT_INVALID, "config");
    ck_fails(parse_config("= 3"), REMAT_INVALID, "flag");
    rm_options_free(&o);
    ck_ok(rm_options_defaults(&o));
    ck_fails(rm_options_parse_config(&o, "a\0b", 3, "f"), REMAT_INVALID, "text");
    rm_options_free(&o);
}
END_TEST

/* Of two flags that cannot be combined, the one on the command line replaces the one in the file. */
START_TEST(command_line_replaces_excluded_flags_of_a_file) {
    char path[] = "/tmp/remat_rivals_XXXXXX", line[128];
    int fd = mkstemp(path);
    const char text[] = "steps = 4\ncheckpoint-segments = 8\n";
    ck_assert_int_eq(write(fd, text, sizeof text - 1), (ssize_t)(sizeof text - 1));
    close(fd);
    snprintf(line, sizeof line, "--data=x --config=%s --epochs=2 --checkpoint=sqrt", path);
    ck_ok(parse(RM_TRAIN, line));
    ck_assert(rm_options_given(&o, "epochs") && !rm_options_given(&o, "steps"));
    ck_assert_int_eq(o.session.segments, 0);
    ck_assert_str_eq(o.session.strategy, "sqrt");
    snprintf(line, sizeof line, "--data=x --config=%s --checkpoint=segments", path);
    ck_ok(parse(RM_TRAIN, line));
    ck_assert_int_eq(o.session.segments, 8);
    ck_assert_int_eq(o.steps, 4);
    unlink(path);
    rm_options_free(&o);
}
END_TEST

START_TEST(command_line_overrides_a_file) {
    char line[300];
    const char *path = make_file("c.conf", "hidden=10\nlayers=5\n", 19);
    snprintf(line, sizeof line, "--hidden=20 --config=%s", path);
    ck_ok(parse(RM_TRAIN, line));
    ck_assert(o.model.hidden == 20 && o.model.layers == 5);
    ck_fails(parse(RM_TRAIN, "--config=/nowhere/x.conf"), REMAT_IO, "/nowhere/x.conf");
    rm_options_free(&o);
}
END_TEST

/* If the command line selects another optimizer, the file's settings for its own optimizer have no effect. With another
 * optimizer in the file itself they are an error. */
START_TEST(other_optimizer_disables_settings_of_a_file) {
    char line[300];
    const char *path = make_file("d.conf", "optimizer = sgd\nmomentum = 0.9\n", 31);
    snprintf(line, sizeof line, "--config=%s --optimizer=adam", path);
    ck_ok(parse(RM_TRAIN, line));
    snprintf(line, sizeof line, "--config=%s --optimizer=adam --momentum=0.5", path);
    ck_fails(parse(RM_TRAIN, line), REMAT_INVALID, "--momentum");
    path = make_file("e.conf", "optimizer = adam\nmomentum = 0.9\n", 32);
    snprintf(line, sizeof line, "--config=%s", path);
    ck_fails(parse(RM_TRAIN, line), REMAT_INVALID, "--momentum");
    rm_options_free(&o);
}
END_TEST

START_TEST(saved_flags_are_adopted) {
    ck_ok(parse(RM_TRAIN, "--hidden=20 --checkpoint=sqrt --lr=1e-3"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "layers", "7", "s"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "hidden", "20", "s"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "lr", "0.5", "s"));                /* the given value stays */
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "checkpoint-segments", "4", "s")); /* a flag that excludes it was given */
    ck_assert(o.model.layers == 7 && o.model.hidden == 20 && o.rate.lr == 1e-3 && o.session.segments == 0);
    ck_assert(rm_options_given(&o, "layers"));
    ck_fails(rm_options_adopt(&o, RM_TRAIN, "hidden", "30", "s"), REMAT_INVALID, "--hidden=20");
    ck_fails(rm_options_adopt(&o, RM_TRAIN, "save", "x", "s"), REMAT_IO, "save");
    ck_fails(rm_options_adopt(&o, RM_TRAIN, "nothing", "x", "s"), REMAT_IO, "nothing");
    ck_fails(rm_options_adopt(&o, RM_TRAIN, "embed", "x", "s"), REMAT_INVALID, "embed|whole number");
    rm_options_free(&o);
}
END_TEST

/* The order of the data must not change in training, but may in evaluation. */
START_TEST(fixed_flags_depend_on_the_command) {
    ck_ok(parse(RM_TRAIN, "--batch=4"));
    ck_fails(rm_options_adopt(&o, RM_TRAIN, "batch", "8", "s"), REMAT_INVALID, "--batch");
    ck_ok(parse(RM_EVAL, "--batch=4"));
    ck_ok(rm_options_adopt(&o, RM_EVAL, "batch", "8", "s"));
    ck_ok(rm_options_adopt(&o, RM_EVAL, "data", "training.txt", "s"));
    ck_assert(o.order.batch == 4 && !o.data.data);
    rm_options_free(&o);
}
END_TEST

/* Every saved flag can be given again as its saved text. */
START_TEST(saved_texts_can_be_parsed) {
    char text[4096], again[4096];
    rm_options other = {0};
    ck_ok(parse(RM_TRAIN,
                "--lr=0.1 --checkpoint-segments=3 --epochs=2 --task=classify --data=d --labels=l --eval-data=e "
                "--eval-labels=f --lengths=l --eval-lengths=g --class-weights=w --memory-budget=1.5GiB "
                "--lr-schedule=step --milestones=1 "
                "--train-only=t --groups=g:lr=1"));
    rm_options_mark(&o, "spill", true); /* cannot be given with --checkpoint-segments */
    o.session.spill_dir = strdup("d");
    ck_ok(rm_options_defaults(&other));
    for (int i = 0; i < rm_options_count(); i++) {
        if (rm_options_memory(i) == RM_FORGOTTEN) continue;
        rm_options_text(&o, i, text, sizeof text);
        if (strcmp(rm_options_name(i), "checkpoint") && strcmp(rm_options_name(i), "steps"))
            ck_ok(rm_options_adopt(&other, RM_TRAIN, rm_options_name(i), text, "s"));
        if (other.given[i]) ck_assert_str_eq(rm_options_text(&other, i, again, sizeof again), text);
    }
    ck_assert(other.rate.lr == 0.1);
    rm_options_free(&other);
    rm_options_free(&o);
}
END_TEST

START_TEST(report_takes_files) {
    ck_ok(parse(RM_REPORT, "a.jsonl --require-identical b.jsonl"));
    ck_assert(o.n_arguments == 2 && o.require_identical);
    ck_assert_str_eq(o.argument[1], "b.jsonl");
    ck_ok(parse(RM_TRAIN, "--help --nesterov"));
    ck_assert(o.help);
    rm_options_free(&o);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("options");
    tcase_add_test(tests, defaults_train);
    tcase_add_test(tests, both_spellings_of_a_value_are_accepted);
    tcase_add_test(tests, last_value_of_a_flag_counts);
    tcase_add_test(tests, optional_values_are_parsed);
    tcase_add_test(tests, sizes_have_units);
    tcase_add_loop_test(tests, invalid_command_lines_are_refused, 0, WRONG);
    tcase_add_loop_test(tests, flags_without_effect_are_refused, 0, IDLE);
    tcase_add_test(tests, refusals_name_every_choice);
    tcase_add_test(tests, other_names_lead_to_flags);
    tcase_add_test(tests, flags_that_are_off_are_accepted);
    tcase_add_test(tests, resumed_command_line_is_checked_with_its_state);
    tcase_add_test(tests, long_texts_are_refused);
    tcase_add_test(tests, config_files_are_parsed);
    tcase_add_test(tests, command_line_replaces_excluded_flags_of_a_file);
    tcase_add_test(tests, command_line_overrides_a_file);
    tcase_add_test(tests, other_optimizer_disables_settings_of_a_file);
    tcase_add_test(tests, saved_flags_are_adopted);
    tcase_add_test(tests, fixed_flags_depend_on_the_command);
    tcase_add_test(tests, saved_texts_can_be_parsed);
    tcase_add_test(tests, report_takes_files);
    return run_suite("train/options", tests);
}
