/* commands.h: what main.c dispatches to, and --devices; one file each. A command gets checked options and returns a status;
 * the sentence of a failure is printed by main, and the exit status follows from it. */
#ifndef RM_COMMANDS_H
#define RM_COMMANDS_H

#include "train/flags/options.h"

remat_status rm_command_train(rm_options *options, int *exit_status); /* 130, 143 when stopped by a signal */
remat_status rm_command_plan(rm_options *options, int *exit_status);
remat_status rm_command_eval(rm_options *options, int *exit_status);
remat_status rm_command_predict(rm_options *options, int *exit_status);
remat_status rm_command_sample(rm_options *options, int *exit_status);
remat_status rm_command_info(rm_options *options, int *exit_status);
remat_status rm_command_report(rm_options *options, int *exit_status); /* 1 when --require-identical and they are not */

/* Not a line of the table of flags: what follows its own flags is the command to start. argv[0] is the first argument after
 * `launch`. */
remat_status rm_command_launch(int argc, char **argv, int *exit_status);

/* The i-th line of its own table, for command_help.c: value NULL: a switch; help NULL: not worth a line. False: none. */
bool rm_command_launch_flag(int i, const char **name, const char **value, const char **help);

/* A line of the table of commands (main.c). */
typedef struct {
    const char *name;
    rm_command command; /* 0: launch */
    const char *doc;
} rm_command_line;

/* `remat help --man`, `--builders`, `--completion=bash` and `--completion=zsh`. */
remat_status rm_command_help(const char *what, const rm_command_line *commands, int n);

/* --devices, before anything is opened: "cpu:4" runs this very command line as four ranks on this machine (dist/launch/launch.h)
 * and returns when they are done: then *ran is true, and the program should end with *exit_status. False, and nothing was
 * done: there is no --devices or it is one device, or this process is one of those ranks. Of GPUs ("0,1,2", "cuda:0") this
 * process and those ranks see no others, and options->session.device is "cuda". INVALID: no such devices, or this process is
 * a rank that another launcher started. */
remat_status rm_command_devices(rm_options *options, bool *ran, int *exit_status);

#endif
