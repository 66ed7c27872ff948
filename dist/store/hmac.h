/* hmac.h: HMAC-SHA256 (RFC 2104, FIPS 180-4): how two ends show each other that they know a secret, and do not tell it. A page
 * of C with published vectors, once for each connection: libcrypto would be five megabytes that every build, installation and
 * start of a rank pays for. */
#ifndef RM_HMAC_H
#define RM_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RM_HMAC_BYTES 32

void rm_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t out[RM_HMAC_BYTES]);

/* In a time that does not tell where they differ. */
bool rm_hmac_same(const uint8_t a[RM_HMAC_BYTES], const uint8_t b[RM_HMAC_BYTES]);

#endif
