/* labelled.c: tasks with numeric data in one file and labels in another: --task=classify, regress and transcribe. */
#include "train/tasks/task.h"

static remat_status open_classify(const rm_data_source *source, rm_dataset **out) {
    const char *eval = source->held_out ? "eval-" : "";
    REQUIRE(source->data || !source->images, INVALID,
            "there are no images: give --%sdata=FILE (IDX, .npy or CIFAR-10's .bin) or --%sdata=DIR (a folder for each "
            "class)",
            eval, eval);
    REQUIRE(source->data, INVALID,
            "classify needs --%sdata=FILE (IDX images or .npy features) and --%slabels=FILE with a class for each",
            eval, eval);
    REQUIRE(!source->pixels || source->labels || source->unlabelled, INVALID,
            "the classes of the pixels are missing: give --%slabels=FILE, .npy (N,H,W), or "
            "--%slabels=DIR with a mask for each image of a folder",
            eval, eval);
    REQUIRE(source->images || source->labels || source->unlabelled, INVALID,
            "there are no labels for %s: give --%slabels=FILE, IDX or .npy, one for each sample, [N], or for each "
            "timestep, [N,T]",
            source->data, eval);
    return rm_data_open(NULL, source, out);
}

static remat_status shape_of_images(const rm_data_source *source, rm_data_shape *out) {
    if (!source->images) return rm_task_needs_data(rm_task_of_images());
    REQUIRE(
        source->image_size && source->classes, INVALID,
        "without --data=FILE the size of the images is unknown: give --image-size=S, --classes=N and --channels=C [3]");
    *out = rm_image_shape(source->channels ? source->channels : 3, source->image_size, source->image_size,
                          source->classes, source->pixels);
    return REMAT_OK;
}

const rm_task rm_task_classify = {
    .name = "classify",
    .flags = " classes data labels eval-data eval-labels lengths rows normalize class-weights ignore-index allow-nan every-step loss "
             "tbptt label-smoothing ",
    .open = open_classify,
    .shape = shape_of_images,
    .row = RM_ROW_CLASSES,
    .images = true};

/* Labels are numbers; their shape is the shape of the targets. */
static remat_status open_regress(const rm_data_source *source, rm_dataset **out) {
    rm_data_source numbers = *source;
    const char *eval = source->held_out ? "eval-" : "";
    REQUIRE(
        source->data, INVALID,
        "regress needs --%sdata=FILE (.npy features [N,T,F], or IDX images) and --%slabels=FILE.npy with numbers for "
        "each sample",
        eval, eval);
    REQUIRE(source->labels || source->unlabelled, INVALID,
            "there are no labels for %s: give --%slabels=FILE.npy, [N] or [N,V], or [N,T,V] with numbers for each "
            "timestep",
            source->data, eval);
    numbers.numbers = true;
    return rm_data_open(NULL, &numbers, out);
}

const rm_task rm_task_regress = {
    .name = "regress",
    .flags = " data labels eval-data eval-labels lengths rows normalize loss allow-nan values every-step tbptt ",
    .open = open_regress,
    .row = RM_ROW_OUTPUTS};

static remat_status open_transcribe(const rm_data_source *source, rm_dataset **out) {
    rm_data_source transcripts = *source;
    const char *eval = source->held_out ? "eval-" : "";
    REQUIRE(source->data && (source->labels || source->unlabelled), INVALID,
            "transcribe needs --%sdata=FILE (.npy [N,T,F]) and --%slabels=FILE (.npy [N,S]: labels start at 1, rows "
            "are padded "
            "with -1)",
            eval, eval);
    transcripts.transcripts = true;
    return rm_data_open(NULL, &transcripts, out);
}

const rm_task rm_task_transcribe = {.name = "transcribe",
                                    .flags = " classes data labels eval-data eval-labels lengths rows normalize ",
                                    .open = open_transcribe,
                                    .row = RM_ROW_OUTPUTS};
