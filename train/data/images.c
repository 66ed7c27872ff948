/* images.c: see images.h. */
#include "train/data/images.h"

#include "memory/host.h"

typedef struct rm_images_scratch {
    uint8_t *bytes; /* scratch for `read` */
    float *line;
} scratch;

static scratch borrow(rm_images *images) {
    pthread_mutex_lock(&images->lock);
    scratch s = images->free[--images->n_free];
    pthread_mutex_unlock(&images->lock);
    return s;
}

static void give_back(rm_images *images, scratch s) {
    pthread_mutex_lock(&images->lock);
    images->free[images->n_free++] = s;
    pthread_mutex_unlock(&images->lock);
}

/* Of one image: a class for each pixel, by the same crop, from the nearest pixel of the mask. */
static remat_status fill_mask(rm_images *images, int64_t index, uint8_t *scratch, int32_t *target) {
    rm_array mask;
    TRY(images->read_mask(images, index, scratch, &mask));
    rm_transform f = rm_transform_fixed(mask.dim[1], mask.dim[2], &images->crop);
    for (int64_t y = 0; y < f.height; y++)
        for (int64_t x = 0; x < f.width; x++)
            target[y * f.width + x] = images->class_of[rm_transform_nearest(&f, &mask, y, x)];
    return REMAT_OK;
}

static void fill_labels(const rm_images *images, int64_t index, int64_t n, int32_t *target) {
    const int32_t *labels = images->labels.item;
    for (int64_t i = 0; i < n; i++) target[i] = labels ? labels[index * n + i] : 0;
}

remat_status rm_images_fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    rm_images *images = (rm_images *)base;
    const rm_data_shape *shape = &base->shape;
    rm_array image;
    (void)batch;
    scratch s = borrow(images);
    remat_status status = images->read(images, index, s.bytes, &image);
    if (!status) {
        rm_transform transform = rm_transform_random(&images->augment, images->seed, base->epoch, index, image.dim[1],
                                                     image.dim[2], &images->crop);
        rm_transform_apply(&transform, &image, images->unit, &images->normalize, s.line,
                           (float *)input + column * shape->features);
    }
    const int64_t n = rm_data_answers(shape);
    int32_t *answers = (int32_t *)target + column * n;
    if (!status && images->read_mask) status = fill_mask(images, index, s.bytes, answers);
    give_back(images, s);
    if (!images->read_mask) fill_labels(images, index, n, answers);
    return status;
}

/* ---- Opening ------------------------------------------------------------------------------------------------------ */

rm_data_shape rm_image_shape(int64_t channels, int64_t height, int64_t width, int64_t classes, bool pixels) {
    return (rm_data_shape){.timesteps = 1,
                           .features = channels * height * width,
                           .classes = classes,
                           .pixels = pixels ? height * width : 0,
                           .channels = channels,
                           .height = height,
                           .width = width};
}

static remat_status take_shape(rm_images *images, const rm_data_source *source) {
    const uint32_t class_names = images->base.shape.class_names;
    int64_t size = source->image_size, classes = source->classes ? source->classes : images->labels.classes;
    REQUIRE(images->height || size, INVALID, "the images in %s have different sizes: give --image-size=S",
            source->data);
    REQUIRE(!source->channels || source->channels == images->channels, INVALID,
            "%s has images of %lld channels, but --channels=%lld was given: remove --channels, or give other data",
            source->data, (long long)images->channels, (long long)source->channels);
    REQUIRE(!images->labels.item || images->labels.classes <= classes, INVALID,
            "%s has %lld classes, more than --classes=%lld: make it larger", source->data,
            (long long)images->labels.classes, (long long)classes);
    REQUIRE(!class_names || images->labels.classes == classes || source->unlabelled, INVALID,
            "%s has %lld folders, or grey values of masks, for %lld classes: sorted, they number the classes; create a "
            "folder for each class, even if it is empty, or give masks with all values",
            source->data, (long long)images->labels.classes, (long long)classes);
    REQUIRE(!source->pixels || !size || images->read_mask || (size == images->height && size == images->width), INVALID,
            "--image-size=%lld: labels for each pixel in an array cannot be resized, and these images are %lld x %lld: "
            "remove --image-size",
            (long long)size, (long long)images->height, (long long)images->width);
    REQUIRE(classes, INVALID, "without labels the number of classes is unknown: give --classes=N");
    images->base.shape = rm_image_shape(images->channels, size ? size : images->height, size ? size : images->width,
                                        classes, source->pixels);
    REQUIRE(!source->resize || source->resize >= size, INVALID,
            "--resize=%lld is smaller than --image-size=%lld, which is cropped out of it: make it larger",
            (long long)source->resize, (long long)size);
    images->crop = (rm_crop){images->base.shape.height, images->base.shape.width, source->resize};
    images->base.shape.class_names = class_names;
    images->base.class_names = images->names.count ? &images->names : NULL;
    return REMAT_OK;
}

static remat_status make_scratch(rm_images *images, int64_t threads) {
    uint64_t line = 4 * (uint64_t)images->most_width;
    images->free = rm_calloc((size_t)threads, sizeof *images->free);
    REQUIRE(images->free, MEMORY, "no memory to read images on %lld threads", (long long)threads);
    for (int64_t i = 0; i < threads; i++) {
        scratch *s = &images->free[i];
        *s = (scratch){rm_malloc(images->scratch_bytes), rm_malloc(line)};
        images->n_free = ++images->n_scratch;
        REQUIRE(s->bytes && s->line, MEMORY,
                "no memory for images of %llu bytes on %lld threads: reduce --loader-threads",
                (unsigned long long)images->scratch_bytes, (long long)threads);
    }
    images->base.held_bytes += (uint64_t)threads * (images->scratch_bytes + images->decoder_bytes + line);
    return REMAT_OK;
}

remat_status rm_images_open(rm_dataset *base, const rm_data_source *source) {
    rm_images *images = (rm_images *)base;
    images->seed = (uint64_t)source->seed;
    pthread_mutex_init(&images->lock, NULL);
    TRY(rm_augment_parse(source->augment, &images->augment));
    TRY(base->kind->find(images, source));
    TRY(rm_normalize_parse(source->normalize, images->channels, &images->normalize));
    TRY(take_shape(images, source));
    return make_scratch(images, source->threads > 1 ? source->threads : 1);
}

remat_status rm_images_view(rm_dataset *copy) {
    rm_images *images = (rm_images *)copy;
    int64_t threads = images->n_scratch;
    images->free = NULL;
    images->n_free = images->n_scratch = 0;
    pthread_mutex_init(&images->lock, NULL);
    TRY(rm_augment_parse(NULL, &images->augment));
    return make_scratch(images, threads);
}

void rm_images_close_view(rm_dataset *copy) {
    rm_images *images = (rm_images *)copy;
    for (int64_t i = 0; i < images->n_scratch; i++) {
        rm_free(images->free[i].bytes);
        rm_free(images->free[i].line);
    }
    rm_free(images->free);
    pthread_mutex_destroy(&images->lock);
}

void rm_images_close(rm_images *images) {
    rm_images_close_view(&images->base);
    rm_labels_free(&images->labels);
    rm_class_names_free(&images->names);
}
