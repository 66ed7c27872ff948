/* sanitized.h: whether this build has AddressSanitizer. Tests that compare values many times do so in the release
 * build; under AddressSanitizer, where each call takes ten times as long, they make a few calls of each kind. */
#ifndef RM_TESTS_SANITIZED_H
#define RM_TESTS_SANITIZED_H

#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#endif
