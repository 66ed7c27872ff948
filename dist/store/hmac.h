/* hmac.h: HMAC-SHA256 (RFC 2104, FIPS 180-4), with which two ends prove that they know a secret without revealing it.
 * It is a page of C, tested with published vectors, and runs once per connection. libcrypto would add five megabytes to
 * every build, installation and start of a rank. */
#ifndef RM_HMAC_H
#define RM_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RM_HMAC_BYTES 32

void rm_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t out[RM_HMAC_BYTES]);

/* Takes the same time wherever they differ. */
bool rm_hmac_same(const uint8_t a[RM_HMAC_BYTES], const uint8_t b[RM_HMAC_BYTES]);

#endif
