/* main.c: the program `remat`: finds the command, parses its flags, runs it, and turns a status into an exit status:
 * 0 done; 1 failed; 2 the request is invalid, or this machine cannot fulfil it; 3 another rank failed; 4 an elastic job has no
 * place for this rank; 126, 127 `launch` cannot run its command; 128 + n stopped by signal n. */
#include "train/commands/commands.h"
#include "train/flags/device_flag.h"
#include "train/flags/member_flag.h"
#include "train/file.h"
#include "train/flags/openmp.h"
#include "train/flags/presets.h"
#include "train/run/setup.h"

#include "dist/launch/launch.h"
#include "dist/store/rendezvous.h"
#include "memory/host.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *name;
    rm_command command;
    remat_status (*run)(rm_options *, int *exit_status);
    const char *doc;
} commands[] = {
    {"train", RM_TRAIN, rm_command_train, "train a network"},
    {"launch", 0, NULL, "start the ranks of a job on this machine and watch them"},
    {"plan", RM_PLAN, rm_command_plan, "print what train would do: stages, bytes, times"},
    {"eval", RM_EVAL, rm_command_eval, "compute the exact loss of saved weights over a data set"},
    {"predict", RM_PREDICT, rm_command_predict, "write a trained model's prediction for each sample"},
    {"export", RM_EXPORT, rm_command_export, "write saved weights for another program"},
    {"sample", RM_SAMPLE, rm_command_sample, "write text with a trained model"},
    {"report", RM_REPORT, rm_command_report, "compare runs: memory, time, and whether their losses agree"},
    {"info", RM_INFO, rm_command_info, "print what this build contains and what it found on this machine"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *out) {
    fputs("Remat trains recurrent networks on very long sequences in a small, known number of bytes.\n\n", out);
    for (int i = 0; i < COMMANDS; i++) fprintf(out, "  remat %-7s %s\n", commands[i].name, commands[i].doc);
    fputs("\n  remat train --data=FILE --checkpoint-segments=32     a first run\n"
          "  remat train --data=FILE --memory-budget=512MiB       the fastest plan that fits\n"
          "  remat plan --pareto --plot=FILE.svg                  memory against time, as a plot\n"
          "  remat COMMAND --help                                 all flags of a command\n",
          out);
}

static int fail(const char *command, remat_status status) {
    fflush(stdout);
    if (*remat_last_error()) fprintf(stderr, "remat %s: %s\n", command, remat_last_error()); /* "": already printed */
    bool use = status == REMAT_INVALID || status == REMAT_INFEASIBLE || status == REMAT_MISSING;
    return use ? RM_EXIT_USE : status == REMAT_PEER ? RM_EXIT_PEER : 1;
}

/* An exit status of its own takes precedence over that of the failure. */
static int end_of(const char *command, remat_status status, int exit_status) {
    int failed = status ? fail(command, status) : 0;
    return exit_status ? exit_status : failed;
}

/* A launcher gives all ranks the same command line, so rank 0 reports errors in it. The others exit later, because some launchers end
 * all ranks when the first exits. Errors about files are reported by every rank: a file may be wrong on one host only. */
static int refuse(const char *command, remat_status status, int argc, char **argv) {
    char sentence[1024];
    bool file = false;
    snprintf(sentence, sizeof sentence, "%s", remat_last_error());
    for (int i = 0; i < argc; i++) file = file || !strncmp(argv[i], "--config", 8);
    bool repeats = rm_rendezvous_repeats(rm_environment_of_process, NULL, file);
    if (repeats) nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    return fail(command, rm_fail(status, "%s", repeats ? "" : sentence));
}

static int run_launch(int argc, char **argv) {
    int exit_status = 0;
    remat_status status = rm_command_launch(argc, argv, &exit_status);
    return end_of("launch", status, exit_status);
}

/* A config file may serve several commands; the note lists flags in it that have no effect on this one. */
static void note_idle(int i, const rm_options *options) {
    char list[256];
    rm_options_idle(options, commands[i].command, list, sizeof list);
    if (*list && !rm_rendezvous_repeats(rm_environment_of_process, NULL, true))
        fprintf(stderr, "remat %s: note: %s has flags of other commands, which have no effect here: %s\n",
                commands[i].name, options->config, list);
}

/* `train` chooses its device and reads --init after it has connected to the other ranks (trainer.c). */
static remat_status run_command(int i, rm_options *options, int *exit_status) {
    note_idle(i, options);
    bool alone = commands[i].command & (RM_PLAN | RM_EVAL | RM_PREDICT | RM_EXPORT | RM_SAMPLE);
    if (alone) TRY(rm_device_choose(options, true));
    if (alone) TRY(rm_setup_init(options));
    if (alone && options->init && !options->resume) TRY(rm_options_check(options, commands[i].command));
    return commands[i].run(options, exit_status);
}

static remat_status print_help(rm_command command) {
    rm_options_help(command, stdout);
    return rm_file_flush_output();
}

static remat_status print_presets(void) {
    rm_presets_print(stdout);
    return rm_file_flush_output();
}

static int run_help(const char *what) {
    rm_command_line lines[COMMANDS];
    for (int i = 0; i < COMMANDS; i++)
        lines[i] = (rm_command_line){commands[i].name, commands[i].command, commands[i].doc};
    remat_status status = rm_command_help(what, lines, COMMANDS);
    return status ? fail("help", status) : 0;
}

static int run(int i, int argc, char **argv) {
    rm_options options;
    int exit_status = 0;
    if (!commands[i].run) return run_launch(argc, argv); /* its flags are not in the table */
    remat_status status = rm_options_parse(&options, commands[i].command, argc, argv);
    bool parsed = !status;
    if (parsed && options.help)
        status = print_help(commands[i].command);
    else if (parsed && options.preset && !strcmp(options.preset, "list"))
        status = print_presets();
    else if (parsed)
        status = run_command(i, &options, &exit_status);
    rm_options_free(&options);
    if (!parsed) return refuse(commands[i].name, status, argc, argv);
    return end_of(commands[i].name, status, exit_status);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "--help";
    char shown[64];
    bool computes =
        !strcmp(name, "train") || !strcmp(name, "eval") || !strcmp(name, "predict") || !strcmp(name, "sample");
    if (computes) rm_openmp_wait_briefly(argv);
    if (strcmp(name, "launch")) setenv("OPENBLAS_NUM_THREADS", "1", 1); /* OpenMP's threads are enough: gemm.c */
    json_set_alloc_funcs(rm_malloc, rm_free);
    rm_set_member_names(rm_flag_of_member);
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit then becomes a failed write, with a message */
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(name, commands[i].name)) return run(i, argc - 2, argv + 2);
    if (argc > 2 && !strcmp(name, "help") && argv[2][0] == '-') return run_help(argv[2]);
    bool help = !strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help");
    bool version = !strcmp(name, "--version") || !strcmp(name, "-V") || !strcmp(name, "version");
    for (int i = 0; help && argc > 2 && i < COMMANDS; i++) /* `remat help train` */
        if (!strcmp(argv[2], commands[i].name)) return run(i, 1, (char *[]){"--help", NULL});
    if (help && argc > 2) name = argv[2];
    bool known = version || (help && argc <= 2);
    if (version)
        puts("remat " REMAT_VERSION);
    else if (known)
        print_usage(argc > 1 ? stdout : stderr);
    else {
        snprintf(shown, sizeof shown, "%s", name);
        fprintf(stderr, "remat: there is no command '%s'; `remat --help` lists them\n", rm_printable(shown));
    }
    if (argc < 2 || !known) return RM_EXIT_USE;
    remat_status status = rm_file_flush_output();
    return status ? fail(name, status) : 0;
}
