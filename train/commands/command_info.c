/* command_info.c: `remat info`: what this build contains and what it found on this machine. */
#include "engine/abi.h"
#include "train/commands/commands.h"

#include "dist/group/group_auto.h"
#include "memory/processors.h"
#include "train/data/decode.h"
#include "train/file.h"
#include "train/text.h"

#include <jansson.h>
#include <zlib.h>

enum { LIBRARY = 512 };

/* A missing engine is not an error: its line says why it is missing. */
static void print_engines(void) {
    char library[LIBRARY];
    for (int i = 0; rm_engine_names[i]; i++) {
        bool found = !rm_engine_library(rm_engine_names[i], library, sizeof library);
        printf("%-16s %-6s %s\n", i ? "" : "ranks", rm_engine_names[i], found ? library : remat_last_error());
    }
}

static json_t *engines_object(void) {
    char library[LIBRARY];
    json_t *engines = json_object();
    for (int i = 0; rm_engine_names[i]; i++) {
        bool found = !rm_engine_library(rm_engine_names[i], library, sizeof library);
        json_object_set_new(engines, rm_engine_names[i], found ? json_string(library) : json_null());
    }
    return engines;
}

static void print_processors(void) {
    const rm_processors *p = rm_processors_get();
    printf("processors       %d", p->usable);
    if (p->quota > 0) printf(" (%d in the affinity mask; time for %g, by %s)", p->allowed, p->quota, p->limit);
    printf("\n");
}

static json_t *processors_object(void) {
    const rm_processors *p = rm_processors_get();
    return json_pack("{s:i, s:i, s:f, s:s}", "usable", p->usable, "in_affinity_mask", p->allowed, "quota", p->quota,
                     "quota_file", p->limit);
}

static void print_text(const remat_build_info *b) {
    char allocated[RM_TEXT], resident[RM_TEXT], peak[RM_TEXT];
    printf("remat %s, built with %s\n", b->version, b->compiler);
    printf("devices          %s\n", b->devices);
    printf("instruction set  %s\n", b->instruction_set);
    print_processors();
    printf("threads          %d\n", b->threads);
    printf("matrix products  %s\n", b->gemm_library);
    printf("host memory      %s: %s allocated, %s resident; process peak %s\n", b->host_allocator,
           rm_bytes_text(b->host_allocated_bytes, allocated), rm_bytes_text(b->host_resident_bytes, resident),
           rm_bytes_text(rm_rss_peak_bytes(), peak));
    printf("files            jansson %s, zlib %s\n", jansson_version_str(), zlibVersion());
    printf("JPEG files       %s\n", rm_jpeg_library());
    printf("PNG files        %s\n", rm_png_library());
    print_engines();
}

static remat_status print_json(const remat_build_info *b) {
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:s, s:s}", "version", b->version,
                  "compiler", b->compiler, "devices", b->devices, "instruction_set", b->instruction_set, "threads",
                  b->threads, "gemm_library", b->gemm_library, "host_allocator", b->host_allocator,
                  "host_allocated_bytes", (json_int_t)b->host_allocated_bytes, "host_resident_bytes",
                  (json_int_t)b->host_resident_bytes, "rss_peak_bytes", (json_int_t)rm_rss_peak_bytes(), "jansson",
                  jansson_version_str(), "zlib", zlibVersion(), "jpeg", rm_jpeg_library(), "png", rm_png_library());
    REQUIRE(root, MEMORY, "no memory for a JSON object");
    json_object_set_new(root, "processors", processors_object());
    json_object_set_new(root, "engines", engines_object());
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
    return REMAT_OK;
}

remat_status rm_command_info(rm_options *options, int *exit_status) {
    (void)exit_status;
    remat_build_info build = rm_build_info_of_this();
    if (options->json)
        TRY(print_json(&build));
    else
        print_text(&build);
    return rm_file_flush_output();
}
