/* album_folder.c */
#include "train/data/album.h"
remat_status rm_album_open_folder(const rm_data_source *source, rm_album **out) {
    (void)out;
    FAIL(INVALID, "%s is a folder", source->data);
}
