/* tokenizer_tables.h: what a tokenizer consists of, for tokenizer_json.c, which reads it, and tokenizer.c, which uses it. */
#ifndef RM_TOKENIZER_TABLES_H
#define RM_TOKENIZER_TABLES_H

#include "train/data/tokenizer.h"

/* The text of a token: so many bytes of rm_tokenizer.bytes. */
typedef struct {
    int64_t at; /* -1: no token has this number */
    int64_t length;
} rm_piece;

/* A token that is looked for in the text itself, before that is cut into words. */
typedef struct {
    int32_t id;
    bool late; /* in what lies between those that are not: tokenizers' `normalized` */
} rm_added_token;

struct rm_tokenizer {
    rm_bpe bpe;
    rm_piece *piece; /* one for each number below `vocabulary` */
    int64_t vocabulary;
    uint8_t *bytes; /* of all pieces */
    int64_t n_bytes;
    rm_added_token *added; /* the longest first */
    int64_t n_added;
    bool begins_added[256]; /* the first byte of one of them */
    bool space_first;       /* add_prefix_space */
};

#endif
