/* boot_id.c: see boot_id.h. */
#include "dist/store/boot_id.h"

#include <stdio.h>
#include <string.h>

void rm_boot_id(char text[RM_BOOT_ID_BYTES]) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file || !fgets(text, RM_BOOT_ID_BYTES, file)) text[0] = 0;
    if (file) fclose(file);
    text[strcspn(text, "\n")] = 0;
}
