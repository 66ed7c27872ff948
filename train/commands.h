/* commands.h: what main.c dispatches to; one file each. A command gets checked options and returns a status; the sentence
 * of a failure is printed by main, and the exit status follows from it. */
#ifndef RM_COMMANDS_H
#define RM_COMMANDS_H

#include "train/options.h"

remat_status rm_command_train(rm_options *options, int *exit_status); /* 130, 143 when stopped by a signal */
remat_status rm_command_plan(rm_options *options, int *exit_status);
remat_status rm_command_eval(rm_options *options, int *exit_status);
remat_status rm_command_sample(rm_options *options, int *exit_status);
remat_status rm_command_place(rm_options *options, int *exit_status); /* 1 when nothing fits --capacity */
remat_status rm_command_info(rm_options *options, int *exit_status);
remat_status rm_command_report(rm_options *options, int *exit_status); /* 1 when --require-identical and they are not */

/* Flushes stdout; IO when it could not be written (a full disk behind a >). */
remat_status rm_commands_flush(void);

#endif
