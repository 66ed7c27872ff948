/* stream.c: see stream.h. */
#include "train/state/stream.h"

#include "dist/group/half.h"
#include "engine/finite.h"
#include "memory/host.h"

static uint64_t next_bytes(uint64_t done, uint64_t bytes) {
    return bytes - done < RM_STREAM_BYTES ? bytes - done : RM_STREAM_BYTES;
}

static remat_status get_buffer(void **buffer) {
    *buffer = rm_malloc(RM_STREAM_BYTES);
    REQUIRE(*buffer, MEMORY, "no memory for a copy buffer of %d bytes", RM_STREAM_BYTES);
    return REMAT_OK;
}

/* Checks elements of an array of the session that are to be saved (path NULL) or were read from a file; x[0] is element `first`. */
static remat_status must_be_finite(const remat_array *array, const char *path, const float *x, uint64_t n,
                                   uint64_t first) {
    const int64_t i = array->dtype == REMAT_F32 ? rm_find_nonfinite(x, (int64_t)n) : -1;
    if (i < 0) return REMAT_OK;
    const unsigned long long at = first + (uint64_t)i;
    REQUIRE(path, INTERNAL,
            "%s is %g at element %llu: training has diverged; reduce --lr or set --clip-grad-norm=1, and resume from "
            "the state before",
            array->name, (double)x[i], at);
    FAIL(IO, "%s: '%s' is %g at element %llu: training had diverged; give earlier weights", path, array->name,
         (double)x[i], at);
}

typedef remat_status reader(remat_session *, remat_kind, int64_t index, uint64_t first, void *data, uint64_t bytes);

/* A rank of a pipeline that cannot write, or need not, still takes part in reading. */
static remat_status stream(remat_session *session, remat_kind kind, int64_t index, uint64_t bytes, reader *read,
                           rm_file_writer *writer) {
    remat_array array;
    void *buffer;
    TRY(remat_array_info(session, kind, index, &array));
    TRY(get_buffer(&buffer));
    const bool checked = kind != REMAT_GRADIENT;
    remat_status status = REMAT_OK, got = REMAT_OK;
    for (uint64_t done = 0, n; !got && (n = next_bytes(done, bytes)) > 0; done += n) {
        got = read(session, kind, index, done, buffer, n);
        if (got || status || !writer) continue;
        if (checked) status = must_be_finite(&array, NULL, buffer, n / 4, (uint64_t)array.first + done / 4);
        if (!status) status = rm_file_write(writer, buffer, n);
    }
    rm_free(buffer);
    return status ? status : got;
}

uint64_t rm_stream_whole_bytes(const remat_array *array) {
    uint64_t bytes = array->dtype == REMAT_F64 ? 8 : 4;
    for (int d = 0; d < array->rank; d++) bytes *= (uint64_t)array->dim[d];
    return bytes;
}

remat_status rm_stream_out(remat_session *session, remat_kind kind, int64_t index, rm_file_writer *writer) {
    remat_array array;
    TRY(remat_array_info(session, kind, index, &array));
    return stream(session, kind, index, rm_stream_whole_bytes(&array), remat_pipeline_read, writer);
}

remat_status rm_stream_held(remat_session *session, remat_kind kind, int64_t index, rm_file_writer *writer) {
    remat_array array;
    TRY(remat_array_info(session, kind, index, &array));
    return stream(session, kind, index, array.bytes, remat_read_part, writer);
}

/* Writes the numbers, which were read from `file`, to the array's bytes from `first` on. */
static remat_status put(remat_session *session, remat_kind kind, int64_t index, uint64_t first, const float *x,
                        uint64_t bytes, const rm_safetensors *file) {
    remat_array array;
    TRY(remat_array_info(session, kind, index, &array));
    TRY(must_be_finite(&array, file->path, x, bytes / sizeof *x, first / sizeof *x));
    return remat_write_part(session, kind, index, first, x, bytes);
}

static bool is_half(const rm_st_array *array) { return !strcmp(array->dtype, "BF16") || !strcmp(array->dtype, "F16"); }

/* Reads n numbers of the file's array, from number `first` on, as floats. */
static remat_status read_numbers(const rm_safetensors *file, const rm_st_array *array, uint64_t first, uint64_t n,
                                 float *x) {
    const uint64_t each = is_half(array) ? 2 : 4, at = file->data_start + array->begin + first * each;
    TRY(rm_file_read_at(file->fd, file->path, at, x, n * each));
    if (each == 2) rm_widen_in_place(x, n, *array->dtype == 'B');
    return REMAT_OK;
}

remat_status rm_stream_in(remat_session *session, remat_kind kind, int64_t index, uint64_t first, uint64_t bytes,
                          const rm_safetensors *file, const rm_st_array *array, uint64_t from) {
    void *buffer;
    TRY(get_buffer(&buffer));
    remat_status status = REMAT_OK;
    for (uint64_t done = 0, n; !status && (n = next_bytes(done, bytes)) > 0; done += n) {
        status = read_numbers(file, array, (from + done) / sizeof(float), n / sizeof(float), buffer);
        if (!status) status = put(session, kind, index, first + done, buffer, n, file);
    }
    rm_free(buffer);
    return status;
}

remat_status rm_stream_columns(const rm_safetensors *file, const rm_st_array *array, int64_t first, int64_t count,
                               float *column, float *rows) {
    const int64_t n = array->dim[0], m = array->dim[1];
    for (int64_t i = 0; i < n; i++) {
        TRY(read_numbers(file, array, (uint64_t)(i * m + first), (uint64_t)count, column));
        for (int64_t j = 0; j < count; j++) rows[j * n + i] = column[j];
    }
    return REMAT_OK;
}

remat_status rm_stream_in_transposed(remat_session *session, remat_kind kind, int64_t index, const rm_safetensors *file,
                                     const rm_st_array *array) {
    const int64_t n = array->dim[0], m = array->dim[1], most = RM_STREAM_BYTES / 4 / (n + 1) + 1;
    float *buffer = rm_malloc((size_t)(most * (n + 1)) * sizeof *buffer), *column = buffer + most * n;
    REQUIRE(buffer, MEMORY, "no memory to read %s", file->path);
    remat_status status = REMAT_OK;
    for (int64_t first = 0; first < m && !status; first += most) {
        int64_t count = m - first < most ? m - first : most;
        status = rm_stream_columns(file, array, first, count, column, buffer);
        if (!status)
            status = put(session, kind, index, 4 * (uint64_t)(first * n), buffer, 4 * (uint64_t)(count * n), file);
    }
    rm_free(buffer);
    return status;
}

remat_status rm_stream_copy(remat_session *from, remat_session *to, remat_kind kind, int64_t index) {
    remat_array array;
    void *buffer;
    TRY(remat_array_info(from, kind, index, &array));
    TRY(get_buffer(&buffer));
    remat_status status = REMAT_OK;
    for (uint64_t done = 0, n; !status && (n = next_bytes(done, array.bytes)) > 0; done += n) {
        status = remat_read_part(from, kind, index, done, buffer, n);
        if (!status) status = remat_write_part(to, kind, index, done, buffer, n);
    }
    rm_free(buffer);
    return status;
}
