/* tokenizer_tables.h: a tokenizer's tables, which tokenizer_json.c reads and tokenizer.c uses. */
#ifndef RM_TOKENIZER_TABLES_H
#define RM_TOKENIZER_TABLES_H

#include "train/data/tokenizer.h"

/* The text of a token: a range of rm_tokenizer.bytes. */
typedef struct {
    int64_t at; /* -1: no token has this number */
    int64_t length;
} rm_piece;

/* A token that is searched for in the text before it is split into words. */
typedef struct {
    int32_t id;
    bool late; /* `normalized` in the file: searched for between the tokens that are not late */
} rm_added_token;

struct rm_tokenizer {
    rm_bpe bpe;
    rm_piece *piece; /* one per number below `vocabulary` */
    int64_t vocabulary;
    uint8_t *bytes; /* of all pieces */
    int64_t n_bytes;
    rm_added_token *added; /* longest first */
    int64_t n_added;
    bool begins_added[256]; /* does an added token begin with this byte? */
    bool space_first;       /* add_prefix_space */
};

#endif
