/* dataset.c: see dataset.h. */
#include "train/data/dataset.h"

#include "memory/host.h"

remat_status rm_data_open(const rm_data_kind *kind, const rm_data_source *source, rm_dataset **out) {
    rm_dataset *data = rm_calloc(1, kind->bytes);
    *out = NULL;
    REQUIRE(data, MEMORY, "no memory to open %s", source->data ? source->data : "generated data");
    data->kind = kind;
    remat_status status = kind->open(data, source);
    if (status)
        rm_dataset_close(data);
    else
        *out = data;
    return status;
}

void rm_dataset_close(rm_dataset *dataset) {
    if (dataset && dataset->kind->close) dataset->kind->close(dataset);
    if (dataset) rm_free(dataset->class_weights);
    rm_free(dataset);
}

/* 0 stands for none. */
remat_status rm_dataset_checksum(rm_dataset *dataset, uint32_t *crc32) {
    *crc32 = 0;
    if (!dataset->kind->checksum) return REMAT_OK;
    TRY(dataset->kind->checksum(dataset, crc32));
    if (!*crc32) *crc32 = 1;
    return REMAT_OK;
}
