/* test_cli.c: the program from outside: its output, error messages and exit statuses. */
#include "engine/abi.h"
#include "tests/train/train_test.h"

#include <sys/resource.h>
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
    {2, "--data=FILE", "eval " SMALL},
    {2, "target|timestep", "predict --data=%1$s/text"},
    {2, "predict|--device=null", "predict --task=adding --device=null"},
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
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){2000, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    int status = run_program("train --data=%s " SMALL "--steps=1 --dump-grads=%s", text, dump);
    setrlimit(RLIMIT_FSIZE, &old);
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
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){2000, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    int status = run_program("train --resume=%s --save=%s --steps=5", st, st);
    setrlimit(RLIMIT_FSIZE, &old);
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
    static const char *const target[] = {"/dev/null", "pipe"}, *const name[] = {"p.csv", "g.safetensors", "p.svg"};
    const char *st = in_scratch("st"), *text = make_text("text", 4096);
    bool draws = !system("command -v gnuplot >/dev/null 2>&1");
    ck_assert_int_eq(mkfifo(in_scratch("pipe"), 0600), 0);
    ck_runs("train --task=adding --samples=50 --seq-len=4 --layers=1 --hidden=8 --batch=4 --steps=1 --save=%s", st);
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 3; j++) {
            char beside[32];
            snprintf(beside, sizeof beside, "%s.unfinished", name[j]);
            ck_assert_int_eq(symlink(target[i], in_scratch(beside)), 0);
        }
        ck_refuses(1, "symbolic link", "predict --resume=%s --out=%s/p.csv", st, scratch());
        ck_refuses(1, "symbolic link", "train --data=%s " SMALL "--steps=1 --dump-grads=%s/g.safetensors", text,
                   scratch());
        if (draws) ck_refuses(1, "symbolic link", "plan " SMALL "--plot=%s/p.svg", scratch());
        for (int j = 0; j < 3; j++) {
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
    need_text(text, 4096);
    need_text(notes, 3000);
}
END_TEST

START_TEST(plan_predicts_the_run) {
    const char *text = make_text("text", 40000), *metrics = in_scratch("m.jsonl");
    char want[64], found[64];
    for (int n = 1; n <= 9; n += 4) {
        unlink(metrics);
        ck_runs("train --data=%s " SMALL "--seq-len=300 --tile=16 --steps=3 --checkpoint-segments=%d --metrics=%s",
                text, n, metrics);
        FILE *file = fopen(metrics, "r");
        ck_assert_ptr_nonnull(fgets(program_errors, sizeof program_errors, file));
        fclose(file);
        ck_assert_int_eq(sscanf(strstr(program_errors, "planned_peak_bytes"), "planned_peak_bytes\":%63[0-9]", want),
                         1);
        ck_runs("plan --data=%s " SMALL "--seq-len=300 --tile=16 --checkpoint-segments=%d --json", text, n);
        ck_assert_int_eq(sscanf(strstr(program_output, "planned_peak_bytes"), "planned_peak_bytes\": %63[0-9]", found),
                         1);
        ck_assert_str_eq(want, found);
    }
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

/* Any command line of train can be planned unchanged. With --resume, the saved run's flags are used. */
START_TEST(any_train_command_line_can_be_planned) {
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    char *ignored = in_scratch("ignored");
    ck_runs("plan --data=%s " SMALL "--save=%s --resume=%s --save-every=2 --keep=1 --log-every=1 --metrics=%s "
            "--dump-grads=%s --json",
            text, ignored, ignored, ignored, ignored);
    ck_assert(access(ignored, F_OK));
    ck_runs("train --data=%s " SMALL "--checkpoint=sqrt --verify-recompute --tile=4 --steps=1 --save=%s", text, st);
    ck_runs("plan --resume=%s --json", st);
    ck_says_all(program_output, "\"strategy\": \"sqrt\"");
    uint64_t resumed = strtoull(strstr(program_output, "\"budgeted_bytes\": ") + 18, NULL, 10);
    ck_runs("plan --data=%s " SMALL "--checkpoint=sqrt --tile=4 --json --verify-recompute", text);
    ck_assert_uint_eq(strtoull(strstr(program_output, "\"budgeted_bytes\": ") + 18, NULL, 10), resumed);
    ck_runs("plan --data=%s " SMALL "--checkpoint=sqrt --tile=4 --json", text);
    ck_assert_uint_lt(strtoull(strstr(program_output, "\"budgeted_bytes\": ") + 18, NULL, 10), resumed);
    ck_refuses(2, "--length|flag", "plan --length=3");
}
END_TEST

/* The advice does not name flags that a saved run cannot change. */
START_TEST(advice_fits_a_resumed_run) {
    const char *text = make_text("text", 4096), *st = in_scratch("st"), *spill = in_scratch("spill");
    ck_assert_int_eq(mkdir(spill, 0700), 0);
    ck_runs("train --data=%s " SMALL "--steps=1 --save=%s --checkpoint=optimal --calibration=off --spill=%s", text, st,
            spill);
    static const char *const commands[] = {"train", "plan"};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(run_program("%s --resume=%s --memory-budget=20KB", commands[i], st), 2);
        ck_says_all(program_errors, "\n  --memory-budget=");
        ck_says_all(program_errors, "--memory-budget=20KB");
        ck_assert_msg(!strstr(program_errors, "--tile") && !strstr(program_errors, "--batch"), "%s", program_errors);
        ck_says_all(program_errors, "resume");
    }
    ck_assert_int_eq(rmdir(spill), 0);
    ck_refuses(1, "--spill=DIR", "train --resume=%s --steps=2", st);
    ck_runs("train --resume=%s --steps=2 --calibration=off --spill=%s", st, scratch());
    ck_assert_int_eq(chdir(scratch()), 0);
    ck_runs("train --data=text " SMALL "--steps=1 --save=relative");
    ck_assert_int_eq(chdir("/"), 0);
    for (int i = 0; i < 2; i++)
        ck_refuses(1, "--data=text|folder", "%s --resume=%s", commands[i], in_scratch("relative"));
    ck_runs("train --resume=%s --data=%s --steps=2", in_scratch("relative"), text);
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

/* ---- Budgets ---------------------------------------------------------------------------------------------------- */

#define LONGER "--hidden=16 --layers=1 --seq-len=600 --tile=8 --batch=4 --threads=1 --calibration=off "

static uint64_t whole_after(const char *text, const char *label) {
    const char *at = strstr(text, label);
    ck_assert_msg(at, "no %s in %s", label, text);
    return strtoull(at + strlen(label), NULL, 10);
}

/* A refusal names the smallest budget. It works for plan and train; one byte less is refused, in other processes,
 * too. */
START_TEST(smallest_budget_is_exact) {
    static const char *const more[] = {"", "--checkpoint=none", "--checkpoint-segments=3", "--eval-every=1",
                                       "--task=copy --eval-every=2 --samples=50"};
    const char *text = make_text("text", 40000);
    char data[512];
    snprintf(data, sizeof data, strstr(more[_i], "--task") ? "%s" : "%s --data=%s --eval-data=%s", more[_i], text,
             text);
    if (!strstr(more[_i], "--eval-every")) snprintf(data, sizeof data, "%s --data=%s", more[_i], text);
    ck_assert_int_eq(run_program("plan " LONGER "--memory-budget=1.5KiB %s", data), 2);
    ck_says_all(program_errors, "--memory-budget=1.5KiB");
    uint64_t least = whole_after(program_errors, "\n  --memory-budget=");
    ck_runs("plan " LONGER "--memory-budget=%llu %s", (unsigned long long)least, data);
    ck_runs("train " LONGER "--memory-budget=%llu --steps=2 %s", (unsigned long long)least, data);
    ck_says_all(program_output, "budget: ");
    ck_assert_int_eq(run_program("plan " LONGER "--memory-budget=%llu %s", (unsigned long long)least - 1, data), 2);
    ck_assert_uint_eq(whole_after(program_errors, "\n  --memory-budget="), least);
    ck_assert_int_eq(run_program("train " LONGER "--memory-budget=%llu %s", (unsigned long long)least - 1, data), 2);
    ck_assert_uint_eq(whole_after(program_errors, "\n  --memory-budget="), least);
}
END_TEST

/* The advised flags fit. They are appended, because the last value of a flag counts. */
START_TEST(advised_flags_fit) {
    static const struct {
        const char *flags, *advice;
    } cases[] = {
        {"--memory-budget=600KiB --recompute=off", "--recompute=auto would fit"},
        {"--memory-budget=600KiB --checkpoint=none", "--checkpoint=optimal would fit"},
        {"--memory-budget=600KiB --recompute=off --checkpoint=none", "--recompute=auto --checkpoint=optimal would fit"},
        {"--memory-budget=3000KB --spill=/tmp --seq-len=20000 --tile=256", "--tile="},
        {"--memory-budget=700KB --spill=/tmp --seq-len=100 --batch=64", "--batch="},
        {"--memory-budget=30MiB --hidden=256 --layers=2 --tile=0 --seq-len=20000 --batch=8", "--batch="},
        {"--memory-budget=600KB --seq-len=100 --batch=256 --tile=1 --deterministic-world=8", "--batch="},
    };
    char change[128];
    ck_assert_int_eq(run_program("plan " LONGER "%s", cases[_i].flags), 2);
    const char *at = strstr(program_errors, "\n  --memory-budget");
    ck_assert_msg(at && (at = strstr(at + 1, "\n  --")), "no advice in %s", program_errors);
    ck_assert_msg(strstr(at, cases[_i].advice), "%s", program_errors);
    snprintf(change, sizeof change, "%.*s", (int)(strstr(at, " would fit") - at - 3), at + 3);
    ck_runs("plan " LONGER "%s %s", cases[_i].flags, change);
}
END_TEST

/* The smallest batch is tried first, then values in between: with thousands of tiles there is no time to step down to
 * it. */
START_TEST(largest_batch_that_fits_is_found) {
    static const int batches[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        char want[64];
        int status = run_program("plan " LONGER "--tile=1 --seq-len=1000 --batch=%d --memory-budget=1", batches[i]);
        ck_assert_int_eq(status, 2);
        uint64_t least = whole_after(program_errors, "\n  --memory-budget=");
        ck_assert_int_eq(run_program("plan " LONGER "--tile=1 --seq-len=1000 --batch=16 --memory-budget=%llu",
                                     (unsigned long long)least),
                         2);
        snprintf(want, sizeof want, "\n  --batch=%d would fit", batches[i]);
        ck_says_all(program_errors, want);
    }
}
END_TEST

START_TEST(missing_advice_is_reported) {
    ck_assert_int_eq(run_program("plan --hidden=512 --memory-budget=1MiB --calibration=off"), 2);
    ck_says_all(program_errors, "--hidden|--layers");
    ck_assert_msg(!strstr(program_errors, "not all were tried"), "%s", program_errors);
    ck_assert_int_eq(run_program("plan --hidden=512 --tile=64 --seq-len=100000 --memory-budget=1MiB --calibration=off"),
                     2);
    ck_says_all(program_errors, "not all were tried");
}
END_TEST

/* A budget alone selects optimal; with a strategy it is a limit. An assumed machine has a budget, too. */
START_TEST(budgets_choose_the_strategy) {
    ck_runs("plan " LONGER "--memory-budget=1GiB --json");
    ck_says_all(program_output, "\"strategy\": \"optimal\"");
    ck_runs("plan " LONGER "--memory-budget=1GiB --checkpoint=sqrt --json");
    ck_says_all(program_output, "\"strategy\": \"sqrt\"");
    ck_runs("plan " LONGER "--memory-budget=1GiB --checkpoint-segments=3 --json");
    ck_says_all(program_output, "\"strategy\": \"segments\"");
    ck_runs("plan " LONGER "--device=null --assume-memory=80GiB --assume-flops=60T --assume-bandwidth=3.3TB");
    ck_says_all(program_output, "--assume-memory|budget|80.0 GiB");
    ck_runs("plan " LONGER "--device=null --assume-flops=1T --json");
    double slow = (double)whole_after(program_output, "\"step_ns\": ");
    ck_runs("plan " LONGER "--device=null --assume-flops=1M --json");
    ck_assert((double)whole_after(program_output, "\"step_ns\": ") > 100 * slow);
}
END_TEST

/* ---- Memory against time ---------------------------------------------------------------------------------------- */

START_TEST(pareto_has_every_strategy) {
    static const char *const strategies[] = {"none", "segments", "sqrt", "lean", "optimal"};
    ck_runs("plan " LONGER "--pareto --checkpoint-segments=4");
    for (int i = 0; i < 5; i++) ck_says_all(program_output, strategies[i]);
    ck_says_all(program_output, "<- this plan");
    ck_runs("plan " LONGER "--pareto --json");
    ck_says_all(program_output, "\"pareto\": [");
    ck_says_all(program_output, "\"this_plan\": true");
    ck_assert(!strstr(program_output, "\"spill\""));
    ck_runs("plan " LONGER "--pareto --json --device=null --spill=/tmp");
    ck_says_all(program_output, "\"spill\"");
    ck_runs("plan --hidden=4 --layers=1 --seq-len=1000 --tile=4 --batch=1 --pareto --calibration=off");
    ck_says_all(program_output, "\n* optimal");
    ck_assert_msg(!strstr(program_output, "\n  optimal"), "a plan that no budget would choose");
}
END_TEST

START_TEST(plans_describe_their_steps) {
    ck_runs("plan " LONGER "--json --checkpoint=lean");
    static const char *const names[] = {
        "workspace_bytes", "tables_bytes",   "budgeted_bytes", "memory_budget", "spill_bytes", "transfer_ns", "wait_ns",
        "step_ns",         "measured_times", "peak",           "largest",       "rebuilt",     "spilled",     "option"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) ck_says_all(program_output, names[i]);
    ck_runs("plan " LONGER "--checkpoint=lean");
    ck_says_all(program_output, "kept lean");
    ck_says_all(program_output, "estimated from");
    ck_runs("plan " LONGER "--seq-len=3000 --recompute=off "
            "--checkpoint=none --spill=/tmp --device=null --memory-budget=3300KiB --checkpoint=optimal");
    ck_says_all(program_output, "spilled");
}
END_TEST

START_TEST(plots_are_drawn) {
    const char *text = make_text("text", 40000);
    if (system("command -v gnuplot >/dev/null 2>&1")) return;
    ck_runs("plan " LONGER "--checkpoint=sqrt --plot=%s", in_scratch("a.svg"));
    ck_runs("plan " LONGER "--pareto --plot=%s", in_scratch("b.html"));
    ck_runs("train --data=%s " LONGER "--checkpoint=sqrt --steps=3 --plot=%s", text, in_scratch("c.png"));
    ck_says_all(program_output, "step 2|drawn");
    ck_runs("train --data=%s " LONGER "--steps=1 --plot=%s", text, in_scratch("d.svg"));
    ck_says_all(program_output, "step 1|drawn");
    for (int i = 0; i < 4; i++)
        ck_assert(!access(in_scratch((const char *[]){"a.svg", "b.html", "c.png", "d.svg"}[i]), R_OK));
}
END_TEST

/* none, segments and sqrt, with a short last evaluation batch; checked by `remat report`. */
START_TEST(plans_have_the_same_losses) {
    static const char *const plans[] = {"--checkpoint=none", "--checkpoint-segments=3", "--checkpoint=sqrt"};
    const char *text = make_text("text", 9000);
    for (int i = 0; i < 3; i++)
        ck_runs("train --data=%s --eval-data=%s --eval-every=2 %s " SMALL
                "--seq-len=200 --tile=16 --steps=4 --dropout=0.1 "
                "--layers=2 --batch=4 --metrics=%s/%d.jsonl",
                text, text, plans[i], scratch(), i);
    ck_says_all(program_output, "bits per byte");
    ck_runs("report %1$s/0.jsonl %1$s/1.jsonl %1$s/2.jsonl --require-identical", scratch());
    ck_says_all(program_output, "3 runs|identical");
    ck_runs("train --data=%s " SMALL "--seq-len=200 --steps=4 --seed=1 --metrics=%s/3.jsonl", text, scratch());
    ck_assert_int_eq(run_program("report %1$s/0.jsonl %1$s/3.jsonl --require-identical", scratch()), 1);
    ck_says_all(program_output, "differ|step 1");
    ck_runs("report %1$s/0.jsonl %1$s/3.jsonl", scratch());
    static const char without_loss[] = "{\"event\":\"plan\"}\n{\"event\":\"step\",\"step\":1,\"loss\":null}\n";
    make_file("nan.jsonl", without_loss, sizeof without_loss - 1);
    ck_assert_int_eq(run_program("report %1$s/nan.jsonl %1$s/nan.jsonl --require-identical", scratch()), 1);
    ck_says_all(program_output, "compared|step 1");
    ck_assert_msg(!strstr(program_output, "differ"), "%s", program_output);
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

START_TEST(bidirectional_models_are_saved_and_resumed) {
    const char *st = in_scratch("st"),
               *line = "--task=adding --seq-len=60 --hidden=6 --layers=2 --batch=4 --samples=16 --seed=3";
    ck_runs("train %s --bidirectional --checkpoint=sqrt --tile=16 --steps=2 --save=%s", line, st);
    ck_runs("train --resume=%s --steps=3", st);
    ck_runs("eval --resume=%s", st);
    ck_refuses(2, "--bidirectional=false", "train --resume=%s --steps=4 --bidirectional=false", st);
    ck_runs("plan %s --bidirectional --init=%s/step-00000002/model.safetensors", line, st);
    ck_runs("plan %s --init=%s/step-00000002/model.safetensors", line, st); /* the file implies the flag */
    ck_refuses(2, "--bidirectional", "plan --bidirectional");
}
END_TEST

static int cmp_files(const char *a, const char *b) {
    char command[700];
    snprintf(command, sizeof command, "cmp -s '%s' '%s'", a, b);
    return system(command);
}

START_TEST(a_projected_lstm_is_saved_and_resumed) {
    const char *text = make_text("text", 4096), *st = in_scratch("st"), *straight = in_scratch("straight");
    const char *again = in_scratch("again");
    const char *line = "train --data=%s " SMALL "--proj-size=3 --stateful --checkpoint=sqrt --tile=8 --seed=3 ";
    char command[500], init[320], a[300], b[300];
    snprintf(command, sizeof command, "%s%s", line, "--steps=4 --save=%s");
    ck_runs(command, text, straight);
    snprintf(command, sizeof command, "%s%s", line, "--steps=2 --save=%s");
    ck_runs(command, text, st);
    ck_refuses(2, "--proj-size=4", "train --resume=%s --steps=4 --proj-size=4", st);
    ck_runs("train --resume=%s --steps=4", st);
    snprintf(a, sizeof a, "%s/step-00000004/model.safetensors", st);
    snprintf(b, sizeof b, "%s/step-00000004/model.safetensors", straight);
    ck_assert_msg(!cmp_files(a, b), "%s is not %s", a, b);
    ck_runs("sample --resume=%s --length=8", st);
    snprintf(init, sizeof init, "--init=%s", a);
    ck_runs("train --data=%s " SMALL "%s --steps=1 --save=%s", text, init, again); /* the file implies the flag */
    ck_refuses(2, "--proj-size=0|model", "plan --proj-size=0 %s", init);
    ck_refuses(2, "--proj-size=6|--hidden=6", "plan --hidden=6 --proj-size=6");
    ck_refuses(2, "--proj-size|--model=gru", "plan --model=gru --proj-size=6");
}
END_TEST

/* The training state contains the flag, and a file of weights implies it. */
START_TEST(a_model_without_biases_is_saved_and_resumed) {
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    ck_runs("train --data=%s " SMALL "--no-bias --steps=2 --save=%s", text, st);
    ck_runs("train --resume=%s --steps=3", st);
    ck_runs("sample --resume=%s --length=8", st);
    const char *line = "eval --data=%s --init=%s/step-00000002/model.safetensors " SMALL "%s";
    ck_runs(line, text, st, "--no-bias");
    ck_runs(line, text, st, "");
    ck_refuses(2, "--no-bias=false", "train --resume=%s --steps=4 --no-bias=false", st);
    char init[300];
    snprintf(init, sizeof init, "--init=%s/step-00000002/model.safetensors", st);
    ck_refuses(2, "--no-bias=false|model", "plan %s --no-bias=false", init);
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

START_TEST(weights_identify_their_model) {
    const char *text = make_text("text", 4096), *data = "--seq-len=16 --batch=2 --threads=1 --steps=1";
    char init[300];
    snprintf(init, sizeof init, "--init=%s/st/step-00000001/model.safetensors", scratch());
    ck_runs("train --data=%s %s --model=gru --layers=1 --hidden=8 --embed=5 --save=%s", text, data, in_scratch("st"));
    ck_runs("train --data=%s %s %s", text, data, init);
    ck_says_all(program_output, "gru, 1 x 8: ");
    ck_runs("train --data=%s %s %s --hidden=8", text, data, init);
    ck_refuses(2, "--hidden=9|model", "train --data=%s %s %s --hidden=9", text, data, init);
    ck_refuses(2, "embed=5", "plan %s --embed=8", init);
    ck_runs("plan %s", init);
    ck_runs("eval --data=%s --seq-len=16 --batch=2 %s", text, init);
    ck_runs("sample --length=3 %s", init);
    ck_refuses(2, "rnn.weight_ih_l0", "train --task=adding %s", init);
    ck_refuses(1, "torch.save|Python", "train --data=%s --init=%s", text, make_file("m.pt", "PK\3\4\0\0\x8\x8\0", 9));
    ck_refuses(1, "numpy.load(", "train --data=%s --init=%s", text,
               make_file("m.npz", "PK\3\4\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\5\0\0\0w.npyxxx", 38));
    ck_refuses(1, "pickle", "train --data=%s --init=%s", text, make_file("m.pkl", "\x80\4\x95\x90\11\0\0\0\0", 9));
}
END_TEST

/* Weights of image models also identify the model, its task and its sizes. */
static const char *const image_models[][2] = {{"mlp", "--layers=3 --hidden=5"},
                                              {"cnn", ""},
                                              {"resnet18", "--stem=cifar"},
                                              {"unet", "--layers=2 --hidden=2"},
                                              {"unet", "--layers=2 --hidden=3 --up=transposed"}};
START_TEST(weights_identify_their_image_model) {
    static uint8_t numbers[4 * 3 * 8 * 8];
    for (size_t i = 0; i < sizeof numbers; i++) numbers[i] = (uint8_t)(i % 3);
    const char *model = image_models[_i][0];
    bool pixels = !strcmp(model, "unet");
    const char *x = make_npy("x.npy", "|u1", "(4, 3, 8, 8)", numbers, sizeof numbers),
               *y = make_npy("y.npy", "|u1", pixels ? "(4, 8, 8)" : "(4,)", numbers, pixels ? 4 * 8 * 8 : 4);
    char rest[900], init[300];
    snprintf(rest, sizeof rest, "--data=%s --labels=%s --batch=4 --threads=1", x, y);
    snprintf(init, sizeof init, "--init=%s/step-00000001/model.safetensors", in_scratch("st"));
    ck_runs("train --model=%s %s %s --optimizer=sgd --steps=1 --save=%s", model, image_models[_i][1], rest,
            in_scratch("st"));
    ck_runs("train %s %s --optimizer=sgd --steps=1", init, rest);
    ck_says_all(program_output, model);
    ck_runs("eval %s %s", init, rest);
    ck_refuses(2, "--task=lm|model", "train %s %s --task=lm", init, rest);
}
END_TEST

/* Sets element 7 of the first array of a file to these bits. */
static void spoil(const char *path, uint32_t bits) {
    uint64_t header;
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(&header, sizeof header, 1, file), 1);
    ck_assert_int_eq(fseek(file, (long)(8 + header + 4 * 7), SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(&bits, sizeof bits, 1, file), 1);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(non_finite_weights_are_not_used) {
    const char *text = make_text("text", 3000), *path = in_scratch("st/step-00000001/model.safetensors");
    char says[80];
    ck_runs("train --data=%s " SMALL "--steps=1 --save=%s", text, in_scratch("st"));
    spoil(path, _i ? 0x7f800000 : 0x7fc00000);
    snprintf(says, sizeof says, "%s|element 7|diverged", _i ? "inf" : "nan");
    ck_refuses(1, says, "eval --data=%s --seq-len=16 --batch=2 --init=%s", text, path);
    ck_refuses(1, says, "train --data=%s " SMALL "--steps=1 --init=%s", text, path);
    ck_refuses(1, says, "sample --length=3 --init=%s", path);
}
END_TEST

START_TEST(language_models_are_saved_resumed_and_read) {
    static const char *const models[] = {"mingru", "minlstm", "mamba", "gdn", "xlstm", "recurrentgemma"};
    const char *model = models[_i], *text = make_text("text", 4096), *st = in_scratch("st");
    char init[300];
    snprintf(init, sizeof init, "--init=%s/step-00000002/model.safetensors", st);
    ck_runs("train --data=%s " SMALL "--model=%s --steps=2 --save=%s", text, model, st);
    ck_runs("train --resume=%s --steps=3 --checkpoint=sqrt", st);
    ck_runs("sample --resume=%s --length=8", st);
    ck_runs("eval --data=%s --seq-len=16 --batch=2 %s", text, init); /* the file implies the flag */
    ck_refuses(2, "--model=lstm|model", "plan --model=lstm %s", init);
    ck_runs("train --task=adding " SMALL "--model=%s --steps=2 --eval-every=2", model);
}
END_TEST

/* A file of weights tells whether the model has convolutions. */
START_TEST(weights_without_convolutions_imply_no_conv) {
    const char *model = _i ? "minlstm" : "mingru", *text = make_text("text", 4096);
    char with[300], without[300];
    snprintf(with, sizeof with, "%s/step-00000001/model.safetensors", in_scratch("with"));
    snprintf(without, sizeof without, "%s/step-00000001/model.safetensors", in_scratch("without"));
    ck_runs("train --data=%s " SMALL "--model=%s --steps=1 --save=%s", text, model, in_scratch("with"));
    ck_runs("train --data=%s " SMALL "--model=%s --no-conv --steps=1 --save=%s", text, model, in_scratch("without"));
    ck_runs("eval --data=%s --seq-len=16 --batch=2 --init=%s", text, without);
    ck_refuses(2, "--no-conv", "eval --data=%s --seq-len=16 --batch=2 --init=%s --no-conv", text, with);
    ck_refuses(2, "--no-conv|--model=lstm", "plan --model=lstm --no-conv");
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

START_TEST(diverging_run_stops_before_saving) {
    ck_refuses(1, "--lr",
               "train --task=adding --seq-len=10 --hidden=8 --threads=1 --optimizer=sgd --lr=1e6 "
               "--steps=60 --save-every=1 --save=%s",
               in_scratch("st"));
    int status = run_program("train --resume=%s --steps=1", in_scratch("st")); /* the saved state is finite */
    ck_assert_msg(status == 0, "exit %d: %s", status, program_errors);
}
END_TEST

/* The loss of step 4 is still finite, but the weights after its update are not. */
START_TEST(non_finite_weights_are_not_saved) {
    const char *text = make_text("text", 3000), *st = in_scratch("st");
    char last[300];
    int status =
        run_program("train --data=%s " SMALL "--seed=3 --optimizer=sgd --lr=1e6 --weight-decay=1e6 --save-every=1 "
                    "--keep=1 --steps=9 --save=%s %s",
                    text, st, _i ? "--devices=cpu:2" : "");
    ck_assert_msg(status == 1, "exit %d: %s", status, program_errors);
    ck_says_all(program_errors, "step 4|not saved|embedding.weight");
    ck_says_all(program_errors, "--lr");
    snprintf(last, sizeof last, "%s/step-00000003/model.safetensors", st);
    ck_runs("train --data=%s " SMALL "--init=%s --lr=0 --steps=1", text, last);
    ck_runs("train --resume=%s --lr=0 --weight-decay=0 --steps=4", st);
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
    tcase_add_test(tests, plan_predicts_the_run);
    tcase_add_test(tests, parameters_are_counted);
    tcase_add_test(tests, s5_is_evaluated_at_other_lengths);
    tcase_add_test(tests, any_train_command_line_can_be_planned);
    tcase_add_test(tests, advice_fits_a_resumed_run);
    tcase_add_test(tests, resumed_command_lines_are_checked);
    tcase_add_loop_test(tests, smallest_budget_is_exact, 0, 5);
    tcase_add_loop_test(tests, advised_flags_fit, 0, 7);
    tcase_add_test(tests, largest_batch_that_fits_is_found);
    tcase_add_test(tests, missing_advice_is_reported);
    tcase_add_test(tests, budgets_choose_the_strategy);
    tcase_add_test(tests, pareto_has_every_strategy);
    tcase_add_test(tests, plans_describe_their_steps);
    tcase_add_test(tests, plots_are_drawn);
    tcase_add_test(tests, plans_have_the_same_losses);
    tcase_add_test(tests, evaluation_counts_each_sample_once);
    tcase_add_test(tests, samples_of_text_are_written);
    tcase_add_test(tests, a_model_without_biases_is_saved_and_resumed);
    tcase_add_test(tests, bidirectional_models_are_saved_and_resumed);
    tcase_add_test(tests, a_projected_lstm_is_saved_and_resumed);
    tcase_add_test(tests, gradients_can_be_dumped);
    tcase_add_test(tests, config_files_serve_several_commands);
    tcase_add_test(tests, metrics_go_to_standard_output);
    tcase_add_test(tests, weights_identify_their_model);
    tcase_add_loop_test(tests, weights_identify_their_image_model, 0, 4);
    tcase_add_loop_test(tests, non_finite_weights_are_not_used, 0, 2);
    tcase_add_loop_test(tests, language_models_are_saved_resumed_and_read, 0, 6);
    tcase_add_loop_test(tests, weights_without_convolutions_imply_no_conv, 0, 2);
    tcase_add_test(tests, every_task_and_model_trains);
    tcase_add_test(tests, null_device_reports_no_losses);
    tcase_add_test(tests, diverging_run_stops_before_saving);
    tcase_add_loop_test(tests, non_finite_weights_are_not_saved, 0, 2);
    return run_suite("train/cli", tests);
}
