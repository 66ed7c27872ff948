/* test_hmac.c: HMAC-SHA256 compared with the test vectors of RFC 4231, and with Python at every length around a
 * block. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/store/hmac.h"
#include "tests/suite.h"

static const char *hex(const uint8_t *bytes, size_t n) {
    static char text[2 * RM_HMAC_BYTES + 1];
    for (size_t i = 0; i < n; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

#define TIMES(n, byte)                                                                                                 \
    (input) { .bytes = n, .fill = byte }
#define TEXT(words)                                                                                                    \
    (input) { .text = words }
typedef struct {
    const char *text;
    size_t bytes; /* if there is no text: this many bytes of `fill` */
    uint8_t fill;
} input;

/* RFC 4231, sections 4.2 to 4.8. Key 4 is 01 02 ... 19; result 5 is cut to 128 bits. */
static const struct {
    input key, data;
    const char *mac;
} vectors[] = {
    {TIMES(20, 0x0b), TEXT("Hi There"), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
    {TEXT("Jefe"), TEXT("what do ya want for nothing?"),
     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
    {TIMES(20, 0xaa), TIMES(50, 0xdd), "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
    {TEXT("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19"),
     TIMES(50, 0xcd), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
    {TIMES(20, 0x0c), TEXT("Test With Truncation"), "a3b6167473100ee06e0c796c2955552b"},
    {TIMES(131, 0xaa), TEXT("Test Using Larger Than Block-Size Key - Hash Key First"),
     "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    {TIMES(131, 0xaa),
     TEXT("This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
          "hashed before being used by the HMAC algorithm."),
     "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
};

static size_t spell(const input *in, uint8_t *out) {
    if (!in->text) return memset(out, in->fill, in->bytes), in->bytes;
    return memcpy(out, in->text, strlen(in->text)), strlen(in->text);
}

START_TEST(rfc_4231_vectors_match) {
    uint8_t key[200], data[200], mac[RM_HMAC_BYTES];
    size_t key_bytes = spell(&vectors[_i].key, key), bytes = spell(&vectors[_i].data, data);
    rm_hmac(key, key_bytes, data, bytes, mac);
    ck_assert_str_eq(hex(mac, strlen(vectors[_i].mac) / 2), vectors[_i].mac);
}
END_TEST

/* hmac.new(b"k" * n, bytes(range(n)), "sha256") for n = 0 ... 199, combined into one. */
START_TEST(all_lengths_around_a_block_match) {
    uint8_t key[200] = {0}, data[200] = {0}, mac[RM_HMAC_BYTES], sum[RM_HMAC_BYTES] = {0}, both[2 * RM_HMAC_BYTES];
    for (size_t n = 0; n < sizeof data; n++) {
        memset(key, 'k', n);
        for (size_t i = 0; i < n; i++) data[i] = (uint8_t)i;
        rm_hmac(key, n, data, n, mac);
        memcpy(both, sum, sizeof sum);
        memcpy(both + sizeof sum, mac, sizeof mac);
        rm_hmac(NULL, 0, both, sizeof both, sum);
    }
    ck_assert_str_eq(hex(sum, sizeof sum), "725a0990e80215419c86256cdc00dbc7b056022a09bbb509ddf6da92bd519fc9");
}
END_TEST

START_TEST(every_bit_changes_the_result) {
    uint8_t a[RM_HMAC_BYTES] = {0}, b[RM_HMAC_BYTES] = {0};
    ck_assert(rm_hmac_same(a, b));
    for (int bit = 0; bit < 8 * RM_HMAC_BYTES; bit++) {
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert(!rm_hmac_same(a, b));
        b[bit / 8] = 0;
    }
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("hmac");
    tcase_add_loop_test(cases, rfc_4231_vectors_match, 0, sizeof vectors / sizeof *vectors);
    tcase_add_test(cases, all_lengths_around_a_block_match);
    tcase_add_test(cases, every_bit_changes_the_result);
    return run_cases("dist/hmac", cases);
}
