/* album.c: from a name to the kind of album. See album.h. */
#include "train/data/album.h"

#include "train/file.h"

#include <glob.h>
#include <string.h>
#include <sys/stat.h>

static bool is_folder(const char *path) {
    struct stat at;
    return !stat(path, &at) && S_ISDIR(at.st_mode);
}

static bool has_batches(const char *folder) {
    char pattern[RM_PATH_BYTES];
    glob_t found = {0};
    bool there = !rm_path_join(pattern, sizeof pattern, folder, "data_batch_*.bin") && !glob(pattern, 0, NULL, &found);
    globfree(&found);
    return there;
}

static bool ends(const char *path, const char *with) {
    size_t length = strlen(path), n = strlen(with);
    return length > n && !strcmp(path + length - n, with);
}

remat_status rm_album_open(const rm_data_source *source, rm_album **out) {
    const char *path = source->data;
    if (is_folder(path))
        return has_batches(path) ? rm_album_open_cifar(source, out) : rm_album_open_folder(source, out);
    return ends(path, ".bin") ? rm_album_open_cifar(source, out) : rm_album_open_array(source, out);
}

void rm_album_close(rm_album *album) {
    if (album) album->close(album);
}
