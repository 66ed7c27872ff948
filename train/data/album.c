/* album.c: from a name to the kind of album. See album.h. */
#include "train/data/album.h"

#include <string.h>
#include <sys/stat.h>

static bool is_folder(const char *path) {
    struct stat at;
    return !stat(path, &at) && S_ISDIR(at.st_mode);
}

static bool ends(const char *path, const char *with) {
    size_t length = strlen(path), n = strlen(with);
    return length > n && !strcmp(path + length - n, with);
}

remat_status rm_album_open(const rm_data_source *source, rm_album **out) {
    const char *path = source->data;
    if (is_folder(path))
        return rm_album_is_cifar(path) ? rm_album_open_cifar(source, out) : rm_album_open_folder(source, out);
    return ends(path, ".bin") ? rm_album_open_cifar(source, out) : rm_album_open_array(source, out);
}

void rm_album_close(rm_album *album) {
    if (album) album->close(album);
}
