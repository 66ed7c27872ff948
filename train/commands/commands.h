/* commands.h: the commands that main.c calls, and --devices; one file each. A command gets checked options and returns a status;
 * main prints the error and derives the exit status. */
#ifndef RM_COMMANDS_H
#define RM_COMMANDS_H

#include "train/flags/options.h"

remat_status rm_command_train(rm_options *options, int *exit_status); /* 130, 143: stopped by a signal */
remat_status rm_command_plan(rm_options *options, int *exit_status);
remat_status rm_command_eval(rm_options *options, int *exit_status);
remat_status rm_command_predict(rm_options *options, int *exit_status);
remat_status rm_command_export(rm_options *options, int *exit_status);
remat_status rm_command_sample(rm_options *options, int *exit_status);
remat_status rm_command_info(rm_options *options, int *exit_status);
remat_status rm_command_report(rm_options *options, int *exit_status); /* 1: --require-identical, and the losses differ */

/* Not in the table of flags, because a command to start follows its flags. argv[0] is the first argument after `launch`. */
remat_status rm_command_launch(int argc, char **argv, int *exit_status);

/* Line i of launch's table of flags, for command_help.c. value NULL: a switch; help NULL: not listed. False: past the end. */
bool rm_command_launch_flag(int i, const char **name, const char **value, const char **help);

/* A line of main.c's table of commands. */
typedef struct {
    const char *name;
    rm_command command; /* 0: launch */
    const char *doc;
} rm_command_line;

/* `remat help --man`, `--builders`, `--completion=bash` and `--completion=zsh`. */
remat_status rm_command_help(const char *what, const rm_command_line *commands, int n);

/* Handles --devices, before anything is opened. "cpu:4" runs this command line as four ranks on this machine (dist/launch/launch.h)
 * and waits for them: then *ran is true, and the program should exit with *exit_status. *ran is false if there is no --devices or it
 * names one device, or if this process is one of those ranks. With GPUs ("0,1,2", "cuda:0") this process and those ranks see no
 * other GPUs, and options->session.device is "cuda". INVALID: no such devices, or another launcher started this process as a rank. */
remat_status rm_command_devices(rm_options *options, bool *ran, int *exit_status);

#endif
