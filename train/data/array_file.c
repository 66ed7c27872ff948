/* array_file.c: see array_file.h. */
#include "train/data/array_file.h"

#include "memory/host.h"
#include "train/data/file_kind.h"
#include "train/data/idx.h"
#include "train/data/npy.h"
#include "train/file.h"

/* The largest file that is read into memory. */
#define MOST_BYTES ((uint64_t)1 << 36)

/* The largest compression ratio of gzip. */
#define MOST_GROWTH 1032

static remat_status refuse_kind(const char *path, rm_file_kind kind) {
    REQUIRE(kind != RM_KIND_ZIP, IO,
            "%s is a .npz file, which holds several arrays: save one of them: numpy.save('x.npy', "
            "numpy.load('%s')['NAME'])",
            path, path);
    REQUIRE(kind != RM_KIND_TORCH, IO,
            "%s was written by torch.save, and only Python can read it: save its array as .npy: numpy.save('x.npy', "
            "torch.load('%s').numpy())",
            path, path);
    FAIL(IO, "%s holds weights (.safetensors), not data: give a .npy or IDX file; pass weights to --init", path);
}

static remat_status read_header(const rm_file_start *start, const char *path, rm_array_file *out, size_t *bytes) {
    rm_file_kind kind = rm_file_kind_of(start, path);
    out->images = kind != RM_KIND_NPY;
    if (kind == RM_KIND_ZIP || kind == RM_KIND_TORCH || kind == RM_KIND_SAFETENSORS) return refuse_kind(path, kind);
    return out->images ? rm_idx_header(start->data, start->size, path, &out->array, bytes)
                       : rm_npy_header(start->data, start->size, path, &out->array, bytes);
}

static remat_status check_claim(const rm_file_start *start, const char *path, uint64_t claim, uint64_t budget) {
    REQUIRE(start->packed || start->file_bytes == claim, IO,
            "%s has %llu bytes, but its header declares %llu: fetch it again, or save it again", path,
            (unsigned long long)start->file_bytes, (unsigned long long)claim);
    REQUIRE(claim / MOST_GROWTH <= start->file_bytes, IO,
            "%s cannot hold the %llu bytes that its header declares: fetch it again, or save it again", path,
            (unsigned long long)claim);
    uint64_t most = budget ? budget : RM_UNPACKED_BYTES;
    REQUIRE(!start->packed || claim <= most, INFEASIBLE,
            "%s is %llu bytes when decompressed, more than the %s of %llu: give %s, or fewer samples", path,
            (unsigned long long)claim, budget ? "memory budget" : "limit", (unsigned long long)most,
            budget ? "a larger --memory-budget" : "a --memory-budget that is large enough, decompress it with gunzip");
    REQUIRE(claim <= MOST_BYTES, IO, "%s is larger than %llu bytes, the limit for an array file", path,
            (unsigned long long)MOST_BYTES);
    return REMAT_OK;
}

static remat_status begin(const char *path, uint64_t budget, rm_array_file *out, uint64_t *claim) {
    rm_file_start *start;
    size_t header_bytes;
    *out = (rm_array_file){0};
    TRY(rm_file_begin(path, &start));
    remat_status status = read_header(start, path, out, &header_bytes);
    if (!status) {
        *claim = header_bytes + (uint64_t)(out->array.count * out->array.bytes);
        status = check_claim(start, path, *claim, budget);
    }
    rm_free(start);
    return status;
}

remat_status rm_array_file_begin(const char *path, uint64_t budget, rm_array_file *out) {
    uint64_t claim;
    return begin(path, budget, out, &claim);
}

remat_status rm_array_file_read(const char *path, uint64_t budget, rm_array_file *out) {
    uint64_t claim;
    TRY(begin(path, budget, out, &claim));
    TRY(rm_file_read_first(path, claim + 1, &out->data, &out->size));
    return out->images ? rm_idx_parse(out->data, out->size, path, &out->array)
                       : rm_npy_parse(out->data, out->size, path, &out->array);
}

void rm_array_file_free(rm_array_file *file) {
    rm_free(file->data);
    file->data = NULL;
}
