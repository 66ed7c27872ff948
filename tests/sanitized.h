/* sanitized.h: whether this build has AddressSanitizer or ThreadSanitizer. Tests that compare values many times do so in
 * the release build; under a sanitizer, where each call takes ten times as long, they make a few calls of each kind. */
#ifndef RM_TESTS_SANITIZED_H
#define RM_TESTS_SANITIZED_H

#include <stdbool.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RM_SANITIZED 1
#elif defined(__has_feature) /* clang */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RM_SANITIZED 1
#endif
#endif

#ifdef RM_SANITIZED
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* For loops of cases that differ in their numbers more than in their code: under a sanitizer, whether only the release
 * build runs this one. One of `of` runs in both. */
static inline bool rm_release_only(int number, int of) { return SANITIZED && number % of; }

#endif
