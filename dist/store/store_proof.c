/* store_proof.c: the proofs of the job's secret that the two ends of a store exchange (store_kind.h). */
#include <string.h>
#include <sys/random.h>

#include "dist/store/store_kind.h"

bool rm_kv_nonce(uint8_t nonce[RM_KV_NONCE_BYTES]) {
    return getrandom(nonce, RM_KV_NONCE_BYTES, 0) == RM_KV_NONCE_BYTES;
}

void rm_kv_proof(const char *secret, const char *end, const rm_kv_meeting *meeting, uint8_t proof[RM_HMAC_BYTES]) {
    char said[32 + sizeof *meeting] = "remat store ";
    strncat(said, end, 16);
    memcpy(said + 32, meeting, sizeof *meeting);
    rm_hmac(secret ? secret : "", secret ? strlen(secret) : 0, said, sizeof said, proof);
}

void rm_kv_token(const char *secret, uint8_t token[RM_KV_TOKEN_BYTES]) {
    static const char said[] = "remat store file";
    uint8_t mac[RM_HMAC_BYTES];
    rm_hmac(secret ? secret : "", secret ? strlen(secret) : 0, said, sizeof said, mac);
    memcpy(token, mac, RM_KV_TOKEN_BYTES);
}
