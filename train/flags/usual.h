/* usual.h: default settings of the optimizers: PyTorch's, except for the learning rate of sgd, which PyTorch
 * requires, and for lars, which has MLPerf's. */
#ifndef RM_USUAL_H
#define RM_USUAL_H

typedef struct {
    const char *optimizer; /* NULL: of those without a row */
    double lr, epsilon, alpha;
} rm_usual;

const rm_usual *rm_usual_of(const char *optimizer);

/* A flag's default, and how it differs between optimizers: "0.001; sgd 0.1, lars 1"; "": it is the same for all. */
#define RM_USUAL_BYTES 160
const char *rm_usual_text(const char *flag, char text[RM_USUAL_BYTES]);

#endif
