/* boot_id.h: identifies the running kernel: the text is equal for all processes on it, and changes with each boot. */
#ifndef RM_BOOT_ID_H
#define RM_BOOT_ID_H

enum { RM_BOOT_ID_BYTES = 40 };

void rm_boot_id(char text[RM_BOOT_ID_BYTES]); /* "": unknown */

#endif
