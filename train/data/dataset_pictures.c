/* dataset_pictures.c: the pictures of an album (album.h), each framed (framing.h) as the model reads it, with its class. Threads
 * may fill different columns at a time: each borrows one of as many scratch blocks. */
#include "train/data/dataset.h"

#include "memory/host.h"
#include "train/data/album.h"
#include "train/data/framing.h"

#include <pthread.h>
#include <string.h>

typedef struct {
    uint8_t *bytes; /* the album's */
    float *line;
} scratch;

typedef struct {
    rm_dataset base;
    rm_album *album;
    rm_augment augment;
    rm_normalize normalize;
    uint64_t seed;
    pthread_mutex_t lock; /* of the two below */
    scratch *free;
    int64_t n_free, n_scratch;
} picture_data;

static scratch borrow(picture_data *data) {
    pthread_mutex_lock(&data->lock);
    scratch s = data->free[--data->n_free];
    pthread_mutex_unlock(&data->lock);
    return s;
}

static void give_back(picture_data *data, scratch s) {
    pthread_mutex_lock(&data->lock);
    data->free[data->n_free++] = s;
    pthread_mutex_unlock(&data->lock);
}

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    picture_data *data = (picture_data *)base;
    const rm_data_shape *shape = &base->shape;
    rm_array picture;
    (void)batch;
    scratch s = borrow(data);
    remat_status status = data->album->read(data->album, index, s.bytes, &picture);
    if (!status) {
        rm_framing framing = rm_framing_drawn(&data->augment, data->seed, base->epoch, index, picture.dim[1],
                                              picture.dim[2], shape->height, shape->width);
        rm_framing_apply(&framing, &picture, data->album->unit, &data->normalize, s.line,
                         (float *)input + column * shape->features);
    }
    give_back(data, s);
    const int32_t *labels = data->album->labels;
    const int64_t n = rm_data_answers(shape);
    for (int64_t i = 0; i < n; i++) ((int32_t *)target)[column * n + i] = labels ? labels[index * n + i] : 0;
    return status;
}

static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    rm_album *album = ((picture_data *)base)->album;
    return album->checksum(album, crc32);
}

static void close_pictures(rm_dataset *base) {
    picture_data *data = (picture_data *)base;
    for (int64_t i = 0; i < data->n_scratch; i++) {
        rm_free(data->free[i].bytes);
        rm_free(data->free[i].line);
    }
    rm_free(data->free);
    rm_album_close(data->album);
    pthread_mutex_destroy(&data->lock);
    rm_free(data);
}

/* ---- Opening ------------------------------------------------------------------------------------------------------ */

rm_data_shape rm_picture_shape(int64_t channels, int64_t height, int64_t width, int64_t classes, bool pixels) {
    return (rm_data_shape){.timesteps = 1,
                           .features = channels * height * width,
                           .classes = classes,
                           .places = pixels ? height * width : 0,
                           .channels = channels,
                           .height = height,
                           .width = width};
}

static remat_status take_shape(picture_data *data, const rm_data_source *source) {
    const rm_album *album = data->album;
    int64_t size = source->image_size, classes = source->classes ? source->classes : album->classes;
    REQUIRE(album->height || size, INVALID,
            "the pictures in %s have sizes of their own: say --image-size=S, for all of them", source->data);
    REQUIRE(!source->channels || source->channels == album->channels, INVALID,
            "%s has pictures of %lld channels, and --channels=%lld: leave --channels out, or give other data",
            source->data, (long long)album->channels, (long long)source->channels);
    REQUIRE(!album->labels || album->classes <= classes, INVALID,
            "%s has %lld classes, and --classes=%lld: make it larger", source->data, (long long)album->classes,
            (long long)classes);
    REQUIRE(!album->class_names || album->classes == classes || source->unlabelled, INVALID,
            "%s has %lld folders, and there are %lld classes: they are numbered by the folders' names, so make one for "
            "each, empty or "
            "not",
            source->data, (long long)album->classes, (long long)classes);
    REQUIRE(!source->pixels || !size || (size == album->height && size == album->width), INVALID,
            "--image-size=%lld: pictures whose pixels have labels stay as they are, here %lld x %lld", (long long)size,
            (long long)album->height, (long long)album->width);
    REQUIRE(classes, INVALID, "without labels the number of classes is needed: say --classes=N");
    data->base.shape = rm_picture_shape(album->channels, size ? size : album->height, size ? size : album->width,
                                        classes, source->pixels);
    data->base.shape.class_names = album->class_names;
    data->base.class_names = album->names.count ? &album->names : NULL;
    data->base.count = album->count;
    return REMAT_OK;
}

static remat_status make_scratch(picture_data *data, int64_t threads) {
    const rm_album *album = data->album;
    uint64_t line = 4 * (uint64_t)album->most_width;
    data->free = rm_calloc((size_t)threads, sizeof *data->free);
    REQUIRE(data->free, MEMORY, "no memory to read pictures on %lld threads", (long long)threads);
    for (int64_t i = 0; i < threads; i++) {
        scratch *s = &data->free[i];
        *s = (scratch){rm_malloc(album->scratch_bytes), rm_malloc(line)};
        data->n_free = ++data->n_scratch;
        REQUIRE(s->bytes && s->line, MEMORY,
                "no memory for pictures of %llu bytes on %lld threads: make --loader-threads smaller",
                (unsigned long long)album->scratch_bytes, (long long)threads);
    }
    data->base.held_bytes =
        album->held_bytes + (uint64_t)threads * (album->scratch_bytes + album->decoder_bytes + line);
    return REMAT_OK;
}

static remat_status open_album(picture_data *data, const rm_data_source *source) {
    TRY(rm_augment_parse(source->augment, &data->augment));
    TRY(rm_album_open(source, &data->album));
    TRY(rm_normalize_parse(source->normalize, data->album->channels, &data->normalize));
    TRY(take_shape(data, source));
    return make_scratch(data, source->threads > 1 ? source->threads : 1);
}

remat_status rm_dataset_open_pictures(const rm_data_source *source, rm_dataset **out) {
    picture_data *data = rm_malloc(sizeof *data);
    REQUIRE(data, MEMORY, "no memory to open %s", source->data);
    *data = (picture_data){.base = {.fill = fill, .checksum = checksum, .close = close_pictures, .threads = true},
                           .seed = (uint64_t)source->seed};
    pthread_mutex_init(&data->lock, NULL);
    remat_status status = open_album(data, source);
    if (status)
        close_pictures(&data->base);
    else
        *out = &data->base;
    return status;
}
