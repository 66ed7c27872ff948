/* test_options.c: flags, config files, and what a saved run remembers of them. */
#include "train/flags/options.h"

#include "tests/train/train_test.h"

static rm_options o;

/* Parses a line cut at spaces. */
static remat_status parse(rm_command command, const char *line) {
    static char copy[1024];
    static char *argv[32];
    int argc = 0;
    rm_options_free(&o);
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    return rm_options_parse(&o, command, argc, argv);
}

START_TEST(defaults_just_train) {
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

START_TEST(both_spellings_of_a_value) {
    ck_ok(parse(RM_TRAIN, "--hidden=12 --layers 3 --lr 1e-2 --no-shuffle --model gru --no-fold=false --seed 7"));
    ck_assert(o.model.hidden == 12 && o.model.layers == 3 && o.rate.lr == 0.01 && !o.order.shuffle &&
              o.session.fold_embedding && o.data.seed == 7);
    ck_assert_str_eq(o.model.name, "gru");
    rm_options_free(&o);
}
END_TEST

/* So a script can append to what it is given. */
START_TEST(the_last_of_a_flag_counts) {
    ck_ok(parse(RM_TRAIN, "--data=x --hidden=12 --hidden=7"));
    ck_assert_int_eq(o.model.hidden, 7);
    rm_options_free(&o);
}
END_TEST

/* A flag with a value that need not be said does not take the next word for it. */
START_TEST(values_that_need_not_be_said) {
    ck_ok(parse(RM_TRAIN, "--data=x"));
    ck_assert(o.order.shards == 0 && o.world_size == -1 && o.rank == -1 && o.order.micro_steps == 1);
    ck_ok(parse(RM_TRAIN, "--deterministic-world --batch 4"));
    ck_assert(o.order.shards == 8 && o.order.batch == 4);
    ck_ok(parse(RM_TRAIN, "--deterministic-world=2 --zero 1"));
    ck_assert(o.order.shards == 2 && o.ddp.shard_optimizer == 1);
    ck_fails(parse(RM_TRAIN, "--deterministic-world 2"), REMAT_INVALID, "is not a flag");
    rm_options_free(&o);
}
END_TEST

/* Powers of 1000 and of 1024. */
START_TEST(sizes) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"4096", 4096},           {"4096B", 4096},         {"64KiB", 65536},       {"64ki", 65536},
                 {"2GB", 2000000000},      {"2G", 2000000000},      {"1.5GiB", 1610612736}, {"1e6", 1000000},
                 {"3.3TB", 3300000000000}, {"1TiB", 1099511627776}, {"0.5MiB", 524288}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char line[64];
        snprintf(line, sizeof line, "--memory-budget=%s", sizes[i].text);
        ck_ok(parse(RM_TRAIN, line));
        ck_assert_uint_eq(o.session.memory_budget, sizes[i].bytes);
    }
    rm_options_free(&o);
}
END_TEST

/* What is wrong, and what the sentence must say. */
static const struct {
    rm_command command;
    const char *line, *part;
} wrong[] = {
    {RM_TRAIN, "--hidden=12x", "not a whole number"},
    {RM_TRAIN, "--hidden=", "not a whole number"},
    {RM_TRAIN, "--hidden", "needs a value"},
    {RM_TRAIN, "--hidden --layers=2", "needs a value"},
    {RM_TRAIN, "--hidden=0", "from 1 to"},
    {RM_TRAIN, "--hidden=-4", "from 1 to"},
    {RM_TRAIN, "--hidden=99999999999999999999", "from 1 to"},
    {RM_TRAIN, "--batch=1e3", "not a whole number"},
    {RM_TRAIN, "--lr=nan", "not a number"},
    {RM_TRAIN, "--lr=inf", "from 0 to"},
    {RM_TRAIN, "--lr=-1", "from 0 to"},
    {RM_TRAIN, "--lr=1e-3s", "not a number"},
    {RM_TRAIN, "--lr=0x10", "not a number such as 0.5"},
    {RM_TRAIN, "--hidden=0x10", "not a whole number"},
    {RM_TRAIN, "--memory-budget=0x10", "is not a size"},
    {RM_TRAIN, "--eps=0", "more than 0"},
    {RM_TRAIN, "--dropout=1", "from 0 to"},
    {RM_TRAIN, "--seed=-1", "from 0 to"},
    {RM_TRAIN, "--memory-budget=", "is not a size"},
    {RM_TRAIN, "--memory-budget=-1", "is not a size"},
    {RM_TRAIN, "--memory-budget=nan", "is not a size"},
    {RM_TRAIN, "--memory-budget=0", "from 1 to 1e18"},
    {RM_TRAIN, "--memory-budget=1e18K", "from 1 to 1e18"},
    {RM_TRAIN, "--memory-budget=64Mb", "unit that is not known"},
    {RM_TRAIN, "--memory-budget=64MiBs", "unit that is not known"},
    {RM_PLAN, "--assume-flops=60T", "--device=null"},
    {RM_TRAIN, "--model=transformer", "lstm|gru|rnn"},
    {RM_TRAIN, "--model=lst", "lstm|gru|rnn"},
    {RM_TRAIN, "--model=lstm|gru", "lstm|gru|rnn"},
    {RM_TRAIN, "--hiden=3", "did you mean --hidden?"},
    {RM_TRAIN, "--bacth=3", "did you mean --batch?"},
    {RM_TRAIN, "--zzzzzzzzz=3", "--help lists them"},
    {RM_TRAIN, "--", "--help lists them"},
    {RM_TRAIN, "hello", "flags are written --name=value"},
    {RM_TRAIN, "-x", "flags are written --name=value"},
    {RM_TRAIN, "--length=3", "belongs to `remat sample`"},
    {RM_INFO, "--hidden=3", "not a flag of `remat info`"},
    {RM_TRAIN, "--no-shuffle=perhaps", "true or false"},
    {RM_TRAIN, "--steps=3 --epochs=2", "exclude each other"},
    {RM_TRAIN, "--checkpoint=sqrt --checkpoint-segments=4", "exclude each other"},
    {RM_TRAIN, "--checkpoint=segments", "--checkpoint-segments=N"},
    {RM_TRAIN, "--checkpoint-segments=0", "from 1 to"},
    {RM_TRAIN, "--nesterov --optimizer=sgd", "--momentum"},
    {RM_TRAIN, "--init=a --resume=b", "exclude each other"},
    {RM_TRAIN, "--save-every=3", "--save=DIR"},
    {RM_TRAIN, "--data=", "is empty"},
    {RM_TRAIN, "--world-size=0", "from 1 to"},
    {RM_TRAIN, "--rank=-1", "from 0 to"},
    {RM_TRAIN, "--dist-backend=tcp", "auto|local|mpi|gloo|nccl"},
    {RM_TRAIN, "--zero=2", "from 0 to 1"},
    {RM_TRAIN, "--deterministic-world=6", "power of two, such as 8"},
    {RM_TRAIN, "--deterministic-world --accumulate-steps=2", "exclude each other"},
    {RM_TRAIN, "--deterministic-world --grad-compress=fp16", "leave it out"},
    {RM_TRAIN, "--fused-update --clip-grad-norm=1", "give one of the two"},
    {RM_TRAIN, "--metrics-per-rank", "--metrics=FILE"},
    {RM_TRAIN, "--devices=cpu:2 --rank=0", "starts the ranks itself"},
    {RM_TRAIN, "--hang-timeout=1", "from 2 to"},
    {RM_EVAL, "--rank=0", "belongs to `remat train`"},
    {RM_PLAN, "--json --steps-text", "--json and --steps-text exclude each other"},
    {RM_PLAN, "--spill=d", "--spill has no effect with --checkpoint=none: it needs --memory-budget=SIZE"},
    {RM_TRAIN, "--verify-recompute", "--verify-recompute has no effect with --checkpoint=none"},
    {RM_PLAN, "--verify-recompute --checkpoint=none --memory-budget=1GiB", "computes nothing twice"},
    {RM_PLAN, "--spill=d --memory-budget=1GiB --checkpoint-segments=4", "no effect with --checkpoint-segments:"},
    {RM_TRAIN, "--preset=mlperf-resnet-4096 --optimizer=sgd",
     "--optimizer=lars: with --optimizer=sgd say which, --lr=X"},
};
enum { WRONG = sizeof wrong / sizeof wrong[0] };

START_TEST(mistakes_get_a_sentence) {
    ck_fails(parse(wrong[_i].command, wrong[_i].line), REMAT_INVALID, wrong[_i].part);
    rm_options_free(&o);
}
END_TEST

/* Flags that nothing would read, and what they need. */
static const struct {
    const char *line, *sentence;
} idle[] = {
    {"--momentum=0.9", "--momentum has no effect with --optimizer=adam: it needs --optimizer=sgd, rmsprop or lars"},
    {"--optimizer=adamw --nesterov",
     "--nesterov has no effect with --optimizer=adamw: it needs --optimizer=sgd or lars"},
    {"--optimizer=lars --nesterov", "--nesterov has no effect with --momentum=0: it needs --momentum above 0"},
    {"--optimizer=sgd --beta1=0.8",
     "--beta1 has no effect with --optimizer=sgd: it needs --optimizer=adam, adamw or lamb"},
    {"--optimizer=lars --beta2=0.9", "--beta2 has no effect with --optimizer=lars"},
    {"--optimizer=sgd --eps=1e-6", "--optimizer=adam, adamw, rmsprop, adagrad, lars or lamb"},
    {"--trust-coefficient=0.01", "--trust-coefficient has no effect with --optimizer=adam: it needs --optimizer=lars"},
    {"--optimizer=sgd --momentum=0.9 --momentum-correction", "--optimizer=lars, whose velocity"},
    {"--optimizer=lars --momentum-correction", "--momentum above 0"},
    {"--adapt-vectors", "--optimizer=lars or lamb"},
    {"--optimizer=sgd --weight-decay=0.1 --decay-vectors", "--optimizer=lars or lamb"},
    {"--optimizer=lamb --decay-vectors",
     "--decay-vectors has no effect with --weight-decay=0: it needs --weight-decay above 0"},
    {"--optimizer=lars --norm-limit=10", "--optimizer=lamb"},
    {"--lr-schedule=cosine --power=3", "--power has no effect with --lr-schedule=cosine: it needs --lr-schedule=poly"},
    {"--milestones=3,6", "--milestones has no effect with --lr-schedule=constant: it needs --lr-schedule=step"},
    {"--gamma=0.5 --lr-schedule=poly", "--lr-schedule=step"},
    {"--end-lr=0", "--lr-schedule=linear, cosine, poly, restarts or "},
    {"--decay-steps=9", "--lr-schedule=linear, cosine, poly, restarts or "},
    {"--base-batch=32", "--base-batch has no effect with --scale-lr=none: it needs --scale-lr=linear or sqrt"},
    {"--task=adding --label-smoothing=0.1", "--task=lm, classify, copy, s5 or seq2seq, tasks with classes"},
    {"--layers=1 --dropout=0.1", "--dropout has no effect with --layers=1: it needs --layers above 1"},
    {"--task=adding --embed=8", "--task=lm, copy, s5 or seq2seq"},
    {"--classes=3", "--classes has no effect with --task=lm: it needs --task=classify"},
    {"--task=copy --data=x",
     "--data has no effect with --task=copy: it needs --task=lm, classify, regress, transcribe or seq2seq"},
    {"--data=x --labels=y", "--task=classify"},
    {"--task=adding --eval-data=x", "--eval-every=N evaluates"},
    {"--task=classify --eval-labels=y", "--eval-labels has no effect without --eval-data: it needs --eval-data=FILE"},
    {"--data=x --samples=50", "--task=adding, copy, s5 or seq2seq"},
    {"--metrics-per-rank", "--metrics-per-rank has no effect without --metrics: it needs --metrics=FILE"},
    {"--save-every=3", "--save-every has no effect without --save: it needs --save=DIR"},
    {"--keep=3", "--save=DIR"},
};
enum { IDLE = sizeof idle / sizeof idle[0] };

START_TEST(flags_without_effect_are_refused) {
    ck_fails(parse(RM_TRAIN, idle[_i].line), REMAT_INVALID, idle[_i].sentence);
    ck_fails(parse(RM_PLAN, idle[_i].line), REMAT_INVALID, idle[_i].sentence);
    rm_options_free(&o);
}
END_TEST

/* A flag may say that it asks for nothing; a preset may set what its optimizer reads, and this run's does not; and flags about
 * ranks are for any number of them. */
START_TEST(flags_that_ask_for_nothing_are_not) {
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

/* With --resume the state has not said yet what these would do; once it has, they are looked at, and what the state says itself
 * is never refused. */
START_TEST(a_resumed_line_is_checked_with_its_state) {
    ck_ok(parse(RM_TRAIN, "--resume=d --momentum=0.9 --power=3"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "optimizer", "sgd", "s"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "lr-schedule", "poly", "s"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "beta1", "0.8", "s"));
    ck_ok(rm_options_check(&o, RM_TRAIN));
    ck_ok(parse(RM_TRAIN, "--resume=d --momentum=0.9"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "optimizer", "adam", "s"));
    ck_fails(rm_options_check(&o, RM_TRAIN), REMAT_INVALID, "--momentum has no effect with --optimizer=adam");
    ck_ok(parse(RM_TRAIN, "--resume=d --clip-grad-norm=1"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "fused-update", "true", "s"));
    ck_fails(rm_options_check(&o, RM_TRAIN), REMAT_INVALID, "--fused-update updates before");
    ck_ok(parse(RM_TRAIN, "--resume=d --checkpoint=lean"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "recompute", "off", "s"));
    ck_fails(rm_options_check(&o, RM_TRAIN), REMAT_INVALID, "--recompute=off forbids");
    ck_ok(parse(RM_TRAIN, "--resume=d --accumulate-steps=2"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "deterministic-world", "8", "s"));
    ck_fails(rm_options_check(&o, RM_TRAIN), REMAT_INVALID, "exclude each other");
    rm_options_free(&o);
}
END_TEST

static remat_status parse_config(const char *text) {
    rm_options_free(&o);
    ck_ok(rm_options_defaults(&o));
    return rm_options_parse_config(&o, text, strlen(text), "run.conf");
}

/* What a training state could not keep whole is refused. */
START_TEST(long_texts_are_refused) {
    static char line[5000] = "milestones = ";
    for (int i = 0; i < 1400; i++) strcat(line, "70,");
    ck_fails(parse_config(line), REMAT_INVALID, "is too long: 4095 bytes are the most");
    line[13 + 4095] = 0;
    ck_ok(parse_config(line));
    rm_options_free(&o);
}
END_TEST

START_TEST(config_files) {
    ck_ok(parse_config("# a run\n\n  hidden = 128   # wide\r\nmodel=gru\nno-shuffle = true\n--layers = 4\nlength = 9\n"
                       "data = my text.txt\nlr=0.5"));
    ck_assert(o.model.hidden == 128 && !o.order.shuffle && o.model.layers == 4 && o.length == 9 && o.rate.lr == 0.5);
    ck_assert_str_eq(o.model.name, "gru");
    ck_assert_str_eq(o.data.data, "my text.txt");
    ck_fails(parse_config("hidden = 1\nhiden = 2\n"), REMAT_INVALID, "run.conf:2: hiden");
    ck_ok(parse_config("\xef\xbb\xbfhidden = 3\n"));
    ck_assert_int_eq(o.model.hidden, 3);
    ck_fails(parse_config("hidden = 1\nlayers = 2\n--hidden = 1\n"), REMAT_INVALID,
             "run.conf:3: hidden is set for the second");
    ck_fails(parse_config("hidden 1\n"), REMAT_INVALID, "run.conf:1: write `name = value`");
    ck_fails(parse_config("\n\nhidden = x"), REMAT_INVALID, "run.conf:3: hidden = x: is not a whole number");
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
    ck_fails(parse_config("\ndata = \"a.txt\n"), REMAT_INVALID,
             "run.conf:2: the value begins with \" and has no second one: close the quotes");
    ck_fails(parse_config("data = 'a'.txt"), REMAT_INVALID, "run.conf:1: remove .txt after the quoted value");
    ck_fails(parse_config("data # = a"), REMAT_INVALID, "run.conf:1: write `name = value`");
    ck_fails(parse_config("config = other"), REMAT_INVALID, "cannot name another");
    ck_fails(parse_config("= 3"), REMAT_INVALID, "not a flag");
    rm_options_free(&o);
    ck_ok(rm_options_defaults(&o));
    ck_fails(rm_options_parse_config(&o, "a\0b", 3, "f"), REMAT_INVALID, "not a text file");
    rm_options_free(&o);
}
END_TEST

/* Of two flags that exclude each other, the one on the command line replaces the one in the file. */
START_TEST(rivals_in_a_file_give_way) {
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

START_TEST(the_command_line_wins) {
    char line[300];
    const char *path = make_file("c.conf", "hidden=10\nlayers=5\n", 19);
    snprintf(line, sizeof line, "--hidden=20 --config=%s", path);
    ck_ok(parse(RM_TRAIN, line));
    ck_assert(o.model.hidden == 20 && o.model.layers == 5);
    ck_fails(parse(RM_TRAIN, "--config=/nowhere/x.conf"), REMAT_IO, "does not exist");
    rm_options_free(&o);
}
END_TEST

/* What a file says for its own optimizer is idle beside another on the line; beside another in the file it is a mistake. */
START_TEST(a_file_is_overruled) {
    char line[300];
    const char *path = make_file("d.conf", "optimizer = sgd\nmomentum = 0.9\n", 31);
    snprintf(line, sizeof line, "--config=%s --optimizer=adam", path);
    ck_ok(parse(RM_TRAIN, line));
    snprintf(line, sizeof line, "--config=%s --optimizer=adam --momentum=0.5", path);
    ck_fails(parse(RM_TRAIN, line), REMAT_INVALID, "--momentum has no effect");
    path = make_file("e.conf", "optimizer = adam\nmomentum = 0.9\n", 32);
    snprintf(line, sizeof line, "--config=%s", path);
    ck_fails(parse(RM_TRAIN, line), REMAT_INVALID, "--momentum has no effect");
    rm_options_free(&o);
}
END_TEST

START_TEST(saved_flags_are_taken_over) {
    ck_ok(parse(RM_TRAIN, "--hidden=20 --checkpoint=sqrt --lr=1e-3"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "layers", "7", "s"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "hidden", "20", "s"));
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "lr", "0.5", "s"));                /* the given one stays */
    ck_ok(rm_options_adopt(&o, RM_TRAIN, "checkpoint-segments", "4", "s")); /* its rival was given */
    ck_assert(o.model.layers == 7 && o.model.hidden == 20 && o.rate.lr == 1e-3 && o.session.segments == 0);
    ck_assert(rm_options_given(&o, "layers"));
    ck_fails(rm_options_adopt(&o, RM_TRAIN, "hidden", "30", "s"), REMAT_INVALID, "--hidden=20 does not agree");
    ck_fails(rm_options_adopt(&o, RM_TRAIN, "save", "x", "s"), REMAT_IO, "does not keep");
    ck_fails(rm_options_adopt(&o, RM_TRAIN, "nothing", "x", "s"), REMAT_IO, "does not keep");
    ck_fails(rm_options_adopt(&o, RM_TRAIN, "embed", "x", "s"), REMAT_INVALID, "not a whole number");
    rm_options_free(&o);
}
END_TEST

/* The order of the data binds training, not evaluation. */
START_TEST(what_binds_depends_on_the_command) {
    ck_ok(parse(RM_TRAIN, "--batch=4"));
    ck_fails(rm_options_adopt(&o, RM_TRAIN, "batch", "8", "s"), REMAT_INVALID, "does not agree");
    ck_ok(parse(RM_EVAL, "--batch=4"));
    ck_ok(rm_options_adopt(&o, RM_EVAL, "batch", "8", "s"));
    ck_ok(rm_options_adopt(&o, RM_EVAL, "data", "training.txt", "s"));
    ck_assert(o.order.batch == 4 && !o.data.data);
    rm_options_free(&o);
}
END_TEST

/* Every flag that is kept can be said again as it is kept. */
START_TEST(texts_read_back) {
    char text[4096], again[4096];
    rm_options other = {0};
    ck_ok(parse(RM_TRAIN,
                "--lr=0.1 --checkpoint-segments=3 --epochs=2 --task=classify --data=d --labels=l --eval-data=e "
                "--eval-labels=f --lengths=l --eval-lengths=g --class-weights=w --memory-budget=1.5GiB "
                "--lr-schedule=step --milestones=1 "
                "--train-only=t --groups=g:lr=1"));
    rm_options_mark(&o, "spill", true); /* which a line with --checkpoint-segments cannot say */
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
    tcase_add_test(tests, defaults_just_train);
    tcase_add_test(tests, both_spellings_of_a_value);
    tcase_add_test(tests, the_last_of_a_flag_counts);
    tcase_add_test(tests, values_that_need_not_be_said);
    tcase_add_test(tests, sizes);
    tcase_add_loop_test(tests, mistakes_get_a_sentence, 0, WRONG);
    tcase_add_loop_test(tests, flags_without_effect_are_refused, 0, IDLE);
    tcase_add_test(tests, flags_that_ask_for_nothing_are_not);
    tcase_add_test(tests, a_resumed_line_is_checked_with_its_state);
    tcase_add_test(tests, long_texts_are_refused);
    tcase_add_test(tests, config_files);
    tcase_add_test(tests, rivals_in_a_file_give_way);
    tcase_add_test(tests, the_command_line_wins);
    tcase_add_test(tests, a_file_is_overruled);
    tcase_add_test(tests, saved_flags_are_taken_over);
    tcase_add_test(tests, what_binds_depends_on_the_command);
    tcase_add_test(tests, texts_read_back);
    tcase_add_test(tests, report_takes_files);
    return run_suite("train/options", tests);
}
