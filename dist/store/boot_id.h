/* boot_id.h: which running kernel this is: the same text for all processes on it, another after each boot. */
#ifndef RM_BOOT_ID_H
#define RM_BOOT_ID_H

enum { RM_BOOT_ID_BYTES = 40 };

void rm_boot_id(char text[RM_BOOT_ID_BYTES]); /* "": it cannot be told */

#endif
