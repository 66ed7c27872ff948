/* tokenizer_tables.h: a tokenizer's tables, which tokenizer_json.c reads and tokenizer.c uses. */
#ifndef RM_TOKENIZER_TABLES_H
#define RM_TOKENIZER_TABLES_H

#include "train/data/pieces.h"
#include "train/data/tokenizer.h"

/* A token that is searched for in the text before it is split into words. */
typedef struct {
    int32_t id;
    bool late; /* `normalized` in the file: searched for between the tokens that are not late */
} rm_added_token;

/* How a text is cut into tokens. */
typedef enum { RM_CUT_BPE, RM_CUT_WORDS, RM_CUT_CHARS } rm_cut;

struct rm_tokenizer {
    rm_cut cut;
    rm_pieces whole;           /* tokens are whole words or characters; the struct then owns `piece` and `bytes` */
    int64_t unknown, line_end; /* ... the tokens <unk> and <eos>; -1: there is none */
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
