/* says.h: checks a message for its words of substance (names, values, flags, terms), so that rewording a message breaks no
 * test. Main entries: says_all, ck_says_all. */
#ifndef TEST_SAYS_H
#define TEST_SAYS_H

#include <check.h>
#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* Ignores case. A number does not match a part of a longer number. */
static inline bool says_word(const char *sentence, const char *word, size_t length) {
    for (const char *at = sentence; *at; at++) {
        if (strncasecmp(at, word, length)) continue;
        bool inside = at > sentence && isdigit((unsigned char)at[-1]) && isdigit((unsigned char)word[0]);
        if (!inside && !(isdigit((unsigned char)word[length - 1]) && isdigit((unsigned char)at[length]))) return true;
    }
    return false;
}

/* Does the sentence contain every word of "word|word|word"? The order does not matter. */
static inline bool says_all(const char *sentence, const char *words) {
    for (size_t length; *words; words += length + (words[length] == '|')) {
        length = strcspn(words, "|");
        if (length && !says_word(sentence, words, length)) return false;
    }
    return true;
}

#define ck_says_all(sentence, words)                                                                                   \
    ck_assert_msg(says_all(sentence, words), "\"%s\" does not say all of \"%s\"", sentence, words)

#endif
