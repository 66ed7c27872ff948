/* strategies.c: the list of strategies, from strategies.def. */
#include "memory/strategy.h"

#include <string.h>

#define STRATEGY(name) extern const rm_strategy rm_strategy_##name;
#include "memory/strategies.def"
#undef STRATEGY

#define STRATEGY(name) &rm_strategy_##name,
const rm_strategy *const rm_strategies[] = {
#include "memory/strategies.def"
};
#undef STRATEGY

const int rm_n_strategies = sizeof rm_strategies / sizeof rm_strategies[0];

const rm_strategy *rm_strategy_find(const char *name) {
    for (int i = 0; i < rm_n_strategies; i++)
        if (!strcmp(rm_strategies[i]->name, name)) return rm_strategies[i];
    return NULL;
}
