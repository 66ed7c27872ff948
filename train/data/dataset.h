/* dataset.h: data sets with random access to samples. A kind of data is one file with one rm_data_kind. dist/large_batch/sampler.h
 * orders samples, batch.h defines the fields of a batch, and loader.h fills batches.
 *
 *     text      lm        any file, or tokens in a file: tokens (T,B) and the next tokens (T,B)
 *     arrays    classify  .npy (N,T,F), or IDX images as sequences of pixels: reals (T,B,F), labels (B), or (T,B) at every timestep
 *     arrays    regress   the same, with real targets: (B,V), or (T,B,V) at every timestep
 *     images    classify  whole images, for image models (images.h): reals (B,C,H,W), labels (B)
 *     arrays    transcribe  .npy (N,T,F): reals (T,B,F), rows of labels (B,S), padded with -1
 *     adding    adding    generated: reals (T,B,2), a real target (B,1)
 *     copy      copy      generated: tokens (T,B) and classes (T,B)
 *     s5        s5        the same
 *     pairs     seq2seq   two texts, line by line, or generated: tokens (S,B) and classes (T,B)
 */
#ifndef RM_DATASET_H
#define RM_DATASET_H

#include "train/data/class_names.h"
#include "train/data/vocabulary.h"

/* The shapes of the data, which determine a model's inputs and outputs. */
typedef struct {
    int64_t timesteps;  /* T */
    int64_t vocabulary; /* > 0: inputs are tokens 0..vocabulary-1, int32 (T,B) */
    int64_t features;   /* otherwise: inputs are reals, float (T,B,features) */
    int64_t classes;    /* > 0: targets are classes, int32; 0: reals, float */
    bool every_step;    /* targets (T,B) of classes, (T,B,values) of reals; otherwise (B), (B,values) */
    /* channels > 0: inputs are images, float (B,channels,height,width); T is 1 then, and features their product. */
    int64_t channels, height, width;
    int64_t pixels; /* classes are given per pixel: targets (B,pixels). 0: one class per image */
    int64_t labels; /* S > 0: targets are rows of labels (B,S), for CTC; then every_step applies to outputs only */
    uint32_t class_names; /* checksum of the class names in order; 0: no names */
    bool lengths;         /* samples may end early (rm_data_kind.length); inputs are 0 after the end */
    bool documents;       /* samples contain several documents (field `begins`) */
    bool tracked;         /* with every_step: accuracy counts the answer at each timestep */
    int64_t values;       /* real numbers per answer */
    bool weighted;        /* with classes: dataset.class_weights is set */
    int64_t answer_steps; /* pairs: timesteps of the targets, (answer_steps,B), padded with -1; 0: same as the inputs */
} rm_data_shape;

/* What the data ask of a model. */
typedef enum {
#define ANSWER(NAME, LOSS, SCORES) RM_ANSWER_##NAME,
#include "train/data/answers.def"
#undef ANSWER
} rm_answer;
rm_answer rm_data_answer(const rm_data_shape *shape);
bool rm_answer_has(rm_answer answer, const char *score); /* whether a metric of this name compares such answers */

/* Pairs: the end token, and the begin token, which is the padding of inputs and the decoder's first input. Only the end token is a
 * class. */
static inline int64_t rm_pair_tokens(const rm_data_shape *shape) { return shape->classes - 1; }
static inline int32_t rm_pair_end(const rm_data_shape *shape) { return (int32_t)shape->classes - 1; }
static inline int32_t rm_pair_begin(const rm_data_shape *shape) { return (int32_t)shape->classes; }

/* Timesteps of answers. */
static inline int64_t rm_data_answer_steps(const rm_data_shape *shape) {
    return shape->answer_steps ? shape->answer_steps : shape->timesteps;
}

/* Per answer: the model's outputs (a logit per class, or the values), and the target's numbers (a class, or the values). */
static inline int64_t rm_data_outputs(const rm_data_shape *shape) {
    return shape->classes ? shape->classes : shape->values;
}
static inline int64_t rm_data_targets(const rm_data_shape *shape) {
    return shape->pixels ? shape->pixels : shape->labels ? shape->labels : shape->classes ? 1 : shape->values;
}
/* Answers per sample. */
static inline int64_t rm_data_answers(const rm_data_shape *shape) {
    return shape->pixels         ? shape->pixels
           : shape->answer_steps ? shape->answer_steps
           : shape->tracked      ? shape->timesteps
                                 : 1;
}

/* Real targets at every timestep of samples that may end early need the field `padding`. */
static inline bool rm_data_pads(const rm_data_shape *shape) {
    return shape->lengths && shape->every_step && !shape->classes;
}

typedef struct rm_data_kind rm_data_kind;
typedef struct rm_batch rm_batch; /* batch.h */
struct rm_images;

/* Common to all kinds of data: the first member of each kind's struct. */
typedef struct rm_dataset {
    const rm_data_kind *kind;
    int64_t drawn_from; /* lm: samples, the first ones, in which random windows lie */
    struct rm_dataset *whole; /* the data set that this one is a part of (part.h); NULL: none */
    bool borrows;             /* a view (rm_dataset_view) */
    int64_t count;       /* samples */
    uint64_t held_bytes; /* of memory: the file, if it is read whole, and the labels */
    rm_data_shape shape;
    int64_t epoch; /* set by the loader at the start of an epoch: augmentation differs between epochs */
    uint64_t target_bytes;             /* lm: bytes of text in the targets of all samples; 0: unknown */
    const rm_class_names *class_names; /* NULL: classes have no names */
    float *class_weights;              /* (classes), if shape.weighted (class_weights.h) */
    uint8_t *tokenizer;                /* the file source->tokenizer, for training states; NULL: none */
    size_t tokenizer_bytes;
} rm_dataset;

typedef struct {
    const char *data, *labels; /* paths; labels only for kinds that have them */
    const char *lengths;       /* arrays: a file with the length of each sample; NULL: all have the same length */
    bool unlabelled;           /* labels may be NULL; all targets are 0 then */
    bool allow_nan;            /* accept NaN */
    bool rows;                 /* images as sequences of rows, not of pixels */
    int64_t timesteps;         /* 0: determined by the data */
    int64_t vocab;             /* lm: the file holds token numbers below this; 0: a text, encoded as bytes or by the tokenizer */
    bool random_windows;             /* lm: samples start at random positions, which differ between epochs */
    int64_t document_end;      /* lm: 1 + the token that ends a document; 0: none */
    int64_t classes;           /* classify; 0: the largest label + 1 */
    int64_t ignored;           /* if `ignores`: the label of ignored samples; it becomes -1 in targets */
    bool ignores;
    int64_t samples, seed;           /* of generated data */
    bool held_out;                   /* generated data: samples that differ from those for training */
    uint64_t budget;                 /* upper bound of a file's decompressed bytes; 0: RM_UNPACKED_BYTES */
    bool model_unsaid;               /* --model was not given, so [N,F] is refused, since it may be vectors or sequences
                                        */
    bool vectors;                    /* the model reads [N,F], too */
    bool images;                     /* classify: whole images, not sequences; then: */
    bool pixels;                     /* one label per pixel */
    int64_t channels, image_size;    /* 0: the file's own; 3 channels in a folder */
    int64_t resize;                  /* shorter side before the crop; 0: image_size */
    const char *normalize, *augment; /* as in transform.h; NULL: none */
    int64_t threads;                 /* the number of threads that may call `fill` at the same time; 0: 1 */
    bool numbers;                    /* labels are numbers, not classes */
    bool transcripts;                /* labels are rows (N,S), not one per sample */
    bool skip_broken;                /* skip damaged files instead of failing */
    rm_vocabulary_texts vocabulary; /* the texts from which --tokenizer=words or chars builds its vocabulary */
    const char *tokenizer; /* a path, "words" or "chars"; `data` is a text that it encodes, or (lm) a .npy of its tokens */
    int64_t values;        /* regress: numbers per answer; 0: as in the labels */
    bool yes_or_no;        /* regress: labels are from 0 to 1 */
    bool every_step;       /* regress, classify: one answer per timestep */
    bool steps_known;      /* classify: labels must match every_step; otherwise the labels decide */
    bool whole;            /* refuse samples longer than `timesteps` instead of truncating them */
    const char *generate;  /* seq2seq without data: "copy", "reverse", "sort" */
} rm_data_source;

#define RM_UNPACKED_BYTES ((uint64_t)1 << 30)

/* A kind of data. */
struct rm_data_kind {
    size_t bytes;                          /* size of its struct */
    bool (*reads)(const rm_data_source *); /* whether the source is of this kind; NULL: a task names the kind */
    /* The struct is zero except for `kind`. On failure the caller closes it. INVALID: wrong flags; IO: wrong file. */
    remat_status (*open)(rm_dataset *, const rm_data_source *);
    remat_status (*find)(struct rm_images *, const rm_data_source *); /* of images, for rm_images_open: images.h */
    void (*close)(rm_dataset *); /* frees the struct's members; NULL: nothing to free */
    /* Writes sample `index` (0 <= index < count) into column `column` of time-major arrays that are `batch` wide, of the
     * dtypes and shapes above. IO when the file cannot be read. */
    remat_status (*fill)(rm_dataset *, int64_t index, int64_t column, int64_t batch, void *input, void *target);
    /* Writes the batch's other fields, after `fill`; NULL: none. */
    remat_status (*mark)(rm_dataset *, int64_t index, int64_t column, rm_batch *batch);
    int64_t (*length)(const rm_dataset *, int64_t index);        /* timesteps, 1 to T; NULL: always T */
    int64_t (*answer_length)(const rm_dataset *, int64_t index); /* pairs: 1 to answer_steps; else NULL */
    remat_status (*checksum)(rm_dataset *, uint32_t *crc32);     /* *crc32 is 0 at first; NULL: generated data */
    /* Turns a copy of the struct into a view: without augmentation, and with scratch of its own if `threads`. NULL: nothing to do. */
    remat_status (*view)(rm_dataset *copy);
    void (*close_view)(rm_dataset *copy); /* also after a failure of `view` */
    bool threads; /* several threads may call `fill` and `mark` at the same time, for different columns */
};

/* Opens data of this kind; NULL: of the first kind that reads the source. Tasks name their kinds (tasks/task.h). */
remat_status rm_data_open(const rm_data_kind *kind, const rm_data_source *source, rm_dataset **out);
void rm_dataset_close(rm_dataset *dataset); /* NULL allowed */
/* The same samples for evaluations, without augmentation, in the memory of `dataset`, which must outlive the use of the view. */
remat_status rm_dataset_view(const rm_dataset *dataset, rm_dataset **out);

/* For kinds of data: reads source->tokenizer. The caller frees *out; *vocabulary is the result of rm_tokenizer_fit. */
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

/* zlib's CRC-32 of the decompressed data and labels: it must be the same on all ranks and when a run is resumed. For a text above
 * 256 MiB it covers 4096 evenly spaced stretches, so that no run waits for it: it detects other texts, not every changed byte.
 * 0: generated data. IO: the data cannot be read. */
remat_status rm_dataset_checksum(rm_dataset *dataset, uint32_t *crc32);

#define KIND(name) extern const rm_data_kind rm_data_##name;
#include "train/data/kinds.def"
#undef KIND

/* Whether training may read the number: a single NaN or infinity ruins all weights, and users would suspect the learning rate. NaN
 * with --allow-nan; never what a float cannot hold. */
bool rm_data_takes(const rm_data_source *source, double number);

/* Shapes that follow from the flags alone. */
rm_data_shape rm_text_shape(int64_t timesteps, int64_t vocabulary); /* 0: bytes */
/* For lines of at most `source` and `target` tokens, without their end tokens; `tokens`: size of the vocabulary. */
rm_data_shape rm_pair_shape(int64_t source, int64_t target, int64_t tokens);
enum { RM_PAIR_BYTES = 256 };
rm_data_shape rm_image_shape(int64_t channels, int64_t height, int64_t width, int64_t classes, bool pixels);

#endif
