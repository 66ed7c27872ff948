/* command_place.c: `remat place FILE.csv`: packs buffers with known lifetimes into the smallest block, with memory/place.h,
 * and prints peak, lower bound and offsets. */
#include "train/commands.h"

remat_status rm_command_place(rm_options *options, int *exit_status) {
    (void)options, (void)exit_status;
    FAIL(MISSING, "remat place is not built yet");
}
