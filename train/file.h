/* file.h: reads whole files, and writes files in a way that detects a full disk. The parsers (idx, npy, options,
 * safetensors) work on memory; this file reads files into memory. Every error message names the path. */
#ifndef RM_FILE_H
#define RM_FILE_H

#include "engine/status.h"

#include <sys/types.h>

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

/* Reads the whole file, unpacked if it is gzip, and appends a zero byte that `size` does not count; free *data with rm_free.
 * IO: missing, damaged, or longer than `limit` bytes. */
remat_status rm_file_read(const char *path, uint64_t limit, uint8_t **data, size_t *size);
/* The same for at most the first `most` bytes; later bytes are not checked. */
remat_status rm_file_read_first(const char *path, uint64_t most, uint8_t **data, size_t *size);

/* The start of a file, from which its format is recognised. */
typedef struct {
    uint64_t file_bytes; /* on disk */
    bool packed;         /* gzip */
    size_t size;
    uint8_t data[1 << 16]; /* unpacked; as much as exists, or fits */
} rm_file_start;
remat_status rm_file_begin(const char *path, rm_file_start **out); /* rm_free it */

/* Opens a plain file for rm_file_read_at; IO when it is missing, or is a directory or a pipe. */
remat_status rm_file_open(const char *path, int *fd, uint64_t *size);
/* Exactly `bytes` bytes at `offset`; IO also when the file has become shorter. */
remat_status rm_file_read_at(int fd, const char *path, uint64_t offset, void *data, size_t bytes);
/* The length and zlib's CRC-32 of a file on disk. */
remat_status rm_file_checksum(const char *path, uint64_t *bytes, uint32_t *crc);

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

typedef struct {
    int fd; /* -1: closed */
    const char *path;
    uint64_t bytes;
    uint32_t crc32; /* of everything written, zlib's */
    char *target;   /* the file that TARGET.unfinished will replace; NULL: `path` is written directly */
} rm_file_writer;

/* Creates a file, replacing a plain file. Never writes through a link, nor to a pipe or a device, which anyone with write access to the
 * directory could have put there. `path` is borrowed while it is open. */
remat_status rm_file_create(const char *path, rm_file_writer *out);
/* Opens a device or a pipe by a name that the user gave. Follows links, because /dev/stdout is one. IO: anything else. */
remat_status rm_file_open_stream(const char *path, rm_file_writer *out);
/* For a file that the user named. A new file takes its place when rm_file_finish has written all of it; rm_file_abandon leaves the old
 * one as it was. Replaces what a link points to. Opens a device or a pipe as rm_file_open_stream does. */
remat_status rm_file_replace(const char *path, rm_file_writer *out);
remat_status rm_file_write(rm_file_writer *writer, const void *data, size_t bytes);
/* fsync, then close. Call rm_file_abandon instead after a failure; both may be called on a closed writer. */
remat_status rm_file_finish(rm_file_writer *writer);
void rm_file_abandon(rm_file_writer *writer);
/* IO, from errno: "cannot VERB PATH: ...", with a remedy if the disk is full. */
remat_status rm_file_failed(const char *verb, const char *path);
/* Whether a write has failed for lack of room (a full disk, a quota, a file-size limit) since rm_file_forget_no_room. */
bool rm_file_had_no_room(void);
void rm_file_forget_no_room(void);
void rm_file_remove(const char *path); /* if it is a plain file: never a device such as /dev/full */

/* Flushes stdout; IO: it could not be written, for example redirected to a full disk. */
remat_status rm_file_flush_output(void);

/* Also creates missing parent directories. `flag` is the flag that named it, for the message. */
remat_status rm_directory_make(const char *path, const char *flag);
remat_status rm_directory_sync(const char *path); /* makes renames inside it survive a power cut */
bool rm_path_same(const char *a, const char *b);  /* the same place, by any name or link; it need not exist */
bool rm_path_exists(const char *path);
bool rm_path_is_file(const char *path); /* a regular file: not a directory, device or pipe */
bool rm_path_is_directory(const char *path);
/* "directory/name" into `out`; INVALID when it does not fit. */
remat_status rm_path_join(char *out, size_t out_bytes, const char *directory, const char *name);

bool rm_path_has_program(const char *name); /* whether PATH has an executable file of this name */
/* The path of this program's executable; false, with errno set: it is gone or not executable. */
bool rm_path_of_program(char *out, size_t out_bytes);
/* The words of this process's command line, ended by NULL; one block, freed with rm_free. */
remat_status rm_program_words(char ***out);

#define RM_PATH_BYTES 4096

#endif
