/* words.h: texts that are lists of words, such as the settings that an optimizer reads. */
#ifndef RM_WORDS_H
#define RM_WORDS_H

#include <stdbool.h>
#include <string.h>

/* Whether `words`, separated by spaces, contains the word. */
static inline bool rm_has_word(const char *words, const char *word) {
    size_t length = strlen(word);
    for (; *words; words += strspn(words, " ")) {
        size_t n = strcspn(words, " ");
        if (n == length && !memcmp(words, word, n)) return true;
        words += n;
    }
    return false;
}

#endif
