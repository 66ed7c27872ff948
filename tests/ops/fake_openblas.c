/* fake_openblas.c: a stand-in for OpenBLAS, for test_openblas.c. It is built once for each spelling of OpenBLAS's names
 * (PREFIX, SUFFIX) and width of its indices (INDEX), and counts the products that it is asked for. */
#include <stdint.h>

#define JOIN_(prefix, name, suffix) prefix##name##suffix
#define JOIN(prefix, name, suffix) JOIN_(prefix, name, suffix)
#define NAMED(name) JOIN(PREFIX, name, SUFFIX)

int fake_products, fake_threads = 4;

enum { TRANSPOSED = 112 };

void NAMED(cblas_sgemm)(int order, int a_is, int b_is, INDEX m, INDEX n, INDEX k, float alpha, const float *a,
                        INDEX lda, const float *b, INDEX ldb, float beta, float *c, INDEX ldc);
void NAMED(cblas_sgemm)(int order, int a_is, int b_is, INDEX m, INDEX n, INDEX k, float alpha, const float *a,
                        INDEX lda, const float *b, INDEX ldb, float beta, float *c, INDEX ldc) {
    (void)order;
    __atomic_add_fetch(&fake_products, 1, __ATOMIC_RELAXED);
    for (INDEX i = 0; i < m; i++)
        for (INDEX j = 0; j < n; j++) {
            float sum = 0;
            for (INDEX p = 0; p < k; p++)
                sum += a[a_is == TRANSPOSED ? p * lda + i : i * lda + p] *
                       b[b_is == TRANSPOSED ? j * ldb + p : p * ldb + j];
            c[i * ldc + j] = alpha * sum + (beta == 0 ? 0 : beta * c[i * ldc + j]);
        }
}

const char *NAMED(openblas_get_config)(void);
const char *NAMED(openblas_get_config)(void) { return sizeof(INDEX) == 8 ? "Fake USE64BITINT" : "Fake"; }
int NAMED(openblas_get_num_threads)(void);
int NAMED(openblas_get_num_threads)(void) { return fake_threads; }
void NAMED(openblas_set_num_threads)(int n);
void NAMED(openblas_set_num_threads)(int n) { fake_threads = n; }
