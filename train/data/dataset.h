/* dataset.h: where samples come from. A kind of data is one file with one rm_data_kind. dist/large_batch/sampler.h orders samples,
 * batch.h says which fields a batch of them has, and loader.h makes batches. Any sample can be asked for at any time.
 *
 *     text      lm        any file, or tokens in one: (T,B) and the next ones (T,B)
 *     arrays    classify  .npy (N,T,F), or IDX images as sequences of pixels: reals (T,B,F), labels (B), or (T,B) at every timestep
 *     arrays    regress   the same, with reals for labels: (B,V) of whole samples, (T,B,V) at every timestep
 *     images    classify  for models of images: whole ones (images.h): reals (B,C,H,W), labels (B)
 *     arrays    transcribe  .npy (N,T,F): reals (T,B,F), rows of labels (B,S), padded with -1
 *     adding    adding    generated: reals (T,B,2), a real target (B,1)
 *     copy      copy      generated: tokens (T,B) and classes (T,B)
 *     s5        s5        the same
 *     pairs     seq2seq   two texts, line by line, or generated: tokens (S,B) and classes (T,B)
 */
#ifndef RM_DATASET_H
#define RM_DATASET_H

#include "train/data/class_names.h"

/* What a model for this data looks like from outside. */
typedef struct {
    int64_t timesteps;  /* T */
    int64_t vocabulary; /* > 0: inputs are tokens 0..vocabulary-1, int32 (T,B) */
    int64_t features;   /* otherwise: inputs are reals, float (T,B,features) */
    int64_t classes;    /* > 0: targets are classes, int32; 0: reals, float */
    bool every_step;    /* targets (T,B) of classes, (T,B,values) of reals; otherwise (B), (B,values) */
    /* channels > 0: inputs are images, float (B,channels,height,width); T is 1 then, and features their product. */
    int64_t channels, height, width;
    int64_t pixels; /* classes are given per pixel: targets (B,pixels). 0: one class per image */
    int64_t labels; /* S > 0: targets are rows of labels (B,S), for CTC; every_step is true of the outputs alone */
    uint32_t class_names; /* a checksum of them, in order; 0: they have none */
    bool lengths;         /* samples end where rm_dataset.length says; what inputs have behind that is 0 */
    bool documents;       /* samples hold several, which begin where rm_dataset.begins says */
    bool tracked;         /* with every_step: each timestep has an answer that is right or wrong */
    int64_t values;       /* of reals: so many make an answer */
    bool weighted;        /* with classes: dataset.class_weights says what each counts */
    int64_t answer_steps; /* of pairs: timesteps of targets, (answer_steps,B), padded with -1; 0: as inputs have */
} rm_data_shape;

/* Of pairs: the token that ends both sequences, and what stands before the first: in inputs as padding, and as what a decoder is given
 * first. Only the end is a class. */
static inline int64_t rm_pair_tokens(const rm_data_shape *shape) { return shape->classes - 1; }
static inline int32_t rm_pair_end(const rm_data_shape *shape) { return (int32_t)shape->classes - 1; }
static inline int32_t rm_pair_begin(const rm_data_shape *shape) { return (int32_t)shape->classes; }

/* Timesteps of answers. */
static inline int64_t rm_data_answer_steps(const rm_data_shape *shape) {
    return shape->answer_steps ? shape->answer_steps : shape->timesteps;
}

/* Of an answer: what a model makes for it, a logit for each class or the values; and what a target has, a class or the values. */
static inline int64_t rm_data_outputs(const rm_data_shape *shape) {
    return shape->classes ? shape->classes : shape->values;
}
static inline int64_t rm_data_targets(const rm_data_shape *shape) {
    return shape->pixels ? shape->pixels : shape->labels ? shape->labels : shape->classes ? 1 : shape->values;
}
/* Of a sample (or timestep): how many there are. */
static inline int64_t rm_data_answers(const rm_data_shape *shape) {
    return shape->pixels         ? shape->pixels
           : shape->answer_steps ? shape->answer_steps
           : shape->tracked      ? shape->timesteps
                                 : 1;
}

/* Numbers at each timestep, of samples that may end before others: an input says what is padding. */
static inline bool rm_data_pads(const rm_data_shape *shape) {
    return shape->lengths && shape->every_step && !shape->classes;
}

typedef struct rm_data_kind rm_data_kind;
typedef struct rm_batch rm_batch; /* batch.h */

/* What all kinds of data have; the struct of a kind begins with it. */
typedef struct rm_dataset {
    const rm_data_kind *kind;
    struct rm_dataset *whole; /* the data set that this one is a part of (part.h); NULL: none */
    int64_t count;       /* samples */
    uint64_t held_bytes; /* kept in memory: the file, where it is read whole, and the labels */
    rm_data_shape shape;
    int64_t epoch; /* set before samples are taken, by who takes them in epochs: an image is altered anew in each */
    uint64_t target_bytes;             /* lm: of the text that the targets of all samples stand for; 0: not known */
    const rm_class_names *class_names; /* what the classes are called; NULL: they have no names */
    float *class_weights;              /* (classes), where shape.weighted (class_weights.h) */
    uint8_t *tokenizer;                /* the tokenizer.json of source->tokenizer, for a training state; NULL: none */
    size_t tokenizer_bytes;
} rm_dataset;

typedef struct {
    const char *data, *labels; /* paths; labels where the kind has them */
    const char *lengths;       /* of arrays: how long each sample is; NULL: all are as long */
    bool unlabelled;           /* labels may be NULL: all are 0 then, of `classes` */
    bool allow_nan;            /* a NaN is not refused */
    bool rows;                 /* images row by row, not pixel by pixel */
    int64_t timesteps;         /* 0: the kind's own */
    int64_t
        vocab; /* of lm: the file holds tokens below this; 0: it is a text, and its bytes are tokens, or the tokenizer's */
    int64_t document_end; /* of lm: 1 + the token that ends a document; 0: there is none */
    int64_t classes;      /* of classify; 0: the largest label + 1 */
    int64_t ignored;      /* ... where `ignores`: the label of samples that count nothing; targets have -1 for it */
    bool ignores;
    int64_t samples, seed;           /* of generated data */
    bool held_out;                   /* generated data: other samples than those for training */
    uint64_t budget;                 /* the most bytes that a packed file may become; 0: RM_UNPACKED_BYTES */
    bool images;                     /* classify: images as wholes, not as sequences; then: */
    bool pixels;                     /* labels are of each pixel */
    int64_t channels, image_size;    /* 0: the file's own; 3 in a folder */
    const char *normalize, *augment; /* as in transform.h; NULL: not at all */
    int64_t threads;                 /* that may call `fill` at a time; 0: 1 */
    bool numbers;                    /* labels are numbers, not classes */
    bool transcripts;                /* labels are rows (N,S), not one for each sample */
    bool skip_broken;                /* files that are none are left out, not refused */
    const char *tokenizer; /* a path; the file holds a text, which it cuts into tokens, or, of lm, .npy of tokens */
    int64_t values;        /* of regress: numbers of an answer; 0: as the labels have */
    bool yes_or_no;        /* ... and each is 0, 1 or between them */
    bool every_step;  /* ... each timestep has one; false with values 0: as the labels have; of classify likewise, */
    bool steps_known; /* ... but every_step binds labels where this is true, and else they say it themselves */
    bool whole;       /* samples of more than `timesteps` are refused, not cut */
    const char *generate; /* of seq2seq without data: "copy", "reverse", "sort" */
} rm_data_source;

#define RM_UNPACKED_BYTES ((uint64_t)1 << 30)

/* A kind of data. */
struct rm_data_kind {
    size_t bytes;                          /* of its struct */
    bool (*reads)(const rm_data_source *); /* whether such data are of this kind; NULL: a task names it */
    /* Into zeros but for `kind`; closed by the caller when it fails. INVALID: the flags do not fit; IO: the file does not. */
    remat_status (*open)(rm_dataset *, const rm_data_source *);
    void (*close)(rm_dataset *); /* frees what the struct holds; NULL: nothing */
    /* Writes sample `index` (0 <= index < count) into column `column` of time-major arrays that are `batch` wide, of the
     * dtypes and shapes above. IO when the file cannot be read. */
    remat_status (*fill)(rm_dataset *, int64_t index, int64_t column, int64_t batch, void *input, void *target);
    /* The same for the batch's other fields, after `fill`; NULL: it has none. */
    remat_status (*mark)(rm_dataset *, int64_t index, int64_t column, rm_batch *batch);
    int64_t (*length)(const rm_dataset *, int64_t index);        /* timesteps, 1 to T; NULL: all have T */
    int64_t (*answer_length)(const rm_dataset *, int64_t index); /* of pairs, 1 to answer_steps; else NULL */
    remat_status (*checksum)(rm_dataset *, uint32_t *crc32);     /* adds to 0; NULL: the data are made, not read */
    bool threads; /* several threads may call `fill` and `mark` at a time, for different columns */
};

/* Opens data of this kind; NULL: of the first that reads them. Tasks know which kinds they have (tasks/task.h). */
remat_status rm_data_open(const rm_data_kind *kind, const rm_data_source *source, rm_dataset **out);
void rm_dataset_close(rm_dataset *dataset); /* NULL allowed */

/* For kinds of data: reads source->tokenizer. *out is the caller's; *vocabulary becomes what rm_tokenizer_fit says. */
struct rm_tokenizer;
remat_status rm_dataset_read_tokenizer(rm_dataset *, const rm_data_source *, struct rm_tokenizer **out,
                                       int64_t *vocabulary);

static inline void rm_dataset_set_epoch(rm_dataset *dataset, int64_t epoch) {
    for (; dataset; dataset = dataset->whole) dataset->epoch = epoch;
}

static inline remat_status rm_dataset_fill(rm_dataset *dataset, int64_t index, int64_t column, int64_t batch,
                                           void *input, void *target) {
    return dataset->kind->fill(dataset, index, column, batch, input, target);
}

/* zlib's CRC-32 of what samples are made of, labels included, as it is when unpacked: a run that is resumed and other ranks
 * should have the same. Of a text above 256 MiB it is that of 4096 stretches, spread evenly from its beginning to its end, so
 * that no run waits for it: most other texts show, not every byte. 0: generated, there is none. IO: it cannot be read. */
remat_status rm_dataset_checksum(rm_dataset *dataset, uint32_t *crc32);

#define KIND(name) extern const rm_data_kind rm_data_##name;
#include "train/data/kinds.def"
#undef KIND

/* Shapes that follow from the flags alone. */
rm_data_shape rm_text_shape(int64_t timesteps, int64_t vocabulary); /* 0: bytes */
/* Of lines of so many tokens, without their ends; `tokens`: how many there are to choose from. */
rm_data_shape rm_pair_shape(int64_t source, int64_t target, int64_t tokens);
enum { RM_PAIR_BYTES = 256 };
rm_data_shape rm_image_shape(int64_t channels, int64_t height, int64_t width, int64_t classes, bool pixels);

#endif
