/* tensorboard.c: see tensorboard.h. An event file is a sequence of records, each with a Protocol Buffers message:
 *
 *   | length, 8 bytes LE | checksum of that, 4 | message | checksum of the message, 4 |
 *
 *   Event       wall_time = 1 (double), step = 2 (varint), file_version = 3 (string), summary = 5, session_log = 7
 *   Summary     value = 1, repeated
 *   Value       tag = 1 (string), simple_value = 2 (float)
 *   SessionLog  status = 1 (varint; 1: START)
 *
 * (tensorflow/core/util/event.proto, framework/summary.proto, lib/io/record_writer.h.) A field starts with a byte: its
 * number times 8, plus 0 for a varint, 1 for 8 bytes, 2 for a length and that many bytes, 5 for 4 bytes. */
#include "train/report/tensorboard.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Checksums -------------------------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli's polynomial, reflected), masked like TFRecord's, because a checksum of data with checksums is
 * weak. */
static uint32_t masked_crc(const uint8_t *data, size_t bytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- Messages --------------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t data[512]; /* enough: five values with the longest of the tags below take a third of it */
    size_t n;
} message;

static void put_bytes(message *m, const void *data, size_t bytes) {
    memcpy(m->data + m->n, data, bytes);
    m->n += bytes;
}

static void put_little(message *m, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) put_bytes(m, &(uint8_t){(uint8_t)(value >> (8 * i))}, 1);
}

static void put_varint(message *m, uint64_t value) {
    for (; value >= 0x80; value >>= 7) put_little(m, (value & 0x7f) | 0x80, 1);
    put_little(m, value, 1);
}

static void put_count(message *m, int field, uint64_t value) {
    put_varint(m, (uint64_t)field << 3);
    put_varint(m, value);
}
static void put_double(message *m, int field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_varint(m, (uint64_t)field << 3 | 1);
    put_little(m, bits, 8);
}
static void put_float(message *m, int field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_varint(m, (uint64_t)field << 3 | 5);
    put_little(m, bits, 4);
}
static void put_block(message *m, int field, const void *data, size_t bytes) {
    put_varint(m, (uint64_t)field << 3 | 2);
    put_varint(m, bytes);
    put_bytes(m, data, bytes);
}

static void put_value(message *summary, const char *tag, double number) {
    message value = {0};
    put_block(&value, 1, tag, strlen(tag));
    put_float(&value, 2, (float)number);
    put_block(summary, 1, value.data, value.n);
}

/* ---- Records ---------------------------------------------------------------------------------------------------- */

static message begin_event(int64_t step) {
    struct timespec now;
    message event = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    put_double(&event, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    put_count(&event, 2, (uint64_t)step);
    return event;
}

/* Writes a record at once, so that a reader does not see half of it unless the disk is full. */
static remat_status write_record(rm_tensorboard *board, const message *event) {
    message head = {0};
    uint8_t record[sizeof event->data + 16];
    put_little(&head, event->n, 8);
    put_little(&head, masked_crc(head.data, 8), 4);
    memcpy(record, head.data, 12);
    memcpy(record + 12, event->data, event->n);
    message tail = {0};
    put_little(&tail, masked_crc(event->data, event->n), 4);
    memcpy(record + 12 + event->n, tail.data, 4);
    remat_status status = rm_file_write(&board->writer, record, event->n + 16);
    if (status) rm_file_abandon(&board->writer);
    return status;
}

static remat_status write_summary(rm_tensorboard *board, int64_t step, const message *summary) {
    message event = begin_event(step);
    put_block(&event, 5, summary->data, summary->n);
    return write_record(board, &event);
}

/* ---- The file --------------------------------------------------------------------------------------------------- */

/* The first record has the format. In a resumed run, the next one tells TensorBoard to drop earlier values from that
 * step on. */
static remat_status begin_file(rm_tensorboard *board, int64_t resumed_step) {
    static const char version[] = "brain.Event:2";
    message first = begin_event(0), start = begin_event(resumed_step + 1), log = {0};
    put_block(&first, 3, version, strlen(version));
    TRY(write_record(board, &first));
    if (!resumed_step) return REMAT_OK;
    put_count(&log, 1, 1);
    put_block(&start, 7, log.data, log.n);
    return write_record(board, &start);
}

remat_status rm_tensorboard_open(const char *directory, const rm_metrics_run *run, rm_tensorboard *out) {
    char host[256] = "", name[400];
    out->writer.fd = -1;
    if (!directory) return REMAT_OK;
    TRY(rm_directory_make(directory, "tensorboard"));
    if (gethostname(host, sizeof host - 1)) strcpy(host, "host");
    snprintf(name, sizeof name, "events.out.tfevents.%" PRId64 ".%s.%ld", (int64_t)time(NULL), host, (long)getpid());
    TRY(rm_path_join(out->path, sizeof out->path, directory, name));
    remat_status status = rm_file_create(out->path, &out->writer);
    if (status) return rm_fail(status, "%s: give another directory with --tensorboard", remat_last_error());
    return begin_file(out, run->resumed_step);
}

remat_status rm_tensorboard_step(rm_tensorboard *board, const rm_step_event *e) {
    message summary = {0};
    if (board->writer.fd < 0) return REMAT_OK;
    if (e->computed) {
        put_value(&summary, "train/loss", e->loss);
        put_value(&summary, "train/grad_norm", e->grad_norm);
    }
    if (e->accuracy >= 0) put_value(&summary, "train/accuracy", e->accuracy);
    put_value(&summary, "train/lr", e->lr);
    put_value(&summary, "train/tokens_per_s", e->tokens_per_s);
    return write_summary(board, e->step, &summary);
}

remat_status rm_tensorboard_eval(rm_tensorboard *board, const rm_eval_event *e) {
    message summary = {0};
    if (board->writer.fd < 0) return REMAT_OK;
    for (int i = 0; i < RM_SCORES; i++) {
        char name[64];
        bool drawn = i == RM_LOSS || (rm_scores[i].share && isfinite(e->score[i]));
        snprintf(name, sizeof name, "eval/%s", rm_scores[i].name);
        if (e->has[i] && drawn) put_value(&summary, name, e->score[i]);
    }
    return write_summary(board, e->step, &summary);
}

remat_status rm_tensorboard_close(rm_tensorboard *board) { return rm_file_finish(&board->writer); }
