/* test_cli.c: the program from outside: its output, error messages and exit statuses. */
#include "engine/abi.h"
#include "tests/train/train_test.h"

#include <sys/stat.h>

#define SMALL "--hidden=8 --layers=1 --seq-len=16 --batch=2 --threads=1 "

START_TEST(usage_is_printed) {
    static const char *const versions[] = {"--version", "-V", "version"};
    for (int i = 0; i < 3; i++) {
        ck_runs("%s", versions[i]);
        ck_says_all(program_output, "remat 0.");
    }
    ck_runs("help train");
    ck_says_all(program_output, "--hidden=N");
    ck_runs("help launch");
    ck_refuses(2, "command|trian", "help trian");
    ck_runs("--help");
    ck_says_all(program_output, "remat train");
    ck_assert_int_eq(run_program(" "), 2);
    ck_refuses(2, "command|trian", "trian");
    static const char *const commands[] = {"train", "plan", "eval", "predict", "sample", "info", "report"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        ck_runs("%s --help", commands[i]);
        ck_says_all(program_output, commands[i]);
        ck_assert_ptr_null(strstr(program_output, "\n\n\n"));
    }
    ck_runs("plan --help");
    ck_says_all(program_output, "10M");
    ck_says_all(program_output, " --save-every"); /* accepted as a flag of train, without effect */
    static const char *const pages[] = {"--help",        "--version",           "train --help",
                                        "launch --help", "train --preset=list", "info"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        char command[512];
        snprintf(command, sizeof command, "%s/remat %s >/dev/full 2>%s", RM_BINARY_DIR, pages[i], in_scratch("err"));
        int status = system(command);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s: status %x", pages[i], (unsigned)status);
    }
    ck_runs("info");
    ck_says_all(program_output, "threads");
    ck_runs("info --json");
    ck_assert(program_output[0] == '{');
    ck_says_all(program_output, "\"local\": \"");
}
END_TEST

/* Every refusal is one line that contains the words of `part`. %1$s in the command line is a directory. */
static const struct {
    int status;
    const char *part, *line;
} refusals[] = {
    {2, "--data=FILE", "train"},
    {1, "nothing|exist", "train --data=%1$s/nothing"},
    {1, "directory", "train --data=%1$s"},
    {2, "--seq-len", "train --data=%1$s/short"},
    {2, "--batch=64", "train --data=%1$s/text --seq-len=100 --batch=64"},
    {2, "--hiden|--hidden", "train --hiden=3"},
    {2, "--hidden|12x|whole number", "train --hidden=12x --data=%1$s/text"},
    {2, "--layers|1", "train --layers=0 --data=%1$s/text"},
    {2, "--batch|1", "train --batch=-1 --data=%1$s/text"},
    {2, "--steps|1", "train --steps=999999999999999999999 --data=%1$s/text"},
    {2, "--lr|nan|number", "train --lr=nan --data=%1$s/text"},
    {2, "--labels=FILE", "train --task=classify --data=%1$s/text"},
    {1, "IDX", "train --task=classify --data=%1$s/text --labels=%1$s/text"},
    {2, "21", "train --task=copy --seq-len=20"},
    {2, "1 sample,|more samples|--batch", "train --task=adding --samples=1 --batch=2"},
    {1, "training state", "train --resume=%1$s"},
    {1, "nothing.safetensors|exist", "train --data=%1$s/text " SMALL "--init=%1$s/nothing.safetensors"},
    {1, "safetensors", "train --data=%1$s/text " SMALL "--init=%1$s/text"},
    {1, "--save", "train --data=%1$s/text " SMALL "--save=/proc/nowhere"},
    {1, "--metrics", "train --data=%1$s/text " SMALL "--metrics=/nowhere/m.jsonl"},
    {1, "/dev/full", "train --data=%1$s/text " SMALL "--metrics=/dev/full"},
    {1, "/nowhere/g.safetensors", "train --data=%1$s/text " SMALL "--dump-grads=/nowhere/g.safetensors --steps=1"},
    {2, "--classes=1|one class", "train --task=classify --data=x --labels=y --classes=1"},
    {1, "Not a directory|--tensorboard", "train --data=%1$s/text " SMALL "--tensorboard=%1$s/text"},
    {1, "image.png|folder", "train --task=classify --model=cnn --data=%1$s/image.png --labels=%1$s/text"},
    {2, "--eval-data=FILE", "train --data=%1$s/text " SMALL "--eval-every=2"},
    {1, "nothing|exist", "train --config=%1$s/nothing"},
    {2, "short:1", "train --config=%1$s/short"},
    {2, "--data=FILE", "plan --task=classify"},
    {2, "--resume=DIR", "eval --data=%1$s/text " SMALL},
    {2, "--resume=DIR", "sample"},
    {2, "--resume=DIR", "eval " SMALL},
    {2, "--resume=DIR", "predict --data=%1$s/text"},
    {2, "--resume=DIR", "predict --task=adding --device=null"},
    {2, ".npy|.csv", "predict --task=adding --out=%1$s/text"},
    {2, "--resume=DIR", "predict --task=adding " SMALL},
    {2, "--rows|--task=lm", "train --data=%1$s/text --rows"},
    {2, "--task=lm|seq2seq", "sample --task=copy"},
    {2, "metrics", "report"},
    {1, "nothing", "report %1$s/nothing"},
    {1, "JSON", "report %1$s/text"},
    {1, "steps", "report %1$s/nothing.jsonl"},
    {2, "--hidden|flag|remat info", "info --hidden=3"},
    {2, ".svg|.png|.html", "plan --plot=a.pdf"},
    {2, ".svg|.png|.html", "train --plot=a.pdf --data=%1$s/nothing"},
    {2, "--assume-memory|--device=null", "plan --assume-memory=80GiB"},
    {2, "--assume-|--device=null", "plan --assume-flops=60T"},
    {2, "--assume-|--device=null", "plan --assume-bandwidth=1TB"},
    {2, "precision|tf32", "plan " SMALL "--precision=tf32"},
    {2, "fp32|tf32|bf16", "plan --precision=fp16"},
    {2, "--assume-memory|--memory-budget", "plan --device=null --assume-memory=80GiB --memory-budget=1GiB"},
    {2, "--checkpoint-segments|--checkpoint=optimal", "plan --checkpoint-segments=4 --checkpoint=optimal"},
    {2, "--checkpoint-segments|--recompute=off", "plan --checkpoint-segments=4 --recompute=off"},
    {2, "--checkpoint=sqrt|--recompute=off", "plan --checkpoint=sqrt --recompute=off"},
    {2, "--checkpoint=lean|--recompute=exact-only", "plan --checkpoint=lean --recompute=exact-only"},
    {2, "--pareto|--steps-text", "plan --pareto --steps-text"},
    {2, "--train-only|headd", "plan " SMALL "--train-only=headd"},
    {2, "--preset=mlperf-resnet-4096|--batch=4096|data",
     "train --data=%1$s/text --seq-len=16 --preset=mlperf-resnet-4096"},
    {2, "calibration|text", "plan " SMALL "--calibration=%1$s/text"},
    {2, "file", "plan " SMALL "--calibration=%1$s"},
    {2, "calibration|text", "train --data=%1$s/text " SMALL "--calibration=%1$s/text"},
    {2, "abc|rate", "plan --device=null --assume-flops=abc"},
    {2, "60X|K, M, G or T", "plan --device=null --assume-flops=60X"},
    {2, "abc|size", "plan --memory-budget=abc"},
    {2, "--data|FILE", "train --data="},
    {2, "--memory-budget|4096", "train --memory-budget="},
    {2, "--length|flag|remat plan", "plan --length=3"},
    {2, "--save-every|1", "plan --save-every=0"},
    {2, "--device=null|--save", "train --task=copy --device=null --save=%1$s/st"},
    {2, "--device=null|--dump-grads", "train --task=copy --device=null --dump-grads=%1$s/g.safetensors"},
    {2, "--device=null|--eval-every", "train --task=copy --device=null --eval-every=1"},
    {2, "--metrics|standard output", "train --task=copy --metrics=- --metrics-per-rank"},
    {2, "--device=null", "eval --task=copy --model=lstm --device=null --init=%1$s/text"},
    {1, "text", "plan --resume=%1$s/text"},
};

enum { REFUSALS = sizeof refusals / sizeof refusals[0] };

START_TEST(refusals_are_one_line) {
    make_file("image.png", "\x89PNG\r\n\x1a\n\0\0\0\0", 12);
    char line[2048];
    make_text("text", 4096);
    make_file("short", "a few bytes", 11);
    make_file("nothing.jsonl", "{\"event\":\"plan\"}\n", 17);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(line, sizeof line, refusals[_i].line, scratch());
#pragma GCC diagnostic pop
    ck_refuses(refusals[_i].status, refusals[_i].part, "%s", line);
}
END_TEST

/* On processors without bf16, and for networks without a layer that supports it. */
START_TEST(bf16_is_refused_without_effect) {
    bool here = !strcmp(rm_build_info_of_this().instruction_set, "avx512_bf16");
    const char *why = here ? "bf16|cpu|lstm|projection|gru|rnn" : "precision|bf16";
    ck_refuses(2, why, "plan --task=copy --model=mingru --hidden=8 --precision=bf16");
    ck_refuses(2, why, "plan --task=copy --model=lstm --hidden=8 --proj-size=4 --precision=bf16");
}
END_TEST

/* A dump that does not fit on the disk leaves the earlier one unchanged. */
START_TEST(a_full_disk_keeps_the_earlier_gradients) {
    const char *text = make_text("text", 4096), *dump = in_scratch("g.safetensors");
    struct stat before, after;
    ck_runs("train --data=%s " SMALL "--steps=1 --dump-grads=%s", text, dump);
    ck_assert_int_eq(stat(dump, &before), 0);
    largest_file = 2000;
    int status = run_program("train --data=%s " SMALL "--steps=1 --dump-grads=%s", text, dump);
    largest_file = 0;
    ck_assert_int_eq(status, 0);
    ck_says_all(program_errors, "without|gradients");
    ck_assert_int_eq(stat(dump, &after), 0);
    ck_assert(before.st_ino == after.st_ino && before.st_size == after.st_size && after.st_size > 2000);
}
END_TEST

/* A run that ends because the disk is full: the earlier state is still there and can be resumed. */
START_TEST(a_full_disk_ends_a_run_cleanly) {
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    ck_runs("train --data=%s " SMALL "--steps=3 --save=%s", text, st);
    largest_file = 2000;
    int status = run_program("train --resume=%s --save=%s --steps=5", st, st);
    largest_file = 0;
    ck_assert_int_eq(status, 2);
    ck_says_all(program_errors, "step 5|not saved");
    ck_runs("train --resume=%s --save=%s --steps=5", st, st);
    ck_says_all(program_output, "step 3, epoch 0");
}
END_TEST

static void need_text(const char *path, size_t bytes) {
    struct stat about;
    char first[10] = "";
    ck_assert_int_eq(stat(path, &about), 0);
    ck_assert_int_eq(about.st_size, (int64_t)bytes);
    FILE *file = fopen(path, "r");
    ck_assert(fread(first, 1, 9, file) == 9 && !strcmp(first, "the quick"));
    fclose(file);
}

/* A file is first written under a temporary name. The program does not follow a link placed there, not even to a
 * pipe. */
START_TEST(outputs_do_not_follow_planted_links) {
    static const char *const target[] = {"/dev/null", "pipe"}, *const name[] = {"p.csv", "g.safetensors", "p.svg", "w.safetensors"};
    const char *text = make_text("text", 4096);
    bool draws = !system("command -v gnuplot >/dev/null 2>&1");
    ck_assert_int_eq(mkfifo(in_scratch("pipe"), 0600), 0);
    ck_runs("train --task=adding --samples=50 --seq-len=4 --layers=1 --hidden=8 --batch=4 --steps=1 --save=%s/st", scratch());
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 4; j++) {
            char beside[32];
            snprintf(beside, sizeof beside, "%s.unfinished", name[j]);
            ck_assert_int_eq(symlink(target[i], in_scratch(beside)), 0);
        }
        ck_refuses(1, "symbolic link", "predict --resume=%s/st --out=%s/p.csv", scratch(), scratch());
        ck_refuses(1, "symbolic link", "train --data=%s " SMALL "--steps=1 --dump-grads=%s/g.safetensors", text,
                   scratch());
        ck_refuses(1, "symbolic link", "export --resume=%s/st --out=%s/w.safetensors", scratch(), scratch());
        if (draws) ck_refuses(1, "symbolic link", "plan " SMALL "--plot=%s/p.svg", scratch());
        for (int j = 0; j < 4; j++) {
            char beside[32];
            snprintf(beside, sizeof beside, "%s.unfinished", name[j]);
            ck_assert_int_eq(unlink(in_scratch(beside)), 0);
            ck_assert_int_eq(access(in_scratch(name[j]), F_OK), -1);
        }
    }
}
END_TEST

/* A flag that would overwrite a file is refused: one of the run's own files under any name, or another program's
 * file. */
START_TEST(existing_files_are_not_overwritten) {
    const char *text = make_text("text", 4096), *notes = make_text("notes.txt", 3000), *link = in_scratch("link"),
               *st = in_scratch("st"), *m = in_scratch("m");
    ck_assert_int_eq(symlink("text", link), 0);
    static const struct {
        const char *part, *flags;
    } cases[] = {
        {"--metrics=%1$s/text|overwrite|--data=", "--metrics=%1$s/text"},
        {"--metrics=%1$s/link|overwrite|--data=", "--metrics=%1$s/link"},
        {"--dump-grads=%1$s/text|overwrite|--data=", "--dump-grads=%1$s/text"},
        {"--eval-data=", "--eval-data=%1$s/notes.txt --metrics=%1$s/notes.txt"},
        {"--save=", "--save=%1$s/new --metrics=%1$s/new"},
        {"--dump-grads=", "--dump-grads=%1$s/new --metrics=%1$s/new"},
        {"%1$s/notes.txt|metrics", "--metrics=%1$s/notes.txt"},
        {"%1$s/notes.txt|.safetensors", "--dump-grads=%1$s/notes.txt"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char part[512], flags[512];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(part, sizeof part, cases[i].part, scratch());
        snprintf(flags, sizeof flags, cases[i].flags, scratch());
#pragma GCC diagnostic pop
        ck_refuses(2, part, "train --data=%s " SMALL "--steps=1 %s", text, flags);
        need_text(text, 4096);
        need_text(notes, 3000);
    }
    ck_runs("train --data=%s " SMALL "--steps=1 --metrics=/dev/null --dump-grads=/dev/null", text);
    ck_runs("train --data=%s " SMALL "--steps=2 --metrics=%s --save=%s", text, make_file("m", "{\"ev", 4), st);
    ck_refuses(2, "another run", "train --data=%s " SMALL "--steps=1 --metrics=%s", text, m);
    ck_refuses(2, "metrics|run", "eval --resume=%s --data=%s --metrics=%s", st, text, m);
    ck_runs("train --resume=%s --steps=3 --metrics=%s", st, m);
    ck_runs("train --data=%s " SMALL "--steps=2 --save=%s", text, in_scratch("other"));
    ck_refuses(2, "another run", "train --resume=%s --steps=3 --metrics=%s", in_scratch("other"), m);
    ck_refuses(2, "notes.txt|metrics", "train --resume=%s --steps=3 --metrics=%s", st, notes);
    ck_refuses(2, "--data=", "train --resume=%s --steps=3 --metrics=%s", st, text);
    ck_refuses(2, "--data=", "eval --resume=%1$s --data=%2$s --metrics=%2$s", st, text);
    ck_refuses(2, "--resume=", "eval --resume=%1$s --data=%2$s --metrics=%1$s", st, text);
    ck_refuses(2, "--out=|overwrite --data=|step-00000003", "export --resume=%s --out=%s", st, text);
    ck_refuses(2, "--out=|overwrite --data=|step-00000003", "export --resume=%s --out=%s", st, link);
    ck_refuses(2, "notes.txt exists and is not a .safetensors file|--out", "export --resume=%s --out=%s", st, notes);
    need_text(text, 4096);
    need_text(notes, 3000);
}
END_TEST

/* A state is not usable without one of its files, and what it was trained on is needed to resume it. */
START_TEST(files_of_states_are_not_overwritten) {
    static const char *const inside[] = {"step-00000002/optimizer.safetensors", "step-00000002/new.safetensors",
                                         "best/model.safetensors"};
    static char st[300], text[300], labels[300];
    snprintf(st, sizeof st, "%s", in_scratch("st"));
    snprintf(text, sizeof text, "%s", make_text("text", 4096));
    ck_runs("train --data=%s " SMALL "--eval-split=0.2 --eval-every=1 --keep-best=loss --steps=2 --save=%s", text, st);
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        ck_refuses(2, "--out=|in a training state", "export --resume=%s --out=%s/%s", st, st, inside[i]);
        ck_refuses(2, "--dump-grads=|in a training state", "train --data=%s " SMALL "--steps=1 --dump-grads=%s/%s",
                   text, st, inside[i]);
    }
    ck_runs("export --resume=%s --out=%s/weights.safetensors", st, st);
    ck_runs("export --resume=%s --out=%s/weights.safetensors", st, st);
    ck_runs("train --resume=%s --steps=3", st);

    static const float x[4 * 3 * 2] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const int32_t y[4] = {0, 1, 1, 0};
    snprintf(labels, sizeof labels, "%s", make_npy("y.npy", "<i4", "(4,)", y, sizeof y));
    const char *data = make_npy("x.npy", "<f4", "(4, 3, 2)", x, sizeof x);
    snprintf(st, sizeof st, "%s", in_scratch("classes"));
    ck_runs("train --task=classify --data=%s --labels=%s --layers=1 --hidden=4 --batch=2 --steps=1 --save=%s", data,
            labels, st);
    ck_refuses(2, "--out=|overwrite --labels=", "predict --resume=%s --out=%s", st, labels);
    ck_refuses(2, "--out=|in a training state", "predict --resume=%1$s --out=%1$s/step-00000001/p.csv", st);
}
END_TEST

/* The model does not depend on the sequence length. */
START_TEST(s5_is_evaluated_at_other_lengths) {
    static char state[256], own[sizeof program_output];
    snprintf(state, sizeof state, "%s", in_scratch("s5"));
    ck_runs("train --task=s5 --samples=20 --layers=1 --hidden=8 --seq-len=12 --batch=4 --steps=2 --save=%s", state);
    ck_runs("eval --resume=%s", state);
    snprintf(own, sizeof own, "%s", program_output);
    ck_runs("eval --resume=%s --seq-len=120", state);
    ck_assert_msg(strstr(program_output, " accuracy ") && strcmp(program_output, own), "%s", program_output);
}
END_TEST

/* Counts elements, not padded bytes: 3 x 2 + 3 x 3 + 3 + 3 in the layer, 3 + 1 in the head. */
START_TEST(parameters_are_counted) {
    ck_runs("train --task=adding --samples=20 --model=rnn --layers=1 --hidden=3 --seq-len=8 --batch=4 --steps=1");
    ck_says_all(program_output, ": 25 parameters");
}
END_TEST

/* A resumed command line is checked together with its training state. Flags from the state alone are not refused. */
START_TEST(resumed_command_lines_are_checked) {
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    ck_runs("train --data=%s " SMALL "--optimizer=lamb --lr-schedule=step --milestones=1 --checkpoint=segments "
            "--checkpoint-segments=2 --tile=4 --steps=2 --save=%s",
            text, st);
    ck_refuses(2, "--power|--lr-schedule=step", "train --resume=%s --steps=3 --power=3", st);
    ck_refuses(2, "--power|--lr-schedule=step", "plan --resume=%s --power=3", st);
    ck_refuses(2, "--trust-coefficient|--optimizer=lamb", "train --resume=%s --steps=3 --trust-coefficient=0.1", st);
    ck_refuses(2, "--samples|--task=lm", "eval --resume=%s --data=%s --samples=9", st, text);
    ck_refuses(2, "--recompute=off|--checkpoint-segments", "train --resume=%s --recompute=off", st);
    ck_runs("train --resume=%s --steps=3 --lr-schedule=poly --power=3", st);
    ck_runs("train --resume=%s --steps=4 --norm-limit=10 --lr-schedule=constant", st);
}
END_TEST

static double number_after(const char *text, const char *label) {
    const char *at = strstr(text, label);
    ck_assert_msg(at, "no %s in %s", label, text);
    return atof(at + strlen(label));
}

/* Each sample counts once for every batch size: 44 samples in batches of 4, of 5 (the last is short) and of 100 (more
 * than there are). */
START_TEST(evaluation_counts_each_sample_once) {
    const char *text = make_text("text", 9000);
    ck_runs("train --data=%s " SMALL "--seq-len=200 --steps=4 --save=%s", text, in_scratch("st"));
    double first = 0;
    for (int batch = 4; batch <= 100; batch += batch == 4 ? 1 : 95) {
        ck_runs("eval --data=%s --resume=%s --batch=%d", text, in_scratch("st"), batch);
        ck_says_all(program_output, "(44 samples)");
        double loss = number_after(program_output, "loss ");
        if (batch == 4) first = loss;
        ck_assert_msg(!(loss - first > 1e-6 || first - loss > 1e-6) && loss > 0, "batch %d: %.9g, not %.9g", batch,
                      loss, first);
    }
    ck_runs("eval --data=%s --init=%s/step-00000004/model.safetensors " SMALL "--seq-len=200", text, in_scratch("st"));
    ck_assert(number_after(program_output, "loss ") - first < 1e-6);
}
END_TEST

START_TEST(samples_of_text_are_written) {
    static char first[sizeof program_output];
    const char *text = make_text("text", 9000);
    ck_runs("train --data=%s " SMALL "--steps=4 --save=%s", text, in_scratch("st"));
    ck_runs("sample --resume=%s --length=64 --prompt=the --seed=5", in_scratch("st"));
    ck_assert(!strncmp(program_output, "the", 3));
    memcpy(first, program_output, sizeof first);
    ck_runs("sample --resume=%s --length=64 --prompt=the --seed=5", in_scratch("st"));
    ck_assert(!memcmp(first, program_output, 60)); /* the seed determines the text */
    ck_runs("sample --resume=%s --length=64 --prompt=the --seed=6", in_scratch("st"));
    ck_assert(memcmp(first, program_output, 60));
    ck_runs("sample --resume=%s --length=8 --temperature=0 --prompt=a", in_scratch("st"));
    memcpy(first, program_output, sizeof first);
    ck_runs("sample --resume=%s --length=8 --top-k=1 --prompt=a", in_scratch("st"));
    ck_assert(!memcmp(first, program_output, 9)); /* always the most likely byte */
    ck_runs("sample --resume=%s --length=8 --top-p=0.001 --prompt=a", in_scratch("st"));
    ck_assert(!memcmp(first, program_output, 9));
    ck_refuses(2, "--top-k|--temperature=0", "sample --resume=%s --top-k=3 --temperature=0", in_scratch("st"));
}
END_TEST

/* Dumping the gradients of step 1 does not change the run. */
START_TEST(gradients_can_be_dumped) {
    const char *text = make_text("text", 9000);
    ck_runs("train --data=%s " SMALL "--steps=3 --clip-grad-norm=0.01 --metrics=%s", text, in_scratch("a.jsonl"));
    ck_runs("train --data=%s " SMALL "--steps=3 --clip-grad-norm=0.01 --metrics=%s --dump-grads=%s", text,
            in_scratch("b.jsonl"), in_scratch("g.safetensors"));
    ck_runs("report %1$s/a.jsonl %1$s/b.jsonl --require-identical", scratch());
    ck_refuses(2, "rnn.", "train --data=%s " SMALL "--model=gru --init=%s --layers=1 --steps=1", text,
               make_file("x.safetensors",
                         "\x40\0\0\0\0\0\0\0{\"other\":{\"dtype\":\"F32\",\"shape\":[1],"
                         "\"data_offsets\":[0,4]}}       \0\0\0\0",
                         76));
}
END_TEST

/* A file of weights identifies its model. */
/* Settings for other commands in a config file are ignored, with a note. */
START_TEST(config_files_serve_several_commands) {
    const char *conf = make_file("run.conf", "hidden = 8\nlength = 3\nprompt = x\nlog-every = 5\n", 47);
    ck_runs("plan --config=%s", conf);
    ck_says_all(program_errors, "run.conf|prompt|length");
    ck_runs("plan --config=%s", make_file("quiet.conf", "hidden = 8\n", 11));
    ck_assert_str_eq(program_errors, "");
}
END_TEST

START_TEST(metrics_go_to_standard_output) {
    ck_runs("train --task=copy --hidden=8 --batch=3 --threads=1 --steps=2 --eval-every=1 --samples=9 --metrics=-");
    int lines = 0;
    for (char *line = strtok(program_output, "\n"); line; line = strtok(NULL, "\n"), lines++)
        ck_assert_msg(!strncmp(line, "{\"event\":", 9), "%s", line);
    ck_assert_int_eq(lines, 6);
    ck_says_all(program_errors, "done after step 2");
    ck_assert_int_eq(access("-", F_OK), -1);
}
END_TEST

START_TEST(every_task_and_model_trains) {
    static const char *const lines[] = {
        "--task=adding --seq-len=20 --model=lstm --eval-every=2",
        "--task=adding --seq-len=2 --model=rnn",
        "--task=copy --seq-len=21 --model=gru --optimizer=adamw",
        "--task=copy --seq-len=40 --model=rnn --optimizer=sgd",
        "--task=copy --epochs=2 --samples=9 --eval-every=3",
        "--task=s5 --seq-len=7 --samples=9 --eval-every=3",
        "--task=copy --device=null",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_runs("train --hidden=8 --layers=2 --batch=3 --threads=1 %s %s", lines[i],
                strstr(lines[i], "--epochs") ? "" : "--steps=4");
}
END_TEST

/* The null device prints no values that it did not compute, and does not overwrite a training state. */
START_TEST(null_device_reports_no_losses) {
    const char *st = in_scratch("st"), *copy = "--task=copy --hidden=8 --batch=3 --threads=1";
    ck_runs("train %s --device=null --steps=2 --metrics=%s", copy, in_scratch("m.jsonl"));
    ck_assert_msg(strstr(program_output, "nothing was computed") && !strstr(program_output, "loss"), "%s",
                  program_output);
    char command[400];
    snprintf(command, sizeof command, "test $(grep -c '\"loss\":null' %s) = 3", in_scratch("m.jsonl"));
    ck_assert_int_eq(system(command), 0);
    ck_runs("train %s --steps=2 --save=%s", copy, st);
    ck_refuses(2, "--device=null|--resume", "train --resume=%s --device=null --steps=4", st);
    ck_runs("plan --resume=%s --device=null", st);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("cli");
    tcase_add_test(tests, usage_is_printed);
    tcase_add_loop_test(tests, refusals_are_one_line, 0, REFUSALS);
    tcase_add_test(tests, bf16_is_refused_without_effect);
    tcase_add_test(tests, a_full_disk_ends_a_run_cleanly);
    tcase_add_test(tests, a_full_disk_keeps_the_earlier_gradients);
    tcase_add_test(tests, outputs_do_not_follow_planted_links);
    tcase_add_test(tests, existing_files_are_not_overwritten);
    tcase_add_test(tests, files_of_states_are_not_overwritten);
    tcase_add_test(tests, parameters_are_counted);
    tcase_add_test(tests, s5_is_evaluated_at_other_lengths);
    tcase_add_test(tests, resumed_command_lines_are_checked);
    tcase_add_test(tests, evaluation_counts_each_sample_once);
    tcase_add_test(tests, samples_of_text_are_written);
    tcase_add_test(tests, gradients_can_be_dumped);
    tcase_add_test(tests, config_files_serve_several_commands);
    tcase_add_test(tests, metrics_go_to_standard_output);
    tcase_add_test(tests, every_task_and_model_trains);
    tcase_add_test(tests, null_device_reports_no_losses);
    return run_suite("train/cli", tests);
}
