/* usual.h: what an optimizer's numbers are where nobody says them: PyTorch's defaults, but for the rate of sgd, which has none there, and
 * lars, which has MLPerf's. */
#ifndef RM_USUAL_H
#define RM_USUAL_H

typedef struct {
    const char *optimizer;
    double lr, epsilon, alpha;
} rm_usual;

const rm_usual *rm_usual_of(const char *optimizer);

#endif
