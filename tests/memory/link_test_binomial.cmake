target_sources(${target} PRIVATE memory/binomial.c)
