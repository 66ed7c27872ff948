/* modules_built.c: lets programs that are never installed find the modules of dist/ in the build tree. */
#include <stdlib.h>

__attribute__((constructor)) static void name_their_folder(void) { setenv("REMAT_MODULES", RM_BINARY_DIR, 0); }
