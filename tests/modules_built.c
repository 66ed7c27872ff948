/* modules_built.c: programs that are only built, and never installed, find the modules of dist/ where they are built. */
#include <stdlib.h>

__attribute__((constructor)) static void name_their_folder(void) { setenv("REMAT_MODULES", RM_BINARY_DIR, 0); }
